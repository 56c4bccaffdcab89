//! May this worker run this job, is the attempt a trial, and what follows from its end? Owns the blocks of workers for
//! workflows and shapes and the quarantine of shapes; a worker's probation travels with the worker, and is judged here.
//!
//! Every change is recorded and published here, and sets the alarm for the time at which it ends. A block ends by time in
//! `block_alarm`, and for any other reason in `lift`.

use super::{DomainEvent, Outbox, PassedOver};
use crate::alarm::Alarm;
use crate::block::{Block, BlockEvidence, BlockState, Blocks, FailureReach};
use crate::cause::Cause;
use crate::id::{Hash, Shape, Tenant, WorkerId};
use crate::job::Job;
use crate::quarantine::{
    Quarantine, QuarantineEntry, QuarantineEvidence, QuarantineState, QuarantineVerdict,
};
use crate::record::{BlockRow, QuarantineRow, Record};
use crate::scope::{BlockScope, TenantShape};
use crate::service::ServiceFault;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::Worker;

#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    blocks: Blocks,
    quarantine: Quarantine,
}

/// A failure that says something about a worker, a workflow or a shape.
pub(super) struct Evidence<'a> {
    pub(super) job: &'a Job,
    pub(super) cause: Cause,
    pub(super) fault: Option<ServiceFault>,
    pub(super) message: &'a str,
    pub(super) took_worker_down: bool,
    /// Another worker could take the job, now or when it has a free slot.
    pub(super) has_alternative: bool,
    /// Another worker completed a job of the shape.
    pub(super) completed_elsewhere: bool,
}

impl Evidence<'_> {
    fn reach(&self) -> FailureReach {
        match self.fault {
            Some(ServiceFault::Missing) => FailureReach::Lacking,
            // What no card of this size can give says nothing about smaller demands.
            Some(ServiceFault::Memory) if self.is_beyond_the_card() => FailureReach::Workflow,
            Some(ServiceFault::Memory) => FailureReach::Tenant,
            Some(_) | None => FailureReach::Workflow,
        }
    }

    fn is_beyond_the_card(&self) -> bool {
        let last = self.job.attempts().last();
        last.is_some_and(|last| last.requested_memory > last.out_of_memory)
    }
}

impl Trust {
    pub(super) fn restore(
        &mut self,
        blocks: Vec<BlockRow>,
        quarantine: Vec<QuarantineRow>,
        settings: &Settings,
    ) {
        blocks.into_iter().for_each(|row| self.blocks.restore(row, settings));
        quarantine.into_iter().for_each(|row| self.quarantine.restore(row));
    }

