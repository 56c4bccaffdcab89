//! Cost reports: what rented machines cost, and for which tenants. Sums over stored data; no decision uses them.
//!
//! A machine costs money from its request until it is proved gone. An attempt costs its share of its machine while it
//! runs there. The rest is overhead that no tenant is charged for: boots, idle time, failed machines.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{JobId, Tenant};
use crate::money::Money;
use crate::record::PastAttempt;
use crate::time::HOUR;
use crate::time::Timestamp;

/// The time span of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostWindow {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl CostWindow {
    /// One hour, counted from 1970.
    pub fn for_hour(hour: u64) -> CostWindow {
        let from = Timestamp::ZERO.plus(HOUR.saturating_mul(u32::try_from(hour).unwrap_or(u32::MAX)));
        CostWindow { from, until: from.plus(HOUR) }
    }

    /// How much of the span from `from` to `until` lies in the window.
    pub fn overlap(&self, from: Timestamp, until: Timestamp) -> Duration {
        self.until.min(until).since(self.from.max(from))
    }

    /// The cost of attempts within the window, up to `now`.
    pub fn cost_of(&self, tries: &[PastAttempt], now: Timestamp) -> Money {
        let cost = |one: &PastAttempt| {
            let overlap = self.overlap(one.started_at, one.ended_at.unwrap_or(now));
            one.price.unwrap_or_default().over(overlap)
        };
        tries.iter().map(cost).sum()
    }
}

/// The cost of jobs: by tenant, and the most expensive jobs.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    pub tenants: BTreeMap<Tenant, TenantCost>,
    /// The most expensive first.
    pub jobs: Vec<(JobId, Tenant, Money)>,
    pub sum: Money,
}

/// One tenant's jobs and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCost {
    pub jobs: u64,
    pub cost: Money,
}

/// Jobs listed in a bill; the sums count all.
pub const JOBS_NAMED_MAX: usize = 100;

impl Bill {
    pub fn add(&mut self, job: JobId, tenant: &Tenant, cost: Money) {
        if cost == Money::ZERO {
            return;
        }
        let share = self.tenants.entry(tenant.clone()).or_default();
        (share.jobs, share.cost) = (share.jobs + 1, share.cost.plus(cost));
        self.sum = self.sum.plus(cost);
        let at = self.jobs.partition_point(|(_, _, other)| *other >= cost);
        if at < JOBS_NAMED_MAX {
            self.jobs.insert(at, (job, tenant.clone(), cost));
            self.jobs.truncate(JOBS_NAMED_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Attempt;

    fn at(minutes: u64) -> Timestamp {
        Timestamp::from_millis(minutes * 60_000)
    }

    fn tried(from: u64, until: Option<u64>, price: Option<u64>) -> PastAttempt {
        PastAttempt {
            ended_at: until.map(at),
            price: price.map(Money::from_micros),
            ..PastAttempt::new(Attempt(1), "gpus-1".parse().unwrap(), at(from))
        }
    }

    #[test]
    fn attempt_costs_its_overlap_with_the_window() {
        let window = CostWindow { from: at(60), until: at(120) };
        for (from, until, cents) in [
            (0, Some(60), 0),
            (30, Some(90), 30),
            (70, Some(80), 10),
            (110, Some(300), 10),
            (0, Some(300), 60),
            (90, None, 15),
            (130, Some(140), 0),
        ] {
            let cost = window.cost_of(&[tried(from, until, Some(600_000))], at(105));
            assert_eq!(cost, Money::from_micros(cents * 10_000), "{from} to {until:?}");
        }
        let free = tried(60, Some(120), None);
        assert_eq!(window.cost_of(&[free], at(200)), Money::ZERO, "an unbilled machine");
    }

    #[test]
    fn bill_lists_the_most_expensive_jobs_and_sums_all() {
        let mut bill = Bill::default();
        let tenant: Tenant = "anna".parse().unwrap();
        for n in 0..2 * JOBS_NAMED_MAX as u64 {
            bill.add(JobId::from_u128(n.into()), &tenant, Money::from_micros(n % 150));
        }
        assert_eq!(bill.jobs.len(), JOBS_NAMED_MAX);
        assert!(bill.jobs.is_sorted_by_key(|(.., cost)| std::cmp::Reverse(*cost)));
        assert_eq!(bill.jobs[0].2, Money::from_micros(149));
        assert_eq!(bill.sum, Money::from_micros(149 * 150 / 2 + 49 * 50 / 2));
        assert_eq!(bill.tenants[&tenant], TenantCost { jobs: 198, cost: bill.sum }, "two cost nothing");
    }
}
