//! Start and end of an attempt, and the consequences of its end: retry or outcome of the job, block of the worker for
//! the shape, quarantine of the shape, probation of the worker.

use std::sync::Arc;

use super::domain_event::{DomainEvent, FailureNotice, JobEnding};
use super::{Plane, PlaneEffect};
use crate::alarm::Alarm;
use crate::block::Block;
use crate::cause::Cause;
use crate::id::{Attempt, Fence, Incarnation, JobId, Shape, WorkerId};
use crate::job::{JobEvent, JobState, RetryClass, truncated};
use crate::machine::WorkerState;
use crate::quarantine::{QuarantineEntry, QuarantineVerdict};
use crate::record::{Record, StateRow};
use crate::refusal::Refusal;
use crate::service::ServiceFault;
use crate::time::Timestamp;
use crate::verdict::{AttemptFailure, AttemptVerdict};
use crate::webhook::WebhookDelivery;
use crate::wire::{AttemptOutcome, FinishedAttempt};

/// A completed job without a returned value still has a result.
const NO_RESULT: &str = "null";

/// Whom the end of an attempt counts against, beyond its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Nothing: the attempt never started there, or ended for unrelated reasons.
    Unrelated,
    /// This worker together with this shape.
    Pair,
    /// The job took the worker down.
    Crashed,
}

impl Plane {
    /// Assigns a waiting job to a worker. The attempt is stored before the worker receives the order.
    pub(super) fn start(&mut self, now: Timestamp, id: JobId, worker_id: &WorkerId) {
        let price = self.slot_price(worker_id);
        let worker = self.workers.get_mut(worker_id).expect("routing chose a worker that is there");
        let job = self.jobs.get_mut(&id).expect("routing chose a job that is there");
        self.queue.record_served(super::queue_entry(job));
        self.queue.remove(super::queue_entry(job));
        let event = JobEvent::Start { worker: worker_id.clone(), incarnation: worker.incarnation, price };
        job.apply(now, event, &self.settings).expect("routing chose a job that may start");
        worker.add_assignment(now, job, &self.settings);
        // Only one job may be the trial; the others stop waiting for this worker.
        self.needs_assign |= self.blocks.started(worker_id, &job.kind.shape, id);
        self.quarantine.started(&job.kind.shape, id);
        self.alarms.set(Alarm::Job(id), job.wake_at(now));
        if worker.is_polling {
            self.undelivered.insert(worker_id.clone());
        }
        let status = job.status(now);
        let start_limit = job.options().and_then(|options| options.start_limit);
        self.outbox.record(Record::JobStatus { job: id, status });
        self.outbox.publish(now, DomainEvent::JobStarted { job, worker: worker_id });
        self.tighten_alarm(now, worker_id, start_limit);
        self.update_free(now, worker_id);
    }

