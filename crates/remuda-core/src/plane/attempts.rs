//! Start and end of an attempt, and the consequences of its end: retry or outcome of the job, block of the worker for
//! the shape, quarantine of the shape, probation of the worker.

use std::sync::Arc;

use super::domain_event::{DomainEvent, FailureNotice, JobEnding};
use super::trust::Evidence;
use super::{Plane, PlaneAnswer, PlaneEffect};
use crate::alarm::Alarm;
use crate::cause::Cause;
use crate::id::{Fence, Hash, Incarnation, JobId, Shape, WorkerId};
use crate::job::{JobEvent, JobState, RetryClass, truncated};
use crate::machine::WorkerState;
use crate::record::{Record, StateRow};
use crate::refusal::Refusal;
use crate::scope::{BlockScope, TenantShape};
use crate::service::ServiceFault;
use crate::time::Timestamp;
use crate::verdict::{AttemptFailure, AttemptVerdict, CrashEvidence};
use crate::webhook::WebhookDelivery;
use crate::wire::{AttemptOutcome, FinishedAttempt};
use crate::worker::WorkerLine;

/// A completed job without a returned value still has a result.
const NO_RESULT: &str = "null";

/// Whom the end of an attempt counts against, beyond its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Nothing: the attempt never started there, or ended for unrelated reasons.
    Unrelated,
    /// This worker together with this shape.
    Pair,
    /// The worker or its service went down with the job.
    Crashed(CrashEvidence),
}

impl Plane {
    /// Assigns a waiting job to a worker. The attempt is stored before the worker receives the order.
    pub(super) fn start(&mut self, now: Timestamp, id: JobId, worker_id: &WorkerId) {
        let price = self.slot_price(worker_id);
        let worker = self.workers.get_mut(worker_id).expect("routing chose a worker that is there");
        let event = JobEvent::Start { worker: worker_id.clone(), incarnation: worker.incarnation, price };
        let job = self.jobs.start(now, id, event, &self.settings);
        let job = job.expect("routing chose a job that is there and may start");
        worker.add_assignment(now, job, &self.settings);
        let is_polling = worker.line == WorkerLine::Polling;
        if self.trust.start(worker_id, job) {
            self.router.offer_again();
        }
        self.outbox.set_alarm(Alarm::Job(id), job.wake_at(now));
        if is_polling {
            self.workers.deliver_at_next_flush(worker_id);
        }
        let status = job.status(now);
        let start_limit = job.options().and_then(|options| options.start_limit);
        self.outbox.record(Record::JobStatus { job: id, status });
        self.outbox.publish(now, DomainEvent::JobStarted { job, worker: worker_id });
        self.hasten_alarm(now, worker_id, start_limit);
        self.workers.update_free(now, worker_id);
    }

    /// Who is to blame when a worker or its service went down during an attempt. A worker that was leaving was
    /// not taken down by what it ran. An isolated trial leaves no other explanation.
    pub(super) fn crash_blame(&self, job: JobId, worker: &WorkerId, evidence: CrashEvidence) -> Blame {
        let is_leaving = self.workers.get(worker).is_some_and(|it| it.state() != WorkerState::Active);
        let is_isolated = self.jobs.get(job).is_some_and(|job| job.needs_isolation(&self.settings));
        match evidence {
            _ if is_leaving => Blame::Unrelated,
            CrashEvidence::Circumstantial if is_isolated => Blame::Crashed(CrashEvidence::Direct),
            evidence => Blame::Crashed(evidence),
        }
    }

