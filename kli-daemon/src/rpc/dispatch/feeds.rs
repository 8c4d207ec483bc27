//! The subscriptions of one connection. Only those are polled that said they have news, however many there are, and
//! an event costs no allocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::StreamExt;
use futures_util::task::AtomicWaker;

use super::work::{Kind, Subscription};

#[derive(Default)]
pub(super) struct Feeds {
    slots: Vec<Slot>,
    /// Whose turn it is, so that one that always has news keeps none of the others from telling theirs.
    turn: usize,
    connection: Arc<AtomicWaker>,
}

struct Slot {
    subscription: Subscription,
    news: Arc<News>,
    waker: Waker,
}

/// Of one subscription.
struct News {
    here: AtomicBool,
    connection: Arc<AtomicWaker>,
}

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.here.swap(true, Ordering::AcqRel) {
            self.connection.wake();
        }
    }
}

impl Feeds {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn add(&mut self, subscription: Subscription) {
        let news = Arc::new(News { here: AtomicBool::new(true), connection: self.connection.clone() });
        self.slots.push(Slot { subscription, waker: Waker::from(news.clone()), news });
    }

    /// Ends a subscription. False: there is none of that number and kind.
    pub(super) fn end(&mut self, number: u64, kind: Kind) -> bool {
        let before = self.slots.len();
        self.slots.retain(|slot| (slot.subscription.number, slot.subscription.kind) != (number, kind));
        self.slots.len() < before
    }

    /// The next event: a notification up to its result, and the result. Pending: there is none now, or ever.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(Arc<str>, Arc<str>)> {
        // Before the news are looked at, so that none comes unseen in between.
        self.connection.register(cx.waker());
        let mut left = self.slots.len();
        while left > 0 {
            left -= 1;
            self.turn = if self.turn < self.slots.len() { self.turn } else { 0 };
            let Some(slot) = self.slots.get_mut(self.turn) else { break };
            if !slot.news.here.swap(false, Ordering::AcqRel) {
                self.turn += 1;
                continue;
            }
            match slot.subscription.feed.poll_next_unpin(&mut Context::from_waker(&slot.waker)) {
                Poll::Ready(Some(text)) => {
                    slot.news.here.store(true, Ordering::Release);
                    self.turn += 1;
                    return Poll::Ready((slot.subscription.head.clone(), text));
                }
                Poll::Ready(None) => drop(self.slots.remove(self.turn)),
                Poll::Pending => self.turn += 1,
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, BoxStream};
    use tokio::sync::mpsc;

    use super::*;

    fn feed(number: u64, feed: BoxStream<'static, Arc<str>>) -> Subscription {
        Subscription { number, kind: Kind::Events, head: number.to_string().into(), feed }
    }

    /// What there is now, as `number text`.
    fn now(feeds: &mut Feeds) -> Vec<String> {
        let mut cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match feeds.poll_next(&mut cx) {
            Poll::Ready((head, text)) => Some(format!("{head} {text}")),
            Poll::Pending => None,
        })
        .take(6)
        .collect()
    }

    fn open() -> (mpsc::UnboundedSender<Arc<str>>, BoxStream<'static, Arc<str>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let stream = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        (sender, stream.boxed())
    }

    #[test]
    fn they_take_turns() {
        let mut feeds = Feeds::default();
        feeds.add(feed(1, stream::repeat("a".into()).boxed()));
        feeds.add(feed(2, stream::repeat("b".into()).boxed()));
        assert_eq!(now(&mut feeds), ["1 a", "2 b", "1 a", "2 b", "1 a", "2 b"]);
    }

    #[test]
    fn news_are_seen_and_ends_too() {
        let mut feeds = Feeds::default();
        let (one, first) = open();
        let (two, second) = open();
        feeds.add(feed(1, first));
        feeds.add(feed(2, second));
        assert!(now(&mut feeds).is_empty());
        two.send("x".into()).unwrap();
        one.send("y".into()).unwrap();
        two.send("z".into()).unwrap();
        let mut seen = now(&mut feeds);
        seen.sort();
        assert_eq!(seen, ["1 y", "2 x", "2 z"]);
        assert!(!feeds.end(1, Kind::Tools) && feeds.end(1, Kind::Events) && !feeds.end(1, Kind::Events));
        drop(two);
        assert!(now(&mut feeds).is_empty());
        assert_eq!(feeds.len(), 0);
    }
}
