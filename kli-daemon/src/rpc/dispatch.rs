//! From messages to calls and back to replies, for one connection of our own framings or for one POST. No I/O:
//! frames come in, bytes to be sent go to [`Dispatcher::out`].
//!
//! A call whose answer is ready at once is written at once; others go on side by side and are written as they end.

mod feeds;
mod out;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jsonrpsee::core::server::ConnectionId;
use jsonrpsee::server::{Extensions, MethodCallback, Methods};
use jsonrpsee::types::{Id, Params};
use kli_protocol::api::{self, Method, RegisterToolsParams, SubscribeParams, UnsubscribeParams};
use kli_protocol::error::code;
use kli_protocol::frame::{Frame, Framing};
use kli_protocol::rpc::{Invalid, Parsed, Request, parse, parse_call};
use kli_protocol::{ApiError, ErrorKind, decode_params};
use serde_json::value::RawValue;

use feeds::Feeds;
pub(super) use out::Out;
use work::{Answer, Call, Kind, Place, Subscription, Work};

use super::module::unpanicked;
use super::turn::{Lane, Lanes};
use super::{Caller, Client, Feed, Limits, Service};

/// What all connections share.
pub(super) struct Shared {
    pub methods: Methods,
    pub service: Arc<dyn Service>,
    pub limits: Limits,
}

pub(super) struct Dispatcher {
    shared: Arc<Shared>,
    connection: u64,
    client: Arc<Client>,
    framing: Framing,
    out: Out,
    calls: FuturesUnordered<Call>,
    /// Of the requests of those calls.
    bytes_in_flight: usize,
    feeds: Feeds,
    lanes: Lanes,
    batches: HashMap<u64, Batch>,
    last_batch: u64,
    last_subscription: u64,
    /// Where events can be sent.
    takes_events: bool,
}

/// jsonrpsee's replies, asked for with the id null, begin so. The client's own id is put in its place as it was
/// sent, since the library knows no other numbers than `u64`.
const REPLY_HEAD: &str = r#"{"jsonrpc":"2.0","id":null,"#;

const SUBSCRIBE: &str = <api::Subscribe as Method>::NAME;
const UNSUBSCRIBE: &str = <api::Unsubscribe as Method>::NAME;
const REGISTER_TOOLS: &str = <api::RegisterTools as Method>::NAME;
const UNREGISTER_TOOLS: &str = <api::UnregisterTools as Method>::NAME;

/// A batch whose replies are not all there.
struct Batch {
    left: usize,
    /// Joined by commas.
    replies: String,
    /// Subscriptions begin when their reply is out.
    feeds: Vec<Subscription>,
}

impl Dispatcher {
    pub(super) fn new(shared: Arc<Shared>, framing: Framing, connection: u64) -> Dispatcher {
        Dispatcher {
            shared,
            connection,
            client: Arc::default(),
            takes_events: true,
            framing,
            out: Out::default(),
            calls: FuturesUnordered::new(),
            bytes_in_flight: 0,
            feeds: Feeds::default(),
            lanes: Lanes::default(),
            batches: HashMap::new(),
            last_batch: 0,
            last_subscription: 0,
        }
    }

