//! The socket: listener → connection (framing, limits) → methods.
//!
//! This layer knows sessions only through [`Service`] and the methods registered in its [`Module`]. One socket
//! carries newline and `Content-Length` framing by a dispatcher of our own ([`connection`], [`dispatch`]), and
//! HTTP POST and WebSocket by jsonrpsee's server ([`http`]), all over the same methods.
//!
//! Start: [`prepare`] the directory, take the locks (`crate::lock`), [`bind`], [`Server::run`]. Stop: cancel
//! [`Server::stop`]; `run` then accepts no more, lets what is in flight go out within [`Limits::drain`], closes
//! every connection, joins their tasks, removes the socket and returns.

mod connection;
mod dispatch;
mod http;
mod io;
mod limits;
mod listener;
pub mod methods;
mod module;
pub mod openrpc;
mod serve;
mod turn;

#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use listener::{BindError, Bound, activated, bind, notify_ready, notify_stopping, prepare};
pub use module::{Module, register};
pub use serve::{Connections, Server};
pub use turn::Turn;

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use kli_protocol::ApiError;
use kli_protocol::api::{ClientInfo, RegisterToolsParams, SubscribeParams};

/// Serialised `result`s of one subscription's notifications, in order. Shared among subscribers; it is pulled,
/// so one that is not read holds up nobody.
pub type Feed = BoxStream<'static, Arc<str>>;

/// Who calls. Comes to every handler.
#[derive(Clone, Debug, Default)]
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

impl Caller {
    /// The client's name for itself, if it gave one.
    pub fn name(&self) -> Option<String> {
        let info = self.client.info.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        info.as_ref().map(|info| info.name.clone())
    }
}

/// What the socket needs beyond plain methods.
pub trait Service: Send + Sync + 'static {
    fn subscribe(&self, caller: Caller, params: SubscribeParams) -> BoxFuture<'static, Result<Feed, ApiError>>;
    fn register_tools(&self, caller: Caller, params: RegisterToolsParams)
    -> BoxFuture<'static, Result<Feed, ApiError>>;
    /// A connection is gone: its tools go with it.
    fn closed(&self, connection: u64);
}
