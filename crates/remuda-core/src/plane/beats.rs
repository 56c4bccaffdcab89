//! What a beat means: it names all the worker holds, so what the plane believes in and a beat does not name is lost, and
//! what it names and the plane does not believe in is cancelled.

use std::collections::BTreeSet;

use serde_json::Map;

use super::attempts::Blame;
use super::reliability::Went;
use super::{Plane, PlaneAnswer, PlaneEffect, detail};
use crate::cause::Cause;
use crate::id::{Attempt, Hash, JobId, WorkerId};
use crate::job::{JobState, truncated};
use crate::machine::{Presence, WorkerState};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::wire::{
    AttemptOutcome, Beat, BeatReply, CancelOrder, HeldAttempt, SettledAttempt, StartCheck, StartOrder,
};
use crate::worker::{Hold, Stop, Worker};

/// A worker's row is written at most this often for beats alone.
const ROW_EVERY: std::time::Duration = std::time::Duration::from_secs(30);
/// And at most this often for what became of its attempts: so much of the tally a crash may forget.
const TALLY_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// How often a worker is told to start something before it counts as not taken on: while our store is slow an answer
/// comes late, and a beat with progress and one with news may each overtake one.
const TELLS_MIN: u32 = 3;
/// Beats that gathered while we were busy are answered together, and count as told once: so often a busy worker beats.
const TELL_EVERY: std::time::Duration = std::time::Duration::from_secs(5);

impl Plane {
    pub(super) fn beat(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        token_hash: Hash,
        beat: &Beat,
        waits: bool,
    ) -> Result<PlaneAnswer, Refusal> {
        let term = self.term;
        // Asked before the token, which changed with it: whoever was replaced should hear that, not that it lies.
        match self.workers.get(id).map(|worker| worker.incarnation) {
            Some(current) if beat.incarnation < current => return Err(Refusal::StaleIncarnation { current }),
            // From our own future: our store was put back from a backup. It is to join again.
            Some(current) if beat.incarnation > current => return Err(Refusal::UnknownWorker(id.clone())),
            Some(_) | None => {}
        }
        let worker = self.authenticate(id, token_hash)?;
        if beat.incarnation != worker.incarnation {
            return Err(Refusal::StaleIncarnation { current: worker.incarnation });
        }
        if worker.has_left {
            // Overtaken by its goodbye: it does not come back to life. If it is there after all, it joins.
            return Err(Refusal::UnknownWorker(id.clone()));
        }
        if beat.term != term {
            // It may be news from before our restart, or a copy of it: no evidence of anything.
            return Ok(PlaneAnswer::Reply(BeatReply { term, beat_again: true, ..BeatReply::default() }));
        }
        if beat.seq <= worker.beat_seq {
            return Err(Refusal::StaleBeat { newest: worker.beat_seq });
        }
        (worker.beat_seq, worker.is_polling) = (beat.seq, false);
        let (seq, is_draining) = (beat.seq, beat.draining);
        let has_other_room = beat.slots.is_some_and(|slots| slots != worker.slots);
        // Not one that ends something: whoever says more than it has would be tried again after every job.
        let is_idle = worker.holds.is_empty()
            && worker.cancels.is_empty()
            && beat.held.is_empty()
            && beat.finished.is_empty();
        self.apply_beat(now, id, beat);
        let settled = self.settle(now, id, beat);
        if let Some(worker) = self.workers.get_mut(id).filter(|_| has_other_room || is_idle) {
            // What it turned down before that says nothing about the room it has now; of an idle worker's room a
            // former life may have taken some.
            worker.slots_seen = None;
        }
        self.reconcile(now, id, beat);
        self.assign(now, id);
        let mut reply = self.orders(now, id, seq);
        reply.settled = settled;
        let again = self.settings.beat_busy;
        let Some(worker) = self.workers.get_mut(id) else { return Ok(PlaneAnswer::Reply(reply)) };
        let tells_drain = reply.drain && !is_draining && is_due(now, worker.drain_told_at, again);
        if reply.is_empty() && !tells_drain && waits {
            worker.is_polling = true;
            return Ok(PlaneAnswer::Pending);
        }
        worker.drain_told_at = Some(now).filter(|_| reply.drain);
        Ok(PlaneAnswer::Reply(reply))
    }

