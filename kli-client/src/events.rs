//! The events of one session: each once and in order, through lost connections and daemons that start anew.
//!
//! A stream has a connection of its own and no task: it reads only when it is asked for the next event. A reader
//! that is slow is thereby slow for the daemon too, which then merges deltas (`lagged`, `snapshot`) and keeps
//! nobody waiting.

use std::time::Duration;

use kli_protocol::api::{Event, EventBody, Method, Subscribe, SubscribeParams};
use kli_protocol::error::ErrorKind;
use kli_protocol::rpc::Incoming;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::{Instant, sleep_until};

use crate::client::notification;
use crate::connection::{outcome, request};
use crate::connector::Connector;
use crate::error::{CallError, ConnectError};
use crate::wire::LineWire;

/// For how long a lost connection is tried for again, unless told otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One event, and the JSON text that it came in. An event of a type not known here has the body `Unknown`.
#[derive(Clone, Debug)]
pub struct Received {
    pub raw: Box<RawValue>,
    pub event: Event,
}

/// What [`EventStream::step`] saw.
#[derive(Debug)]
pub enum Step {
    Event(Box<Received>),
    /// The connection is gone; it is tried for again.
    Lost(String),
    /// It is back, and the events that were missed follow (or a `snapshot`, where there are too many of them).
    /// A run that a crash of the daemon cut off may have no end among them: ask `getSession` what goes on.
    Back,
}

/// The events of a session. The first is a `snapshot`; another one comes where events were missed for good.
pub struct EventStream {
    connector: Connector,
    session_id: String,
    types: Option<Vec<String>>,
    patience: Option<Duration>,
    /// The number of the last event that was handed out.
    last: Option<u64>,
    state: State,
}

enum State {
    Down(Down),
    /// `subscribe` was sent.
    Asked(LineWire, Down),
    Live(LineWire, u64),
}

/// Since when there is no connection, and when it is tried for next.
#[derive(Clone)]
struct Down {
    /// None for the first connection ever, which is tried for once.
    since: Option<Instant>,
    next: Instant,
    pause: Duration,
    why: String,
}

impl Down {
    fn first() -> Down {
        Down { since: None, next: Instant::now(), pause: FIRST_PAUSE, why: String::new() }
    }

    fn now(why: String) -> Down {
        let now = Instant::now();
        Down { since: Some(now), next: now + FIRST_PAUSE, pause: FIRST_PAUSE, why }
    }

    /// After a failed try.
    fn again(mut self, why: String) -> Down {
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.why = why;
        self
    }
}

impl EventStream {
    pub(crate) fn new(connector: Connector, session_id: &str, after: Option<u64>) -> EventStream {
        let state = State::Down(Down::first());
        EventStream {
            connector,
            session_id: session_id.to_owned(),
            types: None,
            patience: Some(PATIENCE),
            last: after,
            state,
        }
    }

    /// Only events of these types (`snapshot` and `lagged` come in any case).
    pub fn only(mut self, types: &[&str]) -> EventStream {
        self.types = Some(types.iter().map(|t| (*t).to_owned()).collect());
        self
    }

    /// Tries for a lost connection for ever. A daemon that ended is not started anew by a stream in any case: it
    /// may have been stopped on purpose. The next call of a [`Client`](crate::Client) starts it.
    pub fn patient(mut self) -> EventStream {
        self.patience = None;
        self
    }

    /// The session whose events these are.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// The number of the last event, to go on from in another life ([`Client::events_after`](crate::Client)).
    pub fn last_seq(&self) -> Option<u64> {
        self.last
    }

    /// Makes the subscription now and not with the first `next`: what happens after this returned is seen.
    pub async fn start(&mut self) -> Result<(), CallError> {
        while !matches!(self.state, State::Live(..)) {
            self.advance().await?;
        }
        Ok(())
    }

    /// The next event. An error is final: the session is gone, or the daemon stayed away.
    /// May be cancelled at any time; no event is lost by that.
    pub async fn next(&mut self) -> Result<Received, CallError> {
        loop {
            if let Step::Event(received) = self.step().await? {
                return Ok(*received);
            }
        }
    }

    /// The next event, or that the connection went or came back, for a program that tells a person.
    pub async fn step(&mut self) -> Result<Step, CallError> {
        loop {
            if let Some(step) = self.advance().await? {
                return Ok(step);
            }
        }
    }

