//! One connection that carries calls: a task that owns both directions, and a bounded queue into it.
//!
//! Notifications are not for this connection (see [`crate::events`]): subscriptions have connections of their
//! own, so a reader of events that is slow holds up no call, and the daemon sees that it is slow.

use std::collections::HashMap;
use std::time::Duration;

use kli_protocol::api::{Initialize, InitializeParams, InitializeResult, Method, Ping, PingResult};
use kli_protocol::error::code;
use kli_protocol::rpc::Incoming;
use kli_protocol::{ApiError, PROTOCOL_VERSION};
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::connector::Connector;
use crate::error::{CallError, ConnectError};
use crate::wire::{LineWire, Lines};

/// Calls that wait for the task to take them.
const QUEUE: usize = 64;
/// No further call is taken while more bytes than this wait to be written.
const OUT_BUFFER: usize = 1 << 20;
const HANDSHAKE: Duration = Duration::from_secs(10);

pub(crate) struct Connection {
    calls: mpsc::Sender<Call>,
    pub(crate) hello: InitializeResult,
    /// Dropping it ends the task.
    _task: JoinSet<()>,
}

struct Call {
    method: String,
    params: Box<RawValue>,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<Box<RawValue>, CallError>>;

/// The call was not sent: the connection had ended before.
pub(crate) struct NotSent(pub(crate) Box<RawValue>);

impl Connection {
    pub(crate) async fn open(connector: &Connector) -> Result<Connection, ConnectError> {
        let wire = connector.wire().await?;
        let (calls, queue) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn(carry(wire, queue));
        let hello = match tokio::time::timeout(HANDSHAKE, handshake(&calls, connector)).await {
            Ok(hello) => hello?,
            Err(_) => {
                return Err(ConnectError::NotOurs { reason: "it accepts connections and does not answer".into() });
            }
        };
        if hello.protocol_version != PROTOCOL_VERSION && !connector.any_protocol {
            let (version, theirs) = (hello.version, hello.protocol_version);
            return Err(ConnectError::Protocol { version, theirs, ours: PROTOCOL_VERSION });
        }
        Ok(Connection { calls, hello, _task: task })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.calls.is_closed()
    }

    pub(crate) async fn closed(&self) {
        self.calls.closed().await;
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        params: Box<RawValue>,
    ) -> Result<Result<Box<RawValue>, CallError>, NotSent> {
        call(&self.calls, method, params).await
    }
}

async fn call(
    calls: &mpsc::Sender<Call>,
    method: &str,
    params: Box<RawValue>,
) -> Result<Result<Box<RawValue>, CallError>, NotSent> {
    let (reply, answer) = oneshot::channel();
    let call = Call { method: method.to_owned(), params, reply };
    if let Err(e) = calls.send(call).await {
        return Err(NotSent(e.0.params));
    }
    Ok(answer.await.unwrap_or_else(|_| Err(lost(method, "it was closed"))))
}

fn lost(method: &str, reason: &str) -> CallError {
    CallError::Lost { method: method.to_owned(), reason: reason.to_owned() }
}

/// Says who calls and learns who answers; a daemon that does not know `initialize` is asked by `ping`.
async fn handshake(calls: &mpsc::Sender<Call>, connector: &Connector) -> Result<InitializeResult, ConnectError> {
    let params = InitializeParams { client_info: connector.info.clone(), protocol_version: Some(PROTOCOL_VERSION) };
    let not_ours = |reason: String| ConnectError::NotOurs { reason };
    let raw = serde_json::value::to_raw_value(&params).map_err(|e| not_ours(e.to_string()))?;
    let closed = || ConnectError::Closed { hint: connector.closed_hint() };
    match call(calls, Initialize::NAME, raw).await.map_err(|_| closed())? {
        Ok(result) => serde_json::from_str(result.get()).map_err(|e| not_ours(e.to_string())),
        Err(CallError::Api(e)) if e.code == code::METHOD_NOT_FOUND => {
            let raw = RawValue::from_string("{}".into()).map_err(|e| not_ours(e.to_string()))?;
            let result = call(calls, Ping::NAME, raw).await.map_err(|_| closed())?;
            let result = result.map_err(|e| not_ours(e.to_string()))?;
            let ping: PingResult = serde_json::from_str(result.get()).map_err(|e| not_ours(e.to_string()))?;
            Ok(InitializeResult {
                version: ping.version,
                protocol_version: ping.protocol_version,
                capabilities: serde_json::Value::Null,
                limits: Default::default(),
                session_dir: None,
            })
        }
        Err(CallError::Lost { .. }) => Err(closed()),
        Err(e) => Err(not_ours(e.to_string())),
    }
}

/// The task: writes calls, reads replies, until either side ends. What then still waits is told why.
async fn carry(wire: LineWire, mut queue: mpsc::Receiver<Call>) {
    let LineWire { mut wire, mut lines } = wire;
    let mut pending = Pending::default();
    let mut out = Out::default();
    let mut deaf = false;
    let reason = loop {
        if let Err(reason) = pending.deliver(&mut lines) {
            break reason;
        }
        tokio::select! {
            call = queue.recv(), if out.len() < OUT_BUFFER && !deaf => match call {
                Some(call) => out.push(pending.add(call)),
                None => return,
            },
            written = wire.writer.write(out.rest()), if out.len() > 0 => match written {
                Ok(n) if n > 0 => out.advance(n),
                Ok(_) => break "it takes no more".into(),
                // What it said before it went may still be there to be read; the end follows that.
                Err(_) => {
                    out.clear();
                    deaf = true;
                }
            },
            more = lines.fill(&mut wire.reader) => match more {
                Ok(true) => {}
                Ok(false) => break "the daemon has gone, or it closed the connection".into(),
                Err(e) => break e.to_string(),
            },
        }
    };
    // Calls that come now are refused; those already in the queue were not sent, but the caller cannot tell.
    queue.close();
    while let Some(call) = queue.recv().await {
        let _ = call.reply.send(Err(lost(&call.method, &reason)));
    }
    pending.fail(&reason);
}

/// Bytes on their way out.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    done: usize,
}

