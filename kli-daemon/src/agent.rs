//! The agent loop: model call, tool calls, again, until the model is done.
//!
//! A run knows its session only as a [`RunHost`]: it asks what to send, says what came back, and is told
//! whether a tool call may go ahead. It keeps no state of its own beyond the turn it is in, so whatever ends it
//! (an error, an abort, a crash) leaves the session as the records say.

mod retry;
mod run;
mod step;
mod tools;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use kli_protocol::api::{Decision, Location, RunError, RunErrorKind, RunStop};
use kli_protocol::record::{AssistantMessage, ToolResultMessage, Usage};

pub use retry::RetrySettings;
pub use run::run;

use crate::provider::{Provider, Request};
use crate::tool::{Outline, Tool, ToolContext};

/// What a run is told at its start.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Turns after which it ends, whatever the model wants.
    pub max_turns: Option<u32>,
    pub retry: RetrySettings,
}

/// What one turn is made of.
pub struct Turn {
    pub request: Request,
    pub provider: Arc<dyn Provider>,
    /// The id of the entry that the reply will become.
    pub message_id: String,
    pub tools: Vec<Arc<dyn Tool>>,
    pub work_dir: PathBuf,
}

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub stop: RunStop,
    pub error: Option<RunError>,
    /// Of all its turns.
    pub usage: Usage,
    /// Text of the last assistant message.
    pub text: String,
}

/// What happens in a run, for those who watch. Numbers and ids are the session's business.
#[derive(Clone, Debug)]
pub enum RunEvent {
    TurnStart,
    TurnEnd {
        usage: Usage,
    },
    MessageStart {
        message_id: String,
    },
    /// The reply failed and is dropped; a retry follows.
    MessageDropped {
        message_id: String,
    },
    Text {
        index: u32,
        delta: String,
    },
    Thinking {
        index: u32,
        delta: String,
    },
    ToolCall {
        index: u32,
        id: String,
        name: String,
        delta: String,
    },
    Retry {
        attempt: u32,
        max_attempts: u32,
        delay_ms: u64,
        reason: String,
    },
    ToolStart {
        call: CallInfo,
    },
    ToolUpdate {
        tool_call_id: String,
        delta: String,
    },
    ToolEnd {
        result: Box<ToolResultMessage>,
    },
}

/// Deltas of this many bytes are told; the last thousand events then stay far below what a subscriber may lag behind.
const LONGEST_DELTA: usize = 4 << 10;

impl RunEvent {
    /// Takes in a delta of the same piece of a reply, up to a length; gives back any other event.
    fn join(&mut self, other: RunEvent) -> Option<RunEvent> {
        match (self, other) {
            (
                RunEvent::Text { delta, .. } | RunEvent::Thinking { delta, .. } | RunEvent::ToolCall { delta, .. },
                other,
            ) if delta.len() >= LONGEST_DELTA => Some(other),
            (RunEvent::Text { index, delta }, RunEvent::Text { index: same, delta: more }) if *index == same => {
                delta.push_str(&more);
                None
            }
            (RunEvent::Thinking { index, delta }, RunEvent::Thinking { index: same, delta: more })
                if *index == same =>
            {
                delta.push_str(&more);
                None
            }
            (RunEvent::ToolCall { id, delta, .. }, RunEvent::ToolCall { id: same, delta: more, .. }) if *id == same => {
                delta.push_str(&more);
                None
            }
            (_, other) => Some(other),
        }
    }
}

/// A tool call, as shown to a person.
#[derive(Clone, Debug, Default)]
pub struct CallInfo {
    pub tool_call_id: String,
    pub tool_name: String,
    pub title: String,
    pub arguments: crate::tool::Arguments,
    pub locations: Vec<Location>,
}

/// What becomes of a call that is about to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// Refused, with what the model is told.
    Refused(String),
}

/// A session that cannot go on with the run, such as one whose disk is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFailure(pub RunError);

impl HostFailure {
    pub fn new(kind: RunErrorKind, message: impl Into<String>) -> HostFailure {
        HostFailure(RunError { kind, message: message.into(), retryable: false })
    }
}

/// What a run may ask of its session. Each call waits until the session has taken it in.
pub trait RunHost: Send + Sync + 'static {
    /// What to send next: takes in what was steered meanwhile.
    fn begin_turn(&self) -> impl Future<Output = Result<Turn, HostFailure>> + Send;

    fn emit(&self, event: RunEvent) -> impl Future<Output = ()> + Send;

    /// Stores a reply (done, failed for good, or cut off by an abort).
    fn store_reply(
        &self,
        message_id: String,
        message: AssistantMessage,
    ) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// Stores the next result, in call order.
    fn store_result(&self, result: ToolResultMessage) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// Whether a call may run; may wait for a person.
    fn permit(&self, tool: Arc<dyn Tool>, call: CallInfo, outline: Outline) -> impl Future<Output = Permission> + Send;

    fn tool_context(&self, tool_call_id: &str) -> ToolContext;

    /// A turn is over: what it wrote is brought to disk, meanwhile the run goes on.
    fn end_turn(&self) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// Waits until what the last turn wrote is there.
    fn on_disk(&self) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// Called when the model is done: takes in what was queued. True: the run goes on. False: it ends, and what
    /// is said from now on starts another.
    fn more_to_say(&self) -> impl Future<Output = Result<bool, HostFailure>> + Send;

    /// Called when the run ends whatever is queued, which then stays so.
    fn anything_queued(&self) -> impl Future<Output = Result<bool, HostFailure>> + Send;

    /// The provider says the request is too long: a smaller one for the same turn, if there is a way.
    fn make_room(&self) -> impl Future<Output = Result<Option<Turn>, HostFailure>> + Send;

    /// The id for the reply to a repeated request.
    fn retry_message_id(&self) -> impl Future<Output = String> + Send;

    fn now_ms(&self) -> u64;

    /// A number in 0..1 for the jitter of a retry.
    fn jitter(&self) -> f64;
}

/// The word for a decision, as in `approvalResolved`.
pub fn decision_name(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::AllowForSession => "allowForSession",
        Decision::Deny => "deny",
    }
}