    /// The reply to one message on a connection that takes no events; empty where there is none.
    pub(super) async fn answer_one(shared: Arc<Shared>, caller: Caller, message: &[u8]) -> Vec<u8> {
        let mut dispatcher = Dispatcher {
            client: caller.client,
            takes_events: false,
            ..Dispatcher::new(shared, Framing::Lines, caller.connection)
        };
        dispatcher.frame(Frame::Message(message));
        std::future::poll_fn(|cx| {
            dispatcher.poll_calls(cx);
            if dispatcher.has_calls() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        dispatcher.out.bytes
    }

    /// What is to be sent.
    pub(super) fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    /// Whether one more message may be read.
    pub(super) fn has_room(&self) -> bool {
        let limits = &self.shared.limits;
        self.out.len() < limits.out_bytes
            && self.calls.len() < limits.max_in_flight
            && self.bytes_in_flight < limits.max_in_flight_bytes
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(super) fn has_feeds(&self) -> bool {
        self.feeds.len() > 0
    }

    /// The client is gone: nobody reads events or replies.
    pub(super) fn abandon(&mut self) {
        self.feeds = Feeds::default();
        self.out = Out::default();
    }

    /// Takes what the decoder found.
    pub(super) fn frame(&mut self, frame: Frame<'_>) {
        match frame {
            Frame::Message(message) => match parse(message) {
                Parsed::Call(request) => self.call(request, Place::Alone, message.len()),
                Parsed::Batch(members) => self.batch(&members),
                Parsed::Invalid(invalid) => self.invalid(&invalid, Place::Alone),
            },
            Frame::Oversized => {
                let max = self.shared.limits.max_message_bytes;
                let text = format!("the message is longer than maxMessageBytes ({max} bytes) and was passed over");
                let error = invalid_request(ApiError::limit("maxMessageBytes", max as u64, text));
                self.reply("null", Place::Alone, &Tail::Error(&error));
            }
            Frame::BadHeader(why) => {
                let error = ApiError { code: code::PARSE_ERROR, message: why.to_owned(), data: None };
                self.reply("null", Place::Alone, &Tail::Error(&error));
            }
        }
    }

    /// Writes the replies of calls that have ended. Tells whether there were any.
    pub(super) fn poll_calls(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.out.len() < self.shared.limits.max_unread_bytes {
            let Poll::Ready(Some((id, place, bytes, answer))) = self.calls.poll_next_unpin(cx) else { break };
            self.bytes_in_flight -= bytes;
            self.answer(id.as_deref(), place, answer);
            any = true;
        }
        any
    }

    /// Writes events while there is room. Tells whether there were any.
    pub(super) fn poll_feeds(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.out.len() < self.shared.limits.out_bytes {
            let Poll::Ready((head, result)) = self.feeds.poll_next(cx) else { break };
            self.framing.write(&mut self.out.bytes, &[&head, &result, "}}"]);
            any = true;
        }
        any
    }

    fn batch(&mut self, members: &[&RawValue]) {
        let max = self.shared.limits.max_batch;
        if members.is_empty() || members.len() > max {
            let error = if members.is_empty() {
                ApiError { code: code::INVALID_REQUEST, message: "an empty batch".to_owned(), data: None }
            } else {
                let text = format!("a batch of {} is above maxBatch ({max}); none of it was done", members.len());
                invalid_request(ApiError::limit("maxBatch", max as u64, text))
            };
            return self.reply("null", Place::Alone, &Tail::Error(&error));
        }
        self.last_batch += 1;
        let place = Place::Batch(self.last_batch);
        let batch = Batch { left: members.len(), replies: String::new(), feeds: Vec::new() };
        self.batches.insert(self.last_batch, batch);
        for member in members {
            match parse_call(member.get()) {
                Ok(request) => self.call(request, place, member.get().len()),
                Err(invalid) => self.invalid(&invalid, place),
            }
        }
    }

    fn invalid(&mut self, invalid: &Invalid<'_>, place: Place) {
        self.reply(invalid.id.map_or("null", RawValue::get), place, &Tail::Error(&invalid.error));
        self.settle(place);
    }

    /// Starts a call, and answers it when that is done at once.
    fn call(&mut self, request: Request<'_>, place: Place, bytes: usize) {
        let id = request.id.map(RawValue::get);
        let params = request.params.map(RawValue::get);
        let (turn, before) = self.lanes.enter(Lane::of(&request.method, params));
        let caller = Caller { connection: self.connection, client: self.client.clone(), turn };
        let mut work = match self.work(&request.method, params, id.is_some(), caller) {
            Ok(work) => work,
            Err(answer) => return self.answer(id, place, answer),
        };
        if !before.is_empty() {
            work = work.after(before);
        }
        match (&mut work).now_or_never() {
            Some(answer) => self.answer(id, place, answer),
            None => {
                self.bytes_in_flight += bytes;
                self.calls.push(Call { work, id: id.map(Box::from), place, bytes });
            }
        }
    }

    /// What a call has to do, or the answer where there is nothing to do.
    fn work(&mut self, method: &str, params: Option<&str>, wants_reply: bool, caller: Caller) -> Result<Work, Answer> {
        match method {
            SUBSCRIBE => {
                let params = self.new_subscription::<SubscribeParams>(SUBSCRIBE, params, wants_reply)?;
                let service = self.shared.service.clone();
                let feed = async move {
                    let _turn = caller.turn.clone();
                    service.subscribe(caller, params).await
                };
                Ok(Work::Subscribe(Kind::Events, unpanicked(SUBSCRIBE, feed).boxed()))
            }
            REGISTER_TOOLS => {
                let params = self.new_subscription::<RegisterToolsParams>(REGISTER_TOOLS, params, wants_reply)?;
                let service = self.shared.service.clone();
                let feed = async move {
                    let _turn = caller.turn.clone();
                    service.register_tools(caller, params).await
                };
                Ok(Work::Subscribe(Kind::Tools, unpanicked(REGISTER_TOOLS, feed).boxed()))
            }
            UNSUBSCRIBE => Err(self.end_subscription(Kind::Events, params)),
            UNREGISTER_TOOLS => Err(self.end_subscription(Kind::Tools, params)),
            _ => {
                let mut extensions = Extensions::new();
                extensions.insert(caller);
                let params = Params::new(params);
                match self.shared.methods.method(method) {
                    Some(MethodCallback::Async(callback)) => Ok(Work::Method(callback(
                        Id::Null,
                        params.into_owned(),
                        ConnectionId::default(),
                        usize::MAX,
                        extensions,
                    ))),
                    Some(MethodCallback::Sync(callback)) => {
                        Err(Answer::Response(callback(Id::Null, params, usize::MAX, extensions)))
                    }
                    _ => Err(Answer::Error(ApiError {
                        code: code::METHOD_NOT_FOUND,
                        message: format!("there is no method {method:?}; rpc.discover lists them"),
                        data: None,
                    })),
                }
            }
        }
    }

    fn new_subscription<P: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        params: Option<&str>,
        wants_reply: bool,
    ) -> Result<P, Answer> {
        let max = self.shared.limits.max_subscriptions;
        if !self.takes_events {
            let text =
                format!("{method} needs a connection that stays: newline or Content-Length framing, or WebSocket");
            return Err(Answer::Error(ApiError::new(ErrorKind::NeedsConnection, text)));
        }
        if !wants_reply {
            return Err(Answer::Error(ApiError::invalid_params("a subscription without id has no number")));
        }
        if self.feeds.len() >= max {
            let text = format!("this connection has maxSubscriptions ({max}) already; end one first");
            return Err(Answer::Error(ApiError::limit("maxSubscriptions", max as u64, text)));
        }
        decode_params(params).map_err(Answer::Error)
    }

    fn end_subscription(&mut self, kind: Kind, params: Option<&str>) -> Answer {
        let number = match decode_params::<UnsubscribeParams>(params) {
            Ok(params) => params.subscription,
            Err(error) => return Answer::Error(error),
        };
        Answer::Result(if self.feeds.end(number, kind) { "true" } else { "false" })
    }

    fn answer(&mut self, id: Option<&str>, place: Place, answer: Answer) {
        if let Some(id) = id {
            match answer {
                Answer::Response(response) => {
                    let tail = response.as_ref().strip_prefix(REPLY_HEAD);
                    self.reply(id, place, &tail.map_or(Tail::Lost, Tail::Raw));
                }
                Answer::Result(text) => self.reply(id, place, &Tail::Result(text)),
                Answer::Error(error) => self.reply(id, place, &Tail::Error(&error)),
                Answer::Subscribed(kind, feed) => self.subscribed(id, place, kind, feed),
            }
        }
        self.settle(place);
    }

    fn subscribed(&mut self, id: &str, place: Place, kind: Kind, feed: Feed) {
        self.last_subscription += 1;
        let number = self.last_subscription;
        let name = match kind {
            Kind::Events => api::SESSION_EVENT,
            Kind::Tools => api::TOOL_CALL,
        };
        let head = format!(r#"{{"jsonrpc":"2.0","method":"{name}","params":{{"subscription":{number},"result":"#);
        let subscription = Subscription { number, kind, head: head.into(), feed };
        self.reply(id, place, &Tail::Result(&number.to_string()));
        match place {
            Place::Alone => self.feeds.add(subscription),
            Place::Batch(number) => {
                if let Some(batch) = self.batches.get_mut(&number) {
                    batch.feeds.push(subscription);
                }
            }
        }
    }

    fn reply(&mut self, id: &str, place: Place, tail: &Tail<'_>) {
        let error;
        let (before, text, after) = match *tail {
            Tail::Raw(text) => ("", text, ""),
            Tail::Result(text) => (r#""result":"#, text, "}"),
            Tail::Error(e) => {
                error = serde_json::to_string(e).unwrap_or_else(|_| "null".to_owned());
                (r#""error":"#, error.as_str(), "}")
            }
            Tail::Lost => {
                tracing::error!("a reply of the library begins otherwise than it used to");
                (r#""error":{"code":-32603,"message":"the reply was lost inside the daemon"}"#, "", "}")
            }
        };
        let parts = [r#"{"jsonrpc":"2.0","id":"#, id, ",", before, text, after];
        match place {
            Place::Alone => self.framing.write(&mut self.out.bytes, &parts),
            Place::Batch(number) => {
                let max = self.shared.limits.max_batch_reply_bytes;
                let Some(batch) = self.batches.get_mut(&number) else { return };
                if batch.replies.len() + text.len() > max && !matches!(tail, Tail::Error(_)) {
                    let text = format!("the replies of this batch are above maxBatchReplyBytes ({max}); ask singly");
                    let error = ApiError::limit("maxBatchReplyBytes", max as u64, text);
                    return self.reply(id, place, &Tail::Error(&error));
                }
                if !batch.replies.is_empty() {
                    batch.replies.push(',');
                }
                batch.replies.extend(parts);
            }
        }
    }

    /// One call of a batch has ended; after the last the batch is answered.
    fn settle(&mut self, place: Place) {
        let Place::Batch(number) = place else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.left -= 1;
        if batch.left > 0 {
            return;
        }
        let Some(batch) = self.batches.remove(&number) else { return };
        if !batch.replies.is_empty() {
            self.framing.write(&mut self.out.bytes, &["[", &batch.replies, "]"]);
        }
        batch.feeds.into_iter().for_each(|feed| self.feeds.add(feed));
    }
}

/// A reply after its id.
enum Tail<'a> {
    /// As the library wrote it, to the end.
    Raw(&'a str),
    Result(&'a str),
    Error(&'a ApiError),
    Lost,
}

/// JSON-RPC's own code, with the kind and the limit in `data`.
fn invalid_request(error: ApiError) -> ApiError {
    ApiError { code: code::INVALID_REQUEST, ..error }
}