    /// Connects, subscribes, or reads a message.
    async fn advance(&mut self) -> Result<Option<Step>, CallError> {
        match &mut self.state {
            State::Down(down) => {
                if let (Some(since), Some(patience)) = (down.since, self.patience)
                    && since.elapsed() > patience
                {
                    return Err(CallError::Lost { method: Subscribe::NAME.into(), reason: down.why.clone() });
                }
                sleep_until(down.next).await;
                let down = down.clone();
                match self.ask(down.since.is_none()).await {
                    Ok(wire) => self.state = State::Asked(wire, down),
                    Err(e) if down.since.is_none() || is_final(&e) => return Err(e),
                    Err(e) => self.state = State::Down(down.again(e.to_string())),
                }
                Ok(None)
            }
            State::Asked(wire, down) => {
                let line = wire.recv().await;
                let down = down.clone();
                match line {
                    Ok(Some(line)) => self.subscribed(&line, down),
                    _ if down.since.is_none() => {
                        let hint = self.connector.closed_hint();
                        self.state = State::Down(down);
                        Err(ConnectError::Closed { hint }.into())
                    }
                    _ => {
                        self.state = State::Down(down.again("the connection was closed".into()));
                        Ok(None)
                    }
                }
            }
            State::Live(wire, id) => {
                let why = match wire.recv().await {
                    Ok(Some(line)) => {
                        let raw = notification(&line, *id).map(|(_, result)| result);
                        return Ok(raw.and_then(|raw| self.accept(raw)).map(|r| Step::Event(Box::new(r))));
                    }
                    Ok(None) => "the daemon has gone".to_owned(),
                    Err(e) => e.to_string(),
                };
                self.state = State::Down(Down::now(why.clone()));
                Ok(Some(Step::Lost(why)))
            }
        }
    }

    async fn ask(&self, first: bool) -> Result<LineWire, CallError> {
        let params =
            SubscribeParams { session_id: Some(self.session_id.clone()), after: self.last, types: self.types.clone() };
        let lost = |reason: String| CallError::Lost { method: Subscribe::NAME.into(), reason };
        let params = to_raw_value(&params).map_err(|e| lost(e.to_string()))?;
        let mut wire = match first {
            true => self.connector.wire().await?,
            false => self.connector.clone().without_starting().wire().await?,
        };
        wire.send(&request(1, Subscribe::NAME, &params)).await.map_err(|e| lost(e.to_string()))?;
        Ok(wire)
    }

    /// Takes the reply of `subscribe`.
    fn subscribed(&mut self, line: &[u8], down: Down) -> Result<Option<Step>, CallError> {
        let bad = |e: serde_json::Error| CallError::BadReply { method: Subscribe::NAME.into(), reason: e.to_string() };
        let message: Incoming = serde_json::from_slice(line).map_err(bad)?;
        match outcome(Subscribe::NAME, message.result, message.error) {
            Ok(id) => {
                let id = serde_json::from_str(id.get()).map_err(bad)?;
                let back = down.since.map(|_| Step::Back);
                if let State::Asked(wire, _) = std::mem::replace(&mut self.state, State::Down(down)) {
                    self.state = State::Live(wire, id);
                }
                Ok(back)
            }
            // The old daemon is on its way out; the next one will know.
            Err(CallError::Api(e)) if e.kind() == Some(ErrorKind::ShuttingDown) && down.since.is_some() => {
                self.state = State::Down(down.again(e.message));
                Ok(None)
            }
            Err(e) => {
                self.state = State::Down(down);
                Err(e)
            }
        }
    }

    /// Passes over what was seen before.
    fn accept(&mut self, raw: Box<RawValue>) -> Option<Received> {
        let event = read_event(&raw)?;
        // These bear the number of the event before them.
        let between = matches!(event.body, EventBody::Snapshot { .. } | EventBody::Lagged {});
        if let Some(seq) = event.seq {
            if !between && self.last.is_some_and(|last| seq <= last) {
                return None;
            }
            self.last = Some(self.last.map_or(seq, |last| last.max(seq)));
        }
        Some(Received { raw, event })
    }
}

/// An event whose body is not understood is still an event with a number.
fn read_event(raw: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Envelope {
        seq: Option<u64>,
        session_id: Option<String>,
        #[serde(default)]
        time: String,
        run_id: Option<String>,
    }
    if let Ok(event) = serde_json::from_str(raw.get()) {
        return Some(event);
    }
    let Envelope { seq, session_id, time, run_id } = serde_json::from_str(raw.get()).ok()?;
    Some(Event { seq, session_id, time, run_id, body: EventBody::Unknown })
}

/// Errors that trying again does not mend.
fn is_final(e: &CallError) -> bool {
    match e {
        CallError::Connect(e) => e.is_final(),
        CallError::Api(_) | CallError::BadParams { .. } => true,
        CallError::Lost { .. } | CallError::BadReply { .. } => false,
    }
}
