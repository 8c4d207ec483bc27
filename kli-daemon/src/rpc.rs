//! The socket: listener → connection (framing, limits) → methods.
//!
//! This layer knows sessions only through [`Service`] and the methods registered in its `RpcModule`.

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use kli_protocol::ApiError;
use kli_protocol::api::{ClientInfo, RegisterToolsParams, SubscribeParams};

/// Serialised `result`s of one subscription's notifications, in order. Shared among subscribers; it is pulled,
/// so one that is not read holds up nobody.
pub type Feed = BoxStream<'static, Arc<str>>;

/// Who calls. Comes to every handler.
#[derive(Clone)]
pub struct Caller {
    pub connection: u64,
    pub client: Arc<Client>,
    /// To be told when the call has reached its session, so that the connection's next one may follow.
    pub turn: Turn,
}

/// What is known of a connection's client.
#[derive(Debug, Default)]
pub struct Client {
    /// By `initialize`. A mutex, since handlers of one connection run side by side and only this is shared.
    pub info: Mutex<Option<ClientInfo>>,
}

/// A place in the order of one connection's calls to one session; dropping the last clone gives it up too.
#[derive(Clone, Debug, Default)]
pub struct Turn {}

impl Turn {
    /// The call has reached its session.
    pub fn done(&self) {}
}

/// What the socket needs beyond plain methods.
pub trait Service: Send + Sync + 'static {
    fn subscribe(&self, caller: Caller, params: SubscribeParams) -> BoxFuture<'static, Result<Feed, ApiError>>;
    fn register_tools(&self, caller: Caller, params: RegisterToolsParams)
    -> BoxFuture<'static, Result<Feed, ApiError>>;
    /// A connection is gone: its tools go with it.
    fn closed(&self, connection: u64);
}