    /// Applies a worker's report on an attempt, if its fence is still the job's current one.
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        incarnation: Incarnation,
        finished: &FinishedAttempt,
    ) -> Result<(), Refusal> {
        let id = finished.job;
        if self.holder(id) != Some((worker.clone(), finished.attempt)) {
            return Err(self.not_held(id, finished.attempt));
        }
        let fence = Fence { job: id, attempt: finished.attempt, incarnation };
        let cause = finished.cause.unwrap_or(finished.outcome.default_cause());
        match finished.outcome {
            AttemptOutcome::Completed => self.complete(now, worker, fence, finished),
            AttemptOutcome::Failed => {
                let message = message_or(&finished.message, "failed without a message");
                let failure = AttemptFailure {
                    fault: finished.fault,
                    node: finished.node.clone(),
                    ..AttemptFailure::new(AttemptVerdict::Failed, cause, message)
                };
                let (blame, retry_class) = match finished.fault {
                    Some(ServiceFault::Died) => (Blame::Crashed, RetryClass::Retry),
                    Some(fault) if fault.is_final() => (Blame::Unrelated, RetryClass::Never),
                    Some(ServiceFault::Memory) => {
                        let size = self.workers.get(worker).and_then(|worker| worker.offer.vram_bytes);
                        (Blame::Pair, RetryClass::NeedsMoreMemory(size.unwrap_or(0)))
                    }
                    Some(_) | None => (Blame::Pair, RetryClass::Retry),
                };
                self.fail(now, fence, failure, blame, retry_class)
            }
            AttemptOutcome::Cancelled => {
                let message = message_or(&finished.message, "the worker stopped it");
                let failure = AttemptFailure::new(AttemptVerdict::Stopped, Cause::Provider, message);
                self.fail(now, fence, failure, Blame::Unrelated, RetryClass::Retry)
            }
            AttemptOutcome::Rejected => {
                let worker = self.workers.get_mut(worker).expect("the holder is there");
                // Attempts that are being cancelled occupied slots as well.
                let taken = worker.assignments.len().saturating_sub(1) + worker.cancels.len();
                let room = u32::try_from(taken).unwrap_or(u32::MAX);
                worker.slots_observed = Some(room.max(1));
                let message = message_or(&finished.message, "the worker had no free slot");
                let failure = AttemptFailure::new(AttemptVerdict::Rejected, Cause::Worker, message);
                self.fail(now, fence, failure, Blame::Unrelated, RetryClass::Retry)
            }
        }
    }

    pub(super) fn not_held(&self, id: JobId, attempt: Attempt) -> Refusal {
        match (self.jobs.get(&id), self.ended.outcomes.get(&id)) {
            (Some(_), _) => Refusal::StaleAttempt,
            (None, Some((last, "completed"))) if *last == attempt => Refusal::AlreadyRecorded,
            (None, Some((_, state))) => Refusal::Ended { state },
            (None, None) => Refusal::UnknownJob(id),
        }
    }

    fn complete(
        &mut self,
        now: Timestamp,
        worker_id: &WorkerId,
        fence: Fence,
        finished: &FinishedAttempt,
    ) -> Result<(), Refusal> {
        let job = self.jobs.get_mut(&fence.job).ok_or(Refusal::UnknownJob(fence.job))?;
        let started_at = match job.state() {
            JobState::Running { started_at, .. } => *started_at,
            JobState::Waiting { .. } | JobState::Ended(_) => return Err(Refusal::NotRunning),
        };
        job.apply(now, JobEvent::Complete(fence), &self.settings)?;
        let shape = job.kind.shape.clone();
        let took = now.since(started_at);
        let worker = self.workers.get_mut(worker_id).expect("the holder is there");
        worker.release(now, &fence.job);
        worker.record_duration(&shape, took);
        worker.counts.completed += 1;
        worker.counts.busy_millis += u64::try_from(took.as_millis()).unwrap_or(0);
        worker.probation.succeeded();
        if let Some(block) = self.blocks.succeeded(worker_id, &shape) {
            self.unblocked(now, worker_id, *shape, &block, "it succeeded");
        }
        self.clear_shape(now, *shape, "it succeeded");
        self.note_pace(worker_id, &shape, took);
        let result = finished.result.clone();
        let result = result.unwrap_or_else(|| Arc::from(raw(NO_RESULT)));
        self.outbox.record(Record::Result { job: fence.job, result });
        self.ended(now, fence.job, &JobEnding::Completed { attempt: fence.attempt, took });
        self.update_free(now, worker_id);
        Ok(())
    }

    /// Fails an attempt that was lost rather than reported; a later report on it will be refused.
    pub(super) fn lose(
        &mut self,
        now: Timestamp,
        id: JobId,
        verdict: AttemptVerdict,
        message: String,
        blame: Blame,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let JobState::Running { worker, incarnation, .. } = job.state() else { return };
        let (worker, fence) = (worker.clone(), job.fence(*incarnation));
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.counts.lost += 1;
        }
        let cause = verdict.lost_cause().expect("only reports have other verdicts");
        let failure = AttemptFailure::new(verdict, cause, message);
        self.fail(now, fence, failure, blame, RetryClass::Retry).expect("the current attempt can be lost");
    }

    fn fail(
        &mut self,
        now: Timestamp,
        fence: Fence,
        mut failure: AttemptFailure,
        blame: Blame,
        retry_class: RetryClass,
    ) -> Result<(), Refusal> {
        let (id, crashed_worker) = (fence.job, blame == Blame::Crashed);
        failure.message = truncated(failure.message);
        let (cause, message) = (failure.cause, failure.message.clone());
        let job = self.jobs.get_mut(&id).ok_or(Refusal::UnknownJob(id))?;
        let worker_id = match job.state() {
            JobState::Running { worker, .. } => worker.clone(),
            JobState::Waiting { .. } | JobState::Ended(_) => return Err(Refusal::NotRunning),
        };
        let event = JobEvent::Fail { fence, failure, crashed_worker, retry_class };
        job.apply(now, event, &self.settings)?;
        let shape = *job.kind.shape;
        let retry_at = match job.state() {
            JobState::Waiting { not_before } => Some(*not_before),
            JobState::Running { .. } | JobState::Ended(_) => None,
        };
        if let Some(worker) = self.workers.get_mut(&worker_id) {
            worker.release(now, &id);
            worker.counts.failed += u64::from(cause.is_job_fault() || cause == Cause::Service);
        }
        if blame == Blame::Unrelated || !cause.blames_pair() {
            self.release_trials(&worker_id, shape, id);
        } else {
            self.apply_evidence(now, &worker_id, shape, id, cause, &message);
        }
        let failure = FailureNotice { attempt: fence.attempt, cause, reason: message, retry_at };
        match retry_at {
            Some(not_before) => self.wait_for_retry(now, id, not_before, &failure),
            None => self.ended(now, id, &JobEnding::Failed(failure)),
        }
        self.update_free(now, &worker_id);
        self.assign(now, &worker_id);
        Ok(())
    }

    fn wait_for_retry(&mut self, now: Timestamp, id: JobId, not_before: Timestamp, failure: &FailureNotice) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (status, wake_at) = (job.status(now), job.wake_at(now));
        let worker = job.attempts().last().map(|last| &last.worker);
        self.alarms.set(Alarm::Job(id), wake_at);
        self.outbox.record(Record::JobStatus { job: id, status });
        self.outbox.publish(now, DomainEvent::JobRetrying { job, worker, failure });
        if not_before <= now {
            self.ready(now, id);
        }
    }

    /// The attempt ended without evidence about the pair or the shape: if it was a trial, another job may be the
    /// trial.
    pub(super) fn release_trials(&mut self, worker: &WorkerId, shape: Shape, job: JobId) {
        self.blocks.released(worker, &shape, job);
        self.quarantine.released(&shape, job);
        self.needs_assign = true;
    }

    /// Applies a failure to block, quarantine and probation.
    fn apply_evidence(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: Shape,
        job: JobId,
        cause: Cause,
        message: &str,
    ) {
        match self.quarantine.failed(now, &shape, worker, job, message, &self.settings) {
            QuarantineVerdict::Noted => {
                self.store_quarantine(shape);
                // In quarantine the shape is held back, so its workers are not blocked.
                let is_quarantined = self.quarantine.get(&shape).is_some_and(QuarantineEntry::is_quarantined);
                // The cause was outside the workflow and is repaired by now, and no other worker could take the job.
                let is_spared = self.settings.exempt_sole_worker || !cause.is_job_fault();
                if is_quarantined || is_spared && self.is_only_worker(worker) {
                    self.blocks.released(worker, &shape, job);
                } else {
                    self.block(now, worker, shape, job, message);
                }
            }
            QuarantineVerdict::Quarantined { trial_at, is_new, is_hopeless } => {
                self.quarantine_shape(now, shape, trial_at, is_new, is_hopeless);
            }
        }
        let is_reported = cause != Cause::Worker;
        let probation_after = self.settings.probation_after;
        if let Some(it) = self.workers.get_mut(worker)
            && is_reported
            && it.probation.failed(now, shape, probation_after)
        {
            "too many failures in a row: on probation".clone_into(&mut it.reason);
            self.needs_assign = true;
            self.store_worker(now, worker);
            self.watch_worker(now, worker);
            self.publish_worker_state(now, worker);
        }
        if let Some(forgotten) = self.quarantine.trim(self.settings.blocks_max) {
            self.outbox.record(Record::QuarantineLifted { shape: forgotten });
            self.alarms.set(Alarm::Shape(forgotten), None);
            self.needs_assign = true;
        }
    }

    /// Whether it is the only worker: a block would then delay every job and protect none.
    fn is_only_worker(&self, worker: &WorkerId) -> bool {
        self.workers.values().all(|other| other.id == *worker || other.state == WorkerState::Terminated)
    }

    fn block(&mut self, now: Timestamp, worker: &WorkerId, shape: Shape, job: JobId, message: &str) {
        let was_blocked = self.blocks.get(worker, &shape).is_some_and(Block::is_blocked);
        let Some(job) = self.jobs.get(&job) else { return };
        let failed = (job.id, job.workflow_hash);
        let block = self.blocks.failed(now, worker, &shape, failed, message, &self.settings);
        self.outbox.record(Record::Block(block.row(worker, &shape)));
        if block.is_blocked() && !was_blocked {
            self.needs_assign = true;
            self.alarms.set(Alarm::Block(worker.clone(), shape), Some(block.until()));
            self.outbox.publish(now, DomainEvent::Blocked { job, worker, shape, block });
        }
        if self.blocks.len() > self.settings.blocks_max
            && let Some((worker, shape)) = self.blocks.first_to_end()
            && let Some(block) = self.blocks.lift(&worker, &shape)
        {
            self.unblocked(now, &worker, shape, &block, "the limit of blocks was reached");
            self.needs_assign = true;
        }
    }

    /// The shape itself is suspect: blocks of workers for it are lifted.
    fn quarantine_shape(
        &mut self,
        now: Timestamp,
        shape: Shape,
        trial_at: Timestamp,
        is_new: bool,
        is_hopeless: bool,
    ) {
        for worker in self.blocks.workers_of(&shape) {
            if let Some(block) = self.blocks.lift(&worker, &shape) {
                self.unblocked(now, &worker, shape, &block, "the shape itself is in quarantine");
            }
        }
        self.store_quarantine(shape);
        self.alarms.set(Alarm::Shape(shape), Some(trial_at));
        let Some(entry) = self.quarantine.get(&shape) else { return };
        let failed_on: Vec<_> = entry.failed_on.iter().map(WorkerId::as_str).collect();
        if is_new {
            let event = DomainEvent::Quarantined { shape, failed_on: &failed_on, trial_at };
            self.outbox.publish(now, event);
        }
        if is_hopeless {
            let message = format!(
                "its shape {} failed on {} and in every trial since; the last time: {}",
                shape.short(),
                failed_on.join(", "),
                entry.reason
            );
            for job in self.queue.jobs_of_shape(&shape) {
                self.fail_quarantined(now, job, message.clone());
            }
        }
    }

    fn store_quarantine(&mut self, shape: Shape) {
        if let Some(entry) = self.quarantine.get(&shape) {
            self.outbox.record(Record::Quarantine(entry.row(&shape)));
        }
    }

    pub(super) fn clear_shape(&mut self, now: Timestamp, shape: Shape, reason: &str) -> bool {
        let Some(entry) = self.quarantine.clear(&shape) else { return false };
        self.outbox.record(Record::QuarantineLifted { shape });
        self.alarms.set(Alarm::Shape(shape), None);
        if entry.is_quarantined() {
            self.outbox.publish(now, DomainEvent::Released { shape, reason });
            self.needs_assign = true;
        }
        true
    }

    /// Records and publishes the end of a block.
    pub(super) fn unblocked(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: Shape,
        block: &Block,
        reason: &str,
    ) {
        self.outbox.record(Record::BlockLifted { worker: worker.clone(), shape });
        self.alarms.set(Alarm::Block(worker.clone(), shape), None);
        // A pair below the failure limit was never blocked, so nothing is published.
        if block.is_or_was_blocked() {
            self.outbox.publish(now, DomainEvent::Unblocked { worker, shape, block, reason });
        }
    }

    /// The job has its outcome: it leaves memory, and only the list of recent outcomes knows it.
    pub(super) fn ended(&mut self, now: Timestamp, id: JobId, ending: &JobEnding) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let status = job.status(now);
        debug_assert!(matches!(job.state(), JobState::Ended(_)));
        self.queue.remove(super::queue_entry(&job));
        self.alarms.set(Alarm::Job(id), None);
        if let Some(forgotten) = self.ended.insert(&job, status.state.name()) {
            self.keys.remove(&forgotten);
        }
        let worker = match &status.state {
            StateRow::Completed { worker } => Some(worker.clone()),
            StateRow::Failed { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. }
            | StateRow::Queued { .. }
            | StateRow::Running { .. } => job.attempts().last().map(|last| last.worker.clone()),
        };
        self.outbox.record(Record::JobStatus { job: id, status });
        let event = DomainEvent::JobEnded { job: &job, worker: worker.as_ref(), ending }.describe(now);
        if let Some(webhook) = job.options().and_then(|options| options.webhook.as_ref()) {
            let whose = (id, job.tenant.clone(), job.metadata());
            let delivery = WebhookDelivery::new(whose, webhook, now, event.kind, &event.detail);
            self.outbox.record(Record::Document(delivery.document()));
            self.outbox.effect(PlaneEffect::WebhookQueued);
        }
        self.outbox.record_event(now, event);
    }
}

fn message_or(message: &str, otherwise: &str) -> String {
    if message.is_empty() { otherwise.to_owned() } else { message.to_owned() }
}

fn raw(json: &'static str) -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::from_string(json.to_owned()).expect("a constant is valid JSON")
}
