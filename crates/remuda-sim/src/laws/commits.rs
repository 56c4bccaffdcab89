//! Laws about stored records, checked when a batch is committed, record by record in the order of decision.

use std::collections::BTreeSet;

use remuda_core::cause::Cause;
use remuda_core::id::{JobId, Term, WorkerId};
use remuda_core::record::{JobStatus, PastAttempt, Record, StateRow};
use remuda_core::scope::BlockScope;
use remuda_core::service::ServiceFault;
use remuda_core::verdict::AttemptVerdict;

use super::{Laws, Order};
use crate::law::Law;
use crate::scenario::Scenario;
use crate::store::Store;

impl Laws {
    pub(crate) fn committed(
        &mut self,
        at: u64,
        term: Term,
        records: &[Record],
        store: &Store,
        scenario: &Scenario,
    ) {
        if term < store.term {
            self.violated(Law::S9, at, format!("term {term} wrote while {} leads", store.term));
        }
        if let Some(conflict) = store.conflict(records) {
            self.violated(Law::S2, at, conflict);
        }
        for (place, record) in records.iter().enumerate() {
            match record {
                Record::JobStatus { job, status } => {
                    // The newest status of this job earlier in the batch.
                    let before = records[..place].iter().rev().find_map(|record| match record {
                        Record::JobStatus { job: of, status } if of == job => Some(status),
                        Record::JobAccepted { job: of, status, .. } if of.id == *job => Some(status),
                        _ => None,
                    });
                    self.check_status_change(
                        at,
                        *job,
                        before.or_else(|| store.status(*job)),
                        status,
                        scenario,
                    );
                }
                Record::Event(event) => {
                    self.check_sequence(at, event.seq.0);
                    let is_end = event.kind.is_job_end();
                    if let Some(job) = event.job.filter(|_| is_end)
                        && !self.ended.insert(job)
                    {
                        self.violated(Law::S2, at, format!("the end of job {job} was published twice"));
                    }
                }
                Record::Block(row) => {
                    if !scenario.has_shape(row.shape) {
                        let what =
                            format!("{} is blocked for {:?}, which is not a shape", row.worker, row.shape);
                        self.violated(Law::S12, at, what);
                    }
                    self.check_block_scope(at, row, records, scenario);
                    self.blocks.insert((row.worker.clone(), row.scope.clone()), (row.until, row.cause));
                }
                Record::BlockLifted { worker, scope } => {
                    let lifted = self.blocks.remove(&(worker.clone(), scope.clone()));
                    // Its service may have started again since.
                    let is_of_service = lifted.is_some_and(|(_, cause)| cause == Cause::Service);
                    let is_of_jobs = lifted.is_some_and(|(_, cause)| cause == Cause::Job);
                    let has_reason =
                        is_of_service || is_reason_to_lift(records, worker, scope, is_of_jobs, scenario);
                    if self.tracks_blocks && !has_reason {
                        self.violated(
                            Law::S12,
                            at,
                            format!("the block of {worker} was removed without a recorded reason"),
                        );
                    }
                }
                Record::Quarantine(row) => self.check_quarantine(at, row, records, scenario),
                Record::JobAccepted { .. }
                | Record::Result { .. }
                | Record::Worker(_)
                | Record::WorkerForgotten { .. }
                | Record::QuarantineLifted(_)
                | Record::Cycle { .. }
                | Record::Document(_)
                | Record::DocumentDeleted { .. } => {}
            }
        }
        self.check_isolation(at);
        if !self.blocks.is_empty() {
            self.check_single_trial(at, scenario);
        }
    }

    fn check_sequence(&mut self, at: u64, seq: u64) {
        if seq != self.sequence + 1 {
            self.violated(Law::Events, at, format!("event {seq} follows event {}", self.sequence));
        }
        self.sequence = self.sequence.max(seq);
    }

