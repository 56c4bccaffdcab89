//! Joining, leaving and draining: a worker joins, takes over in a new incarnation what it still holds, leaves, or is
//! drained.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempts::Blame;
use super::workers::{PresenceChange, Restart, Suspect};
use super::{DomainEvent, JoinProof, Plane, PlaneAnswer};
use crate::alarm::Alarm;
use crate::id::{Attempt, Hash, Incarnation, JobId, MachineId, WorkerId};
use crate::job::JobEvent;
use crate::machine::{Presence, WorkerState};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rental::RentalPhase;
use crate::rental::ReturnCause;
use crate::time::Timestamp;
use crate::verdict::{AttemptVerdict, CrashEvidence};
use crate::wire::{HeldAttempt, JoinReply, JoinRequest};
use crate::worker::{Assignment, ContactEvent, LifeEvent, Worker, WorkerLine};

/// The plane counts incarnations. A worker's claim matters only after a backup was put back, and then it is ahead by the
/// joins since that backup; a claim further ahead is ignored, because the number could run out.
const INCARNATION_AHEAD_MAX: u64 = 1_000_000;

impl Plane {
    pub(super) fn join(
        &mut self,
        now: Timestamp,
        join: &JoinRequest,
        token_hash: Hash,
        proof: &JoinProof,
    ) -> Result<PlaneAnswer, Refusal> {
        join.check()?;
        let id = join.worker.clone();
        self.check_proof(join, proof)?;
        // A duplicate or delayed join. Treated as a new process, it would take the attempts from the current one.
        if self.workers.get(&id).is_some_and(|former| former.has_seen_join(join)) {
            return Err(Refusal::RepeatedJoin(id));
        }
        let counted = self.workers.next_incarnation(&id);
        let is_plausible = |it: &Incarnation| it.0.saturating_sub(counted.0) <= INCARNATION_AHEAD_MAX;
        let claimed = join.incarnation.filter(is_plausible).map_or(counted, Incarnation::next);
        let incarnation = counted.max(claimed);
        let mut worker = Worker::join(now, join, incarnation, token_hash);
        let former = self.workers.get(&id);
        let was_offline = former.is_none_or(|former| former.presence() == Presence::Offline);
        let moved_from = former.map(|it| it.machine.clone()).filter(|it| *it != worker.machine);
        if let Some(former) = former {
            (worker.counts, worker.probation) = (former.counts, former.probation.clone());
            worker.reliability.clone_from(&former.reliability);
            worker.reliability.mark_up(now);
            worker.remember_joins(former);
            worker.probation.joined(now, Some(former.joined_at), self.settings.probation_after);
        }
        if let Some((state, fleet)) = self.fleets.joined(now, &worker.machine) {
            // It gets no work before its machine is up.
            worker.join_fleet(fleet, state);
        }
        let machine = worker.machine.clone();
        self.fleets.add_worker(&worker);
        let former = self.workers.insert(worker);
        self.fleets.store_rental(&machine, &mut self.outbox);
        if let Some(former) = former {
            self.take_over(now, &id, &former, &join.held);
            let is_same = self.workers.get(&id).is_some_and(|it| {
                (&it.services, &it.offer, it.slots) == (&former.services, &former.offer, former.slots)
                    && it.probation.until().is_none()
            });
            // If it offers less than before, other workers may take the jobs that were left to it.
            if !is_same {
                self.router.offer_again();
            }
        } else {
            self.workers.cancel_unknown(&id, &join.held);
        }
        self.raise_fences(now, &join.held);
        self.workers.hear(now, &id, false, &self.settings, &mut self.outbox);
        self.workers.store(now, &id, &mut self.outbox);
        self.workers.publish(
            now,
            &id,
            DomainEvent::WorkerJoined { worker: &id, incarnation },
            &mut self.outbox,
        );
        if let Some(machine) = moved_from.as_ref().filter(|_| !was_offline) {
            self.workers.worker_moved_away(now, machine, &self.settings, &mut self.outbox);
        }
        if was_offline || moved_from.is_some() {
            self.workers.update_machine_presence(
                now,
                &id,
                PresenceChange::Up,
                &self.settings,
                &mut self.outbox,
            );
        }
        self.workers.watch(now, &id, &self.settings, &mut self.outbox);
        self.assign(now, &id);
        if !self.settings.fleets.is_empty() {
            self.cycle_soon(now);
        }
        Ok(PlaneAnswer::Joined(self.join_reply(id, incarnation)))
    }

