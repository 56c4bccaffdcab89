//! Shows a job and a worker to the program's own strategy, if there is one.

use crate::job::Job;
use crate::strategy::{OwnStrategy, StrategyJob, StrategyVerdict, StrategyWorker};
use crate::worker::Worker;

/// Neutral without a strategy.
pub(super) fn judge(strategy: &OwnStrategy, job: &Job, worker: &Worker) -> StrategyVerdict {
    let Some(strategy) = strategy.get() else { return StrategyVerdict::NEUTRAL };
    let shown_job = StrategyJob {
        id: job.id,
        tenant: &job.tenant,
        priority: job.priority,
        shape: &job.kind.shape,
        attempts: job.attempts().len(),
        failures: job.failures(),
    };
    let shown_worker = StrategyWorker {
        worker: &worker.id,
        machine: &worker.machine,
        labels: &worker.offer.labels,
        has_failed_job: job.has_failed_on(&worker.id),
        is_warm: worker.is_warm(&job.kind.shape),
        pace: worker.pace(&job.kind.shape),
        running: worker.assignments.len(),
        slots: worker.slots,
        completed: worker.counts.completed,
        failed: worker.counts.failed,
        lost: worker.counts.lost,
    };
    strategy.judge(&shown_job, &shown_worker)
}