impl Out {
    fn len(&self) -> usize {
        self.bytes.len() - self.done
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.done..).unwrap_or_default()
    }

    fn push(&mut self, line: String) {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
    }

    fn advance(&mut self, n: usize) {
        self.done += n;
        if self.done == self.bytes.len() {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(OUT_BUFFER);
        self.done = 0;
    }
}

/// Calls that wait for their reply.
#[derive(Default)]
struct Pending {
    next: u64,
    waiting: HashMap<u64, (String, Reply)>,
}

impl Pending {
    fn add(&mut self, call: Call) -> String {
        // Callers that gave up leave their place.
        if self.waiting.len() >= 1024 {
            self.waiting.retain(|_, (_, reply)| !reply.is_closed());
        }
        self.next += 1;
        let line = request(self.next, &call.method, &call.params);
        self.waiting.insert(self.next, (call.method, call.reply));
        line
    }

    fn deliver(&mut self, lines: &mut Lines) -> Result<(), String> {
        while let Some(line) = lines.pop() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let message: Incoming =
                serde_json::from_slice(line).map_err(|e| format!("it sent what is no JSON-RPC message: {e}"))?;
            let Some(id) = message.id else {
                // An error without an id is about some call here, and nothing tells which.
                match message.error {
                    Some(e) => return Err(e.message),
                    None => continue,
                }
            };
            let Some((method, reply)) = id.as_u64().and_then(|id| self.waiting.remove(&id)) else { continue };
            let _ = reply.send(outcome(&method, message.result, message.error));
        }
        Ok(())
    }

    fn fail(self, reason: &str) {
        for (method, reply) in self.waiting.into_values() {
            let _ = reply.send(Err(lost(&method, reason)));
        }
    }
}

/// A reply's content. A null result and an absent one look alike, and mean alike.
pub(crate) fn outcome(
    method: &str,
    result: Option<Box<RawValue>>,
    error: Option<ApiError>,
) -> Result<Box<RawValue>, CallError> {
    match (result, error) {
        (_, Some(error)) => Err(error.into()),
        (Some(result), None) => Ok(result),
        (None, None) => RawValue::from_string("null".into())
            .map_err(|e| CallError::BadReply { method: method.to_owned(), reason: e.to_string() }),
    }
}

/// A request, in one line: `params` may come from a person, with line breaks between its tokens.
pub(crate) fn request(id: u64, method: &str, params: &RawValue) -> String {
    let method = serde_json::Value::from(method);
    let params = params.get();
    if !params.contains(['\n', '\r']) {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#);
    }
    // Inside a JSON string a line break cannot stand as itself, so all that are here lie between tokens.
    let params: String = params.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }).collect();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#)
}
