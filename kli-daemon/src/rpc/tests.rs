//! The socket as clients see it, over real Unix sockets and a service of the tests' own.

mod frames;
mod http;
mod life;
mod order;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use kli_protocol::api::{self, PingResult, RegisterToolsParams, SessionInfo, SessionState, SubscribeParams};
use kli_protocol::{ApiError, ErrorKind, PROTOCOL_VERSION};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use super::*;

/// What a test may wait for in all. Only a failing test does.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service that notes what reaches it.
#[derive(Debug)]
struct Fake {
    notes: Mutex<Vec<String>>,
    noted: Notify,
    /// Ends the calls of `waitRun`.
    release: CancellationToken,
    events: broadcast::Sender<Arc<str>>,
}

impl Fake {
    fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap().push(text.into());
        self.noted.notify_waiters();
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    async fn noted(&self, text: &str) {
        let seen = async {
            loop {
                let next = self.noted.notified();
                if self.notes().iter().any(|note| note == text) {
                    return;
                }
                next.await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.notes()));
    }
}

impl Service for Fake {
    fn subscribe(&self, caller: Caller, params: SubscribeParams) -> BoxFuture<'static, Result<Feed, ApiError>> {
        caller.turn.done();
        let endless = params.types == Some(vec!["endless".to_owned()]);
        let live = self.events.subscribe();
        async move {
            if params.session_id.as_deref() == Some("missing") {
                return Err(ApiError::new(ErrorKind::SessionNotFound, "there is no session missing"));
            }
            if endless {
                let event: Arc<str> = json!({ "type": "textDelta", "delta": "x".repeat(1000) }).to_string().into();
                return Ok(stream::repeat(event).boxed());
            }
            let snapshot: Arc<str> = json!({ "type": "snapshot", "seq": 1 }).to_string().into();
            let rest = stream::unfold(live, |mut live| async { Some((live.recv().await.ok()?, live)) });
            Ok(stream::iter([snapshot]).chain(rest).boxed())
        }
        .boxed()
    }

    fn register_tools(&self, _: Caller, params: RegisterToolsParams) -> BoxFuture<'static, Result<Feed, ApiError>> {
        let calls: Vec<Arc<str>> =
            params.tools.iter().map(|tool| json!({ "callId": tool.name }).to_string().into()).collect();
        std::future::ready(Ok(stream::iter(calls).chain(stream::pending()).boxed())).boxed()
    }

    fn closed(&self, connection: u64) {
        self.note(format!("closed {connection}"));
    }
}

fn module(service: Arc<Fake>) -> Module<Fake> {
    let mut module = Module::new(service);
    register::<api::Ping, _, _>(&mut module, |_: Arc<Fake>, _, _| async move {
        Ok(PingResult { version: "test".to_owned(), protocol_version: PROTOCOL_VERSION, pid: std::process::id() })
    });
    register::<api::GetSession, _, _>(&mut module, |_: Arc<Fake>, _, params| async move {
        match params.session_id.as_str() {
            "panic" => panic!("on purpose"),
            "missing" => Err(ApiError::new(ErrorKind::SessionNotFound, "there is no session missing")),
            id => Ok(SessionState {
                info: SessionInfo { session_id: id.to_owned(), title: "a\u{2028}b".to_owned(), ..Default::default() },
                ..Default::default()
            }),
        }
    });
    register::<api::SetSessionName, _, _>(&mut module, |service: Arc<Fake>, caller, params| async move {
        // Others get their chance to overtake.
        tokio::task::yield_now().await;
        service.note(&params.name);
        caller.turn.done();
        Ok(SessionInfo { name: Some(params.name), ..Default::default() })
    });
    register::<api::CreateSession, _, _>(&mut module, |service: Arc<Fake>, _, params| async move {
        tokio::task::yield_now().await;
        service.note(format!("made {}", params.session_id.as_deref().unwrap_or_default()));
        Ok(SessionInfo { work_dir: params.work_dir, ..Default::default() })
    });
    register::<api::WaitRun, _, _>(&mut module, |service: Arc<Fake>, caller, params| async move {
        caller.turn.done();
        service.note(format!("waiting {}", params.session_id));
        service.release.cancelled().await;
        service.note(format!("released {}", params.session_id));
        Ok(None)
    });
    register::<api::Initialize, _, _>(&mut module, |service: Arc<Fake>, caller, params| async move {
        let before = caller.client.info.lock().unwrap().replace(params.client_info);
        service.note(format!("connection {} was {}", caller.connection, before.unwrap_or_default().name));
        Err(ApiError::invalid_params("only to see who calls"))
    });
    module
}

