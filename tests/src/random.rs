//! Moments that are no particular ones.

use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64: the same sequence for the same seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// How many rounds a random check has (`KLI_ROUNDS`, else `few`), and what they are made from (`KLI_SEED`, else
    /// the time), which is printed, so that a failure can be had again.
    pub fn rounds(few: u64) -> (u64, Random) {
        let variable = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
        let rounds = variable("KLI_ROUNDS").unwrap_or(few);
        let seed = variable("KLI_SEED").unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_nanos() as u64).unwrap_or(1)
        });
        println!("{rounds} rounds with KLI_SEED={seed}");
        (rounds, Random::new(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }
}
