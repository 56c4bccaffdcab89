//! A seeded random generator for the fakes, so that runs can be repeated.

use std::time::Duration;

/// splitmix64: small, fast, and the same on every platform.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// True with this probability.
    pub(super) fn falls(&mut self, probability: f64) -> bool {
        ((self.number() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// A number below `bound`, which must not be zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// A random number of seconds in this range.
    pub(super) fn seconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from * 1000 + self.below((to - from) * 1000 + 1))
    }
}
