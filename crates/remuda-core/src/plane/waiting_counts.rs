//! Waiting jobs by the kind of reason, for metrics and alerts: `why` for all of them at once, at a bounded cost.
//!
//! Jobs that are interchangeable for routing (same tenant, needs, shape and priority) wait for the same reason, so one of
//! them is asked about, the oldest, and its answer counts for all. A look at every pair of such a group and a worker was
//! rejected: with 5,000 workers and as many groups it would hold up the event loop for seconds. Beyond the bounds below,
//! jobs are counted as `not_examined`.

use std::collections::BTreeMap;

use super::{PassedOver, Plane};
use crate::job::{Job, JobState};
use crate::quarantine::QuarantineState;
use crate::time::Timestamp;

/// Groups of jobs that are examined.
const GROUPS_MAX: usize = 256;
/// Workers looked at for all groups together: about 2 ms of the event loop.
const LOOKS_MAX: usize = 20_000;
/// Open jobs looked at for the oldest one that waits; the oldest come first, and at most as many run as there are slots.
const OLDEST_LOOKS_MAX: usize = 10_000;

/// Why jobs wait. The order is that of hope: the first is over soonest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitingReason {
    /// A worker is free for it: it starts in the next step.
    Starting,
    /// Workers that could run it have no free slot.
    Busy,
    /// Workers that could run it are blocked for it, on trial with another job, or kept from it by a strategy.
    Blocked,
    /// Workers that could run it are silent, sick, starting, draining, on probation or gone.
    Unavailable,
    /// Its shape is quarantined.
    Quarantined,
    /// No worker has what it needs.
    Unschedulable,
    /// No worker has joined.
    NoWorker,
    /// It failed and waits for its retry.
    RetryDelay,
    /// More kinds of jobs wait than are looked at.
    NotExamined,
}

impl WaitingReason {
    pub const ALL: [WaitingReason; 9] = [
        WaitingReason::Starting,
        WaitingReason::Busy,
        WaitingReason::Blocked,
        WaitingReason::Unavailable,
        WaitingReason::Quarantined,
        WaitingReason::Unschedulable,
        WaitingReason::NoWorker,
        WaitingReason::RetryDelay,
        WaitingReason::NotExamined,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WaitingReason::Starting => "starting",
            WaitingReason::Busy => "busy",
            WaitingReason::Blocked => "blocked",
            WaitingReason::Unavailable => "unavailable",
            WaitingReason::Quarantined => "quarantined",
            WaitingReason::Unschedulable => "unschedulable",
            WaitingReason::NoWorker => "no_worker",
            WaitingReason::RetryDelay => "retry_delay",
            WaitingReason::NotExamined => "not_examined",
        }
    }

    fn for_worker(obstacle: Option<&PassedOver>) -> WaitingReason {
        match obstacle {
            None => WaitingReason::Starting,
            Some(PassedOver::Busy { .. } | PassedOver::NotIdle) => WaitingReason::Busy,
            Some(
                PassedOver::Blocked { .. }
                | PassedOver::BlockTrial { .. }
                | PassedOver::FailedBefore
                | PassedOver::TooSmall
                | PassedOver::Vetoed,
            ) => WaitingReason::Blocked,
            Some(PassedOver::Unavailable(_)) => WaitingReason::Unavailable,
            Some(PassedOver::Quarantined { .. } | PassedOver::QuarantineTrial { .. }) => {
                WaitingReason::Quarantined
            }
            Some(PassedOver::Mismatch(_) | PassedOver::Excluded) => WaitingReason::Unschedulable,
        }
    }
}

impl Plane {
    /// Waiting jobs by reason; every reason is present.
    pub fn waiting_counts(&self, now: Timestamp) -> BTreeMap<WaitingReason, usize> {
        let mut counts: BTreeMap<_, _> = WaitingReason::ALL.into_iter().map(|reason| (reason, 0)).collect();
        let (mut looks, mut examined) = (LOOKS_MAX, 0);
        for (oldest, count) in self.jobs.queue().groups().take(GROUPS_MAX) {
            let Some(job) = self.jobs.get(oldest) else { continue };
            let Some(reason) = self.group_reason(now, job, &mut looks) else { break };
            *counts.entry(reason).or_default() += count;
            examined += count;
        }
        let ready = self.jobs.queue().len();
        let waiting = self.jobs.len().saturating_sub(self.jobs.counts().running);
        counts.insert(WaitingReason::RetryDelay, waiting.saturating_sub(ready));
        counts.insert(WaitingReason::NotExamined, ready.saturating_sub(examined));
        counts
    }

    /// The oldest job that waits, unless thousands of running ones are older.
    pub fn oldest_waiting(&self) -> Option<&Job> {
        self.jobs.iter().take(OLDEST_LOOKS_MAX).find(|job| matches!(job.state(), JobState::Waiting { .. }))
    }

    /// Why jobs like this one wait; `None` if that would take too many looks.
    fn group_reason(&self, now: Timestamp, job: &Job, looks: &mut usize) -> Option<WaitingReason> {
        if self.workers.is_empty() {
            return Some(WaitingReason::NoWorker);
        }
        if self.trust.quarantine().state(now, &job.tenant_shape()) != QuarantineState::Free {
            return Some(WaitingReason::Quarantined);
        }
        let matching = self.matching(now);
        let mut best = WaitingReason::Unschedulable;
        for worker in self.workers.iter() {
            *looks = looks.checked_sub(1)?;
            best = best.min(WaitingReason::for_worker(matching.obstacle_there(job, worker).as_ref()));
            if best <= WaitingReason::Busy {
                break;
            }
        }
        Some(best)
    }
}
