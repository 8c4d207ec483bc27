//! HTTP POST and WebSocket.
//!
//! jsonrpsee's server speaks HTTP and WebSocket, and calls the methods over the latter, with what it lacks:
//!
//! * a call without id is carried out, alone and in a batch, and the calls of a batch run side by side
//! * `unsubscribe` takes its parameter by name
//! * calls in flight are bounded, and the socket is not read while the client does not read (`Rewound`)
//! * a client that closes its sending half still gets the answer to its POST (`Rewound`)
//!
//! It knows no ids but strings, null and numbers of `u64`, and takes a call with another one for a notification.
//! Therefore a POST is given to our own dispatcher, as any message of the other framings: of whatever content type,
//! with status 200 also for an error, and 204 without a body where there is nothing to reply.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::body::{Body, Incoming};
use hyper::{Method as Verb, StatusCode, header};
use jsonrpsee::core::middleware::{Batch, BatchEntry, Notification, RpcServiceBuilder, RpcServiceT};
use jsonrpsee::core::server::{BatchResponseBuilder, MethodResponse};
use jsonrpsee::core::traits::IdProvider;
use jsonrpsee::server::http::response;
use jsonrpsee::server::{
    BatchRequestConfig, ConnectionGuard, ConnectionPermit, ConnectionState, HttpBody, HttpRequest, HttpResponse,
    ServerConfig, StopHandle, serve_with_graceful_shutdown, stop_channel, ws,
};
use jsonrpsee::types::{Id, Request, SubscriptionId};
use kli_protocol::api::{self, Method, UnsubscribeParams};
use kli_protocol::{ApiError, decode_params};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::dispatch::{Dispatcher, Shared};
use super::io::{InFlight, Rewound};
use super::module::error_object;
use super::serve::Open;
use super::{Caller, Limits};

/// Requests at a time on one HTTP/2 connection, each of which may be as long as a message.
const MAX_STREAMS: usize = 32;

/// Serves one connection that began with an HTTP verb.
pub(super) async fn serve(
    socket: UnixStream,
    head: Vec<u8>,
    shared: Arc<Shared>,
    open: &Open,
    stop: &CancellationToken,
) {
    let drain = shared.limits.drain;
    let (stop_handle, stopper) = stop_channel();
    let caller = Caller { connection: open.id, ..Caller::default() };
    let streams = ConnectionGuard::new(MAX_STREAMS);
    let in_flight = Arc::<InFlight>::default();
    let http = Http { shared, caller, stop_handle, streams, in_flight: in_flight.clone(), upgraded: Mutex::new(None) };
    let http = Arc::new(http);
    let service = {
        let http = http.clone();
        tower::service_fn(move |request| answer(http.clone(), request))
    };
    let whole = async {
        let io = Rewound::new(head.into(), socket, in_flight);
        if let Err(error) = serve_with_graceful_shutdown(io, service, stop.cancelled()).await {
            tracing::debug!(%error, "an HTTP connection broke");
        }
        let upgraded = http.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(websocket) = upgraded {
            websocket.await;
        }
    };
    let late = async {
        stop.cancelled().await;
        let _ = stopper.stop();
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        () = whole => {}
        () = late => tracing::debug!("an HTTP connection was closed with replies still in flight"),
    }
}

/// One connection.
struct Http {
    shared: Arc<Shared>,
    caller: Caller,
    stop_handle: StopHandle,
    streams: ConnectionGuard,
    in_flight: Arc<InFlight>,
    /// The WebSocket that the connection became, to be driven by its task once HTTP is through. A mutex, since the
    /// library calls from a place that cannot hand it over otherwise.
    upgraded: Mutex<Option<BoxFuture<'static, ()>>>,
}

