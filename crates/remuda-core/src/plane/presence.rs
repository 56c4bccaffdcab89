//! Detects silent workers and acts on them. While there is no proof that messages arrive, the mass-loss brake holds the
//! verdicts back.

use std::time::Duration;

use super::attempts::Blame;
use super::workers::PresenceChange;
use super::{DomainEvent, Plane, PlaneEffect};
use crate::alarm::Alarm;
use crate::brake::Judgement;
use crate::id::{JobId, WorkerId};
use crate::job::JobState;
use crate::machine::Presence;
use crate::settings::StuckPolicy;
use crate::supervise::WatchVerdict;
use crate::time::{Timestamp, humanize};
use crate::verdict::{AttemptVerdict, CrashEvidence};
use crate::wire::BeatReply;
use crate::worker::{AttemptTimeout, ContactEvent, PendingCancel};

/// If at least this many other machines fell silent at the same time, no single job was the reason.
const LOST_TOGETHER_MIN: usize = 2;

impl Plane {
    /// The plane was paused or its store was slow: that time counts neither as any worker's silence nor against a machine
    /// that is coming up or drained.
    pub(super) fn notice_own_absence(&mut self, now: Timestamp) {
        let away = now.since(self.stepped_at);
        if away < self.settings.plane_stall_max {
            return;
        }
        self.workers.excuse_silence(now, away, &self.settings);
        self.fleets.excuse(now, away, &mut self.outbox);
        self.outbox.publish(now, DomainEvent::PlaneAway(away));
    }

    pub(super) fn worker_alarm(&mut self, now: Timestamp, id: &WorkerId) {
        self.fail_stuck(now, id);
        let Some(worker) = self.workers.get_mut(id) else { return };
        let has_lost_line = worker.lose_line(now);
        let limits = worker.limits(&self.settings);
        let finding = worker.watch.check(now, limits);
        let (presence, awaits_proof) = (worker.presence(), worker.awaits_proof());
        match (presence, finding) {
            (_, WatchVerdict::Alive) => {}
            (Presence::Suspect | Presence::Offline, WatchVerdict::Probe | WatchVerdict::Probing) => {}
            (Presence::Offline, WatchVerdict::Silent) if !awaits_proof => {}
            (Presence::Online, WatchVerdict::Probe | WatchVerdict::Probing) => self.mark_suspect(now, id),
            (Presence::Online, WatchVerdict::Silent) => {
                self.mark_suspect(now, id);
                self.judge_silent(now, id);
            }
            (Presence::Suspect | Presence::Offline, WatchVerdict::Silent) => self.judge_silent(now, id),
        }
        if has_lost_line {
            self.router.offer_again();
            self.expedite_list(now, id);
        }
        self.workers.watch(now, id, &self.settings, &mut self.outbox);
        self.assign(now, id);
    }

    /// No new work for the worker; it keeps its attempts for now. Others are asked for a beat, so that there is a proof
    /// when its lease has run out.
    fn mark_suspect(&mut self, now: Timestamp, id: &WorkerId) {
        self.workers.mark_suspect(now, id, &mut self.outbox);
        self.router.offer_again();
        self.expedite_list(now, id);
        self.ask_for_beats(now);
    }

    /// The worker's lease ran out: it is dead if there is proof that messages arrive.
    fn judge_silent(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_rented = self.fleets.is_rented(&worker.machine);
        let is_stale = worker.watch.silent_for(now) >= worker.stale_after(&self.settings);
        match self.workers.judge(now, id, is_rented, &self.settings, &mut self.outbox) {
            Judgement::Dead => {
                self.mark_offline(now, id, true);
                self.lose_all(now, id);
            }
            Judgement::Unproven => {
                if is_stale {
                    self.mark_offline(now, id, false);
                }
                self.ask_for_beats(now);
            }
            Judgement::Later => {}
        }
    }

    /// Asks some workers to beat now, by an answer to their long polls: that would prove that messages arrive.
    fn ask_for_beats(&mut self, now: Timestamp) {
        for worker in self.workers.hang_up_some(now, &self.settings) {
            let reply = BeatReply { term: self.term, ..BeatReply::default() };
            self.outbox.effect(PlaneEffect::SendOrders { worker, reply });
        }
    }

