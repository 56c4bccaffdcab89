//! How many live reports and previews one worker may send, and how large. They are for display only, so what is too much is
//! refused and forgotten; a worker that floods the plane with them costs the others no more than its share.

use std::time::Duration;

use crate::rate::{Debt, RateLimit};
use crate::time::Timestamp;

/// Reports and previews a second for each slot: ten reports, as our own workers send them, and the previews of a sampler that
/// makes thirty steps a second while a client watches.
const REPORTS_PER_SLOT: u32 = 40;
/// KiB a second for each slot: thirty previews of 50 KB take 1.5 MB, and as much again is for messages and outputs.
const KIB_PER_SLOT: u32 = 3 * 1024;
/// More slots bring no more: 640 reports and 48 MiB a second are a tenth of what one core of the plane can take.
const SLOTS_COUNTED_MAX: u32 = 16;
/// Seconds' worth at once: what a worker has queued while the plane was away.
const BURST_SECONDS: u32 = 3;

/// What one worker has sent lately.
#[derive(Clone, Copy, Debug)]
pub struct LiveBudget {
    reports: Bucket,
    kib: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: Option<RateLimit>,
    debt: Debt,
}

/// Too much was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveExcess {
    /// `reports` or `KiB`.
    pub what: &'static str,
    pub per_second: u32,
    pub retry_after: Duration,
}

impl LiveBudget {
    pub fn new(slots: u32) -> LiveBudget {
        LiveBudget {
            reports: Bucket::new(REPORTS_PER_SLOT * counted(slots)),
            kib: Bucket::new(KIB_PER_SLOT * counted(slots)),
        }
    }

    /// Counts a report or preview of so many bytes, or says how long to wait. A refused one costs nothing.
    pub fn charge(&mut self, now: Timestamp, bytes: usize) -> Result<(), LiveExcess> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let excess = |what, bucket: &Bucket, retry_after| {
            let per_second = bucket.limit.map_or(0, |limit| limit.per_second());
            LiveExcess { what, per_second, retry_after }
        };
        self.reports.admit(now, 1).map_err(|wait| excess("reports", &self.reports, wait))?;
        self.kib.admit(now, kib).map_err(|wait| excess("KiB", &self.kib, wait))?;
        self.reports.charge(now, 1);
        self.kib.charge(now, kib);
        Ok(())
    }

    /// Whether forgetting it changes nothing.
    pub fn is_unused(&self, now: Timestamp) -> bool {
        self.reports.debt.is_paid(now) && self.kib.debt.is_paid(now)
    }
}

fn counted(slots: u32) -> u32 {
    slots.clamp(1, SLOTS_COUNTED_MAX)
}

impl Bucket {
    fn new(per_second: u32) -> Bucket {
        Bucket { limit: RateLimit::new(per_second, BURST_SECONDS * per_second), debt: Debt::default() }
    }

    fn admit(&self, now: Timestamp, uses: u32) -> Result<(), Duration> {
        self.limit.map_or(Ok(()), |limit| self.debt.admit(now, uses, &limit))
    }

    fn charge(&mut self, now: Timestamp, uses: u32) {
        if let Some(limit) = self.limit {
            self.debt.charge(now, uses, &limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many reports of this size are accepted at one moment, and then a second later.
    fn accepted(slots: u32, count: u32, bytes: usize) -> (u32, u32) {
        let mut budget = LiveBudget::new(slots);
        let mut at = |second: u64| {
            let now = Timestamp::from_millis(second * 1000);
            (0..count).map(|_| u32::from(budget.charge(now, bytes).is_ok())).sum()
        };
        (at(100), at(101))
    }

    /// Faults: J18.
    #[test]
    fn reports_are_limited_by_number_and_by_size() {
        assert_eq!(accepted(1, 10_000, 100), (120, 40));
        assert_eq!(accepted(4, 10_000, 100), (480, 160));
        assert_eq!(accepted(1, 10_000, 1 << 20), (9, 3));
        assert_eq!(accepted(u32::MAX, 10_000, 100), (1920, 640));
    }

    #[test]
    fn worker_that_sends_ten_reports_a_second_and_every_preview_is_never_refused() {
        let mut budget = LiveBudget::new(1);
        for tick in 0..600_u64 {
            let now = Timestamp::from_millis(tick * 100);
            budget.charge(now, 20_000).unwrap();
            (0..3).for_each(|_| budget.charge(now, 50_000).unwrap());
        }
    }

    #[test]
    fn refusal_says_what_was_too_much_and_when_to_come_back() {
        let mut budget = LiveBudget::new(1);
        let now = Timestamp::from_millis(5000);
        let refused = (0..1000).find_map(|_| budget.charge(now, 10).err()).unwrap();
        assert_eq!(
            refused,
            LiveExcess { what: "reports", per_second: 40, retry_after: Duration::from_millis(25) }
        );
        assert!(!budget.is_unused(now) && budget.is_unused(now.plus(Duration::from_secs(3))));
    }
}
