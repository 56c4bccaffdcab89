//! Start and end of an attempt, and the consequences of its end: retry or outcome of the job, block of the worker for
//! the shape, quarantine of the shape, probation of the worker.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{EventSubject, Plane, PlaneEffect, detail};
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
        let attempt = detail([("attempt", job.attempt().0.into())]);
        self.records.push(Record::JobStatus { job: id, status });
        self.publish_job(now, "job:started", id, Some(worker_id), attempt);
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
        self.records.push(Record::Result { job: fence.job, result });
        let took =
            detail([("attempt", fence.attempt.0.into()), ("millis", (took.as_millis() as u64).into())]);
        self.ended(now, fence.job, "job:completed", took);
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
        let retries = match job.state() {
            JobState::Waiting { not_before } => Some(*not_before),
            JobState::Running { .. } | JobState::Ended(_) => None,
        };
        let why = detail([
            ("attempt", fence.attempt.0.into()),
            ("cause", cause.as_str().into()),
            ("reason", message.clone().into()),
            ("retry_at", retries.map_or(Value::Null, |at| at.to_string().into())),
        ]);
        if let Some(worker) = self.workers.get_mut(&worker_id) {
            worker.release(now, &id);
            worker.counts.failed += u64::from(cause.is_job_fault() || cause == Cause::Service);
        }
        if blame == Blame::Unrelated || !cause.blames_pair() {
            self.release_trials(&worker_id, shape, id);
        } else {
            self.apply_evidence(now, &worker_id, shape, id, cause, &message);
        }
        match retries {
            Some(not_before) => self.wait_for_retry(now, id, not_before, why),
            None => self.ended(now, id, "job:failed", why),
        }
        self.update_free(now, &worker_id);
        self.assign(now, &worker_id);
        Ok(())
    }

    fn wait_for_retry(&mut self, now: Timestamp, id: JobId, not_before: Timestamp, why: Map<String, Value>) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (status, wake_at) = (job.status(now), job.wake_at(now));
        let worker = job.attempts().last().map(|last| last.worker.clone());
        self.alarms.set(Alarm::Job(id), wake_at);
        self.records.push(Record::JobStatus { job: id, status });
        self.publish_job(now, "job:retrying", id, worker.as_ref(), why);
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
            let until = it.probation.until().map_or(Value::Null, |at| at.to_string().into());
            self.store_worker(now, worker);
            self.watch_worker(now, worker);
            let state = detail([("state", "probation".into()), ("until", until)]);
            self.publish_worker(now, "worker:state", worker, state);
        }
        if let Some(forgotten) = self.quarantine.trim(self.settings.blocks_max) {
            self.records.push(Record::QuarantineLifted { shape: forgotten });
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
        let Some(workflow_hash) = self.jobs.get(&job).map(|job| job.workflow_hash) else { return };
        let block = self.blocks.failed(now, worker, &shape, (job, workflow_hash), message, &self.settings);
        let (row, is_blocked) = (block.row(worker, &shape), block.is_blocked());
        let (until, mut why) = (row.until, block_detail(shape, block));
        self.records.push(Record::Block(row));
        if is_blocked && !was_blocked {
            self.needs_assign = true;
            self.alarms.set(Alarm::Block(worker.clone(), shape), Some(until));
            why.extend(detail([("until", until.to_string().into()), ("reason", message.into())]));
            self.publish_job(now, "client:blocked_workflow", job, Some(worker), why);
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
        let row = self.quarantine.get(&shape).map(|it| it.row(&shape));
        let failed_on: Vec<Value> =
            row.iter().flat_map(|row| &row.failed_on).map(|worker| worker.as_str().into()).collect();
        if is_new {
            let why = detail([
                ("shape", shape.to_string().into()),
                ("failed_on", failed_on.clone().into()),
                ("trial_at", trial_at.to_string().into()),
            ]);
            self.publish(now, "workflow:quarantined", EventSubject::default(), why);
        }
        if is_hopeless {
            let names: Vec<_> = failed_on.iter().filter_map(Value::as_str).collect();
            let reason = row.map(|row| row.reason).unwrap_or_default();
            let message = format!(
                "its shape {} failed on {} and in every trial since; the last time: {reason}",
                shape.short(),
                names.join(", ")
            );
            for job in self.queue.jobs_of_shape(&shape) {
                self.fail_quarantined(now, job, message.clone());
            }
        }
    }

    fn store_quarantine(&mut self, shape: Shape) {
        if let Some(entry) = self.quarantine.get(&shape) {
            self.records.push(Record::Quarantine(entry.row(&shape)));
        }
    }

    pub(super) fn clear_shape(&mut self, now: Timestamp, shape: Shape, reason: &str) -> bool {
        let Some(entry) = self.quarantine.clear(&shape) else { return false };
        self.records.push(Record::QuarantineLifted { shape });
        self.alarms.set(Alarm::Shape(shape), None);
        if entry.is_quarantined() {
            let why = detail([("shape", shape.to_string().into()), ("reason", reason.into())]);
            self.publish(now, "workflow:released", EventSubject::default(), why);
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
        self.records.push(Record::BlockLifted { worker: worker.clone(), shape });
        self.alarms.set(Alarm::Block(worker.clone(), shape), None);
        // A pair below the failure limit was never blocked, so nothing is published.
        if !block.is_or_was_blocked() {
            return;
        }
        let mut why = block_detail(shape, block);
        why.insert("reason".to_owned(), reason.into());
        self.publish(now, "client:unblocked_workflow", EventSubject::worker(worker), why);
    }

    /// The job has its outcome: it leaves memory, and only the list of recent outcomes knows it.
    pub(super) fn ended(
        &mut self,
        now: Timestamp,
        id: JobId,
        name: &'static str,
        detail: Map<String, Value>,
    ) {
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
        self.records.push(Record::JobStatus { job: id, status });
        if let Some(webhook) = job.options().and_then(|options| options.webhook.as_ref()) {
            let whose = (id, job.tenant.clone(), job.metadata());
            let news = WebhookDelivery::new(whose, webhook, now, name, &detail);
            self.records.push(Record::Document(news.document()));
            self.effects.push(PlaneEffect::WebhookQueued);
        }
        self.publish(
            now,
            name,
            EventSubject { job: Some(&job), worker: worker.as_ref(), ended: None },
            detail,
        );
    }

    /// `publish`, for a job that is in memory.
    fn publish_job(
        &mut self,
        now: Timestamp,
        name: &'static str,
        id: JobId,
        worker: Option<&WorkerId>,
        detail: Map<String, Value>,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let about = worker.map_or(EventSubject::job(job), |worker| EventSubject::both(job, worker));
        super::record_event(&mut self.sequence, &mut self.records, now, name, about, detail);
    }
}

/// Event detail of a worker and a shape that fail together.
pub(super) fn block_detail(shape: Shape, block: &Block) -> Map<String, Value> {
    let workflow_hash = block.workflow_hash.map_or(Value::Null, |hash| hash.to_string().into());
    detail([
        ("shape", shape.to_string().into()),
        ("workflow_hash", workflow_hash),
        ("failures", block.failures().into()),
    ])
}

fn message_or(message: &str, otherwise: &str) -> String {
    if message.is_empty() { otherwise.to_owned() } else { message.to_owned() }
}

fn raw(json: &'static str) -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::from_string(json.to_owned()).expect("a constant is valid JSON")
}