    fn join_reply(&self, id: WorkerId, incarnation: Incarnation) -> JoinReply {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (beat_idle, stale_after) = self.workers.get(&id).map_or_else(Default::default, |worker| {
            (worker.beat_idle(&self.settings), worker.stale_after(&self.settings))
        });
        JoinReply {
            worker: id,
            incarnation,
            token: String::new(),
            term: self.term,
            beat_idle_millis: millis(beat_idle),
            beat_busy_millis: millis(self.settings.beat_busy),
            lease_millis: millis(self.settings.lease),
            stale_after_millis: millis(stale_after),
        }
    }

    /// A rented machine is identified by its token, not by name or address. The token is good for one join per name;
    /// later joins show the token of the previous incarnation.
    fn check_proof(&self, join: &JoinRequest, proof: &JoinProof) -> Result<(), Refusal> {
        let former = self.workers.get(&join.worker);
        let named = join.machine.clone().or_else(|| join.worker.as_str().parse().ok());
        let by_name = join.worker.as_str().parse::<MachineId>().ok();
        let claimed = [named, by_name, former.map(|former| former.machine.clone())];
        let rental = claimed.into_iter().flatten().find_map(|machine| self.fleets.rental(&machine));
        let Some(rental) = rental else {
            return match (proof, &join.machine) {
                (JoinProof::MachineToken(machine), _) => Err(Refusal::MachineRetired(machine.clone())),
                // It joined before, and its machine is no longer ours: it was given up, or the store was restored
                // from an older backup. Its pod will be returned as an orphan, so no work may start there.
                (JoinProof::PreviousToken(_), Some(machine)) if self.names_rented_fleet(join) => {
                    Err(Refusal::MachineRetired(machine.clone()))
                }
                (JoinProof::JoinToken | JoinProof::PreviousToken(_), _) => Ok(()),
            };
        };
        let machine = rental.machine.clone();
        let is_proved = match (proof, former) {
            (JoinProof::MachineToken(proved), None) => *proved == machine,
            // The answer to its first join may have been lost: no beat has come under that name since.
            (JoinProof::MachineToken(proved), Some(former)) => {
                *proved == machine && former.watch.seen_at() <= former.joined_at
            }
            (JoinProof::PreviousToken(hash), Some(former)) => *hash == former.token_hash,
            _ => false,
        };
        // A caller with a wrong identity must not learn the machine's state.
        if !is_proved || join.machine.as_ref().is_some_and(|named| *named != machine) {
            return Err(Refusal::IdentityUnproven(machine));
        }
        if rental.is_returning() { Err(Refusal::MachineRetired(machine)) } else { Ok(()) }
    }

    /// Whether it names a fleet whose machines are rented.
    fn names_rented_fleet(&self, join: &JoinRequest) -> bool {
        join.fleet.as_ref().and_then(|fleet| self.settings.fleet(fleet)).is_some_and(|fleet| fleet.can_rent)
    }

    /// A worker of a rented machine drains or has left: the machine follows once all its workers have.
    pub(super) fn drain_with_workers(&mut self, now: Timestamp, id: &WorkerId, reason: &str) {
        let Some(worker) = self.workers.get(id) else { return };
        let (machine, drain_until) = (worker.machine.clone(), worker.drain_until());
        if !self.fleets.is_rented(&machine) {
            return;
        }
        let workers = self.fleets.workers_on(&machine);
        let states: Vec<_> =
            workers.filter_map(|worker| self.workers.get(worker)).map(|worker| worker.state()).collect();
        if states.iter().all(|state| *state == WorkerState::Terminated) {
            self.move_rental(now, &machine, (LifeEvent::Terminate, ReturnCause::NotWanted), reason);
        } else if states
            .iter()
            .all(|state| matches!(state, WorkerState::Terminating | WorkerState::Terminated))
        {
            self.drain_rental(now, &machine, drain_until, reason);
        }
    }

