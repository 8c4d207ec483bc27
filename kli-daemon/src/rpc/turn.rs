//! The order in which the calls of one connection reach their sessions.
//!
//! A call that names a session may start once the connection's previous calls to the same session gave up their
//! [`Turn`]s. Which session a text names is not known here: texts of which one begins or ends the other may be one
//! (ids are often sent shortened); an id and a session's name are taken for two. A call that makes or opens a
//! session comes after all that were sent before it, and before all that are sent after it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use kli_protocol::api::{ContinueSession, CreateSession, Method, OpenSession, Order, order_of};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio_util::sync::CancellationToken;

/// A place in the order of one connection's calls to one session; dropping the last clone gives it up too.
#[derive(Clone, Debug, Default)]
pub struct Turn(Option<Arc<Place>>);

impl Turn {
    /// The call has reached its session.
    pub fn done(&self) {
        if let Some(place) = &self.0 {
            place.0.cancel();
        }
    }
}

/// Cancelled: the next call may start.
#[derive(Debug)]
struct Place(CancellationToken);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Where a call stands to others of its connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lane<'a> {
    Free,
    Session(Cow<'a, str>),
    /// Makes or opens sessions.
    Opening,
}

impl<'a> Lane<'a> {
    pub(super) fn of(method: &str, params: Option<&'a str>) -> Lane<'a> {
        const OPENING: [&str; 3] = [CreateSession::NAME, ContinueSession::NAME, OpenSession::NAME];
        if order_of(method) != Some(Order::Session) {
            return Lane::Free;
        }
        if OPENING.contains(&method) {
            return Lane::Opening;
        }
        params.and_then(session_id).map_or(Lane::Free, Lane::Session)
    }
}

/// Who may go next, for one connection.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The last call to each session. Those that are done are swept out.
    last: HashMap<String, CancellationToken>,
    /// The last call that opened sessions.
    opening: Option<CancellationToken>,
    sweep_at: usize,
}

impl Lanes {
    /// A place for a call, and what it waits for.
    pub(super) fn enter(&mut self, lane: Lane<'_>) -> (Turn, Vec<CancellationToken>) {
        if lane == Lane::Free {
            return (Turn::default(), Vec::new());
        }
        let token = CancellationToken::new();
        let mut before: Vec<CancellationToken> = match lane {
            Lane::Free => Vec::new(),
            Lane::Session(id) => {
                let same = self.last.iter().filter(|(other, _)| may_be_one(&id, other));
                let before = same.map(|(_, last)| last.clone()).chain(self.opening.clone()).collect();
                self.last.insert(id.into_owned(), token.clone());
                before
            }
            Lane::Opening => {
                let opening = self.opening.replace(token.clone());
                self.last.drain().map(|(_, last)| last).chain(opening).collect()
            }
        };
        before.retain(|token| !token.is_cancelled());
        self.sweep();
        (Turn(Some(Arc::new(Place(token)))), before)
    }

    /// What is not done is in flight, and so bounded; what is done need not be kept.
    fn sweep(&mut self) {
        if self.last.len() > self.sweep_at {
            self.last.retain(|_, token| !token.is_cancelled());
            self.sweep_at = 8 + 2 * self.last.len();
        }
    }
}

/// Whether two texts may name one session.
fn may_be_one(a: &str, b: &str) -> bool {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    long.starts_with(short) || long.ends_with(short)
}

/// The parameter `sessionId`, by name or as the first.
fn session_id(params: &str) -> Option<Cow<'_, str>> {
    serde_json::Deserializer::from_str(params).deserialize_any(Peek).ok().flatten()
}

struct Peek;

#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Peek {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("parameters")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let first = seq.next_element::<Text>()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first.map(|text| text.0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Text(name)) = map.next_key()? {
            if name == "sessionId" {
                found = Some(map.next_value::<Text>()?.0);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_of_a_call() {
        for (method, params, lane) in [
            ("ping", Some(r#"{"sessionId":"a"}"#), Lane::Free),
            ("nope", None, Lane::Free),
            ("prompt", Some(r#"{"text":"x","sessionId":"a"}"#), Lane::Session("a".into())),
            ("prompt", Some(r#"["a\u0062","x"]"#), Lane::Session("ab".into())),
            ("prompt", Some(r#"{"sessionId":1}"#), Lane::Free),
            ("prompt", None, Lane::Free),
            ("subscribe", Some("{}"), Lane::Free),
            ("createSession", Some(r#"{"sessionId":"a"}"#), Lane::Opening),
            ("openSession", Some(r#"["a"]"#), Lane::Opening),
        ] {
            assert_eq!(Lane::of(method, params), lane, "{method} {params:?}");
        }
    }

    fn session(id: &str) -> Lane<'_> {
        Lane::Session(id.into())
    }

    #[test]
    fn calls_to_one_session_follow_each_other() {
        let mut lanes = Lanes::default();
        let (first, before) = lanes.enter(session("a"));
        assert!(before.is_empty());
        let (second, before) = lanes.enter(session("a"));
        assert_eq!(before.iter().filter(|token| !token.is_cancelled()).count(), 1);
        assert!(lanes.enter(session("b")).1.is_empty());
        first.done();
        assert!(before.iter().all(CancellationToken::is_cancelled));
        assert_eq!(lanes.enter(session("a")).1.len(), 1);
        drop(second.clone());
        assert_eq!(second.0.as_ref().map(|place| place.0.is_cancelled()), Some(false), "a clone still holds it");
    }

    #[test]
    fn a_shortened_id_may_be_the_same_session() {
        for (first, second, waits) in [
            ("0197f3a2-9e04", "9e04", 1),
            ("9e04", "0197f3a2-9e04", 1),
            ("0197", "0197f3a2", 1),
            ("0197f3a2", "97f3", 0),
        ] {
            let mut lanes = Lanes::default();
            let _turn = lanes.enter(session(first));
            assert_eq!(lanes.enter(session(second)).1.len(), waits, "{first} {second}");
        }
    }

    #[test]
    fn dropping_the_last_clone_gives_the_turn_up() {
        let mut lanes = Lanes::default();
        let (first, _) = lanes.enter(session("a"));
        let (_, before) = lanes.enter(session("a"));
        drop(first);
        assert!(before.iter().all(CancellationToken::is_cancelled));
    }

    #[test]
    fn opening_comes_between() {
        let mut lanes = Lanes::default();
        let (a, _) = lanes.enter(session("a"));
        let (b, _) = lanes.enter(session("b"));
        let (open, before) = lanes.enter(Lane::Opening);
        assert_eq!(before.len(), 2);
        assert_eq!(lanes.enter(session("c")).1.len(), 1);
        for turn in [a, b, open] {
            turn.done();
        }
        assert!(before.iter().all(CancellationToken::is_cancelled));
        assert!(lanes.enter(session("d")).1.is_empty());
    }

    #[test]
    fn what_is_done_is_not_kept() {
        let mut lanes = Lanes::default();
        for i in 0..10_000 {
            drop(lanes.enter(session(&i.to_string())));
        }
        assert!(lanes.last.len() < 100);
    }
}
