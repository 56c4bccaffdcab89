//! May this worker run this shape, is the attempt a trial, and what follows from its end? Owns the blocks of worker
//! and shape and the quarantine of shapes; a worker's probation travels with the worker, and is judged here.
//!
//! Every change is recorded and published here, and sets the alarm for the time at which it ends. A block ends by time in
//! `block_alarm`, and for any other reason in `lift`.

use super::{DomainEvent, Outbox, PassedOver};
use crate::alarm::Alarm;
use crate::block::{Block, BlockState, Blocks};
use crate::cause::Cause;
use crate::id::{JobId, Shape, WorkerId};
use crate::job::Job;
use crate::quarantine::{Quarantine, QuarantineEntry, QuarantineState, QuarantineVerdict};
use crate::record::{BlockRow, QuarantineRow, Record};
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::Worker;

#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    blocks: Blocks,
    quarantine: Quarantine,
}

/// A failure that says something about a worker and a shape.
pub(super) struct Evidence<'a> {
    pub(super) job: &'a Job,
    pub(super) cause: Cause,
    pub(super) message: &'a str,
    /// No other worker could take the job.
    pub(super) is_only_worker: bool,
}

/// What follows from a failure, beyond what `Trust` keeps.
#[derive(Debug, Default)]
pub(super) struct TrustVerdict {
    /// The worker's probation began or was renewed.
    pub(super) on_probation: bool,
    /// Waiting jobs of the shape fail for this reason.
    pub(super) fail_waiting: Option<String>,
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
        for (worker, shape, block) in self.blocks.iter().filter(|(_, _, block)| block.is_blocked()) {
            outbox.set_alarm(Alarm::Block(worker.clone(), *shape), Some(block.until()));
        }
        for (shape, entry) in self.quarantine.iter() {
            outbox.set_alarm(Alarm::Shape(*shape), entry.trial_at());
        }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Why this worker may not run this shape now.
    pub(super) fn obstacle(&self, now: Timestamp, shape: &Shape, worker: &WorkerId) -> Option<PassedOver> {
        match self.quarantine.state(now, shape) {
            QuarantineState::Free => {}
            QuarantineState::Quarantined { trial_at } => return Some(PassedOver::Quarantined { trial_at }),
            QuarantineState::TrialUnderWay { job } => return Some(PassedOver::QuarantineTrial { job }),
        }
        match self.blocks.state(worker, shape) {
            BlockState::Free => None,
            BlockState::Blocked { until } => Some(PassedOver::Blocked { until }),
            BlockState::TrialUnderWay { job } => Some(PassedOver::BlockTrial { job }),
        }
    }

    /// An attempt starts. True if it is the one trial of worker and shape: other jobs stop waiting for that worker.
    pub(super) fn start(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) -> bool {
        self.quarantine.started(shape, job);
        self.blocks.started(worker, shape, job)
    }

    /// The attempt ended without evidence: if it was a trial, another job may be the trial.
    pub(super) fn release(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) {
        self.blocks.abandon_trial(worker, shape, job);
        self.quarantine.abandon_trial(shape, job);
    }

    /// The attempt succeeded, which clears worker and shape. True if a quarantine ended.
    pub(super) fn succeed(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        shape: Shape,
        outbox: &mut Outbox,
    ) -> bool {
        worker.probation.succeeded();
        self.lift(now, &worker.id, shape, "it succeeded", outbox);
        self.clear_shape(now, shape, "it succeeded", outbox) == Some(WasQuarantined(true))
    }

    /// The attempt failed, and that counts: against the shape once it failed on several workers, until then against
    /// this worker with this shape, and against the worker whatever it runs.
    pub(super) fn fail(
        &mut self,
        now: Timestamp,
        worker: &mut Worker,
        evidence: &Evidence<'_>,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> TrustVerdict {
        let Evidence { job, cause, message, is_only_worker } = *evidence;
        let shape = *job.kind.shape;
        let mut verdict = TrustVerdict::default();
        // A worker that was lost says nothing about what it ran: many jobs of any shape are on workers that die.
        let judged = match cause {
            Cause::Worker => {
                self.quarantine.abandon_trial(&shape, job.id);
                QuarantineVerdict::Noted
            }
            Cause::Job | Cause::Service | Cause::Provider | Cause::Plane => {
                self.quarantine.failed(now, &shape, &worker.id, job.id, message, settings)
            }
        };
        match judged {
            QuarantineVerdict::Noted => {
                self.store_quarantine(shape, outbox);
                // In quarantine the shape is held back, so its workers are not blocked.
                let is_quarantined = self.quarantine.get(&shape).is_some_and(QuarantineEntry::is_quarantined);
                // The cause was outside the workflow and is repaired by now, and no other worker could take the job:
                // a block would delay every job and protect none.
                let is_spared = settings.exempt_sole_worker || !cause.is_job_fault();
                if is_quarantined || is_spared && is_only_worker {
                    self.blocks.abandon_trial(&worker.id, &shape, job.id);
                } else {
                    self.block(now, &worker.id, job, message, settings, outbox);
                }
            }
            QuarantineVerdict::Quarantined { trial_at, is_new, is_hopeless } => {
                self.quarantine_shape(now, shape, trial_at, is_new, outbox);
                verdict.fail_waiting =
                    self.quarantine.get(&shape).filter(|_| is_hopeless).map(|it| hopeless(shape, it));
            }
        }
        // A worker that was lost did not report the failure: its presence is judged elsewhere.
        if cause != Cause::Worker && worker.probation.failed(now, shape, settings.probation_after) {
            "too many failures in a row: on probation".clone_into(&mut worker.reason);
            verdict.on_probation = true;
        }
        if let Some(forgotten) = self.quarantine.trim(settings.blocks_max) {
            outbox.record(Record::QuarantineLifted { shape: forgotten });
            outbox.set_alarm(Alarm::Shape(forgotten), None);
        }
        verdict
    }

