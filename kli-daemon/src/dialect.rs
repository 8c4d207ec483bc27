//! Wire formats of model APIs: a request becomes an HTTP call, server events become stream events.
//!
//! Two pure halves for each format: [`Dialect::encode`], which gives the same bytes for the same request (a
//! provider's prompt cache lives on that), and a [`Decoder`], which feeds the [`Assembler`] that all formats
//! share. Sending, waiting and HTTP status codes are left to [`crate::provider`].

pub mod anthropic;
mod arguments;
mod assembler;
pub mod event;
pub mod failure;
pub mod google;
mod json;
pub mod openai_chat;
pub mod openai_responses;
mod quirks;
#[cfg(test)]
mod tests;
mod transform;

use std::collections::BTreeMap;
use std::sync::Arc;

use kli_protocol::api::{ModelInfo, RunErrorKind, ToolDescription};
use kli_protocol::record::{AssistantMessage, Message};
use serde_json::Value;

pub use arguments::{INVALID_ARGUMENTS, invalid_arguments};
pub use assembler::{Assembler, Slot, Start};
pub use quirks::host;
pub use transform::rough_tokens;

use crate::sse;

/// What one model request is made from. `messages` are valid by construction (see [`crate::context`]): each
/// tool call is followed by its one result, in call order. Dialects turn them into what their API takes.
#[derive(Clone, Debug)]
pub struct Request {
    pub model: Arc<ModelInfo>,
    pub system_prompt: Arc<str>,
    pub tools: Arc<[ToolDescription]>,
    pub messages: Vec<Arc<Message>>,
    /// `reasoning-effort` and the like.
    pub options: BTreeMap<String, Value>,
    /// Output limit in tokens; none: the model's own.
    pub max_tokens: Option<u64>,
    /// Stays the same for a session: providers use it to keep their prompt caches warm.
    pub cache_key: String,
}

/// One step of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The provider answered; text may follow.
    Started,
    /// New text of block `index` of the message.
    Text {
        index: u32,
        delta: String,
    },
    Thinking {
        index: u32,
        delta: String,
    },
    /// New argument text (JSON) of the tool call that is block `index`.
    ToolCall {
        index: u32,
        id: String,
        name: String,
        delta: String,
    },
    /// The end: the whole message, with `stop_reason` `stop`, `length` or `toolUse`. With `stop` and an
    /// `error_message` the provider refused to go on (content filter, refusal): not to be retried.
    /// A tool call whose argument text was no JSON object holds it under [`INVALID_ARGUMENTS`].
    Done(Box<AssistantMessage>),
    /// The end: it failed; `partial` is what had come, without tool calls that were cut off.
    Failed {
        failure: Failure,
        partial: Box<AssistantMessage>,
    },
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: RunErrorKind,
    /// A sentence for a person; never holds a key.
    pub message: String,
    pub retryable: bool,
    /// How long the provider asks to be left alone.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// A failure that trying again does not mend.
    pub fn fatal(kind: RunErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), retryable: false, retry_after_ms: None }
    }

    /// A failure that may be gone on the next try.
    pub fn passing(kind: RunErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), retryable: true, retry_after_ms: None }
    }
}

/// A wire format, as the key `api` of the configuration spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Google,
}

impl Api {
    pub const ALL: [Api; 4] = [Api::OpenaiChat, Api::OpenaiResponses, Api::Anthropic, Api::Google];

    pub fn name(self) -> &'static str {
        match self {
            Api::OpenaiChat => "openai-chat",
            Api::OpenaiResponses => "openai-responses",
            Api::Anthropic => "anthropic",
            Api::Google => "google",
        }
    }

    pub fn of_name(name: &str) -> Option<Api> {
        Api::ALL.into_iter().find(|api| api.name() == name)
    }

    /// Whether `name` is this format, also as pi's files spell it: their signatures are the same as ours.
    pub fn is_called(self, name: &str) -> bool {
        let in_pi = match self {
            Api::OpenaiChat => "openai-completions",
            Api::OpenaiResponses => "openai-responses",
            Api::Anthropic => "anthropic-messages",
            Api::Google => "google-generative-ai",
        };
        name == self.name() || name == in_pi
    }

    /// The two halves of this format.
    pub fn dialect(self) -> &'static dyn Dialect {
        match self {
            Api::OpenaiChat => &openai_chat::OpenaiChat,
            Api::OpenaiResponses => &openai_responses::OpenaiResponses,
            Api::Anthropic => &anthropic::Anthropic,
            Api::Google => &google::Google,
        }
    }
}

/// Whom a request goes to: servers of one format differ in what they take.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub api: Api,
    /// Without a slash at the end.
    pub base_url: &'a str,
}

/// An HTTP POST, still without its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Appended to the base URL.
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    /// JSON text.
    pub body: Vec<u8>,
    /// The header that carries the key, and what stands before it.
    pub key_header: (&'static str, &'static str),
}

pub trait Dialect: Send + Sync {
    fn encode(&self, request: &Request, target: Target<'_>) -> Call;

    /// For one reply.
    fn decoder(&self, start: Start) -> Box<dyn Decoder>;
}

/// Whether an event brought the reply forward: pings do not, and so cannot hold off an idle time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Content,
    /// The model has stopped; only bookkeeping (usage, an end mark) may follow.
    Stopped,
    Nothing,
    /// The reply is whole.
    End,
}

impl Heard {
    /// Of a chunk that may bring text, the end, both or neither. An empty one is no better than a ping, also after
    /// the model has stopped: it must not put off the end of the wait for what follows.
    fn of_chunk(more: bool, stopped: bool, was_stopped: bool) -> Heard {
        match (stopped, more) {
            (true, _) if more || !was_stopped => Heard::Stopped,
            (false, true) => Heard::Content,
            _ => Heard::Nothing,
        }
    }
}

/// Reads one reply.
pub trait Decoder: Send + Sync {
    /// Takes one server event. Unknown events are passed over.
    fn event(&mut self, event: &sse::Event) -> Result<Heard, Failure>;

    /// Takes the answer of a server that does not stream: one JSON body.
    fn body(&mut self, body: Value) -> Result<(), Failure>;

    /// Whether the reply was whole, now that no more comes.
    fn complete(&self) -> bool;

    /// No more comes: what can only be known at the end goes into the message. Called once, before it is taken.
    fn seal(&mut self) {}

    fn assembler(&mut self) -> &mut Assembler;
}
