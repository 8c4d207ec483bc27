//! The methods: typed handlers in jsonrpsee's `RpcModule`, from which every transport calls them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::StreamExt;
use jsonrpsee::core::server::{MethodResponse, PendingSubscriptionSink, ResponsePayload};
use jsonrpsee::server::{MethodCallback, Methods, RpcModule};
use jsonrpsee::types::ErrorObjectOwned;
use kli_protocol::api::{self, Method, Visitor, visit_methods};
use kli_protocol::{ApiError, decode_params};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::http::Accepting;
use super::{Caller, Feed, Service};

/// A subscription that is being made.
type Opening = BoxFuture<'static, Result<Feed, ApiError>>;

/// The methods of the daemon, over one service.
#[derive(Debug)]
pub struct Module<S> {
    service: Arc<S>,
    methods: RpcModule<()>,
}

/// Registers the handler of a method. Registered again, the later one counts.
///
/// Nothing of a handler runs before its turn, and its turn lasts until it says `caller.turn.done()` or ends. One
/// that panics answers -32603 and takes nothing else with it.
pub fn register<M, S, Fut>(
    module: &mut Module<S>,
    handler: impl Fn(Arc<S>, Caller, M::Params) -> Fut + Send + Sync + 'static,
) where
    M: Method,
    S: Service,
    Fut: Future<Output = Result<M::Result, ApiError>> + Send + 'static,
{
    let (service, handler) = (module.service.clone(), Arc::new(handler));
    let callback = MethodCallback::Async(Arc::new(move |id, params, _, max_response_size, mut extensions| {
        let caller = extensions.remove::<Caller>().unwrap_or_default();
        let params = match decode_params::<M::Params>(params.as_str()) {
            Ok(params) => params,
            Err(error) => return ready(MethodResponse::error(id, error_object(error))).boxed(),
        };
        let (service, handler) = (service.clone(), handler.clone());
        async move {
            let _turn = caller.turn.clone();
            match unpanicked(M::NAME, async move { handler(service, caller, params).await }).await {
                // The library wants to clone what it serialises.
                Ok(result) => {
                    MethodResponse::response(id, ResponsePayload::success(Arc::new(result)), max_response_size)
                }
                Err(error) => MethodResponse::error(id, error_object(error)),
            }
        }
        .boxed()
    }));
    module.insert(M::NAME, callback);
}

/// A panic of a handler as an error of its call.
pub(super) async fn unpanicked<T>(
    method: &'static str,
    call: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(method, "a handler panicked");
        Err(ApiError::internal(format!("{method} failed inside the daemon; its log says where")))
    })
}

pub(super) fn error_object(error: ApiError) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(error.code, error.message, error.data)
}

impl<S: Service> Module<S> {
    /// A module that knows the subscriptions of the service, and no other method yet.
    pub fn new(service: Arc<S>) -> Module<S> {
        let mut module = Module { service, methods: RpcModule::new(()) };
        module.subscription::<api::Subscribe, api::Unsubscribe>(api::SESSION_EVENT, S::subscribe);
        module.subscription::<api::RegisterTools, api::UnregisterTools>(api::TOOL_CALL, S::register_tools);
        module
    }

    pub fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// The methods of the contract that have no handler.
    pub fn missing(&self) -> Vec<&'static str> {
        struct Missing<'a>(&'a Methods, Vec<&'static str>);
        impl Visitor for Missing<'_> {
            fn method<M: Method>(&mut self) {
                if self.0.method(M::NAME).is_none() {
                    self.1.push(M::NAME);
                }
            }
        }
        let mut missing = Missing(&self.methods, Vec::new());
        visit_methods(&mut missing);
        missing.1
    }

    pub(super) fn methods(&self) -> Methods {
        (*self.methods).clone()
    }

    fn insert(&mut self, name: &'static str, callback: MethodCallback) {
        self.methods.remove_method(name);
        // The name is free now, so that this cannot fail.
        let _ = self.methods.verify_and_insert(name, callback);
    }

    /// A subscription over WebSocket. In our own framings the dispatcher asks the service itself.
    fn subscription<Begin, End>(&mut self, notification: &'static str, open: fn(&S, Caller, Begin::Params) -> Opening)
    where
        Begin: Method,
        Begin::Params: DeserializeOwned,
        End: Method,
    {
        let service = self.service.clone();
        let registered = self.methods.register_subscription(
            Begin::NAME,
            notification,
            End::NAME,
            move |params, pending: PendingSubscriptionSink, _, extensions| {
                let caller = extensions.get::<Caller>().cloned().unwrap_or_default();
                let accepting = extensions.get::<Accepting>().cloned().unwrap_or_default();
                let feed = decode_params::<Begin::Params>(params.as_str())
                    .map(|params| unpanicked(Begin::NAME, open(&service, caller, params)));
                async move {
                    let feed = match feed {
                        Ok(feed) => feed.await,
                        Err(error) => Err(error),
                    };
                    match feed {
                        Ok(feed) => forward(feed, pending, accepting).await,
                        Err(error) => pending.reject(error_object(error)).await,
                    }
                }
            },
        );
        debug_assert!(registered.is_ok(), "two subscriptions with one name");
    }
}

/// Sends what the feed gives until either side ends. The queue of the connection is short, so that one that is not
/// read soon stops the pulling.
async fn forward(mut feed: Feed, pending: PendingSubscriptionSink, accepting: Accepting) {
    let held = accepting.hold().await;
    let Ok(sink) = pending.accept().await else { return };
    drop(held);
    let all = async {
        while let Some(text) = feed.next().await {
            let Ok(result) = RawValue::from_string(text.as_ref().to_owned()) else {
                tracing::error!("an event is not JSON");
                continue;
            };
            if sink.send(result).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = sink.closed() => {}
    }
}