    fn check_status_change(
        &mut self,
        at: u64,
        job: JobId,
        before: Option<&JobStatus>,
        status: &JobStatus,
        scenario: &Scenario,
    ) {
        let Some(before) = before else {
            return self.violated(Law::S1, at, format!("job {job} has a status and was never accepted"));
        };
        if !before.state.is_open() && before.state != status.state {
            let (was, is) = (before.state.name(), status.state.name());
            self.violated(Law::S2, at, format!("job {job} was {was} and became {is}"));
        }
        if status.attempt < before.attempt {
            self.violated(Law::S4, at, format!("job {job} went back to attempt {}", status.attempt));
        }
        self.check_bounds(at, job, status);
        self.check_blame(at, job, status, scenario);
        self.check_poison_verdict(at, job, status);
        self.running.remove(&job);
        match &status.state {
            StateRow::Running { worker, started_at, .. } => {
                self.running.insert(job, (worker.clone(), *started_at));
                let given = (status.attempt, worker.clone());
                let is_new = self.latest_attempt.get(&job) != Some(&given);
                let is_reused =
                    self.latest_attempt.get(&job).is_some_and(|(last, _)| status.attempt <= *last);
                if is_new && is_reused {
                    let what = format!("job {job} attempt {} was used before", status.attempt);
                    self.violated(Law::S4, at, what);
                }
                self.latest_attempt.insert(job, given);
                if is_new {
                    self.check_placement(at, job, worker, scenario);
                    self.check_block(at, job, status, scenario);
                    self.check_poison(at, job, status);
                }
            }
            StateRow::Completed { worker } => {
                if !self.completed.contains(&((job, status.attempt), worker.clone())) {
                    let what = format!("job {job} attempt {} never completed on {worker}", status.attempt);
                    self.violated(Law::S3, at, what);
                }
            }
            StateRow::Queued { .. }
            | StateRow::Failed { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. } => {}
        }
    }

    /// S7: attempts are bounded, failures have causes, and only a worker's own crash counts as poison.
    fn check_bounds(&mut self, at: u64, job: JobId, status: &JobStatus) {
        let (attempts_max, infra_failures_max) = (self.rules.attempts_max, self.rules.infra_failures_max);
        let starts_max = u32::from(attempts_max) + u32::from(infra_failures_max);
        if status.failures > attempts_max
            || status.infra_failures > infra_failures_max
            || status.attempt.0 > starts_max
        {
            let (attempt, failures, infra_failures) =
                (status.attempt, status.failures, status.infra_failures);
            let what = format!(
                "job {job}: attempt {attempt}, {failures} failures and {infra_failures} infrastructure failures"
            );
            self.violated(Law::S7, at, what);
        }
        let is_failed = matches!(
            status.state,
            StateRow::Queued { .. } | StateRow::Failed { .. } | StateRow::Expired { .. }
        );
        let without_cause = |one: &&PastAttempt| one.ended_at.is_some() && one.cause.is_none();
        if let Some(one) = status.attempts.iter().find(without_cause).filter(|_| is_failed) {
            self.violated(Law::S7, at, format!("job {job} attempt {} failed without a cause", one.attempt));
        }
        for worker in &status.crashed_workers {
            // An attempt from before this plane's start may have been taken on without its knowledge.
            let is_known = status.attempts.iter().filter(|one| one.worker == *worker).any(|one| {
                let key = (job, one.attempt);
                let was_told = matches!(self.orders.get(&key), Some(Order::Received { .. }));
                // A restart of the service by its own agent is not the job's fault.
                let needs_no_evidence =
                    one.fault == Some(ServiceFault::Died) && self.services.ended_by_us.contains(&key);
                (was_told || one.started_at <= self.restored_at) && !needs_no_evidence
            });
            if !is_known {
                let what = format!("job {job} is blamed for the crash of {worker}, which it did not cause");
                self.violated(Law::S7, at, what);
            }
        }
    }

