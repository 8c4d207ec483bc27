//! How long to wait before asking again.

use crate::dialect::failure::LONGEST_WAIT_MS;

/// Of the configuration, `[retry]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Requests for one reply, the first included.
    pub max_attempts: u32,
    pub base_delay_ms: u64,
}

impl Default for RetrySettings {
    fn default() -> RetrySettings {
        RetrySettings { max_attempts: 5, base_delay_ms: 1000 }
    }
}

/// The longest wait of our own choice.
pub const MAX_DELAY_MS: u64 = 120_000;

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Wait(u64),
    GiveUp,
}

/// `attempt` counts from 1 (the one that failed); `jitter` is in 0..1. Doubles from the base delay, and is never
/// shorter than what the provider asked for.
pub fn next(settings: RetrySettings, attempt: u32, asked_ms: Option<u64>, jitter: f64) -> Next {
    if attempt >= settings.max_attempts {
        return Next::GiveUp;
    }
    let doubled = settings.base_delay_ms.saturating_mul(1 << (attempt - 1).min(20)).min(MAX_DELAY_MS);
    // Between 75 % and 125 % of it, so that many sessions do not come back at once.
    let own = (doubled as f64 * (0.75 + jitter.clamp(0.0, 1.0) / 2.0)) as u64;
    match asked_ms {
        Some(asked) if asked > LONGEST_WAIT_MS => Next::GiveUp,
        Some(asked) => Next::Wait(asked.max(own.min(1000))),
        None => Next::Wait(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays() {
        let s = RetrySettings { max_attempts: 4, base_delay_ms: 1000 };
        for (attempt, asked, want) in [
            (1, None, Next::Wait(1000)),
            (2, None, Next::Wait(2000)),
            (3, None, Next::Wait(4000)),
            (4, None, Next::GiveUp),
            (1, Some(2000), Next::Wait(2000)),
            (1, Some(0), Next::Wait(1000)),
            (1, Some(LONGEST_WAIT_MS), Next::Wait(LONGEST_WAIT_MS)),
            (1, Some(3_600_000), Next::GiveUp),
        ] {
            assert_eq!(next(s, attempt, asked, 0.5), want, "{attempt} {asked:?}");
        }
        assert_eq!(next(RetrySettings { max_attempts: 99, ..s }, 60, None, 1.0), Next::Wait(MAX_DELAY_MS * 5 / 4));
    }
}
