//! Who is silent, what follows from it, and the brake that holds back when most of the fleet falls silent together:
//! then it is more likely our own link than everyone's death.

use std::time::Duration;

use serde_json::{Map, Value};

use super::attempts::{Blame, pair};
use super::reliability::Went;
use super::{About, Plane, detail};
use crate::alarm::Alarm;
use crate::cause::Cause;
use crate::id::{JobId, MachineId, Shape, WorkerId};
use crate::job::JobState;
use crate::machine::{self, Presence, WorkerState};
use crate::refusal::Refusal;
use crate::settings::StuckPolicy;
use crate::supervise::WatchVerdict;
use crate::time::{Timestamp, humanize};
use crate::worker::{Overrun, Stop};

use super::PlaneAnswer;

impl Plane {
    /// We were paused, or the store was slow: the time we did not listen is nobody's silence.
    pub(super) fn notice_own_absence(&mut self, now: Timestamp) {
        let away = now.since(self.stepped_at);
        if away < self.settings.plane_stall_max {
            return;
        }
        for worker in self.workers.values_mut() {
            worker.watch.extend_deadline(now, away);
            for hold in worker.holds.values_mut() {
                hold.progressed_at = hold.progressed_at.plus(away).min(now);
                // An order is as late as we are: its grace begins anew.
                (hold.assigned_at, hold.told_at, hold.tells) = (now, now, hold.tells.min(1));
            }
        }
        let about = detail([("millis", u64::try_from(away.as_millis()).unwrap_or(u64::MAX).into())]);
        self.happened(now, "plane:away", About::default(), about);
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
            (Presence::Online, WatchVerdict::Probe | WatchVerdict::Probing) => self.suspect(now, id),
            (Presence::Online | Presence::Suspect, WatchVerdict::Silent) => {
                if presence == Presence::Online {
                    self.suspect(now, id);
                }
                self.silent(now, id);
            }
        }
        self.watch_worker(now, id);
        self.assign(now, id);
    }

    /// No new work; nothing is taken away yet.
    pub(super) fn suspect(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.presence = Presence::Suspect;
        self.client_state(now, id);
        self.needs_assign = true;
        let online = self.workers.values().filter(|worker| worker.presence == Presence::Online).count();
        let was_on = self.mass_loss.is_on(now);
        let is_on = self.mass_loss.silent(now, id, online, &self.settings);
        self.alarms.set(Alarm::Brake, self.mass_loss.wake_at());
        if is_on && !was_on {
            let reason = self.mass_loss.reason(now).unwrap_or_default();
            self.happened(now, "fleet:brake", About::default(), detail([("reason", reason.into())]));
        }
    }

    /// The verdict on a silent worker, unless the brake holds it back.
    fn silent(&mut self, now: Timestamp, id: &WorkerId) {
        if self.mass_loss.is_on(now) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let silence = worker.watch.silent_for(now);
        let reason = format!("no beat for {}", humanize(silence));
        let seen_at = worker.watch.seen_at();
        worker.reliability.went_stale(now, seen_at);
        (worker.presence, worker.changed_at) = (Presence::Offline, now);
        worker.is_polling = false;
        self.needs_assign = true;
        worker.tally.went_stale += 1;
        worker.reason.clone_from(&reason);
        let held: Vec<_> = worker.holds.iter().map(|(job, hold)| (*job, hold.has_begun())).collect();
        for (job, has_begun) in held {
            // Whoever was gone before it named the job was not taken down by it.
            let blame = if has_begun { Blame::Crashed } else { Blame::Nobody };
            self.lose(now, job, Cause::Worker, format!("worker {id} fell silent: {reason}"), blame);
        }
        self.store_worker(now, id);
        self.worker_news(now, "worker:offline", id, detail([("reason", reason.into())]));
        self.machine_follows(now, id, Went::Stale(seen_at));
        self.tell_if_unreliable(now, id);
    }

    /// News of a worker, and what they mean for whoever only wants to know whether it can be used.
    pub(super) fn worker_news(
        &mut self,
        now: Timestamp,
        name: &'static str,
        id: &WorkerId,
        detail: Map<String, Value>,
    ) {
        self.happened(now, name, About::worker(id), detail);
        self.client_state(now, id);
    }

    pub(super) fn client_state(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_on_probation = worker.probation.until().is_some_and(|until| now < until);
        let is_online = worker.presence == Presence::Online && worker.state == WorkerState::Active;
        let is_available = is_online && worker.unavailable_reason.is_empty() && !is_on_probation;
        let reason =
            if worker.unavailable_reason.is_empty() { &worker.reason } else { &worker.unavailable_reason };
        let state = detail([
            ("online", is_online.into()),
            ("available", is_available.into()),
            ("presence", worker.presence.as_str().into()),
            ("state", worker.state.as_str().into()),
            ("busy", worker.holds.len().into()),
            ("slots", worker.slots.into()),
            ("reason", reason.clone().into()),
        ]);
        self.happened(now, "client:state", About::worker(id), state);
    }

    /// A worker went offline or came back: so does its machine, if none of the others there is heard.
    pub(super) fn machine_follows(&mut self, now: Timestamp, id: &WorkerId, went: Went) {
        let Some(worker) = self.workers.get(id) else { return };
        let (machine, presence) = (worker.machine.clone(), worker.presence);
        let others = self.workers.values().filter(|it| it.machine == machine && it.id != *id);
        if machine::machine_presence(others.map(|it| it.presence)) == Presence::Offline {
            let state = detail([("machine", machine.as_str().into()), ("state", presence.as_str().into())]);
            self.happened(now, "machine:state", About::worker(id), state);
            self.machine_went(now, &machine, went);
        }
    }

    /// A worker is on another machine now: the one it was on is offline if nobody else is heard there.
    pub(super) fn machine_lost_one(&mut self, now: Timestamp, machine: &MachineId) {
        let there = self.workers.values().filter(|it| it.machine == *machine);
        if machine::machine_presence(there.map(|it| it.presence)) == Presence::Offline {
            let state =
                detail([("machine", machine.as_str().into()), ("state", Presence::Offline.as_str().into())]);
            self.happened(now, "machine:state", About::default(), state);
            self.machine_went(now, machine, Went::Left);
            self.forget_machine(machine);
        }
    }

    /// Somebody is there after all: the brake may let go sooner.
    pub(super) fn heard_after_loss(&mut self, now: Timestamp, id: &WorkerId) {
        self.mass_loss.heard(now, id, &self.settings);
        if let Some(at) = self.mass_loss.wake_at() {
            self.alarms.set(Alarm::Brake, Some(at));
        }
    }

    /// Attempts that take too long are taken away; whoever holds them is told to stop.
    pub(super) fn fail_stuck(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_heard = worker.presence == Presence::Online;
        let overdue: Vec<_> = worker
            .holds
            .iter()
            .filter(|_| is_heard)
            .map(|(job, hold)| (job, hold, hold.overrun_at(self.started_at(*job), &self.settings)))
            .filter(|(_, _, (at, _))| *at <= now)
            .map(|(job, hold, (_, how))| (*job, hold.attempt, now.since(hold.progressed_at), how))
            .collect();
        for (job, attempt, silence, how) in overdue {
            let (what, cause, blame) = self.judged(silence, how);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.cancels.insert((job, attempt), Stop::new(what.clone()));
                self.undelivered.insert(id.clone());
            }
            self.lose(now, job, cause, format!("{what} on worker {id}"), blame);
        }
    }

    /// Whose fault it is that something takes too long.
    fn judged(&self, silence: Duration, how: Overrun) -> (String, Cause, Blame) {
        match how {
            // What stands still took its service down with it; what is only old did not.
            Overrun::Stuck => {
                let blame = match self.settings.stuck_policy {
                    StuckPolicy::Progress => Blame::Crashed,
                    StuckPolicy::Age => Blame::Pair,
                };
                (format!("stuck: no progress for {}", humanize(silence)), Cause::Service, blame)
            }
            // It never ran, so it says nothing of the pair: the service had other things to do.
            Overrun::NotBegun(limit) => (
                format!("not begun within its start limit of {}", humanize(limit)),
                Cause::Service,
                Blame::Nobody,
            ),
            // The job's own measure: tried on elsewhere it will hardly be quicker, so its own attempts pay for it.
            Overrun::NoProgress(limit) => {
                (format!("no progress within its node limit of {}", humanize(limit)), Cause::Job, Blame::Pair)
            }
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
            self.happened(now, "fleet:brake_released", About::default(), Map::new());
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

    /// A block's wait is over: the pair may have one trial.
    pub(super) fn block_alarm(&mut self, now: Timestamp, worker: &WorkerId, shape: Shape) {
        if self.blocks.expire(now, worker, &shape) {
            let mut why = self.blocks.get(worker, &shape).map(|block| pair(shape, block)).unwrap_or_default();
            why.insert("reason".to_owned(), "the wait is over: one trial".into());
            self.happened(now, "client:unblocked_workflow", About::worker(worker), why);
            self.assign(now, worker);
        } else if let Some(block) = self.blocks.get(worker, &shape).filter(|block| block.is_blocked()) {
            self.alarms.set(Alarm::Block(worker.clone(), shape), Some(block.until()));
        }
    }

    /// A quarantined shape may have its trial.
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
        self.unblocked(now, worker, shape, &block, "lifted by hand");
        self.assign(now, worker);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn release(&mut self, now: Timestamp, shape: Shape) -> Result<PlaneAnswer, Refusal> {
        if self.clear_shape(now, shape, "released by hand") {
            Ok(PlaneAnswer::Done)
        } else {
            Err(Refusal::NothingToLift)
        }
    }

    /// Sets the worker's alarm to when its own rules could say something new.
    pub(super) fn watch_worker(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let wake_at = worker.wake_at(now, &self.settings);
        // A verdict the brake holds back is looked at again when the brake lets go.
        let wake_at = wake_at.map(|at| if at <= now { now.plus(Duration::from_secs(1)) } else { at });
        self.alarms.set(Alarm::Worker(id.clone()), wake_at);
        self.update_free(now, id);
    }

    /// The worker holds something now and is watched more closely: its alarm must not come later than that, nor than what
    /// the job itself allows.
    pub(super) fn tighten_alarm(&mut self, now: Timestamp, id: &WorkerId, limit: Option<Duration>) {
        let suspect_after = self.settings.suspect_after;
        let latest = now.plus(limit.map_or(suspect_after, |limit| limit.min(suspect_after)));
        let alarm = Alarm::Worker(id.clone());
        if self.alarms.get(&alarm).is_none_or(|at| latest < at) {
            self.alarms.set(alarm, Some(latest));
        }
    }
}