    /// A worker holds an attempt number above ours: the store was restored from a backup. That attempt does not
    /// count, and its number is not used again.
    fn raise_fences(&mut self, now: Timestamp, held: &[HeldAttempt]) {
        for held in held {
            if let Some(job) = self.jobs.raise_attempt(held.job, held.attempt) {
                let status = job.status(now);
                self.outbox.record(Record::JobStatus { job: held.job, status });
            }
        }
    }

    /// A new incarnation takes over the attempts it still holds; the others were lost with the old process.
    fn take_over(&mut self, now: Timestamp, id: &WorkerId, former: &Worker, held: &[HeldAttempt]) {
        let held_attempts: BTreeSet<_> = held.iter().map(|held| (held.job, held.attempt)).collect();
        let is_held = |job, attempt| held_attempts.contains(&(job, attempt));
        // Kept attempts first, so that no slot is given away twice.
        let kept = former.assignments.iter().filter(|(job, hold)| is_held(**job, hold.attempt)).count();
        let slots = self.workers.get(id).map_or(0, |worker| worker.slots as usize);
        let mut free_slots = slots.saturating_sub(kept);
        let lost: Vec<_> = former
            .assignments
            .iter()
            .filter(|(job, hold)| {
                // An order that was never sent goes to the new incarnation if that has a slot for it.
                let is_held = is_held(**job, hold.attempt);
                let has_slot = !is_held && hold.sends == 0 && free_slots > 0;
                free_slots -= usize::from(has_slot);
                !((is_held || has_slot) && self.adopt(now, id, **job, hold))
            })
            .map(|(job, hold)| (*job, hold.attempt, hold.may_have_started()))
            .collect();
        self.workers.cancel_unknown(id, held);
        // A worker that was leaving is no evidence. One that came back at once may have been crashed by the job, or restarted
        // by hand: circumstantial.
        let was_leaving = former.state() != WorkerState::Active;
        let is_suspect = |has_begun: bool| has_begun && !was_leaving;
        let suspects = lost.iter().filter(|(_, _, has_begun)| is_suspect(*has_begun));
        let suspects: Vec<_> = suspects.map(|(job, attempt, _)| (*job, *attempt)).collect();
        let explained = self.record_restart(now, former, &suspects);
        for (job, attempt, has_begun) in lost {
            let is_alone = !explained.contains(&(job, attempt))
                && !self.went_down_with_others(id, former.watch.seen_at(), job);
            let blame = match is_suspect(has_begun) && is_alone {
                true => self.crash_blame(job, id, CrashEvidence::Circumstantial),
                false => Blame::Unrelated,
            };
            let why = format!("worker {id} restarted without it");
            self.lose(now, job, AttemptVerdict::WorkerRestarted, why, blame);
        }
    }

    /// Returns the suspects of this restart that are cleared because others restarted at the same time. What was recorded
    /// about jobs of those others is withdrawn.
    fn record_restart(
        &mut self,
        now: Timestamp,
        former: &Worker,
        suspects: &[(JobId, Attempt)],
    ) -> BTreeSet<(JobId, Attempt)> {
        let shape_of = |job: &JobId| self.jobs.get(*job).map(|job| *job.kind.shape);
        let shapes = former.assignments.keys().filter_map(shape_of).collect();
        let suspects = suspects
            .iter()
            .filter_map(|(job, attempt)| {
                Some(Suspect { job: *job, attempt: *attempt, shape: shape_of(job)? })
            })
            .collect();
        let (machine, heard_at) = (former.machine.clone(), former.watch.seen_at());
        let explained = self.workers.record_restart(Restart { at: now, machine, heard_at, shapes, suspects });
        for Suspect { job, attempt, .. } in &explained {
            if let Some(status) = self.jobs.withdraw_crash(*job, *attempt).map(|job| job.status(now)) {
                self.outbox.record(Record::JobStatus { job: *job, status });
                // It may have waited for a worker that has nothing else to do.
                self.router.offer_again();
            }
        }
        explained.into_iter().map(|it| (it.job, it.attempt)).collect()
    }

