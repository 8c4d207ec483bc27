//! Events of one session, or of all: a bounded ring that subscribers read at their own pace.
//!
//! A subscriber is a position in the ring, so one that does not read costs nothing and is waited for by nobody.
//! When what it has not read is gone, it gets `lagged` and a fresh snapshot. Each event is serialised once and
//! shared.
//!
//! The ring is behind a mutex and not in the actor: deltas go from the actor to many readers, and a message to
//! the actor for each of them would make a slow reader everybody's business.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use kli_protocol::api::{Event, EventBody};
use tokio::sync::watch;

/// At least so many events can be replayed.
const MIN_EVENTS: usize = 1000;
/// Never more than this, whatever their number: large entries come as previews, so this is far away.
const HARD_BYTES: usize = 64 << 20;

/// One serialised event.
#[derive(Clone, Debug)]
pub struct Published {
    pub seq: u64,
    pub kind: Cow<'static, str>,
    pub delta: bool,
    pub text: Arc<str>,
}

struct Ring {
    events: VecDeque<Kept>,
    bytes: usize,
    /// Bytes of all events there ever were.
    written: u64,
    /// Numbers up to this one cannot be replayed.
    floor: u64,
    last: u64,
}

struct Kept {
    event: Published,
    /// Bytes of all events before it.
    before: u64,
}

impl Ring {
    /// The number after which no more than so many bytes follow.
    fn oldest_within(&self, bytes: usize) -> u64 {
        let first = self.events.partition_point(|kept| self.written - kept.before > bytes as u64);
        match first.checked_sub(1).and_then(|before| self.events.get(before)) {
            Some(kept) => kept.event.seq,
            None => self.floor,
        }
    }
}

pub struct Hub {
    ring: Mutex<Ring>,
    /// The last number given; closed when the session goes.
    last: watch::Sender<u64>,
    /// Numbers up to this one were given by an earlier daemon.
    born: u64,
    max_bytes: usize,
}

/// What a subscriber asked for.
pub struct Spec {
    pub after: Option<u64>,
    pub types: Option<Vec<String>>,
}

/// Makes a `snapshot` event: its number and its text. None when the session is gone.
pub type Snapshotter = Arc<dyn Fn() -> BoxFuture<'static, Option<(u64, Arc<str>)>> + Send + Sync>;