    pub(super) fn authenticate(&mut self, id: &WorkerId, token_hash: Hash) -> Result<&mut Worker, Refusal> {
        let worker = self.workers.get_mut(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))?;
        // Hashes are compared, not tokens: how long it takes says nothing about the token.
        if worker.token_hash != token_hash {
            return Err(Refusal::WrongToken);
        }
        Ok(worker)
    }

    /// The worker is alive, and this is how it is.
    fn apply_beat(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        // What is rented was given up together with its machine, which is on its way back.
        let is_rented = self.fleets.rentals.contains_key(&worker.machine);
        worker.watch.signal(now);
        let age = now.since(worker.stored_at);
        let mut is_news = age >= ROW_EVERY || age >= TALLY_EVERY && worker.tally != worker.stored_tally;
        if let Some(slots) = beat.slots.filter(|slots| *slots != worker.slots) {
            (worker.slots, worker.slots_seen) = (slots, None);
            (is_news, self.needs_assign) = (true, true);
        }
        let has_turned = beat.unavailable_reason.is_empty() != worker.unavailable_reason.is_empty();
        if beat.unavailable_reason != worker.unavailable_reason {
            worker.unavailable_reason = truncated(beat.unavailable_reason.clone());
            is_news = true;
        }
        if let Some(offer) = beat.offer.as_ref().filter(|offer| **offer != worker.offer) {
            worker.offer = offer.clone();
            (is_news, self.needs_assign) = (true, true);
        }
        if !beat.metrics.is_empty() {
            (worker.metrics, worker.metrics_at) = (beat.metrics.clone(), Some(now));
        }
        let moved = match worker.state {
            WorkerState::Spawning | WorkerState::Active | WorkerState::Error if beat.draining => {
                Some((WorkerState::Terminating, "it asked for no more work"))
            }
            // Nobody else would ever bring it back: it was given up for its silence, and here it is.
            WorkerState::Error if !is_rented => Some((WorkerState::Active, "it was heard again")),
            WorkerState::Spawning
            | WorkerState::Active
            | WorkerState::Terminating
            | WorkerState::Terminated
            | WorkerState::Error => None,
        };
        let is_coming = worker.state == WorkerState::Spawning;
        if let Some(check) = beat.check.as_ref().filter(|check| worker.check.as_ref() != Some(check)) {
            let StartCheck { passed, problem, gpu } = check.clone();
            worker.check = Some(StartCheck { passed, problem: truncated(problem), gpu: truncated(gpu) });
            is_news = true;
        }
        let was = worker.presence;
        (worker.presence, worker.is_heard) = (Presence::Online, true);
        worker.reliability.came(now);
        if has_turned {
            let state = if beat.unavailable_reason.is_empty() { "open" } else { "closed" };
            let turned =
                detail([("state", state.into()), ("reason", worker.unavailable_reason.clone().into())]);
            self.worker_news(now, "worker:state", id, turned);
        }
        self.heard_after_loss(now, id);
        if was == Presence::Offline {
            self.worker_news(now, "worker:online", id, Map::new());
            self.machine_follows(now, id, Went::Came);
        }
        if was == Presence::Suspect {
            self.client_state(now, id);
        }
        if was != Presence::Online {
            self.watch_worker(now, id);
        }
        if is_coming && (is_news || has_turned || was != Presence::Online) {
            self.cycle_soon(now);
        }
        if let Some((state, reason)) = moved {
            self.move_worker(now, id, state, reason.to_owned());
            self.machine_goes_along(now, id, reason);
        } else if is_news || was == Presence::Offline {
            self.store_worker(now, id);
        }
    }

    /// Records what ended; every report gets a definite answer, and the worker may forget it either way.
    fn settle(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) -> Vec<SettledAttempt> {
        beat.finished
            .iter()
            .map(|finished| {
                let verdict = match self.finish(now, id, beat.incarnation, finished) {
                    Ok(()) => "recorded".to_owned(),
                    Err(refusal) => {
                        match refusal {
                            Refusal::AlreadyRecorded => self.refusals.already_recorded += 1,
                            _ => self.refusals.stale_attempts += 1,
                        }
                        refusal.to_string()
                    }
                };
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.cancels.remove(&(finished.job, finished.attempt));
                }
                SettledAttempt { job: finished.job, attempt: finished.attempt, verdict }
            })
            .collect()
    }

    /// Compares the worker's inventory with what the plane believes.
    fn reconcile(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) {
        let mut named = BTreeSet::new();
        for held in &beat.held {
            if self.renew(now, id, held) {
                named.insert(held.job);
            }
        }
        self.cancel_unknown(id, &beat.held);
        let Some(worker) = self.workers.get_mut(id) else { return };
        // A cancel that the worker no longer names has been carried out, or was never needed.
        worker.cancels.retain(|(job, attempt), _| {
            beat.held.iter().any(|held| held.job == *job && held.attempt == *attempt)
        });
        let grace = self.settings.order_grace;
        let missing: Vec<_> = worker
            .holds
            .iter()
            .filter(|(job, hold)| {
                let is_overdue = hold.tells >= TELLS_MIN && now.since(hold.assigned_at) >= grace;
                !named.contains(job) && (hold.is_named || is_overdue)
            })
            .map(|(job, hold)| (*job, hold.is_named))
            .collect();
        for (job, was_named) in missing {
            let (what, blame) = if was_named {
                ("no longer holds it", Blame::Pair)
            } else {
                ("never took it on", Blame::Nobody)
            };
            self.lose(now, job, Cause::Worker, format!("worker {id} {what}"), blame);
        }
        // What was told and not taken on yet is told again: the reply may have been lost.
        if let Some(worker) = self.workers.get_mut(id) {
            worker.holds.values_mut().filter(|hold| !hold.is_named).for_each(|hold| hold.told = None);
        }
    }

    /// What it names and nobody believes in is to be stopped, and takes its room until then.
    pub(super) fn cancel_unknown(&mut self, id: &WorkerId, named: &[HeldAttempt]) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        for held in named {
            let is_believed = worker.holds.get(&held.job).is_some_and(|hold| hold.attempt == held.attempt);
            if !is_believed {
                let stop = || Stop::new("this attempt is no longer the job's current one".to_owned());
                worker.cancels.entry((held.job, held.attempt)).or_insert_with(stop);
            }
        }
    }

    /// Whether the plane believes in this attempt too.
    fn renew(&mut self, now: Timestamp, id: &WorkerId, held: &HeldAttempt) -> bool {
        let Some(worker) = self.workers.get_mut(id) else { return false };
        let Some(hold) = worker.holds.get_mut(&held.job).filter(|hold| hold.attempt == held.attempt) else {
            return false;
        };
        hold.is_named = true;
        let begins = !hold.is_begun && Hold::is_begun_by(held);
        if begins {
            (hold.is_begun, hold.progressed_at) = (true, now);
        }
        let node_limit = hold.node_limit.filter(|_| begins);
        if let Some(note) = &held.service
            && let Some(job) = self.jobs.get_mut(&held.job)
            && job.note_service(now, note)
        {
            self.records.push(Record::JobStatus { job: held.job, status: job.status(now) });
        }
        let progress = if held.progress.is_finite() { held.progress.clamp(0.0, 1.0) } else { 0.0 };
        if held.step > hold.step || progress > hold.progress {
            hold.step = hold.step.max(held.step);
            hold.progress = hold.progress.max(progress);
            hold.progressed_at = now;
            held.phase.clone_into(&mut hold.phase);
            let progress = hold.progress;
            if let Some(job) = self.jobs.get(&held.job) {
                self.effects.push(PlaneEffect::Progress {
                    job: held.job,
                    tenant: job.tenant.clone(),
                    metadata: job.metadata(),
                    worker: id.clone(),
                    progress,
                    phase: held.phase.clone(),
                });
            }
        }
        if node_limit.is_some() {
            self.tighten_alarm(now, id, node_limit);
        }
        true
    }

    /// Everything this worker should hear; start orders count as told with the reply to this beat. What it was told
    /// to stop and has not stopped yet is not said with every reply: it would beat again at once, in circles.
    fn orders(&mut self, now: Timestamp, id: &WorkerId, seq: u64) -> BeatReply {
        let mut reply = BeatReply { term: self.term, ..BeatReply::default() };
        let Some(worker) = self.workers.get_mut(id) else { return reply };
        reply.drain = matches!(worker.state, WorkerState::Terminating | WorkerState::Terminated);
        for (job, hold) in worker.holds.iter_mut().filter(|(_, hold)| hold.told.is_none()) {
            let Some(header) = self.jobs.get(job) else { continue };
            if hold.tells == 0 || now.since(hold.told_at) >= TELL_EVERY {
                (hold.tells, hold.told_at) = (hold.tells.saturating_add(1), now);
            }
            hold.told = Some(seq);
            reply.start.push(StartOrder {
                job: *job,
                attempt: hold.attempt,
                service: header.kind.demand.service().clone(),
                service_job_id: job.service_job_id(hold.attempt),
                include_outputs: header.options().map(|it| it.include_outputs.clone()).unwrap_or_default(),
                workflow: None,
            });
        }
        let again = self.settings.beat_busy;
        for ((job, attempt), stop) in &mut worker.cancels {
            if is_due(now, stop.told_at, again) {
                stop.told_at = Some(now);
                reply.cancel.push(CancelOrder { job: *job, attempt: *attempt, reason: stop.reason.clone() });
            }
        }
        reply
    }

    /// Orders that came up while lines were open go out, one reply a worker.
    pub(super) fn flush(&mut self, now: Timestamp) -> PlaneAnswer {
        for id in std::mem::take(&mut self.undelivered) {
            let Some(worker) = self.workers.get(&id).filter(|worker| worker.is_polling) else { continue };
            let seq = worker.beat_seq;
            let reply = self.orders(now, &id, seq);
            if reply.is_empty() && !reply.drain {
                continue;
            }
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.is_polling = false;
                worker.drain_told_at = Some(now).filter(|_| reply.drain);
            }
            self.effects.push(PlaneEffect::SendOrders { worker: id, reply });
        }
        PlaneAnswer::Done
    }

    pub(super) fn line_dropped(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        seq: u64,
    ) -> Result<PlaneAnswer, Refusal> {
        let worker = self.workers.get_mut(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))?;
        if worker.beat_seq != seq || !worker.is_polling {
            return Err(Refusal::StaleBeat { newest: worker.beat_seq });
        }
        worker.is_polling = false;
        worker.watch.probe_now(now, worker.limits(&self.settings));
        if worker.presence == Presence::Online {
            // Counted as a loss until it is heard: when our own link goes, the lines drop first.
            self.suspect(now, id);
            self.watch_worker(now, id);
            self.look_at_machine(now, id);
        }
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn store_worker(&mut self, now: Timestamp, id: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(id) {
            (worker.stored_at, worker.stored_tally) = (now, worker.tally);
            self.records.push(Record::Worker(Box::new(worker.row())));
        }
    }

    /// The attempt is not this worker's any more: it is told to stop.
    pub(super) fn take_away(&mut self, now: Timestamp, id: &WorkerId, job: JobId, reason: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if let Some(hold) = worker.release(now, &job) {
            let shape = self.jobs.get(&job).map(|job| job.kind.shape.clone());
            if hold.told.is_some() {
                worker.cancels.insert((job, hold.attempt), Stop::new(reason.to_owned()));
                self.undelivered.insert(id.clone());
            }
            if let Some(shape) = shape {
                self.say_nothing(id, *shape, job);
            }
        }
        self.assign(now, id);
    }

    /// Which attempt of a job runs where, if it runs.
    pub(super) fn holder(&self, job: JobId) -> Option<(WorkerId, Attempt)> {
        let job = self.jobs.get(&job)?;
        match job.state() {
            JobState::Running { worker, .. } => Some((worker.clone(), job.attempt())),
            JobState::Waiting { .. } | JobState::Ended(_) => None,
        }
    }
}

/// Whether something that was said before, and may have been lost, is to be said again.
fn is_due(now: Timestamp, told_at: Option<Timestamp>, again: std::time::Duration) -> bool {
    told_at.is_none_or(|told_at| now.since(told_at) >= again)
}

impl AttemptOutcome {
    /// The class of a failure that did not say its own.
    pub(super) fn default_cause(self) -> Cause {
        match self {
            AttemptOutcome::Failed => Cause::Job,
            AttemptOutcome::Completed | AttemptOutcome::Cancelled | AttemptOutcome::Rejected => Cause::Worker,
        }
    }
}
