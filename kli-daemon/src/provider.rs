//! Model providers: a request goes out, a stream of events comes back that ends exactly once.
//!
//! A failure is a value in the stream. Retrying is the agent's business, not a provider's.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use kli_protocol::api::{ModelInfo, RunErrorKind, ToolDescription};
use kli_protocol::record::{AssistantMessage, Message};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

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
    /// The end: the whole message, with `stop_reason` `stop`, `length` or `toolUse`.
    Done(Box<AssistantMessage>),
    /// The end: it failed; `partial` is what had come.
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

pub trait Provider: Send + Sync {
    /// Sends a request. Cancelling ends the stream with `Failed` (its kind is not looked at then).
    fn stream(&self, request: Request, cancel: CancellationToken) -> BoxStream<'static, StreamEvent>;
}

/// All models there are, and who answers for each. Built from the configuration; replaced as a whole.
pub trait Models: Send + Sync {
    /// For `listModels`, the default first found usable.
    fn list(&self) -> Vec<ModelInfo>;
    fn default_model(&self) -> kli_protocol::api::ModelRef;
    /// A model and its provider, or why it cannot be used: `modelNotFound`, `noApiKey`.
    fn find(
        &self,
        provider: &str,
        model_id: &str,
    ) -> Result<(Arc<ModelInfo>, Arc<dyn Provider>), kli_protocol::ApiError>;
}