impl Hub {
    /// `last`: the last number that was given before, by an earlier daemon. `max_bytes`: how far a subscriber may
    /// lag behind.
    pub fn new(last: u64, max_bytes: usize) -> Hub {
        Hub {
            ring: Mutex::new(Ring { events: VecDeque::new(), bytes: 0, written: 0, floor: last, last }),
            last: watch::Sender::new(last),
            born: last,
            max_bytes,
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn last_seq(&self) -> u64 {
        self.ring().last
    }

    /// Events of an earlier daemon, oldest first, put in front. `floor`: numbers up to it are lost.
    pub fn preload(&self, floor: u64, events: Vec<Published>) {
        let mut ring = self.ring();
        for event in events.into_iter().rev().filter(|e| e.seq <= ring.floor).collect::<Vec<_>>() {
            ring.bytes += event.text.len();
            ring.events.push_front(Kept { event, before: 0 });
        }
        ring.floor = floor;
    }

    /// Bytes of the events that are kept.
    pub fn bytes(&self) -> usize {
        self.ring().bytes
    }

    /// Keeps no more than can be asked for, while nobody follows.
    pub fn shrink(&self) {
        let mut ring = self.ring();
        let surplus = ring.events.len().saturating_sub(MIN_EVENTS);
        for _ in 0..surplus {
            drop_oldest(&mut ring);
        }
        ring.events.shrink_to_fit();
    }

    /// Keeps no event.
    pub fn forget(&self) {
        let mut ring = self.ring();
        ring.events = VecDeque::new();
        ring.bytes = 0;
        ring.floor = ring.last;
    }

    /// Whether all after `seq` can still be replayed.
    pub fn reaches_back_to(&self, seq: u64) -> bool {
        let ring = self.ring();
        seq >= ring.floor && seq <= ring.last
    }

    /// Whether what an earlier daemon kept would complete the answer to `after`: it asks for events of that time, and
    /// none of this daemon's own have been dropped.
    pub fn lacks_only_earlier(&self, after: u64) -> bool {
        after < self.born && self.ring().floor == self.born
    }

    /// Gives the event its number and shows it to all. Only the session's actor calls it.
    pub fn publish(&self, event: &mut Event) -> Published {
        let mut ring = self.ring();
        let seq = ring.last + 1;
        event.seq = Some(seq);
        let published = published(seq, event);
        push(&mut ring, published.clone(), self.max_bytes);
        drop(ring);
        self.last.send_replace(seq);
        published
    }

    /// Whether anybody would see an event.
    pub fn is_followed(&self) -> bool {
        self.last.receiver_count() > 0
    }

    /// Shows an event that has no number: for the hub of all sessions.
    pub fn tell(&self, event: &Event) {
        self.relay(published(0, event));
    }

    /// Shows an event that has its number from elsewhere: for the hub of all sessions.
    pub fn relay(&self, mut published: Published) {
        let mut ring = self.ring();
        published.seq = ring.last + 1;
        push(&mut ring, published, self.max_bytes);
        let seq = ring.last;
        drop(ring);
        self.last.send_replace(seq);
    }

    /// The events of a session: from a snapshot on, or after a number.
    pub fn feed(self: &Arc<Self>, spec: Spec, snapshot: Snapshotter) -> BoxStream<'static, Arc<str>> {
        let start = match spec.after {
            Some(after) if self.reaches_back_to(after) => Start::After(after),
            _ => Start::Snapshot,
        };
        let reader = Reader {
            hub: self.clone(),
            seen: self.last.subscribe(),
            types: spec.types,
            snapshot: Some(snapshot),
            cursor: 0,
            asked_for: self.last_seq(),
            start: Some(start),
            next: None,
        };
        reader.stream()
    }

    /// The events from now on, without snapshots.
    pub fn follow(self: &Arc<Self>, types: Option<Vec<String>>) -> BoxStream<'static, Arc<str>> {
        let reader = Reader {
            hub: self.clone(),
            seen: self.last.subscribe(),
            types,
            snapshot: None,
            cursor: self.last_seq(),
            asked_for: 0,
            start: None,
            next: None,
        };
        reader.stream()
    }
}

fn published(seq: u64, event: &Event) -> Published {
    let text = serde_json::to_string(event).unwrap_or_default();
    Published { seq, kind: Cow::Borrowed(event.body.type_name()), delta: event.body.is_delta(), text: text.into() }
}

/// An event without a number of its own: `snapshot`, `lagged`.
pub fn unnumbered(seq: u64, session_id: &str, time: String, body: EventBody) -> Arc<str> {
    let event = Event { seq: Some(seq), session_id: Some(session_id.to_owned()), time, run_id: None, body };
    published(seq, &event).text
}

fn push(ring: &mut Ring, event: Published, max_bytes: usize) {
    ring.last = event.seq;
    ring.bytes += event.text.len();
    let before = ring.written;
    ring.written += event.text.len() as u64;
    ring.events.push_back(Kept { event, before });
    while (ring.events.len() > MIN_EVENTS && ring.bytes > max_bytes) || ring.bytes > HARD_BYTES {
        if !drop_oldest(ring) {
            break;
        }
    }
}

/// False: there is none.
fn drop_oldest(ring: &mut Ring) -> bool {
    let Some(Kept { event: oldest, .. }) = ring.events.pop_front() else { return false };
    ring.bytes -= oldest.text.len();
    ring.floor = oldest.seq;
    true
}

enum Start {
    Snapshot,
    After(u64),
}

struct Reader {
    hub: Arc<Hub>,
    seen: watch::Receiver<u64>,
    types: Option<Vec<String>>,
    /// None: lost events are only said to be lost.
    snapshot: Option<Snapshotter>,
    /// The last event that was given.
    cursor: u64,
    /// Events up to this one were there when it began: it may take its time over them.
    asked_for: u64,
    start: Option<Start>,
    /// To be given before any further event.
    next: Option<Arc<str>>,
}

enum Found {
    Event(Arc<str>),
    Lost,
    Nothing,
}