    pub(super) fn restore_alarms(&self, outbox: &mut Outbox) {
        for (worker, scope, block) in self.blocks.iter().filter(|(_, _, block)| block.is_blocked()) {
            outbox.set_alarm(Alarm::Block(worker.clone(), scope.clone()), Some(block.until()));
        }
        for (jobs, entry) in self.quarantine.iter() {
            outbox.set_alarm(Alarm::Quarantine(jobs), entry.trial_at());
        }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Why this worker may not run this job now.
    pub(super) fn obstacle(&self, now: Timestamp, job: &Job, worker: &WorkerId) -> Option<PassedOver> {
        self.quarantine_obstacle(now, &job.tenant, &job.kind.shape)
            .or_else(|| passed_over(self.blocks.state(worker, job)))
    }

    /// Why this worker may run no job of this tenant and shape now.
    pub(super) fn shape_obstacle(
        &self,
        now: Timestamp,
        tenant: &Tenant,
        shape: &Shape,
        worker: &WorkerId,
    ) -> Option<PassedOver> {
        self.quarantine_obstacle(now, tenant, shape)
            .or_else(|| passed_over(self.blocks.shape_state(worker, tenant, shape)))
    }

    fn quarantine_obstacle(&self, now: Timestamp, tenant: &Tenant, shape: &Shape) -> Option<PassedOver> {
        if self.quarantine.is_empty() {
            return None;
        }
        let jobs = TenantShape { shape: *shape, tenant: tenant.clone() };
        match self.quarantine.state(now, &jobs) {
            QuarantineState::Free => None,
            QuarantineState::Quarantined { trial_at } => Some(PassedOver::Quarantined { trial_at }),
            QuarantineState::TrialUnderWay { job } => Some(PassedOver::QuarantineTrial { job }),
        }
    }

    /// An attempt starts. True if it is the one trial that other jobs waited for: they stop waiting for that worker.
    pub(super) fn start(&mut self, worker: &WorkerId, job: &Job) -> bool {
        self.quarantine.started(&job.tenant_shape(), job.id);
        self.blocks.started(worker, job)
    }

    /// The attempt ended without evidence: if it was a trial, another job may be the trial.
    pub(super) fn release(&mut self, worker: &WorkerId, job: &Job) {
        self.blocks.abandon_trial(worker, job);
        self.quarantine.abandon_trial(&job.tenant_shape(), job.id);
    }

    /// The attempt succeeded, which clears the worker for the shape: failures before it are no evidence any longer. True if a quarantine ended.
    pub(super) fn succeed(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        shape: Shape,
        outbox: &mut Outbox,
    ) -> bool {
        worker.probation.succeeded();
        for (worker, scope) in self.blocks.find_on(&worker.id, |block| block.shape == shape) {
            self.lift(now, &worker, &scope, "it succeeded", outbox);
        }
        self.clear_shape(now, shape, "it succeeded", outbox) == Some(WasQuarantined(true))
    }

    /// The attempt failed, and that counts: against the shape once several workers agree, and until then against this
    /// worker with this workflow. True if the worker's probation began or was renewed.
    pub(super) fn fail(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        evidence: &Evidence<'_>,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let Evidence { job, cause, .. } = *evidence;
        let is_quarantined = self.note_for_quarantine(now, &worker.id, evidence, settings, outbox);
        // In quarantine the shape is held back, so its workers are not blocked. Without an alternative a block would
        // delay the job and protect no one: it is published and ends at once.
        let is_spared = settings.exempt_sole_worker || !cause.is_job_fault();
        if is_quarantined || is_spared && !evidence.has_alternative {
            self.blocks.abandon_trial(&worker.id, job);
        } else {
            let scope = self.block(now, &worker.id, evidence, settings, outbox);
            let is_blocked = self.blocks.get(&worker.id, &scope).is_some_and(Block::is_blocked);
            if is_blocked && !evidence.has_alternative {
                self.lift(now, &worker.id, &scope, "no other worker could take it", outbox);
            }
        }
        // A worker that was lost did not report the failure: its presence is judged elsewhere. A node that raised says
        // nothing about the worker before the job completed elsewhere (`convict`).
        let is_own = cause != Cause::Worker && !cause.is_job_fault();
        is_own && self.put_on_probation(now, worker, *job.kind.shape, settings)
    }

    /// An error that was blamed on the job did not occur on another worker, where the job completed.
    pub(super) fn convict(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        shape: Shape,
        settings: &Settings,
    ) -> bool {
        self.put_on_probation(now, worker, shape, settings)
    }

    fn put_on_probation(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        shape: Shape,
        settings: &Settings,
    ) -> bool {
        let is_on = worker.probation.failed(now, shape, settings.probation_after);
        if is_on {
            "too many failures in a row: on probation".clone_into(&mut worker.reason);
        }
        is_on
    }

    /// Only errors of jobs and crashes that they caused speak against a shape. True if the shape is quarantined.
    fn note_for_quarantine(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        evidence: &Evidence<'_>,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let jobs = evidence.job.tenant_shape();
        let is_about_shape = evidence.cause.is_job_fault() || evidence.took_worker_down;
        if !is_about_shape {
            self.quarantine.abandon_trial(&jobs, evidence.job.id);
            return self.quarantine.get(&jobs).is_some_and(QuarantineEntry::is_quarantined);
        }
        let (job, reason, took_worker_down) = (evidence.job.id, evidence.message, evidence.took_worker_down);
        let noted = QuarantineEvidence { worker, job, reason, took_worker_down };
        match self.quarantine.failed(now, &jobs, noted, settings) {
            QuarantineVerdict::Noted => self.store_quarantine(&jobs, outbox),
            QuarantineVerdict::Quarantined { trial_at, is_new } => {
                self.quarantine_shape(now, &jobs, trial_at, is_new, outbox);
            }
        }
        let is_quarantined = self.quarantine.get(&jobs).is_some_and(QuarantineEntry::is_quarantined);
        if let Some(forgotten) = self.quarantine.trim(settings.blocks_max) {
            outbox.set_alarm(Alarm::Quarantine(forgotten.clone()), None);
            outbox.record(Record::QuarantineLifted(forgotten));
        }
        is_quarantined
    }

    fn block(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        evidence: &Evidence<'_>,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> BlockScope {
        let Evidence { job, cause, message, completed_elsewhere, .. } = *evidence;
        let failed =
            BlockEvidence { job, cause, reason: message, reach: evidence.reach(), completed_elsewhere };
        let is_blocked =
            |blocks: &Blocks, scope: &BlockScope| blocks.get(worker, scope).is_some_and(Block::is_blocked);
        let before = job.scopes().map(|scope| is_blocked(&self.blocks, &scope));
        let scope = self.blocks.failed(now, worker, &failed, settings);
        let was_blocked = job.scopes().iter().zip(before).any(|(of, was)| was && *of == scope);
        let Some(block) = self.blocks.get(worker, &scope) else { return scope };
        outbox.record(Record::Block(block.row(worker, &scope)));
        if block.is_blocked() && !was_blocked {
            outbox.set_alarm(Alarm::Block(worker.clone(), scope.clone()), Some(block.until()));
            outbox.publish(now, DomainEvent::Blocked { job, worker, scope: &scope, block });
        }
        if self.blocks.len() > settings.blocks_max
            && let Some((worker, scope)) = self.blocks.first_to_end()
        {
            self.lift(now, &worker, &scope, "dropped: the maximum number of blocks was reached", outbox);
        }
        scope
    }

    /// The workflow itself fails: no worker is kept apart from it any longer. A wider block that concerns it and began with
    /// errors of jobs goes too, because this one may have been part of its evidence.
    pub(super) fn acquit_workers(&mut self, now: Timestamp, job: &Job, outbox: &mut Outbox) {
        let scopes = job.scopes();
        let is_meant = |scope: &BlockScope, block: &Block| {
            let is_exact = matches!(scope, BlockScope::Workflow(_));
            scopes.contains(scope) && (is_exact || block.cause.is_job_fault())
        };
        for (worker, scope) in self.blocks.find(|_, scope, block| is_meant(scope, block)) {
            self.lift(now, &worker, &scope, "the workflow itself fails", outbox);
        }
    }

    /// The worker's service started again: failures of the former process say nothing about the new one.
    pub(super) fn service_restarted(&mut self, now: Timestamp, worker: &WorkerId, outbox: &mut Outbox) {
        for (worker, scope) in self.blocks.find_on(worker, |block| block.cause == Cause::Service) {
            self.lift(now, &worker, &scope, "its service started again", outbox);
        }
    }

    /// The shape itself is suspect: blocks of workers for this tenant's jobs of it are lifted.
    fn quarantine_shape(
        &mut self,
        now: Timestamp,
        jobs: &TenantShape,
        trial_at: Timestamp,
        is_new: bool,
        outbox: &mut Outbox,
    ) {
        let is_meant = |block: &Block| block.shape == jobs.shape && block.tenant == jobs.tenant;
        for (worker, scope) in self.blocks.find(|_, _, block| is_meant(block)) {
            self.lift(now, &worker, &scope, "the shape itself is in quarantine", outbox);
        }
        self.store_quarantine(jobs, outbox);
        outbox.set_alarm(Alarm::Quarantine(jobs.clone()), Some(trial_at));
        if let Some(entry) = self.quarantine.get(jobs).filter(|_| is_new) {
            let failed_on: Vec<_> = entry.failed_on.iter().map(WorkerId::as_str).collect();
            outbox.publish(now, DomainEvent::Quarantined { jobs, failed_on: &failed_on, trial_at });
        }
    }

    fn store_quarantine(&self, jobs: &TenantShape, outbox: &mut Outbox) {
        if let Some(entry) = self.quarantine.get(jobs) {
            outbox.record(Record::Quarantine(entry.row(jobs)));
        }
    }

    /// Removes what is known against a worker and a workflow or shape; false if nothing was.
    pub(super) fn lift(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        scope: &BlockScope,
        reason: &str,
        outbox: &mut Outbox,
    ) -> bool {
        let Some(block) = self.blocks.lift(worker, scope) else { return false };
        outbox.record(Record::BlockLifted { worker: worker.clone(), scope: scope.clone() });
        outbox.set_alarm(Alarm::Block(worker.clone(), scope.clone()), None);
        // A pair below the failure limit was never blocked, so nothing is published.
        if block.is_or_was_blocked() {
            outbox.publish(now, DomainEvent::Unblocked { worker, scope, block: &block, reason });
        }
        true
    }

    /// Lifts the worker's blocks for a workflow or a shape, by its hash; false if there was none.
    pub(super) fn lift_by_hash(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        hash: Hash,
        outbox: &mut Outbox,
    ) -> bool {
        let is_meant = |of: &WorkerId, scope: &BlockScope, block: &Block| {
            of == worker && (scope.is_named(hash) || block.shape == hash)
        };
        let meant = self.blocks.find(is_meant);
        for (worker, scope) in &meant {
            self.lift(now, worker, scope, "lifted by an operator", outbox);
        }
        !meant.is_empty()
    }

    /// Removes what is known against a shape; `None` if nothing was.
    pub(super) fn clear_shape(
        &mut self,
        now: Timestamp,
        shape: Shape,
        reason: &str,
        outbox: &mut Outbox,
    ) -> Option<WasQuarantined> {
        let mut found = None;
        for (jobs, entry) in self.quarantine.clear(&shape) {
            outbox.set_alarm(Alarm::Quarantine(jobs.clone()), None);
            if entry.is_quarantined() {
                outbox.publish(now, DomainEvent::Released { jobs: &jobs, reason });
            }
            outbox.record(Record::QuarantineLifted(jobs));
            let was_quarantined = found == Some(WasQuarantined(true)) || entry.is_quarantined();
            found = Some(WasQuarantined(was_quarantined));
        }
        found
    }

    pub(super) fn forget_worker(&mut self, now: Timestamp, worker: &WorkerId, outbox: &mut Outbox) {
        for (worker, scope) in self.blocks.find_on(worker, |_| true) {
            self.lift(now, &worker, &scope, "the worker was forgotten", outbox);
        }
    }

    /// The time of a block may be over. True if it is: the pair may have one trial.
    pub(super) fn block_alarm(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        scope: &BlockScope,
        outbox: &mut Outbox,
    ) -> bool {
        let is_over = self.blocks.expire(now, worker, scope);
        if let Some(block) = self.blocks.get(worker, scope) {
            if is_over {
                outbox.record(Record::Block(block.row(worker, scope)));
                let reason = "its cooldown is over; one trial may run";
                outbox.publish(now, DomainEvent::Unblocked { worker, scope, block, reason });
            } else if block.is_blocked() {
                outbox.set_alarm(Alarm::Block(worker.clone(), scope.clone()), Some(block.until()));
            }
        }
        is_over
    }

    /// The time of a quarantine may be over. True unless it lasts longer: the shape may have one trial.
    pub(super) fn quarantine_alarm(&self, now: Timestamp, jobs: &TenantShape, outbox: &mut Outbox) -> bool {
        let later = self.quarantine.get(jobs).and_then(QuarantineEntry::trial_at).filter(|at| now < *at);
        if later.is_some() {
            outbox.set_alarm(Alarm::Quarantine(jobs.clone()), later);
        }
        later.is_none()
    }
}

/// Whether a shape that was cleared had been in quarantine, and not merely noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WasQuarantined(pub(super) bool);

fn passed_over(state: BlockState) -> Option<PassedOver> {
    match state {
        BlockState::Free => None,
        BlockState::Blocked { until } => Some(PassedOver::Blocked { until }),
        BlockState::TrialUnderWay { job } => Some(PassedOver::BlockTrial { job }),
    }
}
