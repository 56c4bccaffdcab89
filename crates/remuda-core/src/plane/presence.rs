//! Detects silent workers and acts on them, unless most of the fleet falls silent together: then the plane's own link
//! has more likely failed, and the mass-loss brake holds the verdicts back.

use std::time::Duration;

use super::attempts::Blame;
use super::workers::PresenceChange;
use super::{DomainEvent, Plane};
use crate::alarm::Alarm;
use crate::id::{JobId, WorkerId};
use crate::job::JobState;
use crate::machine::Presence;
use crate::settings::StuckPolicy;
use crate::supervise::WatchVerdict;
use crate::time::{Timestamp, humanize};
use crate::verdict::AttemptVerdict;
use crate::worker::{Overrun, PendingCancel};

impl Plane {
    /// The plane was paused or its store was slow: that time does not count as any worker's silence.
    pub(super) fn notice_own_absence(&mut self, now: Timestamp) {
        let away = now.since(self.stepped_at);
        if away < self.settings.plane_stall_max {
            return;
        }
        self.workers.excuse_silence(now, away);
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
        self.workers.watch(now, id, &self.settings, &mut self.outbox);
        self.assign(now, id);
    }

    /// No new work for the worker; it keeps its attempts for now.
    pub(super) fn mark_suspect(&mut self, now: Timestamp, id: &WorkerId) {
        self.workers.mark_suspect(now, id, &self.settings, &mut self.outbox);
        self.router.offer_again();
    }

    /// Declares a silent worker offline, unless the brake holds that back.
    fn mark_offline(&mut self, now: Timestamp, id: &WorkerId) {
        if self.workers.mass_loss().is_on(now) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let silence = worker.watch.silent_for(now);
        let reason = format!("no beat for {}", humanize(silence));
        let seen_at = worker.watch.seen_at();
        worker.reliability.mark_stale(now, seen_at);
        (worker.presence, worker.changed_at) = (Presence::Offline, now);
        worker.is_polling = false;
        self.router.offer_again();
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
        self.workers.store(now, id, &mut self.outbox);
        self.workers.publish(
            now,
            id,
            DomainEvent::WorkerOffline { worker: id, reason: &reason },
            &mut self.outbox,
        );
        self.workers.update_machine_presence(
            now,
            id,
            PresenceChange::Stale(seen_at),
            &self.settings,
            &mut self.outbox,
        );
        self.workers.alert_if_unreliable(now, id, &self.settings, &mut self.outbox);
    }

    /// Takes away attempts that overran their limits; their worker is ordered to cancel them.
    pub(super) fn fail_stuck(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_heard = worker.presence == Presence::Online;
        let overdue: Vec<_> = worker
            .assignments
            .iter()
            .filter(|_| is_heard)
            .map(|(job, hold)| (job, hold, hold.overrun_at(self.jobs.started_at(*job), &self.settings)))
            .filter(|(_, _, (at, _))| *at <= now)
            .map(|(job, hold, (_, how))| (*job, hold.attempt, now.since(hold.progressed_at), how))
            .collect();
        for (job, attempt, silence, how) in overdue {
            let (verdict, what, blame) = self.judge_overrun(silence, how);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.cancels.insert((job, attempt), PendingCancel::new(what.clone()));
            }
            self.workers.has_orders(id);
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

    pub(super) fn brake_alarm(&mut self, now: Timestamp) {
        for worker in self.workers.release_brake(now, &mut self.outbox) {
            self.worker_alarm(now, &worker);
        }
    }

    pub(super) fn job_alarm(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.deadline.is_some_and(|deadline| deadline <= now) {
            return self.expire(now, id);
        }
        let wake_at = job.wake_at(now);
        self.outbox.set_alarm(Alarm::Job(id), wake_at);
        if matches!(job.state(), JobState::Waiting { not_before } if *not_before <= now) {
            self.ready(now, id);
        }
    }

    /// A busy worker is watched more closely: its alarm must come no later than that, nor later than the job's own
    /// limit.
    pub(super) fn hasten_alarm(&mut self, now: Timestamp, id: &WorkerId, limit: Option<Duration>) {
        let suspect_after = self.settings.suspect_after;
        let latest = now.plus(limit.map_or(suspect_after, |limit| limit.min(suspect_after)));
        self.outbox.hasten_alarm(Alarm::Worker(id.clone()), latest);
    }
}
