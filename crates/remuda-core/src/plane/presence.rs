//! Detects silent workers and acts on them, unless most of the fleet falls silent together: then the plane's own link
//! has more likely failed, and the mass-loss brake holds the verdicts back.

use std::time::Duration;

use super::attempts::Blame;
use super::reliability::PresenceChange;
use super::{DomainEvent, Plane};
use crate::alarm::Alarm;
use crate::id::{JobId, MachineId, Shape, WorkerId};
use crate::job::JobState;
use crate::machine::{self, Presence};
use crate::refusal::Refusal;
use crate::settings::StuckPolicy;
use crate::supervise::WatchVerdict;
use crate::time::{Timestamp, humanize};
use crate::verdict::AttemptVerdict;
use crate::worker::{Overrun, PendingCancel};

use super::PlaneAnswer;

impl Plane {
    /// The plane was paused or its store was slow: that time does not count as any worker's silence.
    pub(super) fn notice_own_absence(&mut self, now: Timestamp) {
        let away = now.since(self.stepped_at);
        if away < self.settings.plane_stall_max {
            return;
        }
        for worker in self.workers.values_mut() {
            worker.watch.extend_deadline(now, away);
            for hold in worker.assignments.values_mut() {
                hold.progressed_at = hold.progressed_at.plus(away).min(now);
                // Orders were delayed by the same pause: their grace period starts again.
                (hold.assigned_at, hold.sent_at, hold.sends) = (now, now, hold.sends.min(1));
            }
        }
        self.outbox.publish(now, DomainEvent::PlaneAway(away));
    }

    pub(super) fn worker_alarm(&mut self, now: Timestamp, id: &WorkerId) {
        self.fail_stuck(now, id);
        let Some(worker) = self.workers.get_mut(id) else { return };
        let limits = worker.limits(&self.settings);
        let finding = worker.watch.check(now, limits);
        let presence = worker.presence;
        match (presence, finding) {
            (Presence::Offline, _) | (_, WatchVerdict::Alive) => {}
            (Presence::Suspect, WatchVerdict::Probe | WatchVerdict::Probing) => {}
            (Presence::Online, WatchVerdict::Probe | WatchVerdict::Probing) => self.mark_suspect(now, id),
            (Presence::Online | Presence::Suspect, WatchVerdict::Silent) => {
                if presence == Presence::Online {
                    self.mark_suspect(now, id);
                }
                self.mark_offline(now, id);
            }
        }
        self.watch_worker(now, id);
        self.assign(now, id);
    }

    /// No new work for the worker; it keeps its attempts for now.
    pub(super) fn mark_suspect(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.presence = Presence::Suspect;
        self.client_state(now, id);
        self.needs_assign = true;
        let online = self.workers.values().filter(|worker| worker.presence == Presence::Online).count();
        let was_on = self.mass_loss.is_on(now);
        let is_on = self.mass_loss.record_loss(now, id, online, &self.settings);
        self.alarms.set(Alarm::Brake, self.mass_loss.wake_at());
        if is_on && !was_on {
            let reason = self.mass_loss.reason(now).unwrap_or_default();
            self.outbox.publish(now, DomainEvent::BrakeOn { reason });
        }
    }

    /// Declares a silent worker offline, unless the brake holds that back.
    fn mark_offline(&mut self, now: Timestamp, id: &WorkerId) {
        if self.mass_loss.is_on(now) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let silence = worker.watch.silent_for(now);
        let reason = format!("no beat for {}", humanize(silence));
        let seen_at = worker.watch.seen_at();
        worker.reliability.mark_stale(now, seen_at);
        (worker.presence, worker.changed_at) = (Presence::Offline, now);
        worker.is_polling = false;
        self.needs_assign = true;
        worker.counts.went_stale += 1;
        worker.reason.clone_from(&reason);
        let held: Vec<_> =
            worker.assignments.iter().map(|(job, hold)| (*job, hold.may_have_started())).collect();
        for (job, has_begun) in held {
            // A worker that fell silent before it confirmed the job was not crashed by it.
            let blame = if has_begun { Blame::Crashed } else { Blame::Unrelated };
            let why = format!("worker {id} fell silent: {reason}");
            self.lose(now, job, AttemptVerdict::WorkerSilent, why, blame);
        }
        self.store_worker(now, id);
        self.publish_worker(now, id, DomainEvent::WorkerOffline { worker: id, reason: &reason });
        self.update_machine_presence(now, id, PresenceChange::Stale(seen_at));
        self.alert_if_unreliable(now, id);
    }

