//! Jobs that ran out of memory: whether a larger card is there, and when a demand is impossible.
//!
//! ```text
//!  out of memory ──could fit on this card──▶ again, on another worker or later
//!       └──asked for more than this card has──▶ a larger card is there? ──yes──▶ only there
//!                                                        └──no──▶ failed: no card has that much
//! ```

use super::Plane;
use super::attempts::Blame;
use super::router::{Matching, mismatch};
use crate::cause::Cause;
use crate::id::WorkerId;
use crate::job::{Job, RetryClass};
use crate::service::ServiceFault;
use crate::service::memory::{Gib, is_larger};
use crate::time::Timestamp;
use crate::verdict::AttemptFailure;
use crate::wire::FinishedAttempt;
use crate::worker::{Availability, Worker};

impl Plane {
    /// Who is to blame when an attempt ran out of memory on this worker. If no card could satisfy it, the job is, and the
    /// failure says so.
    pub(super) fn judge_memory(
        &self,
        now: Timestamp,
        worker: &WorkerId,
        finished: &FinishedAttempt,
        failure: &mut AttemptFailure,
    ) -> (Blame, RetryClass) {
        let Some((job, worker)) = self.jobs.get(finished.job).zip(self.workers.get(worker)) else {
            return (Blame::Pair, RetryClass::Retry);
        };
        let limit = finished.shortage.and_then(|it| it.limit_bytes);
        let size = worker.offer.vram_bytes.or(limit).unwrap_or(0);
        let impossible = finished.shortage.filter(|it| it.exceeds(worker.offer.vram_bytes));
        match impossible.filter(|_| !self.matching(now).has_larger(job, worker, size)) {
            Some(asked) => {
                failure.cause = Cause::Job;
                failure.message = format!(
                    "it asks for {} of memory at once, and the largest worker that could run it has {}: {}",
                    Gib(asked.requested_bytes),
                    Gib(limit.unwrap_or(size)),
                    failure.message
                );
                (Blame::Unrelated, RetryClass::Never)
            }
            None => (Blame::Pair, RetryClass::NeedsMoreMemory(size)),
        }
    }
}

impl Matching<'_> {
    /// Whether the job asked for more than this worker's card has, and a larger one is there.
    pub(super) fn is_too_small(&self, job: &Job, worker: &Worker) -> bool {
        let Some((asked, size)) = job.requested_memory().zip(worker.offer.vram_bytes) else { return false };
        size < asked && self.has_larger(job, worker, size)
    }

    /// Whether a worker with a larger card could run the job, now or later. One that says nothing about its card may be
    /// larger until it has run out of memory as well.
    fn has_larger(&self, job: &Job, than: &Worker, size: u64) -> bool {
        self.workers.iter().any(|other| {
            let is_gone = matches!(
                other.availability(self.now),
                Availability::Offline
                    | Availability::Draining
                    | Availability::Terminated
                    | Availability::Failed
            );
            other.id != than.id
                && !is_gone
                && other.offer.vram_bytes.is_none_or(|vram| is_larger(vram, size))
                && !job.ran_out_of_memory_on(&other.id)
                && mismatch(&job.kind.demand, other).is_none()
                && !self.is_excluded(&job.kind.shape, &other.id)
        })
    }
}

impl Job {
    /// The most memory that an attempt asked for at once when it ran out of it.
    fn requested_memory(&self) -> Option<u64> {
        self.attempts().iter().filter_map(|past| past.requested_memory).max()
    }

    fn ran_out_of_memory_on(&self, worker: &WorkerId) -> bool {
        let is_short = |fault| fault == Some(ServiceFault::Memory);
        self.attempts().iter().any(|past| past.worker == *worker && is_short(past.fault))
    }
}
