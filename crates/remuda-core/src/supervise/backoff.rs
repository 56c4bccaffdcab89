//! Growing delays between retries. `Backoff` only computes; the owner counts the failures and keeps the deadline.

use std::time::Duration;

/// `base`, doubled with each step, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
}

impl Backoff {
    pub const fn new(base: Duration, max: Duration) -> Self {
        Backoff { base, max }
    }

    /// The delay after `doublings` doublings: `delay(0)` is the base.
    pub fn delay(&self, doublings: u32) -> Duration {
        self.base.saturating_mul(1 << doublings.min(31)).min(self.max)
    }

    /// Uniform between zero and the delay ("full jitter"), so that callers that failed together do not return together.
    pub fn full_jitter(&self, doublings: u32, random: u64) -> Duration {
        let delay = millis(self.delay(doublings));
        Duration::from_millis(random % delay.saturating_add(1))
    }

    /// Between half of the delay and all of it ("equal jitter"): spread, but never an immediate retry.
    pub fn equal_jitter(&self, doublings: u32, random: u64) -> Duration {
        let half = millis(self.delay(doublings)) / 2;
        Duration::from_millis(half + random % (half + 1))
    }

    /// The delay and up to a quarter more: for deadlines that must not be undercut.
    pub fn extra_jitter(&self, doublings: u32, random: u64) -> Duration {
        let delay = self.delay(doublings);
        delay + Duration::from_millis(random % (millis(delay) / 4 + 1))
    }

    /// The number of doublings that led to `delay`, for owners that store the delay instead of the count.
    pub fn doublings_for(&self, delay: Duration) -> u32 {
        (0..31).find(|doublings| self.delay(*doublings) >= delay.min(self.max)).unwrap_or(31)
    }
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));

    #[test]
    fn delay_doubles_up_to_its_maximum() {
        let delays = [0, 1, 2, 3, 4, 31, u32::MAX].map(|doublings| BACKOFF.delay(doublings).as_secs());
        assert_eq!(delays, [5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).delay(9), Duration::MAX);
    }

    #[test]
    fn doublings_are_recovered_from_a_stored_delay() {
        for doublings in 0..5 {
            assert_eq!(BACKOFF.doublings_for(BACKOFF.delay(doublings)), doublings);
        }
        assert_eq!(BACKOFF.doublings_for(Duration::ZERO), 0);
        assert_eq!(BACKOFF.doublings_for(Duration::MAX), 4, "the maximum was lowered since");
    }

    #[test]
    fn jitter_stays_within_its_bounds() {
        let delay = BACKOFF.delay(1);
        for random in [0, 1, 4_999, 5_000, 9_999, 10_000, u64::MAX] {
            assert!(BACKOFF.full_jitter(1, random) <= delay);
            let equal = BACKOFF.equal_jitter(1, random);
            assert!(equal >= delay / 2 && equal <= delay);
            let extra = BACKOFF.extra_jitter(1, random);
            assert!(extra >= delay && extra <= delay * 5 / 4);
        }
    }
}