    /// Publishes an event about a worker, and whether the worker is usable now.
    pub(super) fn publish_worker(&mut self, now: Timestamp, id: &WorkerId, event: DomainEvent<'_>) {
        if let Some(worker) = self.workers.get(id) {
            self.outbox.publish_with_state(now, worker, event);
        }
    }

    pub(super) fn publish_worker_state(&mut self, now: Timestamp, id: &WorkerId) {
        if let Some(worker) = self.workers.get(id) {
            let event = DomainEvent::WorkerState { worker, reason: &worker.reason };
            self.outbox.publish_with_state(now, worker, event);
        }
    }

    pub(super) fn client_state(&mut self, now: Timestamp, id: &WorkerId) {
        if let Some(worker) = self.workers.get(id) {
            self.outbox.publish(now, DomainEvent::ClientState(worker));
        }
    }

    /// A worker went offline or came back: its machine changes with it if no other worker there is online.
    pub(super) fn update_machine_presence(&mut self, now: Timestamp, id: &WorkerId, went: PresenceChange) {
        let Some(worker) = self.workers.get(id) else { return };
        let (machine, presence) = (worker.machine.clone(), worker.presence);
        let others = self.workers.values().filter(|it| it.machine == machine && it.id != *id);
        if machine::machine_presence(others.map(|it| it.presence)) == Presence::Offline {
            let event = DomainEvent::MachinePresence { machine: &machine, worker: Some(id), presence };
            self.outbox.publish(now, event);
            self.record_machine_presence(now, &machine, went);
        }
    }

    /// A worker moved to another machine: the old one is offline if no other worker there is online.
    pub(super) fn worker_moved_away(&mut self, now: Timestamp, machine: &MachineId) {
        let there = self.workers.values().filter(|it| it.machine == *machine);
        if machine::machine_presence(there.map(|it| it.presence)) == Presence::Offline {
            let presence = Presence::Offline;
            self.outbox.publish(now, DomainEvent::MachinePresence { machine, worker: None, presence });
            self.record_machine_presence(now, machine, PresenceChange::Away);
            self.forget_machine(machine);
        }
    }

    /// A worker beats after a mass loss: the brake may be released sooner.
    pub(super) fn end_mass_loss(&mut self, now: Timestamp, id: &WorkerId) {
        self.mass_loss.record_beat(now, id, &self.settings);
        if let Some(at) = self.mass_loss.wake_at() {
            self.alarms.set(Alarm::Brake, Some(at));
        }
    }

