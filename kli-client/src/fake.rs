//! A daemon for tests: a real Unix socket, newline framing, and a few methods with the answers that a daemon gives.
//!
//! What a test wants otherwise it says by [`Script`]. The same file serves the tests of the library, of the program's modules, and of the whole program.

#![allow(dead_code, reason = "each of those that include it uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub const SESSION: &str = "01900000-0000-7000-8000-00000000abcd";

/// How one call is answered.
pub enum Reply {
    Result(Value),
    Error(Value),
    /// Events first, then the result.
    Run(Vec<Value>, Value),
    /// Not at all.
    Never,
    /// The connection is closed instead.
    Hangup,
}

type Script = dyn Fn(&str, &Value) -> Option<Reply> + Send + Sync;

/// A running fake. Dropping it closes everything.
pub struct Fake {
    pub path: PathBuf,
    dir: tempfile::TempDir,
    shared: Arc<Shared>,
    task: JoinSet<()>,
}

struct Shared {
    script: Box<Script>,
    /// What was called, in order. A mutex, as tests look in from outside.
    calls: Mutex<Vec<(String, Value)>>,
    /// Every event so far; subscribers replay from it.
    events: Mutex<Vec<Value>>,
    news: watch::Sender<usize>,
    /// Raised to cut all connections.
    cut: watch::Sender<u64>,
    protocol: u32,
    /// Events sent on one connection before it is cut.
    cut_after: Option<usize>,
}

pub struct Options {
    pub protocol: u32,
    pub cut_after: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { protocol: 1, cut_after: None }
    }
}

impl Fake {
    pub fn start(script: impl Fn(&str, &Value) -> Option<Reply> + Send + Sync + 'static) -> Fake {
        Fake::with(Options::default(), script)
    }

    pub fn with(options: Options, script: impl Fn(&str, &Value) -> Option<Reply> + Send + Sync + 'static) -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kli.sock");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            calls: Mutex::default(),
            events: Mutex::default(),
            news: watch::channel(0).0,
            cut: watch::channel(0).0,
            protocol: options.protocol,
            cut_after: options.cut_after,
        });
        let mut task = JoinSet::new();
        task.spawn(serve(UnixListener::bind(&path).unwrap(), shared.clone()));
        Fake { path, dir, shared, task }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Publishes an event; its number is its place.
    pub fn publish(&self, event: Value) {
        publish(&self.shared, event);
    }

    /// Cuts all connections; new ones are taken.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// Cuts all connections and takes no more, as kill -9 would.
    pub async fn kill(&mut self) {
        self.task.shutdown().await;
        self.cut();
    }

    pub fn calls(&self, method: &str) -> Vec<Value> {
        self.shared.calls.lock().unwrap().iter().filter(|c| c.0 == method).map(|c| c.1.clone()).collect()
    }

    /// Waits until a method was called so many times.
    pub async fn until_called(&self, method: &str, times: usize) {
        while self.calls(method).len() < times {
            tokio::task::yield_now().await;
        }
    }
}

fn publish(shared: &Shared, mut event: Value) {
    let mut events = shared.events.lock().unwrap();
    let seq = events.len() as u64 + 1;
    let fields = event.as_object_mut().unwrap();
    fields.insert("seq".into(), seq.into());
    fields.insert("sessionId".into(), SESSION.into());
    fields.insert("time".into(), "2026-01-01T00:00:00.000Z".into());
    events.push(event);
    shared.news.send_replace(events.len());
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(connection(stream, shared.clone()));
    }
}

async fn connection(stream: UnixStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    cut.mark_unchanged();
    let (reader, mut writer) = stream.into_split();
    let (out, mut lines) = mpsc::channel::<Option<String>>(1024);
    let mut tasks = JoinSet::new();
    let mut requests = BufReader::new(reader).lines();
    let mut subscriptions: HashMap<u64, ()> = HashMap::new();
    loop {
        tokio::select! {
            _ = cut.changed() => return,
            Some(line) = lines.recv() => match line {
                Some(line) => if writer.write_all(format!("{line}\n").as_bytes()).await.is_err() { return },
                None => return,
            },
            request = requests.next_line() => {
                let Ok(Some(request)) = request else { return };
                let request: Value = serde_json::from_str(&request).unwrap();
                let method = request["method"].as_str().unwrap().to_owned();
                let (id, params) = (request["id"].clone(), request["params"].clone());
                shared.calls.lock().unwrap().push((method.clone(), params.clone()));
                let reply = (shared.script)(&method, &params).unwrap_or_else(|| usual(&shared, &method));
                let send = |body: (&str, Value)| json!({"jsonrpc": "2.0", "id": id, body.0: body.1}).to_string();
                match reply {
                    Reply::Never => {}
                    Reply::Hangup => return,
                    Reply::Error(error) => out.send(Some(send(("error", error)))).await.unwrap(),
                    Reply::Run(events, mut result) => {
                        // Each run has an id of its own, as a daemon gives it.
                        let calls = shared.calls.lock().unwrap().iter().filter(|(called, _)| *called == method).count();
                        let run_id = format!("r{calls}");
                        result["runId"] = run_id.clone().into();
                        for mut event in events {
                            event["runId"] = run_id.clone().into();
                            publish(&shared, event);
                        }
                        out.send(Some(send(("result", result)))).await.unwrap();
                    }
                    Reply::Result(result) if method == "subscribe" => {
                        let id = subscriptions.len() as u64 + 1;
                        subscriptions.insert(id, ());
                        let _ = result;
                        out.send(Some(send(("result", id.into())))).await.unwrap();
                        tasks.spawn(feed(shared.clone(), out.clone(), id, params["after"].as_u64()));
                    }
                    Reply::Result(result) => out.send(Some(send(("result", result)))).await.unwrap(),
                }
            }
        }
    }
}