    /// S7: a poison job crashes two workers, and a third only alone, as far as the plane can know: a worker that died
    /// before it listed the job may have died of something else.
    fn check_poison(&mut self, at: u64, job: JobId, status: &JobStatus) {
        let taken = status.attempts.iter().filter(|one| {
            let key = (job, one.attempt);
            let is_lost =
                matches!(one.verdict, Some(AttemptVerdict::WorkerRestarted | AttemptVerdict::WorkerSilent));
            // Of several machines that vanish together, none was taken down by its job.
            let is_counted = one.took_down.is_some();
            is_lost && is_counted && self.crashed_agents.contains(&key) && self.named.contains(&key)
        });
        let taken: BTreeSet<_> = taken.map(|one| &one.worker).collect();
        let limit = usize::from(self.rules.poison_after);
        if taken.len() > limit {
            self.violated(Law::S7, at, format!("job {job} crashed {taken:?} and was started again"));
        } else if taken.len() == limit {
            // It is not known why an agent vanished: one more trial, alone on its worker, decides.
            self.isolated.push(job);
        }
    }

    /// S7: a job that may be poison runs alone. Checked once the whole batch is known.
    fn check_isolation(&mut self, at: u64) {
        for job in std::mem::take(&mut self.isolated) {
            let Some((worker, _)) = self.running.get(&job) else { continue };
            let other = self.running.iter().find(|(other, (on, _))| **other != job && on == worker);
            if let Some((other, _)) = other {
                let what = format!("job {job}, which may be poison, runs on {worker} beside job {other}");
                self.violated(Law::S7, at, what);
            }
        }
    }

    /// S12: a blocked worker gets no job of the shape before the block ends, and then one at a time.
    fn check_block(&mut self, at: u64, job: JobId, status: &JobStatus, scenario: &Scenario) {
        let StateRow::Running { worker, started_at, .. } = &status.state else { return };
        let scopes = scenario.scopes_of(job).into_iter();
        let blocks = scopes.filter_map(|scope| self.blocks.get(&(worker.clone(), scope)));
        let Some(until) = blocks.map(|(until, _)| *until).max() else { return };
        if *started_at < until {
            let early = until.since(*started_at);
            self.violated(Law::S12, at, format!("{worker} got job {job} {early:?} before its block ends"));
        }
    }

    /// Checked once the whole batch is known: within a batch a job may start before the end of another is recorded.
    fn check_single_trial(&mut self, at: u64, scenario: &Scenario) {
        let mut trials = BTreeSet::new();
        let mut found = None;
        for (job, (worker, since)) in &self.running {
            for scope in scenario.scopes_of(*job) {
                let pair = (worker.clone(), scope);
                let is_trial = self.blocks.get(&pair).is_some_and(|(until, _)| since >= until);
                if is_trial && !trials.insert(pair) {
                    found =
                        Some(format!("{worker} has more than one trial of what job {job} is blocked for"));
                }
            }
        }
        if let Some(what) = found {
            self.violated(Law::S12, at, what);
        }
    }

    /// An operator lifts a block: from here on a block may disappear without a recorded reason.
    pub(crate) fn blocks_lifted(&mut self) {
        self.tracks_blocks = false;
    }
}

/// A success, an error of the workflow itself, no worker to go to instead, a quarantine of the shape, or the removal of
/// the worker. `is_of_jobs`: errors of jobs began the block, so that of a job it concerns may have been evidence for it.
fn is_reason_to_lift(
    records: &[Record],
    worker: &WorkerId,
    scope: &BlockScope,
    is_of_jobs: bool,
    scenario: &Scenario,
) -> bool {
    let concerns = |job: JobId| scenario.scopes_of(job).contains(scope);
    records.iter().any(|record| match record {
        Record::JobStatus { job, status } => match &status.state {
            StateRow::Completed { worker: by } => {
                by == worker && scenario.shapes_of(scope).any(|shape| shape == scenario.shape_of(*job))
            }
            StateRow::Failed { cause: Cause::Job, .. } => {
                (is_of_jobs || matches!(scope, BlockScope::Workflow(_))) && concerns(*job)
            }
            StateRow::Failed { .. }
            | StateRow::Queued { .. }
            | StateRow::Running { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. } => false,
        },
        // It was blocked in this very batch.
        Record::Block(row) => row.worker == *worker && row.scope == *scope,
        Record::Quarantine(row) => {
            row.trial_at.is_some() && scenario.shapes_of(scope).any(|shape| shape == row.jobs.shape)
        }
        Record::WorkerForgotten { worker: forgotten } => forgotten == worker,
        _ => false,
    })
}