    /// Takes away attempts that overran their limits; their worker is ordered to cancel them.
    pub(super) fn fail_stuck(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_heard = worker.presence == Presence::Online;
        let overdue: Vec<_> = worker
            .assignments
            .iter()
            .filter(|_| is_heard)
            .map(|(job, hold)| (job, hold, hold.overrun_at(self.started_at(*job), &self.settings)))
            .filter(|(_, _, (at, _))| *at <= now)
            .map(|(job, hold, (_, how))| (*job, hold.attempt, now.since(hold.progressed_at), how))
            .collect();
        for (job, attempt, silence, how) in overdue {
            let (verdict, what, blame) = self.judge_overrun(silence, how);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.cancels.insert((job, attempt), PendingCancel::new(what.clone()));
                self.undelivered.insert(id.clone());
            }
            self.lose(now, job, verdict, format!("{what} on worker {id}"), blame);
        }
    }

    /// What an overrun means, for the attempt and for the worker.
    fn judge_overrun(&self, silence: Duration, how: Overrun) -> (AttemptVerdict, String, Blame) {
        match how {
            // An attempt without progress took its service down; one that is merely old did not.
            Overrun::Stuck => {
                let blame = match self.settings.stuck_policy {
                    StuckPolicy::Progress => Blame::Crashed,
                    StuckPolicy::Age => Blame::Pair,
                };
                (AttemptVerdict::Stuck, format!("stuck: no progress for {}", humanize(silence)), blame)
            }
            // It never ran, so it is no evidence about the pair: the service was busy.
            Overrun::NotBegun(limit) => (
                AttemptVerdict::StartLimit,
                format!("not started within its start limit of {}", humanize(limit)),
                Blame::Unrelated,
            ),
            // The job's own limit: another worker will hardly be faster, so the job's own attempts are used up.
            Overrun::NoProgress(limit) => (
                AttemptVerdict::NodeLimit,
                format!("no progress within its node limit of {}", humanize(limit)),
                Blame::Pair,
            ),
        }
    }

    fn started_at(&self, job: JobId) -> Option<Timestamp> {
        match self.jobs.get(&job)?.state() {
            JobState::Running { started_at, .. } => Some(*started_at),
            JobState::Waiting { .. } | JobState::Ended(_) => None,
        }
    }

    pub(super) fn brake_alarm(&mut self, now: Timestamp) {
        if self.mass_loss.release(now) {
            self.outbox.publish(now, DomainEvent::BrakeReleased);
            let silent: Vec<_> = self
                .workers
                .values()
                .filter(|worker| worker.presence == Presence::Suspect)
                .map(|worker| worker.id.clone())
                .collect();
            for worker in silent {
                self.worker_alarm(now, &worker);
            }
        }
        self.alarms.set(Alarm::Brake, self.mass_loss.wake_at());
    }

    /// A block's cooldown is over: the pair may have one trial.
    pub(super) fn block_alarm(&mut self, now: Timestamp, worker: &WorkerId, shape: Shape) {
        if self.blocks.expire(now, worker, &shape) {
            if let Some(block) = self.blocks.get(worker, &shape) {
                let reason = "the cooldown is over: one trial";
                self.outbox.publish(now, DomainEvent::Unblocked { worker, shape, block, reason });
            }
            self.assign(now, worker);
        } else if let Some(block) = self.blocks.get(worker, &shape).filter(|block| block.is_blocked()) {
            self.alarms.set(Alarm::Block(worker.clone(), shape), Some(block.until()));
        }
    }

    /// A quarantined shape may have one trial.
    pub(super) fn shape_alarm(&mut self, now: Timestamp, shape: Shape) {
        match self.quarantine.get(&shape).and_then(|it| it.trial_at()) {
            Some(trial_at) if now < trial_at => self.alarms.set(Alarm::Shape(shape), Some(trial_at)),
            Some(_) | None => self.needs_assign = true,
        }
    }

    pub(super) fn job_alarm(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.deadline.is_some_and(|deadline| deadline <= now) {
            return self.expire(now, id);
        }
        let wake_at = job.wake_at(now);
        self.alarms.set(Alarm::Job(id), wake_at);
        if matches!(job.state(), JobState::Waiting { not_before } if *not_before <= now) {
            self.ready(now, id);
        }
    }

    pub(super) fn lift(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: Shape,
    ) -> Result<PlaneAnswer, Refusal> {
        let Some(block) = self.blocks.lift(worker, &shape) else { return Err(Refusal::NothingToLift) };
        self.unblocked(now, worker, shape, &block, "lifted by an operator");
        self.assign(now, worker);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn release(&mut self, now: Timestamp, shape: Shape) -> Result<PlaneAnswer, Refusal> {
        if self.clear_shape(now, shape, "released by an operator") {
            Ok(PlaneAnswer::Done)
        } else {
            Err(Refusal::NothingToLift)
        }
    }

    /// Sets the worker's alarm to the next time its state can change.
    pub(super) fn watch_worker(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let wake_at = worker.wake_at(now, &self.settings);
        // A verdict held back by the brake is checked again later.
        let wake_at = wake_at.map(|at| if at <= now { now.plus(Duration::from_secs(1)) } else { at });
        self.alarms.set(Alarm::Worker(id.clone()), wake_at);
        self.update_free(now, id);
    }

    /// A busy worker is watched more closely: its alarm must come no later than that, nor later than the job's own
    /// limit.
    pub(super) fn tighten_alarm(&mut self, now: Timestamp, id: &WorkerId, limit: Option<Duration>) {
        let suspect_after = self.settings.suspect_after;
        let latest = now.plus(limit.map_or(suspect_after, |limit| limit.min(suspect_after)));
        let alarm = Alarm::Worker(id.clone());
        if self.alarms.get(&alarm).is_none_or(|at| latest < at) {
            self.alarms.set(alarm, Some(latest));
        }
    }
}
