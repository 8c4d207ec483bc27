//! Model providers: a request goes out, a stream of events comes back that ends exactly once.
//!
//! A failure is a value in the stream. Retrying is the agent's business, not a provider's. What is said on the
//! wire lies in [`crate::dialect`]; here is who is asked, with which key, and how long one waits.

pub mod catalogue;
pub mod http;
pub mod key;
pub mod offline;
pub mod registry;
pub mod settings;

use std::sync::Arc;

use futures_util::stream::BoxStream;
use kli_protocol::api::ModelInfo;
use tokio_util::sync::CancellationToken;

pub use crate::dialect::{Failure, INVALID_ARGUMENTS, Request, StreamEvent, invalid_arguments};
pub use registry::Registry;

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
