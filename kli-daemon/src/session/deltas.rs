//! Deltas that come faster than anybody can look are told together.
//!
//! A delta after a pause is told at once. Those that come within [`GAP`] of the last one told are held and merged,
//! and told when that time is over, or before anything else is told: whoever follows sees the same text in the
//! same order, in fewer events. What a delta costs is mostly waking those who follow, so fifty of them cost little
//! more than one, however fast the model is. From a torrent, which nobody can read, they come at [`TORRENT_GAP`].

use std::time::Duration;

use kli_protocol::api::EventBody;
use tokio::time::Instant;

/// Shorter than a frame of a screen.
const GAP: Duration = Duration::from_millis(5);
const TORRENT_GAP: Duration = Duration::from_millis(20);
/// So many deltas in one gap are a torrent.
const TORRENT: usize = 16;
/// A merged delta does not grow beyond this by more than one delta, in bytes.
const MAX_HELD: usize = 64 << 10;

/// The deltas of one session.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    held: Option<Held>,
    /// How many of them `held` is.
    count: usize,
    /// Until when further ones are held.
    pause: Option<Instant>,
}

/// A delta that is not told yet.
#[derive(Debug)]
pub(super) struct Held {
    pub run_id: Option<String>,
    pub body: EventBody,
}

impl Deltas {
    /// Takes a delta; what is to be told now, in this order.
    pub(super) fn take(&mut self, run_id: Option<String>, body: EventBody) -> [Option<Held>; 2] {
        let mut before = None;
        let mut delta = Held { run_id, body };
        if let Some(mut held) = self.held.take() {
            match held.absorb(delta) {
                None => delta = held,
                Some(other) => {
                    before = Some(held);
                    delta = other;
                }
            }
        }
        self.count += 1;
        let now = Instant::now();
        let soon = self.pause.is_some_and(|pause| now < pause);
        if soon && delta.body.delta_text().is_some_and(|text| text.len() < MAX_HELD) {
            self.held = Some(delta);
            return [before, None];
        }
        self.pause_from(now);
        [before, Some(delta)]
    }

    /// What is held, to be told before anything else is.
    pub(super) fn release(&mut self) -> Option<Held> {
        let held = self.held.take()?;
        self.pause_from(Instant::now());
        Some(held)
    }

    fn pause_from(&mut self, now: Instant) {
        let gap = if self.count < TORRENT { GAP } else { TORRENT_GAP };
        self.pause = Some(now + gap);
        self.count = 0;
    }

    /// When [`Deltas::release`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.as_ref()?;
        self.pause
    }
}

impl Held {
    /// Takes the other one in behind its own text, or gives it back where it belongs to something else.
    fn absorb(&mut self, other: Held) -> Option<Held> {
        if self.run_id != other.run_id || !self.body.is_continued_by(&other.body) {
            return Some(other);
        }
        match (self.body.delta_text_mut(), other.body.delta_text()) {
            (Some(text), Some(more)) => text.push_str(more),
            _ => return Some(other),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(index: u32, delta: &str) -> EventBody {
        EventBody::TextDelta { message_id: "m".into(), index, delta: delta.into() }
    }

    fn output(call: &str, delta: &str) -> EventBody {
        EventBody::ToolUpdate { tool_call_id: call.into(), delta: delta.into() }
    }

    /// What is told of deltas that come at these ms, in short; then what is still held.
    async fn told(deltas: &[(u64, EventBody)]) -> (Vec<String>, Option<String>) {
        let (start, mut all, mut out) = (Instant::now(), Deltas::default(), vec![]);
        let short = |held: Held| held.body.delta_text().unwrap_or_default().to_owned();
        for (at, body) in deltas {
            let at = start + Duration::from_millis(*at);
            if let Some(due) = all.due().filter(|due| *due <= at) {
                tokio::time::advance(due - Instant::now()).await;
                out.extend(all.release().map(short));
            }
            tokio::time::advance(at - Instant::now()).await;
            out.extend(all.take(None, body.clone()).into_iter().flatten().map(short));
        }
        (out, all.release().map(short))
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_come_fast_are_merged() {
        for (deltas, want, held) in [
            (vec![(0, text(0, "a")), (10, text(0, "b")), (20, text(0, "c"))], vec!["a", "b", "c"], None),
            (vec![(0, text(0, "a")), (1, text(0, "b")), (2, text(0, "c"))], vec!["a"], Some("bc")),
            (
                vec![(0, text(0, "a")), (1, text(0, "b")), (9, text(0, "c")), (9, text(0, "d"))],
                vec!["a", "b"],
                Some("cd"),
            ),
            (vec![(0, text(0, "a")), (1, text(0, "b")), (2, text(1, "c"))], vec!["a", "b"], Some("c")),
            (
                vec![(0, output("x", "a")), (1, output("x", "b")), (2, output("y", "c")), (3, output("y", "d"))],
                vec!["a", "b"],
                Some("cd"),
            ),
        ] {
            assert_eq!(told(&deltas).await, (want.into_iter().map(str::to_owned).collect(), held.map(str::to_owned)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_torrent_comes_in_larger_pieces() {
        let flood = |from: u64, to: u64| (from * 5..to * 5).map(|n| (n / 5, text(0, "x")));
        let told = told(&flood(0, 60).chain([(90, text(0, "y")), (97, text(0, "z"))]).collect::<Vec<_>>()).await;
        let lengths: Vec<usize> = told.0.iter().map(String::len).collect();
        assert_eq!(lengths, [1, 24, 100, 100, 75, 1, 1], "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_long_is_not_held() {
        let long = "x".repeat(MAX_HELD);
        let (out, held) = told(&[(0, text(0, "a")), (1, text(0, &long)), (2, text(0, "b"))]).await;
        assert_eq!((out.len(), held.as_deref()), (2, Some("b")));
    }
}
