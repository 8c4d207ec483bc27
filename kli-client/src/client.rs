//! Calls: typed by [`Method`], or raw.

use std::sync::Arc;

use kli_protocol::Method;
use kli_protocol::api::InitializeResult;
use kli_protocol::rpc::{Incoming, SubscriptionParams};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, NotSent, outcome, request};
use crate::connector::Connector;
use crate::error::{CallError, ConnectError};
use crate::events::{EventStream, FIRST_PAUSE, LONGEST_PAUSE, PATIENCE};
use crate::wire::LineWire;

/// So many connections in a row that break as soon as they are made are enough.
const MAX_SHORT_LIVED: u32 = 10;

/// A daemon that can be called. Clones share one connection.
///
/// When the connection drops, the calls in flight fail with [`CallError::Lost`]; the next call makes a new
/// connection (and starts a daemon, where its connector does). Nothing is ever sent twice.
#[derive(Clone)]
pub struct Client {
    connector: Connector,
    /// A mutex, since clones call at the same time and only one of them shall reconnect; it is held for no
    /// longer than that.
    current: Arc<Mutex<Arc<Connection>>>,
}

impl Client {
    /// Connects; starts the daemon where the connector does so and none runs.
    pub async fn connect(connector: Connector) -> Result<Client, ConnectError> {
        let connection = Connection::open(&connector).await?;
        Ok(Client { connector, current: Arc::new(Mutex::new(Arc::new(connection))) })
    }

    /// The daemon of this machine, at its usual socket; it is started if none runs.
    pub async fn connect_or_start() -> Result<Client, ConnectError> {
        Client::connect(Connector::local(None)?).await
    }

    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// What the daemon said of itself when the connection was made.
    pub async fn hello(&self) -> InitializeResult {
        self.current.lock().await.hello.clone()
    }

    /// Calls a method.
    pub async fn call<M: Method>(&self, params: M::Params) -> Result<M::Result, CallError> {
        let raw = self.call_raw(M::NAME, &params).await?;
        serde_json::from_str(raw.get())
            .map_err(|e| CallError::BadReply { method: M::NAME.to_owned(), reason: e.to_string() })
    }

    /// Calls a method by its name; the result is the JSON text as the daemon sent it.
    pub async fn call_raw(&self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, CallError> {
        let mut params = raw_params(method, params)?;
        loop {
            match self.connection().await?.call(method, params).await {
                Ok(answer) => return answer,
                Err(NotSent(unsent)) => params = unsent,
            }
        }
    }

    /// As [`Client::call_raw`], for a call that may be sent twice: one that only reads or waits, or that has an
    /// `idempotencyKey`. Where the connection is lost before its answer it is sent again over a new one, for as
    /// long as the events of a session are tried for. No daemon is started for that: one that ended took the run
    /// with it.
    pub async fn call_again(&self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, CallError> {
        let mut short_lived = 0;
        loop {
            let sent = Instant::now();
            match self.call_raw(method, params).await {
                Err(lost @ CallError::Lost { .. }) => {
                    // A way that breaks again and again is given up, one that held for a while is not.
                    short_lived = if sent.elapsed() < LONGEST_PAUSE { short_lived + 1 } else { 0 };
                    if short_lived > MAX_SHORT_LIVED {
                        return Err(lost);
                    }
                    self.reconnect(lost).await?;
                }
                answer => return answer,
            }
        }
    }

    /// Makes the connection anew; `lost` comes back where that cannot be done.
    async fn reconnect(&self, lost: CallError) -> Result<(), CallError> {
        let connector = self.connector.clone().without_starting();
        let deadline = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        let mut current = self.current.lock().await;
        while current.is_closed() {
            match Connection::open(&connector).await {
                Ok(connection) => *current = Arc::new(connection),
                Err(error) if error.is_final() || error.is_no_daemon() || Instant::now() > deadline => {
                    return Err(lost);
                }
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Ends once the connection is gone, as after `shutdown`.
    pub async fn closed(&self) {
        let connection = self.current.lock().await.clone();
        connection.closed().await;
    }

    async fn connection(&self) -> Result<Arc<Connection>, ConnectError> {
        let mut current = self.current.lock().await;
        if current.is_closed() {
            *current = Arc::new(Connection::open(&self.connector).await?);
        }
        Ok(current.clone())
    }

    /// The events of a session from now on, first its state; see [`EventStream`].
    pub fn events(&self, session_id: &str) -> EventStream {
        EventStream::new(self.connector.clone(), session_id, None)
    }

    /// The events of a session after `seq`, or, when the daemon has no longer all of them, first its state.
    pub fn events_after(&self, session_id: &str, seq: u64) -> EventStream {
        EventStream::new(self.connector.clone(), session_id, Some(seq))
    }

    /// Calls a method that begins a subscription (`subscribe`, `registerTools`) on a connection of its own. It
    /// ends with the connection: what goes on where it ended, for one session, is [`EventStream`].
    pub async fn subscribe(&self, method: &str, params: &impl Serialize) -> Result<Subscription, CallError> {
        let params = raw_params(method, params)?;
        let mut wire = self.connector.wire().await?;
        let lost = |reason: String| CallError::Lost { method: method.to_owned(), reason };
        wire.send(&request(1, method, &params)).await.map_err(|e| lost(e.to_string()))?;
        loop {
            let line = wire.recv().await.map_err(|e| lost(e.to_string()))?;
            let line = line.ok_or_else(|| lost("the daemon has gone".into()))?;
            let bad = |e: serde_json::Error| CallError::BadReply { method: method.to_owned(), reason: e.to_string() };
            let message: Incoming = serde_json::from_slice(&line).map_err(bad)?;
            if message.method.is_none() {
                let id = outcome(method, message.result, message.error)?;
                let id = serde_json::from_str(id.get()).map_err(bad)?;
                return Ok(Subscription { wire, id });
            }
        }
    }
}

fn raw_params(method: &str, params: &impl Serialize) -> Result<Box<RawValue>, CallError> {
    to_raw_value(params).map_err(|e| CallError::BadParams { method: method.to_owned(), reason: e.to_string() })
}

/// The notifications of one subscription.
pub struct Subscription {
    wire: LineWire,
    id: u64,
}

impl Subscription {
    /// The `result` of the next notification; none when the connection has ended. May be cancelled at any time.
    pub async fn next(&mut self) -> std::io::Result<Option<Box<RawValue>>> {
        while let Some(line) = self.wire.recv().await? {
            if let Some((_, result)) = notification(&line, self.id) {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }
}

/// The method and content of a notification of subscription `id`.
pub(crate) fn notification(line: &[u8], id: u64) -> Option<(String, Box<RawValue>)> {
    let message: Incoming = serde_json::from_slice(line).ok()?;
    let params: SubscriptionParams<Box<RawValue>> = serde_json::from_str(message.params?.get()).ok()?;
    (params.subscription == id).then_some((message.method?, params.result))
}