    fn block(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        job: &Job,
        message: &str,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let shape = *job.kind.shape;
        let was_blocked = self.blocks.get(worker, &shape).is_some_and(Block::is_blocked);
        let failed = (job.id, job.workflow_hash);
        let block = self.blocks.failed(now, worker, &shape, failed, message, settings);
        outbox.record(Record::Block(block.row(worker, &shape)));
        if block.is_blocked() && !was_blocked {
            outbox.set_alarm(Alarm::Block(worker.clone(), shape), Some(block.until()));
            outbox.publish(now, DomainEvent::Blocked { job, worker, shape, block });
        }
        if self.blocks.len() > settings.blocks_max
            && let Some((worker, shape)) = self.blocks.first_to_end()
        {
            self.lift(now, &worker, shape, "dropped: the maximum number of blocks was reached", outbox);
        }
    }

    /// The shape itself is suspect: blocks of workers for it are lifted.
    fn quarantine_shape(
        &mut self,
        now: Timestamp,
        shape: Shape,
        trial_at: Timestamp,
        is_new: bool,
        outbox: &mut Outbox,
    ) {
        for worker in self.blocks.workers_of(&shape) {
            self.lift(now, &worker, shape, "the shape itself is in quarantine", outbox);
        }
        self.store_quarantine(shape, outbox);
        outbox.set_alarm(Alarm::Shape(shape), Some(trial_at));
        if let Some(entry) = self.quarantine.get(&shape).filter(|_| is_new) {
            let failed_on: Vec<_> = entry.failed_on.iter().map(WorkerId::as_str).collect();
            let event = DomainEvent::Quarantined { shape, failed_on: &failed_on, trial_at };
            outbox.publish(now, event);
        }
    }

    fn store_quarantine(&self, shape: Shape, outbox: &mut Outbox) {
        if let Some(entry) = self.quarantine.get(&shape) {
            outbox.record(Record::Quarantine(entry.row(&shape)));
        }
    }

    /// Removes what is known against a worker and a shape; false if nothing was.
    pub(super) fn lift(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: Shape,
        reason: &str,
        outbox: &mut Outbox,
    ) -> bool {
        let Some(block) = self.blocks.lift(worker, &shape) else { return false };
        outbox.record(Record::BlockLifted { worker: worker.clone(), shape });
        outbox.set_alarm(Alarm::Block(worker.clone(), shape), None);
        // A pair below the failure limit was never blocked, so nothing is published.
        if block.is_or_was_blocked() {
            outbox.publish(now, DomainEvent::Unblocked { worker, shape, block: &block, reason });
        }
        true
    }

    /// Removes what is known against a shape; `None` if nothing was.
    pub(super) fn clear_shape(
        &mut self,
        now: Timestamp,
        shape: Shape,
        reason: &str,
        outbox: &mut Outbox,
    ) -> Option<WasQuarantined> {
        let entry = self.quarantine.clear(&shape)?;
        outbox.record(Record::QuarantineLifted { shape });
        outbox.set_alarm(Alarm::Shape(shape), None);
        if entry.is_quarantined() {
            outbox.publish(now, DomainEvent::Released { shape, reason });
        }
        Some(WasQuarantined(entry.is_quarantined()))
    }

    pub(super) fn forget_worker(&mut self, now: Timestamp, worker: &WorkerId, outbox: &mut Outbox) {
        let blocks = self.blocks.iter().filter(|(blocked, ..)| *blocked == worker);
        let shapes: Vec<_> = blocks.map(|(_, shape, _)| *shape).collect();
        for shape in shapes {
            self.lift(now, worker, shape, "the worker was forgotten", outbox);
        }
    }

    /// The time of a block may be over. True if it is: the pair may have one trial.
    pub(super) fn block_alarm(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: Shape,
        outbox: &mut Outbox,
    ) -> bool {
        let is_over = self.blocks.expire(now, worker, &shape);
        if let Some(block) = self.blocks.get(worker, &shape) {
            if is_over {
                outbox.record(Record::Block(block.row(worker, &shape)));
                let reason = "its cooldown is over; one trial may run";
                outbox.publish(now, DomainEvent::Unblocked { worker, shape, block, reason });
            } else if block.is_blocked() {
                outbox.set_alarm(Alarm::Block(worker.clone(), shape), Some(block.until()));
            }
        }
        is_over
    }

    /// The time of a quarantine may be over. True unless it lasts longer: the shape may have one trial.
    pub(super) fn shape_alarm(&self, now: Timestamp, shape: Shape, outbox: &mut Outbox) -> bool {
        let later = self.quarantine.get(&shape).and_then(QuarantineEntry::trial_at).filter(|at| now < *at);
        if later.is_some() {
            outbox.set_alarm(Alarm::Shape(shape), later);
        }
        later.is_none()
    }
}

/// Whether a shape that was cleared had been in quarantine, and not merely noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WasQuarantined(pub(super) bool);

fn hopeless(shape: Shape, entry: &QuarantineEntry) -> String {
    let failed_on: Vec<_> = entry.failed_on.iter().map(WorkerId::as_str).collect();
    format!(
        "its shape {} failed on workers {} and in every trial since; last failure: {}",
        shape.short(),
        failed_on.join(", "),
        entry.reason
    )
}
