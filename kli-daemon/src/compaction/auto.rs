//! When compaction happens by itself, and when it gives up: a summary that gains nothing must not be tried again
//! before each request.

use crate::context::estimate::Budget;

/// Of one session; kept in memory by whoever runs compactions for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Auto {
    /// Tokens of the request at which it paused.
    paused_at: Option<u64>,
}

impl Auto {
    /// Whether to compact before a request of so many tokens.
    pub fn wants(&mut self, tokens: u64, budget: &Budget) -> bool {
        if !budget.needs_compaction(tokens) {
            self.paused_at = None;
            return false;
        }
        // Enough that is new gives another try something to gain.
        self.paused_at.is_none_or(|at| tokens > at.saturating_add(budget.keep_recent))
    }

    /// A compaction ended with a request of so many tokens: the true number after a success, the old one after a
    /// failure. Returns whether it pauses now: tell the user, once. An abort is not a failure.
    pub fn ended(&mut self, tokens: u64, budget: &Budget) -> bool {
        let fits = !budget.needs_compaction(tokens);
        let before = self.paused_at.replace(tokens).is_some();
        if fits {
            self.paused_at = None;
        }
        !fits && !before
    }

    /// The model changed, or a person compacted: all is open again.
    pub fn resume(&mut self) {
        self.paused_at = None;
    }

    pub fn is_paused(&self) -> bool {
        self.paused_at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_instead_of_looping() {
        let budget = Budget::new(100_000, 20_000, 10_000);
        let mut auto = Auto::default();
        assert!(!auto.wants(80_000, &budget));
        assert!(auto.wants(80_001, &budget));
        // It gained too little: one notice, then quiet.
        assert!(auto.ended(90_000, &budget) && auto.is_paused());
        assert!(!auto.wants(90_100, &budget));
        // Much is new: one more try, no second notice.
        assert!(auto.wants(100_001, &budget));
        assert!(!auto.ended(99_000, &budget));
        // Navigating back gave room.
        assert!(!auto.wants(10_000, &budget) && !auto.is_paused());
        assert!(auto.wants(90_000, &budget));
        assert!(!auto.ended(30_000, &budget) && !auto.is_paused());
        auto.ended(90_000, &budget);
        auto.resume();
        assert!(auto.wants(90_000, &budget));
    }
}