/// A server of the tests' own, stopped and joined by [`Served::stop`].
struct Served {
    _dir: tempfile::TempDir,
    path: PathBuf,
    service: Arc<Fake>,
    connections: Connections,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
}

impl Served {
    fn start() -> Served {
        Served::with(Limits::default())
    }

    fn with(limits: Limits) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kli/s");
        prepare(&path).unwrap();
        let bound = bind(&path).unwrap();
        let service = Arc::new(Fake {
            notes: Mutex::default(),
            noted: Notify::new(),
            release: CancellationToken::new(),
            events: broadcast::channel(1024).0,
        });
        let (connections, stop) = (Connections::default(), CancellationToken::new());
        let server =
            Server { module: module(service.clone()), limits, connections: connections.clone(), stop: stop.clone() };
        let server = tokio::spawn(server.run(bound));
        Served { _dir: dir, path, service, connections, stop, server }
    }

    async fn connect(&self) -> Client {
        Client { socket: UnixStream::connect(&self.path).await.unwrap(), unread: Vec::new() }
    }

    /// Sends, closes the sending half, and gives all that comes until the daemon closes.
    async fn exchange(&self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.end().await
    }

    async fn exchange_lines(&self, bytes: impl AsRef<[u8]>) -> Vec<Value> {
        lines(&self.exchange(bytes).await)
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.server).await.unwrap().unwrap();
        assert!(!self.path.exists(), "the socket is removed");
        assert_eq!(self.connections.count(), 0);
    }
}

fn lines(bytes: &[u8]) -> Vec<Value> {
    String::from_utf8(bytes.to_vec()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

struct Client {
    socket: UnixStream,
    unread: Vec<u8>,
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn call(&mut self, id: u64, method: &str, params: Value) {
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(format!("{call}\n")).await;
    }

    async fn line(&mut self) -> Value {
        serde_json::from_str(&self.text_line().await).unwrap()
    }

    async fn text_line(&mut self) -> String {
        let read = async {
            loop {
                if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.unread.drain(..=end).collect();
                    return String::from_utf8(line).unwrap();
                }
                assert_ne!(self.socket.read_buf(&mut self.unread).await.unwrap(), 0, "closed");
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }

    /// Closes the sending half and reads to the end.
    async fn end(mut self) -> Vec<u8> {
        self.socket.shutdown().await.unwrap();
        self.rest().await
    }

    async fn rest(mut self) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.unread);
        tokio::time::timeout(PATIENCE, self.socket.read_to_end(&mut all)).await.unwrap().unwrap();
        all
    }
}

const PING: &str = r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#;

fn is_pong(reply: &Value, id: Value) -> bool {
    reply["id"] == id && reply["result"]["protocolVersion"] == 1
}

/// A reply in short: its id, and its error's code or `ok`.
fn short(reply: &Value) -> String {
    match reply {
        Value::Array(replies) => format!("[{}]", replies.iter().map(short).collect::<Vec<_>>().join(", ")),
        _ => match reply["error"]["code"].as_i64() {
            Some(code) => format!("{} {code}", reply["id"]),
            None => format!("{} ok", reply["id"]),
        },
    }
}
