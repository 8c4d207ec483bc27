//! The methods, thin: read the parameters, one call, the result. A namespace of `protocol/src/api` is a module here.

mod daemon;
mod runs;
mod sessions;
mod tree;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::StreamExt;
use kli_protocol::ApiError;
use kli_protocol::api::{RegisterToolsParams, SubscribeParams};

use super::{Caller, Feed, Module, Service};
use crate::session::actor::Actor;
use crate::session::{Handle, Registry};

/// What methods reach.
pub struct Context {
    pub registry: Arc<Registry>,
    pub control: Arc<dyn Control>,
    pub max_message_bytes: usize,
    pub limits: std::collections::BTreeMap<String, u64>,
    pub socket: String,
}

/// What methods ask of the daemon as a whole.
pub trait Control: Send + Sync {
    /// Reads the configuration again: the keys that changed.
    fn reload_config(&self) -> BoxFuture<'_, Result<Vec<String>, ApiError>>;
    /// Stops the daemon soon; the reply to this call still goes out.
    fn stop(&self);
    /// Stops the daemon once nothing runs any more.
    fn stop_when_idle(&self);
    fn uptime_ms(&self) -> u64;
    fn connections(&self) -> u64;
}

/// All methods of the daemon.
pub fn module(context: Arc<Context>) -> Module<Context> {
    let mut module = Module::new(context);
    daemon::register_all(&mut module);
    sessions::register_all(&mut module);
    tree::register_all(&mut module);
    runs::register_all(&mut module);
    module
}

impl Context {
    /// The session that a call names.
    async fn session(&self, id: &str) -> Result<Handle, ApiError> {
        self.registry.find(id).await
    }

    /// A call to a session, in its turn.
    async fn ask<R: Send + 'static>(
        &self,
        caller: &Caller,
        session: &str,
        call: impl FnOnce(&mut Actor) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let handle = self.session(session).await?;
        let pending = handle.send(call).await?;
        caller.turn.done();
        pending.wait().await
    }

    /// A session to read from, once what this connection sent before has reached it.
    async fn reading(&self, caller: &Caller, session: &str) -> Result<Handle, ApiError> {
        let handle = self.session(session).await?;
        let pending = handle.send(|_| ()).await?;
        caller.turn.done();
        pending.wait().await?;
        Ok(handle)
    }
}

/// Looks at a log away from the threads that serve connections: a page may be megabytes.
async fn look<R: Send + 'static>(
    handle: Handle,
    view: impl FnOnce(&crate::store::Log) -> Result<R, ApiError> + Send + 'static,
) -> Result<R, ApiError> {
    tokio::task::spawn_blocking(move || view(&handle.log))
        .await
        .map_err(|_| ApiError::internal("A part of the daemon failed; its log says more."))?
}

/// The socket's subscriptions.
impl Service for Context {
    fn subscribe(&self, caller: Caller, params: SubscribeParams) -> BoxFuture<'static, Result<Feed, ApiError>> {
        let registry = self.registry.clone();
        async move {
            let Some(session) = &params.session_id else {
                if params.after.is_some() {
                    return Err(ApiError::invalid_params("after: only with a sessionId; numbers count in one session"));
                }
                return Ok(registry.deps.all.follow(params.types));
            };
            let handle = registry.find(session).await?;
            let after = params.after;
            let pending = handle.send(move |actor| actor.prepare_replay(after)).await?;
            caller.turn.done();
            pending.wait().await?;
            // The feed keeps the session open while somebody follows it.
            let feed = handle.feed(params);
            Ok(feed
                .map(move |text| {
                    let _ = &handle;
                    text
                })
                .boxed())
        }
        .boxed()
    }

    fn register_tools(
        &self,
        _caller: Caller,
        mut params: RegisterToolsParams,
    ) -> BoxFuture<'static, Result<Feed, ApiError>> {
        let registry = self.registry.clone();
        async move {
            let mut taken: Vec<_> = registry.deps.tools.iter().map(|tool| tool.spec().name.clone()).collect();
            if let Some(session) = &params.session_id {
                let handle = registry.find(session).await?;
                params.session_id = Some(handle.id.to_string());
                taken.extend(handle.ask(|actor| actor.server_tools()).await?);
            }
            registry.deps.client_tools.register(params, &taken)
        }
        .boxed()
    }

    /// A connection's tools go with its feeds; nothing else is kept of one.
    fn closed(&self, _connection: u64) {}
}