    /// Whether another attempt runs on the same worker: whose kernel broke the device is not known then.
    fn runs_beside_others(&self, worker: &WorkerId, job: JobId) -> bool {
        let mut holds = self.workers.get(worker).into_iter().flat_map(|worker| &worker.assignments);
        holds.any(|(other, hold)| *other != job && hold.is_running)
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
        if !self.jobs.running(id).is_some_and(|it| it.is_held_by(worker, finished.attempt)) {
            return Err(self.jobs.not_held(id, finished.attempt));
        }
        let fence = Fence { job: id, attempt: finished.attempt, incarnation };
        let cause = finished.cause.unwrap_or(finished.outcome.default_cause());
        match finished.outcome {
            AttemptOutcome::Completed => self.complete(now, worker, fence, finished),
            AttemptOutcome::Failed => {
                let message = message_or(&finished.message, "failed without a message");
                let mut failure = AttemptFailure {
                    fault: finished.fault,
                    node: finished.node.clone(),
                    shortage: finished.shortage,
                    ..AttemptFailure::new(AttemptVerdict::Failed, cause, message)
                };
                let (blame, retry_class) = self.judge_report(now, worker, finished, &mut failure);
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

    /// Whom a reported failure counts against, and whether another attempt could change it.
    fn judge_report(
        &self,
        now: Timestamp,
        worker: &WorkerId,
        finished: &FinishedAttempt,
        failure: &mut AttemptFailure,
    ) -> (Blame, RetryClass) {
        match finished.fault {
            Some(ServiceFault::Device) if self.runs_beside_others(worker, finished.job) => {
                (self.crash_blame(finished.job, worker, CrashEvidence::Circumstantial), RetryClass::Retry)
            }
            Some(ServiceFault::Crashed | ServiceFault::Device) => {
                (self.crash_blame(finished.job, worker, CrashEvidence::Direct), RetryClass::Retry)
            }
            Some(ServiceFault::Died) => {
                (self.crash_blame(finished.job, worker, CrashEvidence::Circumstantial), RetryClass::Retry)
            }
            Some(ServiceFault::Killed) => (Blame::Unrelated, RetryClass::Retry),
            Some(fault) if fault.is_final() => (Blame::Unrelated, RetryClass::Never),
            Some(ServiceFault::Memory) => self.judge_memory(now, worker, finished, failure),
            Some(ServiceFault::Missing) => (Blame::Pair, self.judge_missing(now, worker, finished.job)),
            Some(_) | None if failure.cause.is_job_fault() => {
                (Blame::Pair, self.judge_job_error(now, worker, finished))
            }
            Some(_) | None => (Blame::Pair, RetryClass::Retry),
        }
    }

    /// An error of the job is tried once more, on another worker that can take it now. It is final if the same error
    /// comes back, or if no other worker could try. A submitter who asked for more attempts gets them.
    fn judge_job_error(&self, now: Timestamp, worker: &WorkerId, finished: &FinishedAttempt) -> RetryClass {
        let Some(job) = self.jobs.get(finished.job) else { return RetryClass::Retry };
        let matching = self.matching(now);
        let is_repeated = job.failed_alike_elsewhere(worker, finished.fault, finished.node.as_deref());
        if !is_repeated && matching.another_could_now(job, worker) {
            return RetryClass::Elsewhere;
        }
        // A worker that alone fails what others complete is more likely at fault than the job: worth waiting for one, but
        // not longer than until it fails here again.
        let is_worth_waiting = !is_repeated
            && !job.has_answer_of(worker)
            && matching.is_odd_one_out(job, worker)
            && matching.another_could(job, worker);
        if job.attempts_max.is_some() || is_worth_waiting { RetryClass::Retry } else { RetryClass::Never }
    }

    /// What this server lacks another one may have; if none is left to ask and none can be rented, that is the answer.
    fn judge_missing(&self, now: Timestamp, worker: &WorkerId, job: JobId) -> RetryClass {
        let Some(job) = self.jobs.get(job) else { return RetryClass::Retry };
        let matching = self.matching(now);
        let may_rent = self.settings.fleets.iter().any(|fleet| fleet.can_rent);
        if matching.another_could_now(job, worker) {
            RetryClass::Elsewhere
        } else if may_rent || matching.another_could(job, worker) {
            RetryClass::Retry
        } else {
            RetryClass::Never
        }
    }

    fn complete(
        &mut self,
        now: Timestamp,
        worker_id: &WorkerId,
        fence: Fence,
        finished: &FinishedAttempt,
    ) -> Result<(), Refusal> {
        let recovery = finished.recovered.then(|| message_or(&finished.message, "found by a probe"));
        let event = JobEvent::Complete { fence, recovery: recovery.clone() };
        let (ran, job) = self.jobs.apply(now, fence.job, event, &self.settings)?;
        let shape = job.kind.shape.clone();
        let failed_on: Vec<_> = job.job_fault_workers().cloned().collect();
        let took = now.since(ran.ok_or(Refusal::NotRunning)?.started_at);
        let worker = self.workers.get_mut(worker_id).expect("the holder is there");
        worker.release(now, &fence.job);
        worker.record_duration(&shape, took);
        worker.counts.completed += 1;
        worker.counts.busy_millis += u64::try_from(took.as_millis()).unwrap_or(0);
        if self.trust.succeed(now, worker, *shape, &mut self.outbox) {
            self.router.offer_again();
        }
        for other in failed_on.iter().filter(|other| *other != worker_id) {
            self.convict(now, other, *shape);
        }
        self.note_pace(worker_id, &shape, took);
        if let (Some(reason), Some(job)) = (recovery, self.jobs.get(fence.job)) {
            self.outbox.publish(now, DomainEvent::JobRecovered { job, worker: worker_id, reason: &reason });
        }
        let result = finished.result.clone();
        let result = result.unwrap_or_else(|| Arc::from(raw(NO_RESULT)));
        self.outbox.record(Record::Result { job: fence.job, result });
        self.ended(now, fence.job, &JobEnding::Completed { attempt: fence.attempt, took });
        self.workers.update_free(now, worker_id);
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
        let Some(ran) = self.jobs.running(id) else { return };
        let fence = Fence { job: id, attempt: ran.attempt, incarnation: ran.incarnation };
        if let Some(worker) = self.workers.get_mut(&ran.worker) {
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
        let id = fence.job;
        failure.took_down = match blame {
            Blame::Crashed(evidence) => Some(evidence),
            Blame::Unrelated | Blame::Pair => None,
        };
        failure.message = truncated(failure.message);
        let (cause, message) = (failure.cause, failure.message.clone());
        let event = JobEvent::Fail { fence, failure, retry_class };
        let (ran, job) = self.jobs.apply(now, id, event, &self.settings)?;
        let worker_id = ran.ok_or(Refusal::NotRunning)?.worker;
        let retry_at = match job.state() {
            JobState::Waiting { not_before } => Some(*not_before),
            JobState::Running { .. } | JobState::Ended(_) => None,
        };
        let mut is_of_former_service = false;
        if let Some(worker) = self.workers.get_mut(&worker_id) {
            let hold = worker.release(now, &id);
            let began_with = hold.and_then(|hold| hold.service_restarts);
            is_of_former_service = cause == Cause::Service && began_with < worker.service_restarts;
            worker.counts.failed += u64::from(cause.is_job_fault() || cause == Cause::Service);
        }
        // What happened to a service that has started again says nothing about the one that runs now.
        if blame == Blame::Unrelated || !cause.blames_pair() || is_of_former_service {
            self.trust.release(&worker_id, job);
            self.router.offer_again();
        } else {
            self.apply_evidence(now, &worker_id, id, blame, &message);
        }
        if let Some(job) = self.jobs.get(id).filter(|_| retry_at.is_none() && cause.is_job_fault()) {
            self.trust.acquit_workers(now, job, &mut self.outbox);
        }
        let failure = FailureNotice { attempt: fence.attempt, cause, reason: message, retry_at };
        match retry_at {
            Some(not_before) => self.wait_for_retry(now, id, not_before, &failure),
            None => self.ended(now, id, &JobEnding::Failed(failure)),
        }
        self.workers.update_free(now, &worker_id);
        self.assign(now, &worker_id);
        Ok(())
    }

    fn wait_for_retry(&mut self, now: Timestamp, id: JobId, not_before: Timestamp, failure: &FailureNotice) {
        let Some(job) = self.jobs.get(id) else { return };
        let (status, wake_at) = (job.status(now), job.wake_at(now));
        let worker = job.attempts().last().map(|last| &last.worker);
        self.outbox.set_alarm(Alarm::Job(id), wake_at);
        self.outbox.record(Record::JobStatus { job: id, status });
        self.outbox.publish(now, DomainEvent::JobRetrying { job, worker, failure });
        if not_before <= now {
            self.ready(now, id);
        }
    }

    /// Applies a failure to block, quarantine and probation.
    fn apply_evidence(&mut self, now: Timestamp, id: &WorkerId, job: JobId, blame: Blame, message: &str) {
        let Some((has_alternative, completed_elsewhere)) = self.jobs.get(job).map(|job| {
            let matching = self.matching(now);
            (matching.another_could(job, id), matching.completed_elsewhere(&job.kind.shape, id))
        }) else {
            return;
        };
        let (Some(worker), Some(job)) = (self.workers.get_mut(id), self.jobs.get(job)) else { return };
        let Some(last) = job.attempts().last() else { return };
        let evidence = Evidence {
            job,
            cause: last.cause.unwrap_or(Cause::Worker),
            fault: last.fault,
            message,
            took_worker_down: blame == Blame::Crashed(CrashEvidence::Direct),
            has_alternative,
            completed_elsewhere,
        };
        let on_probation = self.trust.fail(now, worker, &evidence, &self.settings, &mut self.outbox);
        self.router.offer_again();
        if on_probation {
            self.show_probation(now, id);
        }
    }

    /// An error that was blamed on the job did not occur on another worker: this one was at fault.
    fn convict(&mut self, now: Timestamp, id: &WorkerId, shape: Shape) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if self.trust.convict(now, worker, shape, &self.settings) {
            self.show_probation(now, id);
            self.workers.update_free(now, id);
        }
    }

    fn show_probation(&mut self, now: Timestamp, id: &WorkerId) {
        self.workers.store(now, id, &mut self.outbox);
        self.workers.watch(now, id, &self.settings, &mut self.outbox);
        self.workers.publish_state(now, id, &mut self.outbox);
    }

    /// A block's cooldown may be over.
    pub(super) fn block_alarm(&mut self, now: Timestamp, worker: &WorkerId, scope: &BlockScope) {
        if self.trust.block_alarm(now, worker, scope, &mut self.outbox) {
            self.assign(now, worker);
        }
    }

    /// A quarantined shape may have one trial.
    pub(super) fn quarantine_alarm(&mut self, now: Timestamp, jobs: &TenantShape) {
        if self.trust.quarantine_alarm(now, jobs, &mut self.outbox) {
            self.router.offer_again();
        }
    }

    pub(super) fn lift_block(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        hash: Hash,
    ) -> Result<PlaneAnswer, Refusal> {
        if !self.trust.lift_by_hash(now, worker, hash, &mut self.outbox) {
            let what = format!("block of worker {worker} for workflow or shape {}", hash.short());
            return Err(Refusal::NothingToRemove { what });
        }
        self.assign(now, worker);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn release_shape(&mut self, now: Timestamp, shape: Shape) -> Result<PlaneAnswer, Refusal> {
        let cleared = self.trust.clear_shape(now, shape, "released by an operator", &mut self.outbox);
        cleared.ok_or_else(|| Refusal::NothingToRemove {
            what: format!("quarantine of shape {}", shape.short()),
        })?;
        self.router.offer_again();
        Ok(PlaneAnswer::Done)
    }

    /// The job has its outcome: it leaves memory, and only the list of recent outcomes knows it.
    pub(super) fn ended(&mut self, now: Timestamp, id: JobId, ending: &JobEnding) {
        let Some((job, status)) = self.jobs.take_ended(now, id) else { return };
        self.outbox.set_alarm(Alarm::Job(id), None);
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