async fn answer(http: Arc<Http>, request: HttpRequest<Incoming>) -> Result<HttpResponse, Infallible> {
    let _answering = http.in_flight.enter();
    let Some(permit) = http.streams.try_acquire() else {
        return Ok(response::too_many_requests());
    };
    Ok(if ws::is_upgrade_request(&request) {
        upgrade(&http, request, permit).await
    } else if request.method() == Verb::POST {
        post(&http, request).await
    } else {
        response::method_not_allowed()
    })
}

async fn upgrade(http: &Http, mut request: HttpRequest<Incoming>, permit: ConnectionPermit) -> HttpResponse {
    let limits = &http.shared.limits;
    let id = u32::try_from(http.caller.connection & u64::from(u32::MAX)).unwrap_or_default();
    let connection = ConnectionState::new(http.stop_handle.clone(), id, permit);
    let methods = http.shared.methods.clone();
    let room = Arc::new(Semaphore::new(limits.max_in_flight));
    let max_in_flight = limits.max_in_flight;
    let layers = RpcServiceBuilder::new().layer_fn(move |inner| Door { inner, room: room.clone(), max_in_flight });
    request.extensions_mut().insert(http.caller.clone());
    request.extensions_mut().insert(Accepting::default());
    match ws::connect(request, config(limits), methods, connection, layers).await {
        Ok((response, websocket)) => {
            *http.upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some(websocket.boxed());
            response
        }
        Err(mut response) => {
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        }
    }
}

async fn post(http: &Http, request: HttpRequest<Incoming>) -> HttpResponse {
    let max = http.shared.limits.max_message_bytes;
    let too_large = || response::too_large(u32::try_from(max).unwrap_or(u32::MAX));
    // A client that asks first need not send what will be passed over.
    if request.headers().contains_key(header::EXPECT) && request.body().size_hint().lower() > max as u64 {
        return too_large();
    }
    let message = match read(request.into_body(), max).await {
        Ok(Some(message)) => message,
        Ok(None) => return too_large(),
        Err(error) => {
            tracing::debug!(%error, "a POST broke off");
            return response::malformed();
        }
    };
    let reply = Dispatcher::answer_one(http.shared.clone(), http.caller.clone(), &message).await;
    if reply.is_empty() {
        let mut response = HttpResponse::new(HttpBody::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    }
    response::ok_response(reply)
}

/// A body. None: it is too large, and was passed over: a client that still writes would not come to read the answer.
async fn read(mut body: Incoming, max: usize) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut message = (body.size_hint().lower() <= max as u64).then(Vec::new);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(piece) = frame?.into_data() else { continue };
        message = message.filter(|message| message.len() + piece.len() <= max);
        if let Some(message) = &mut message {
            message.extend_from_slice(&piece);
        }
    }
    Ok(message)
}

fn config(limits: &Limits) -> ServerConfig {
    let bytes = u32::try_from(limits.max_message_bytes).unwrap_or(u32::MAX);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    ServerConfig::builder()
        .max_request_body_size(bytes)
        // The library takes this one for incoming WebSocket messages too. Replies are paged far below it.
        .max_response_body_size(bytes)
        .max_subscriptions_per_connection(count(limits.max_subscriptions))
        .set_batch_request_config(BatchRequestConfig::Limit(count(limits.max_batch)))
        .set_message_buffer_capacity(limits.websocket_queue)
        .set_id_provider(Numbers)
        .build()
}

/// Subscriptions are numbered, as in our own framings.
#[derive(Debug)]
struct Numbers;

