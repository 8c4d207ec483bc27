//! A client for newline-framed JSON-RPC that knows nothing of our types, so that a test says what is really on
//! the wire.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::PATIENCE;

pub struct Client {
    stream: UnixStream,
    shared: Arc<Shared>,
    next_id: u64,
    reader: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Received>,
    changed: Condvar,
}

#[derive(Default)]
struct Received {
    replies: HashMap<u64, Value>,
    events: Vec<Event>,
    /// Why nothing more will come.
    ended: Option<String>,
}

/// A notification of a subscription.
#[derive(Clone, Debug)]
pub struct Event {
    pub method: String,
    pub subscription: Value,
    /// The event itself.
    pub body: Value,
}

impl Event {
    pub fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap_or_default()
    }

    pub fn seq(&self) -> Option<u64> {
        self.body["seq"].as_u64()
    }

    /// Deltas may be merged on replay, and a snapshot is only for who asks: neither is in a session's history.
    pub fn is_kept(&self) -> bool {
        !self.kind().ends_with("Delta") && !matches!(self.kind(), "toolUpdate" | "snapshot" | "lagged")
    }
}

/// The error that a call got.
#[derive(Clone, Debug)]
pub struct RpcError(pub Value);

impl RpcError {
    pub fn code(&self) -> i64 {
        self.0["code"].as_i64().unwrap_or_default()
    }

    pub fn kind(&self) -> &str {
        self.0["data"]["kind"].as_str().unwrap_or_default()
    }

    pub fn message(&self) -> &str {
        self.0["message"].as_str().unwrap_or_default()
    }
}

impl Client {
    pub fn connect(socket: &Path) -> std::io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let shared = Arc::<Shared>::default();
        let reader = std::thread::spawn({
            let (stream, shared) = (stream.try_clone()?, shared.clone());
            move || read(stream, &shared)
        });
        Ok(Client { stream, shared, next_id: 0, reader: Some(reader) })
    }

    /// The result; anything else fails the test.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, &params).unwrap_or_else(|e| panic!("{method} {params}: {}", e.0))
    }

    /// The error; a result fails the test.
    #[track_caller]
    pub fn error(&mut self, method: &str, params: Value) -> RpcError {
        match self.try_call(method, &params) {
            Err(error) => error,
            Ok(result) => panic!("{method} {params} should have failed, but gave {result}"),
        }
    }

    #[track_caller]
    pub fn try_call(&mut self, method: &str, params: &Value) -> Result<Value, RpcError> {
        let id = self.send(method, params.clone());
        self.reply(id)
    }

    /// Sends a call without waiting for its reply.
    #[track_caller]
    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        self.write(&json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params }));
        self.next_id
    }

    /// Sends several calls in one write, and gives their ids.
    #[track_caller]
    pub fn send_together(&mut self, calls: &[(&str, Value)]) -> Vec<u64> {
        let mut lines = String::new();
        let mut ids = Vec::new();
        for (method, params) in calls {
            self.next_id += 1;
            ids.push(self.next_id);
            let call = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
            lines.push_str(&format!("{call}\n"));
        }
        self.stream.write_all(lines.as_bytes()).expect("write to the daemon");
        ids
    }

    #[track_caller]
    fn write(&mut self, message: &Value) {
        self.stream.write_all(format!("{message}\n").as_bytes()).expect("write to the daemon");
    }

    /// The reply of a call that was sent before.
    #[track_caller]
    pub fn reply(&mut self, id: u64) -> Result<Value, RpcError> {
        let reply = self
            .wait(PATIENCE, |received| received.replies.remove(&id))
            .unwrap_or_else(|why| panic!("no reply to call {id}: {why}"));
        match reply.get("error") {
            Some(error) => Err(RpcError(error.clone())),
            None => Ok(reply["result"].clone()),
        }
    }

    /// Whether a daemon answers at the other end; one that is just going or coming may not.
    pub fn ping(&mut self) -> Option<Value> {
        self.next_id += 1;
        let (id, call) = (self.next_id, json!({ "jsonrpc": "2.0", "id": self.next_id, "method": "ping" }));
        self.stream.write_all(format!("{call}\n").as_bytes()).ok()?;
        let mut reply = self.wait(PATIENCE, |received| received.replies.remove(&id)).ok()?;
        Some(reply["result"].take())
    }

    pub fn is_answered(&self, id: u64) -> bool {
        self.shared.received.lock().unwrap().replies.contains_key(&id)
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.shared.received.lock().unwrap().events.clone()
    }

    /// The first event of those so far and those to come.
    #[track_caller]
    pub fn until(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        self.until_after(0, wanted)
    }

    /// The same, passing over the first `seen` events: `let seen = client.events().len()` before an act.
    #[track_caller]
    pub fn until_after(&self, seen: usize, wanted: impl Fn(&Event) -> bool) -> Event {
        self.wait(PATIENCE, |received| received.events.iter().skip(seen).find(|e| wanted(e)).cloned()).unwrap_or_else(
            |why| {
                let kinds: Vec<_> = self.events().iter().rev().take(8).map(|e| e.kind().to_owned()).collect();
                panic!("the event did not come: {why}; the last ones, newest first: {kinds:?}")
            },
        )
    }

    /// The first event of a type.
    #[track_caller]
    pub fn until_kind(&self, kind: &str) -> Event {
        self.until(|event| event.kind() == kind)
    }

    /// Returns when the daemon has closed the connection.
    #[track_caller]
    pub fn until_closed(&self) {
        let deadline = Instant::now() + PATIENCE;
        let received = self.shared.received.lock().unwrap();
        let left = deadline.saturating_duration_since(Instant::now());
        let (received, _) =
            self.shared.changed.wait_timeout_while(received, left, |received| received.ended.is_none()).unwrap();
        assert!(received.ended.is_some(), "the connection is still open after {PATIENCE:?}");
    }

    fn wait<T>(&self, patience: Duration, mut look: impl FnMut(&mut Received) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + patience;
        let mut received = self.shared.received.lock().unwrap();
        loop {
            if let Some(found) = look(&mut received) {
                return Ok(found);
            }
            if let Some(why) = &received.ended {
                return Err(why.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("{patience:?} went by"));
            }
            received = self.shared.changed.wait_timeout(received, left).unwrap().0;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(stream: UnixStream, shared: &Shared) {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    let why = loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => break "the daemon closed the connection".to_owned(),
            Err(error) => break format!("the connection broke: {error}"),
            Ok(_) => {}
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(&line) else {
            break format!("the daemon sent what is no JSON: {}", String::from_utf8_lossy(&line));
        };
        let mut received = shared.received.lock().unwrap();
        if let Some(method) = message["method"].as_str() {
            let method = method.to_owned();
            let subscription = message["params"]["subscription"].take();
            received.events.push(Event { method, subscription, body: message["params"]["result"].take() });
        } else if let Some(id) = message["id"].as_u64() {
            received.replies.insert(id, message);
        } else {
            break format!("a reply without an id of ours: {message}");
        }
        shared.changed.notify_all();
    };
    shared.received.lock().unwrap().ended = Some(why);
    shared.changed.notify_all();
}
