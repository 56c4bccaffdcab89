//! Rates as time: each use costs a part of a second, a burst of them may be owed, and time pays it back. One number for each
//! participant is enough, and nothing has to run while it is idle.

use std::time::Duration;

use crate::time::Timestamp;

/// So many uses a second in the long run, and a burst at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    per_second: u32,
    each: Duration,
    burst: Duration,
}

impl RateLimit {
    /// None without a limit: zero a second.
    pub fn new(per_second: u32, burst: u32) -> Option<RateLimit> {
        let each = Duration::from_secs(1).checked_div(per_second)?;
        Some(RateLimit { per_second, each, burst: each.saturating_mul(burst.max(1)) })
    }

    pub fn per_second(&self) -> u32 {
        self.per_second
    }

    fn cost(&self, uses: u32) -> Duration {
        // More than a burst at once would never be allowed.
        self.each.saturating_mul(uses).min(self.burst)
    }
}

/// What one participant owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    at: Timestamp,
    owed: Duration,
}

impl Debt {
    /// Whether so many more are allowed now; if not, how long to wait.
    pub fn admit(&self, now: Timestamp, uses: u32, limit: &RateLimit) -> Result<(), Duration> {
        match (self.owed(now) + limit.cost(uses)).checked_sub(limit.burst) {
            Some(wait) if !wait.is_zero() => Err(wait),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts them.
    pub fn charge(&mut self, now: Timestamp, uses: u32, limit: &RateLimit) {
        *self = Debt { at: now, owed: self.owed(now) + limit.cost(uses) };
    }

    pub fn is_paid(&self, now: Timestamp) -> bool {
        self.owed(now).is_zero()
    }

    /// How many uses are owed.
    pub fn uses(&self, now: Timestamp, limit: &RateLimit) -> usize {
        let uses = self.owed(now).as_nanos() / limit.each.as_nanos().max(1);
        usize::try_from(uses).unwrap_or(usize::MAX)
    }

    fn owed(&self, now: Timestamp) -> Duration {
        self.owed.saturating_sub(now.since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn burst_is_allowed_at_once_and_then_the_rate() {
        let limit = RateLimit::new(10, 3).unwrap();
        let mut debt = Debt::default();
        let mut allowed = Vec::new();
        for now in [1000, 1000, 1000, 1000, 1100, 1100, 1200] {
            let is_allowed = debt.admit(at(now), 1, &limit).is_ok();
            if is_allowed {
                debt.charge(at(now), 1, &limit);
            }
            allowed.push(is_allowed);
        }
        assert_eq!(allowed, [true, true, true, false, true, false, true]);
        assert_eq!(debt.admit(at(1200), 1, &limit), Err(Duration::from_millis(100)));
        assert_eq!(debt.uses(at(1200), &limit), 3);
        assert!(debt.is_paid(at(1500)) && !debt.is_paid(at(1499)));
    }

    #[test]
    fn use_larger_than_the_burst_is_allowed_after_a_pause_and_costs_all_of_it() {
        let limit = RateLimit::new(10, 3).unwrap();
        let mut debt = Debt::default();
        assert!(debt.admit(at(1000), u32::MAX, &limit).is_ok());
        debt.charge(at(1000), u32::MAX, &limit);
        assert_eq!(debt.admit(at(1000), 1, &limit), Err(Duration::from_millis(100)));
        assert_eq!(debt.admit(at(1000), u32::MAX, &limit), Err(Duration::from_millis(300)));
    }

    #[test]
    fn rate_of_zero_is_no_limit() {
        assert_eq!(RateLimit::new(0, 5), None);
    }
}