impl IdProvider for Numbers {
    fn next_id(&self) -> SubscriptionId<'static> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        SubscriptionId::Num(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Held while a subscription of one connection is accepted. The library tells the client its number before it has it
/// on its list, and would not find one that is ended at once. A mutex, since both happen in tasks of the library.
#[derive(Clone, Default)]
pub(super) struct Accepting(Arc<tokio::sync::Mutex<()>>);

impl Accepting {
    pub(super) async fn hold(&self) -> impl Drop {
        self.0.lock().await
    }
}

/// Between the library's reading and its calling.
struct Door<T> {
    inner: T,
    /// For calls in flight of one connection.
    room: Arc<Semaphore>,
    max_in_flight: usize,
}

const SUBSCRIPTIONS: [&str; 2] = [<api::Subscribe as Method>::NAME, <api::RegisterTools as Method>::NAME];
const ENDS: [&str; 2] = [<api::Unsubscribe as Method>::NAME, <api::UnregisterTools as Method>::NAME];

impl<T> Door<T>
where
    T: RpcServiceT<
            MethodResponse = MethodResponse,
            BatchResponse = MethodResponse,
            NotificationResponse = MethodResponse,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    fn enter<'a>(&self, mut request: Request<'a>) -> BoxFuture<'a, MethodResponse> {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            let max = self.max_in_flight;
            let text = format!("maxInFlight ({max}) calls wait for their answers on this connection; await some");
            return refused(request.id, ApiError::limit("maxInFlight", max as u64, text));
        };
        if ENDS.contains(&&*request.method) {
            let params = request.params.as_ref().map(|params| params.get());
            match decode_params::<UnsubscribeParams>(params) {
                Ok(params) => {
                    let by_position = serde_json::value::to_raw_value(&[params.subscription]).ok();
                    request.params = by_position.map(std::borrow::Cow::Owned);
                }
                Err(error) => return refused(request.id, error),
            }
        }
        let accepting = request.extensions.get::<Accepting>().filter(|_| ENDS.contains(&&*request.method)).cloned();
        let call = match accepting {
            None => self.inner.call(request).boxed(),
            Some(accepting) => {
                let inner = self.inner.clone();
                async move {
                    drop(accepting.hold().await);
                    inner.call(request).await
                }
                .boxed()
            }
        };
        async move {
            let response = call.await;
            drop(permit);
            response
        }
        .boxed()
    }

    /// A call without id. A subscription without one would have no number, and is passed over.
    fn carry_out<'a>(&self, notification: Notification<'a>) -> BoxFuture<'a, ()> {
        if SUBSCRIPTIONS.contains(&&*notification.method) {
            return std::future::ready(()).boxed();
        }
        let Notification { method, params, extensions, .. } = notification;
        let request = Request { jsonrpc: Default::default(), id: Id::Null, method, params, extensions };
        self.enter(request).map(drop).boxed()
    }
}

fn refused(id: Id<'_>, error: ApiError) -> BoxFuture<'_, MethodResponse> {
    std::future::ready(MethodResponse::error(id, error_object(error))).boxed()
}

impl<T> RpcServiceT for Door<T>
where
    T: RpcServiceT<
            MethodResponse = MethodResponse,
            BatchResponse = MethodResponse,
            NotificationResponse = MethodResponse,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Request<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        self.enter(request)
    }

    fn notification<'a>(&self, notification: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        self.carry_out(notification).map(|()| MethodResponse::notification())
    }

    fn batch<'a>(&self, batch: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let members: FuturesUnordered<_> = batch
            .into_iter()
            .map(|member| match member {
                Ok(BatchEntry::Call(request)) => self.enter(request).map(Some).boxed(),
                Ok(BatchEntry::Notification(notification)) => self.carry_out(notification).map(|()| None).boxed(),
                Err(error) => {
                    let (error, id) = error.into_parts();
                    std::future::ready(Some(MethodResponse::error(id, error))).boxed()
                }
            })
            .collect();
        let empty = members.is_empty();
        async move {
            let mut members = members;
            let mut replies = BatchResponseBuilder::new_with_limit(usize::MAX);
            while let Some(reply) = members.next().await {
                // The reply of a subscription is out already.
                if let Some(reply) = reply.filter(|reply| !reply.is_subscription())
                    && let Err(too_large) = replies.append(reply)
                {
                    return too_large;
                }
            }
            if replies.is_empty() && !empty {
                MethodResponse::notification()
            } else {
                MethodResponse::from_batch(replies.finish())
            }
        }
    }
}
