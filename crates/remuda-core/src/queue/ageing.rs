//! Priorities age, so that a job of low priority is never starved for ever.
//!
//! A job counts as one priority higher for each `priority_ageing` that it has waited. All jobs age alike, so one of low
//! priority overtakes one of high priority as soon as it has waited that much longer, and never because it is barely older.
//! The overtaking is rationed: of two jobs that a worker takes in a row, at most one has overtaken others by its age. An
//! old backlog of low priority therefore never shuts out what is urgent; it gets at most every other slot.
//!
//! Rejected: a position in the queue that follows from priority and time of acceptance alone. It is cheaper, but tenants
//! would no longer take turns within a priority: an old backlog of one would go before every new job of the others.

use std::time::Duration;

use super::Queue;
use super::{Matcher, needs_index::Bucket};
use crate::id::JobId;

/// How the next job is chosen.
#[derive(Clone, Copy, Debug)]
pub struct QueueRules {
    /// Kinds of work to look past for one that the worker has warm.
    pub look_ahead: usize,
    /// Waiting that counts as one step of priority; zero: priorities do not age.
    pub priority_ageing: Duration,
}

/// A job to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextJob {
    pub job: JobId,
    /// It goes before jobs of higher priority because of its age.
    pub is_aged: bool,
}

impl QueueRules {
    /// How much longer than a job of priority `high` one of priority `low` must have waited to go first. None if it never
    /// does.
    pub fn overtakes_after(&self, low: i8, high: i8) -> Option<Duration> {
        let steps = u32::try_from(i32::from(high) - i32::from(low)).ok()?;
        (!self.priority_ageing.is_zero()).then(|| self.priority_ageing.saturating_mul(steps))
    }
}

impl Queue {
    /// The next job for this worker. Changes nothing; `record_served` records who got it.
    pub fn next(&self, matcher: &impl Matcher, rules: QueueRules) -> Option<NextJob> {
        let buckets = self.index.reachable(&matcher.profile());
        let mut priorities = priorities(&buckets).into_iter();
        let find =
            |priority, waited_min| self.next_at(priority, &buckets, matcher, rules.look_ahead, waited_min);
        let (top, job) = priorities.by_ref().find_map(|top| Some((top, find(top, Duration::ZERO)?)))?;
        if matcher.took_aged() {
            return Some(NextJob { job, is_aged: false });
        }
        let waited = matcher.waited(job);
        let aged = priorities.filter_map(|low| {
            let lead = rules.overtakes_after(low, top)?;
            find(low, waited.saturating_add(lead))
        });
        // Of several the oldest: any of them becomes the oldest in time.
        Some(aged.min().map_or(NextJob { job, is_aged: false }, |job| NextJob { job, is_aged: true }))
    }
}

/// The priorities of waiting jobs, highest first.
fn priorities(buckets: &[&Bucket]) -> Vec<i8> {
    let mut found: Vec<_> =
        buckets.iter().flat_map(|bucket| bucket.levels.keys().map(|priority| priority.0)).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.dedup();
    found
}