impl Reader {
    fn stream(self) -> BoxStream<'static, Arc<str>> {
        stream::unfold(self, |mut reader| async move {
            let text = reader.next().await?;
            Some((text, reader))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Arc<str>> {
        if let Some(text) = self.next.take() {
            return Some(text);
        }
        match self.start.take() {
            Some(Start::After(seq)) => self.cursor = seq,
            Some(Start::Snapshot) => return self.take_snapshot().await,
            None => {}
        }
        loop {
            let seen = *self.seen.borrow_and_update();
            match self.look() {
                Found::Event(text) => return Some(text),
                Found::Lost => return self.lagged().await,
                Found::Nothing if self.hub.last_seq() > seen => {}
                Found::Nothing => self.seen.changed().await.ok()?,
            }
        }
    }

    async fn take_snapshot(&mut self) -> Option<Arc<str>> {
        let (seq, text) = (self.snapshot.as_ref()?)().await?;
        self.cursor = seq;
        Some(text)
    }

    async fn lagged(&mut self) -> Option<Arc<str>> {
        let before = self.cursor;
        let snapshot = match &self.snapshot {
            Some(_) => Some(self.take_snapshot().await?),
            None => {
                self.cursor = self.hub.ring().oldest_within(self.hub.max_bytes);
                None
            }
        };
        // Built from the snapshot's own words, so that session and time agree with it. Among all sessions there is
        // no number that would mean anything; the time is that of the newest event.
        let (session, time) = match snapshot.as_deref() {
            Some(snapshot) => stamp(snapshot),
            None => (None, self.hub.ring().events.back().map(|last| stamp(&last.event.text).1).unwrap_or_default()),
        };
        let seq = session.is_some().then_some(before);
        let event = Event { seq, session_id: session, time, run_id: None, body: EventBody::Lagged {} };
        self.next = snapshot;
        Some(published(before, &event).text)
    }

    /// The next event that this reader wants, by binary search on the numbers.
    fn look(&mut self) -> Found {
        let ring = self.hub.ring();
        if self.cursor < ring.floor {
            return Found::Lost;
        }
        let mut index = ring.events.partition_point(|kept| kept.event.seq <= self.cursor);
        let unread = ring.events.get(index).map_or(0, |first| ring.written - first.before);
        if unread > self.hub.max_bytes as u64 && self.cursor >= self.asked_for {
            return Found::Lost;
        }
        while let Some(Kept { event, .. }) = ring.events.get(index) {
            self.cursor = event.seq;
            let wanted = self.types.as_ref().is_none_or(|types| types.iter().any(|t| *t == event.kind));
            if wanted {
                return Found::Event(event.text.clone());
            }
            index += 1;
        }
        Found::Nothing
    }
}

fn stamp(snapshot: &str) -> (Option<String>, String) {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stamp {
        session_id: Option<String>,
        time: String,
    }
    serde_json::from_str::<Stamp>(snapshot).map(|s| (s.session_id, s.time)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn event(n: u64) -> Event {
        let body = EventBody::TextDelta { message_id: "m".into(), index: 0, delta: format!("{n}") };
        Event { seq: None, session_id: Some("s".into()), time: "t".into(), run_id: None, body }
    }

    fn hub_with_snapshot(max: usize) -> (Arc<Hub>, Snapshotter) {
        let hub = Arc::new(Hub::new(0, max));
        let of = hub.clone();
        let snapshot: Snapshotter = Arc::new(move || {
            let seq = of.last_seq();
            let text = unnumbered(seq, "s", "t".into(), EventBody::Lagged {}).replace("lagged", "snapshot");
            async move { Some((seq, Arc::from(text))) }.boxed()
        });
        (hub, snapshot)
    }

    fn ready(feed: &mut BoxStream<'static, Arc<str>>) -> Vec<(String, u64)> {
        let mut out = vec![];
        while let Some(Some(text)) = feed.next().now_or_never() {
            let v: serde_json::Value = serde_json::from_str(&text).unwrap();
            out.push((v["type"].as_str().unwrap().to_owned(), v["seq"].as_u64().unwrap()));
        }
        out
    }

    #[test]
    fn a_snapshot_and_all_after_it() {
        let (hub, snapshot) = hub_with_snapshot(1 << 20);
        hub.publish(&mut event(1));
        let mut feed = hub.feed(Spec { after: None, types: None }, snapshot.clone());
        hub.publish(&mut event(2));
        assert_eq!(ready(&mut feed), [("snapshot".into(), 2)]);
        hub.publish(&mut event(3));
        assert_eq!(ready(&mut feed), [("textDelta".into(), 3)]);
        let mut replay = hub.feed(Spec { after: Some(1), types: None }, snapshot);
        assert_eq!(ready(&mut replay), [("textDelta".into(), 2), ("textDelta".into(), 3)]);
    }

    #[test]
    fn a_number_that_was_never_given_gets_a_snapshot() {
        let (hub, snapshot) = hub_with_snapshot(1 << 20);
        let mut feed = hub.feed(Spec { after: Some(7), types: None }, snapshot);
        assert_eq!(ready(&mut feed), [("snapshot".into(), 0)]);
    }

    #[test]
    fn one_who_does_not_read_is_told_and_gets_a_snapshot() {
        let (hub, snapshot) = hub_with_snapshot(1000);
        let mut feed = hub.feed(Spec { after: None, types: None }, snapshot);
        assert_eq!(ready(&mut feed).len(), 1);
        for n in 0..3000 {
            hub.publish(&mut event(n));
        }
        assert_eq!(ready(&mut feed), [("lagged".into(), 0), ("snapshot".into(), 3000)]);
        assert!(hub.ring().events.len() <= MIN_EVENTS, "the last thousand are kept and no more");
        assert!(hub.reaches_back_to(2000) && !hub.reaches_back_to(1999));
    }

    /// Large events, of which the ring keeps more than one reader may be behind.
    #[test]
    fn bytes_count_and_not_only_events() {
        let large = |n: u64| {
            let mut event = event(n);
            event.body = EventBody::TextDelta { message_id: "m".into(), index: 0, delta: "x".repeat(1000) };
            event
        };
        let (hub, snapshot) = hub_with_snapshot(10_000);
        let mut feed = hub.feed(Spec { after: None, types: None }, snapshot.clone());
        assert_eq!(ready(&mut feed).len(), 1);
        let mut all = hub.follow(None);
        for n in 0..20 {
            hub.publish(&mut large(n));
        }
        assert_eq!(ready(&mut feed), [("lagged".into(), 0), ("snapshot".into(), 20)]);
        let mut replay = hub.feed(Spec { after: Some(2), types: None }, snapshot);
        assert_eq!(ready(&mut replay).len(), 18, "what was asked for is given");
        let all = std::iter::from_fn(|| all.next().now_or_never().flatten()).count();
        assert!((8..12).contains(&all), "lagged, and what fits: {all}");
    }

    #[test]
    fn types_hide_events_but_use_up_numbers() {
        let (hub, snapshot) = hub_with_snapshot(1 << 20);
        let mut feed = hub.feed(Spec { after: None, types: Some(vec!["turnStart".into()]) }, snapshot);
        assert_eq!(ready(&mut feed).len(), 1);
        hub.publish(&mut event(1));
        let mut turn = event(2);
        turn.body = EventBody::TurnStart {};
        hub.publish(&mut turn);
        assert_eq!(ready(&mut feed), [("turnStart".into(), 2)]);
    }

    #[test]
    fn what_an_earlier_daemon_kept_is_for_its_own_time_only() {
        let max = 1000;
        let hub = Arc::new(Hub::new(100, max));
        let kept = |seq| Published { seq, kind: "runEnd".into(), delta: false, text: "{}".into() };
        assert!(hub.lacks_only_earlier(50) && !hub.lacks_only_earlier(100));
        hub.publish(&mut event(1));
        assert!(hub.lacks_only_earlier(50), "nothing of this daemon is lost yet");
        hub.preload(40, vec![kept(60), kept(90)]);
        assert!(hub.reaches_back_to(40) && hub.reaches_back_to(50) && !hub.reaches_back_to(39));
        for n in 0..2000 {
            hub.publish(&mut event(n));
        }
        assert!(!hub.reaches_back_to(50) && !hub.lacks_only_earlier(50), "what came between is lost");
    }
}