    /// A silent worker is offline. Without proof that messages arrive, that is not held against it, and it keeps its attempts.
    fn mark_offline(&mut self, now: Timestamp, id: &WorkerId, is_proven: bool) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let was_offline = worker.presence() == Presence::Offline;
        if was_offline && !is_proven {
            worker.contact(ContactEvent::Silent { is_proven });
            return;
        }
        let reason = format!("no beat for {}", humanize(worker.watch.silent_for(now)));
        let seen_at = worker.watch.seen_at();
        let change = if is_proven { PresenceChange::Stale(seen_at) } else { PresenceChange::Unproven };
        worker.go_offline(now, &reason, is_proven);
        self.router.offer_again();
        self.workers.store(now, id, &mut self.outbox);
        if !was_offline {
            let event = DomainEvent::WorkerOffline { worker: id, reason: &reason };
            self.workers.publish(now, id, event, &mut self.outbox);
        }
        self.workers.update_machine_presence(now, id, change, &self.settings, &mut self.outbox);
        self.workers.alert_if_unreliable(now, id, &self.settings, &mut self.outbox);
    }

    /// Takes away everything that a dead worker held.
    fn lose_all(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let reason = worker.reason.clone();
        let held: Vec<_> =
            worker.assignments.iter().map(|(job, hold)| (*job, hold.may_have_started())).collect();
        let seen_at = worker.watch.seen_at();
        let is_one_of_many = self.workers.mass_loss().is_mass()
            || self.workers.silent_lately(now, id, self.settings.lease) >= LOST_TOGETHER_MIN;
        for (job, has_begun) in held {
            // A worker that fell silent before it confirmed the job, or together with others, was not crashed by it.
            let is_alone = !is_one_of_many && !self.went_down_with_others(id, seen_at, job);
            let blame = match has_begun && is_alone {
                true => self.crash_blame(job, id, CrashEvidence::Circumstantial),
                false => Blame::Unrelated,
            };
            let why = format!("worker {id} fell silent: {reason}");
            self.lose(now, job, AttemptVerdict::WorkerSilent, why, blame);
        }
    }

    /// Whether so many other machines went down at about the same time that this job was not the reason. The last sign of life
    /// of an idle worker may be as old as its interval.
    pub(super) fn went_down_with_others(&self, id: &WorkerId, heard_at: Timestamp, job: JobId) -> bool {
        let Some(shape) = self.jobs.get(job).map(|job| *job.kind.shape) else { return false };
        self.workers.went_down_with(id, heard_at, self.settings.beat_idle, shape) >= LOST_TOGETHER_MIN
    }

    /// Takes away attempts that ran into a limit; their worker is ordered to cancel them.
    pub(super) fn fail_stuck(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_heard = worker.presence() == Presence::Online;
        let overdue: Vec<_> = worker
            .assignments
            .iter()
            .filter(|_| is_heard)
            .map(|(job, hold)| (job, hold, hold.timeout_at(self.jobs.started_at(*job), &self.settings)))
            .filter(|(_, _, (at, _))| *at <= now)
            .map(|(job, hold, (_, how))| (*job, hold.attempt, now.since(hold.progressed_at), how))
            .collect();
        for (job, attempt, silence, how) in overdue {
            let (verdict, what, blame) = self.judge_timeout(id, job, silence, how);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.cancels.insert((job, attempt), PendingCancel::new(what.clone()));
            }
            self.workers.deliver_at_next_flush(id);
            self.lose(now, job, verdict, format!("{what} on worker {id}"), blame);
        }
    }

    /// What a timeout means, for the attempt and for the worker.
    fn judge_timeout(
        &self,
        id: &WorkerId,
        job: JobId,
        silence: Duration,
        how: AttemptTimeout,
    ) -> (AttemptVerdict, String, Blame) {
        match how {
            // An attempt without progress took its service down; one that is merely old did not.
            AttemptTimeout::Stuck => {
                let blame = match self.settings.stuck_policy {
                    StuckPolicy::Progress => self.stuck_blame(id, job),
                    StuckPolicy::Age => Blame::Pair,
                };
                (AttemptVerdict::Stuck, format!("stuck: no progress for {}", humanize(silence)), blame)
            }
            // It never ran, so it is no evidence about the pair: the service was busy.
            AttemptTimeout::NotBegun(limit) => (
                AttemptVerdict::StartLimit,
                format!("not started within its start limit of {}", humanize(limit)),
                Blame::Unrelated,
            ),
            // The job's own limit: another worker will hardly be faster, so the job's own attempts are used up.
            AttemptTimeout::NoProgress(limit) => (
                AttemptVerdict::NodeLimit,
                format!("no progress within its node limit of {}", humanize(limit)),
                Blame::Pair,
            ),
        }
    }

    /// An attempt that was alone on its worker and stopped advancing has stopped the service.
    pub(super) fn stuck_blame(&self, id: &WorkerId, job: JobId) -> Blame {
        let is_alone = self.workers.get(id).is_some_and(|worker| worker.assignments.len() <= 1);
        let evidence = if is_alone { CrashEvidence::Direct } else { CrashEvidence::Circumstantial };
        self.crash_blame(job, id, evidence)
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
