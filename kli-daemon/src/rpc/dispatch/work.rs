//! Calls that go on and subscriptions: what a dispatcher polls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt};
use jsonrpsee::core::server::MethodResponse;
use kli_protocol::ApiError;
use tokio_util::sync::CancellationToken;

use crate::rpc::Feed;

/// Where a reply goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Alone,
    Batch(u64),
}

/// A call that goes on.
pub(super) struct Call {
    pub(super) work: Work,
    /// None: a notification.
    pub(super) id: Option<Box<str>>,
    pub(super) place: Place,
    pub(super) bytes: usize,
}

pub(super) enum Work {
    Method(BoxFuture<'static, MethodResponse>),
    Subscribe(Kind, BoxFuture<'static, Result<Feed, ApiError>>),
}

pub(super) enum Answer {
    Response(MethodResponse),
    Subscribed(Kind, Feed),
    /// The text of a result.
    Result(&'static str),
    Error(ApiError),
}

impl Future for Work {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        match &mut *self {
            Work::Method(response) => response.as_mut().poll(cx).map(Answer::Response),
            Work::Subscribe(kind, feed) => {
                let kind = *kind;
                feed.as_mut()
                    .poll(cx)
                    .map(|feed| feed.map_or_else(Answer::Error, |feed| Answer::Subscribed(kind, feed)))
            }
        }
    }
}

impl Future for Call {
    type Output = (Option<Box<str>>, Place, usize, Answer);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.work).poll(cx));
        Poll::Ready((self.id.take(), self.place, self.bytes, answer))
    }
}

/// What a subscription is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Events,
    Tools,
}

pub(super) struct Subscription {
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// A notification up to its result.
    pub(super) head: Arc<str>,
    pub(super) feed: Feed,
}

impl Work {
    /// The same work, begun once those before it have reached their sessions.
    pub(super) fn after(self, before: Vec<CancellationToken>) -> Work {
        let wait = async move {
            for token in before {
                token.cancelled().await;
            }
        };
        match self {
            Work::Method(response) => Work::Method(wait.then(|()| response).boxed()),
            Work::Subscribe(kind, feed) => Work::Subscribe(kind, wait.then(|()| feed).boxed()),
        }
    }
}