/// Sends a snapshot or what came after, then all that comes.
async fn feed(shared: Arc<Shared>, out: mpsc::Sender<Option<String>>, id: u64, after: Option<u64>) {
    let mut news = shared.news.subscribe();
    let mut at = after.unwrap_or(shared.events.lock().unwrap().len() as u64) as usize;
    let notify = |event: &Value| {
        Some(
            json!({"jsonrpc": "2.0", "method": "sessionEvent", "params": {"subscription": id, "result": event}})
                .to_string(),
        )
    };
    if after.is_none() {
        let snapshot = json!({"seq": at, "sessionId": SESSION, "time": "2026-01-01T00:00:00.000Z", "type": "snapshot", "session": session_state()});
        if out.send(notify(&snapshot)).await.is_err() {
            return;
        }
    }
    let mut sent = 0;
    loop {
        let new: Vec<Value> = shared.events.lock().unwrap().get(at..).unwrap_or_default().to_vec();
        for event in new {
            at += 1;
            if out.send(notify(&event)).await.is_err() {
                return;
            }
            sent += 1;
            if shared.cut_after == Some(sent) {
                let _ = out.send(None).await;
                return;
            }
        }
        if news.changed().await.is_err() {
            return;
        }
    }
}

fn usual(shared: &Shared, method: &str) -> Reply {
    match method {
        "initialize" => Reply::Result(json!({
            "version": "0.1.0", "protocolVersion": shared.protocol, "capabilities": {}, "limits": {"maxMessageBytes": 16777216}
        })),
        "ping" => Reply::Result(json!({"version": "0.1.0", "protocolVersion": shared.protocol, "pid": 1})),
        "createSession" | "continueSession" | "openSession" => Reply::Result(session_info()),
        "getSession" => Reply::Result(session_state()),
        "abort" => Reply::Result(json!({"aborted": true})),
        "listCommands" => Reply::Result(json!({"commands": [{"name": "review", "description": "", "source": "user"}]})),
        "subscribe" => Reply::Result(Value::Null),
        "setMode" | "respondToApproval" | "shutdown" => Reply::Result(json!({})),
        _ => Reply::Error(json!({"code": -32601, "message": format!("there is no method `{method}`")})),
    }
}

pub fn session_info() -> Value {
    json!({
        "sessionId": SESSION, "workDir": "/w", "title": "Untitled", "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z", "persisted": true, "archived": false, "readOnly": false,
        "status": "idle", "warnings": []
    })
}

pub fn session_state() -> Value {
    let mut state = session_info();
    let more = json!({
        "leafId": null, "provider": "demo", "modelId": "offline", "options": {}, "mode": "ask", "trusted": false,
        "interrupted": false, "queue": {"steer": [], "followUp": []}, "pendingApprovals": [],
        "usage": usage(), "context": {"tokens": 0, "window": 1000, "percent": 0.0}
    });
    state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    state
}

pub fn usage() -> Value {
    json!({"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"input": 0.0, "output": 0.0, "cacheRead": 0.0, "cacheWrite": 0.0, "total": 0.0}})
}

/// The events and the result of a run that says `text`.
pub fn run(text: &str) -> Reply {
    let event = |mut body: Value| {
        body.as_object_mut().unwrap().insert("runId".into(), "r1".into());
        body
    };
    let events = vec![
        event(json!({"type": "runStart", "entryId": "e1"})),
        event(json!({"type": "messageStart", "messageId": "m1"})),
        event(json!({"type": "textDelta", "messageId": "m1", "index": 0, "delta": text})),
        event(json!({"type": "messageEnd", "messageId": "m1", "stored": true})),
        event(json!({"type": "aThingOfTheFuture", "runId": "r1", "x": [1, 2]})),
        event(json!({"type": "runEnd", "stopReason": "done", "usage": usage()})),
    ];
    Reply::Run(events, result("done", text))
}

pub fn result(stop: &str, text: &str) -> Value {
    json!({"runId": "r1", "queued": false, "entryId": "e1", "stopReason": stop, "text": text, "leafId": "m1", "usage": usage()})
}