    fn adopt(&mut self, now: Timestamp, id: &WorkerId, job_id: JobId, former: &Assignment) -> bool {
        let (attempt, is_told) = (former.attempt, former.sends > 0);
        let Some(worker) = self.workers.get_mut(id) else { return false };
        let event = JobEvent::Adopt { attempt, worker: id.clone(), incarnation: worker.incarnation };
        let Ok((_, job)) = self.jobs.apply(now, job_id, event, &self.settings) else { return false };
        worker.add_assignment(now, job, &self.settings);
        if let Some(hold) = worker.assignments.get_mut(&job_id).filter(|_| is_told) {
            (hold.sent_with, hold.sends, hold.is_confirmed) = (Some(0), former.sends, true);
            hold.is_running = former.is_running;
        }
        let status = job.status(now);
        self.outbox.record(Record::JobStatus { job: job_id, status });
        true
    }

    /// The worker is offline at once. Its attempts are requeued, without blame.
    pub(super) fn leave(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        token_hash: Option<Hash>,
        reason: &str,
    ) -> Result<PlaneAnswer, Refusal> {
        if let Some(token_hash) = token_hash {
            self.workers.authenticate(id, token_hash)?;
        }
        let worker = self.workers.expect(id)?;
        worker.has_left |= token_hash.is_some();
        if (worker.presence(), worker.state()) == (Presence::Offline, WorkerState::Terminated) {
            return Ok(PlaneAnswer::Done);
        }
        worker.contact(ContactEvent::Left);
        // A worker that was terminated already is offline now, too.
        drop(worker.apply(now, LifeEvent::Terminate, reason));
        (worker.changed_at, worker.reason) = (now, reason.to_owned());
        // A worker that leaves closed its own connection; one removed by an operator is informed over its open long
        // poll.
        if token_hash.is_some() {
            worker.line = WorkerLine::Quiet;
        }
        worker.reliability.mark_away(now);
        let held: Vec<_> = worker.assignments.keys().copied().collect();
        self.workers.deliver_at_next_flush(id);
        self.workers.stop_judging(now, id, &mut self.outbox);
        self.router.offer_again();
        self.workers.watch(now, id, &self.settings, &mut self.outbox);
        for job in held {
            let why = format!("worker {id} left: {reason}");
            self.lose(now, job, AttemptVerdict::WorkerLeft, why, Blame::Unrelated);
        }
        self.workers.store(now, id, &mut self.outbox);
        self.workers.publish(now, id, DomainEvent::WorkerOffline { worker: id, reason }, &mut self.outbox);
        self.workers.update_machine_presence(now, id, PresenceChange::Away, &self.settings, &mut self.outbox);
        self.drain_with_workers(now, id, reason);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn drain(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        reason: &str,
        within: Option<Duration>,
    ) -> Result<PlaneAnswer, Refusal> {
        let until = within.map(|within| now.plus(within));
        self.workers.expect(id)?.apply(now, LifeEvent::Drain { until }, reason)?;
        self.workers.deliver_at_next_flush(id);
        self.worker_moved(now, id);
        self.drain_with_workers(now, id, reason);
        self.cycle_soon(now);
        self.outbox.set_alarm(Alarm::Provider, Some(now));
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn drain_machine(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        reason: &str,
        within: Option<Duration>,
    ) -> Result<PlaneAnswer, Refusal> {
        let there: Vec<_> = self.workers.on_machine(machine).map(|it| it.id.clone()).collect();
        if let Some(rental) = self.fleets.rental(machine) {
            if matches!(rental.phase(), RentalPhase::Draining | RentalPhase::Returning) {
                return Err(Refusal::MachineLeaving(machine.clone()));
            }
            self.drain_rental(now, machine, within.map(|within| now.plus(within)), reason);
            self.cycle_soon(now);
        } else if there.is_empty() {
            return Err(Refusal::UnknownMachine(machine.clone()));
        }
        for worker in there {
            // A worker that is already leaving counts as drained.
            drop(self.drain(now, &worker, reason, within));
        }
        Ok(PlaneAnswer::Done)
    }
}
