//! Who comes and who goes: a worker joins, in a new incarnation takes over what it still holds, leaves, or is drained.

use std::time::Duration;

use super::attempts::Blame;
use super::reliability::Went;
use super::{JoinProof, Plane, PlaneAnswer, detail};
use crate::alarm::Alarm;
use crate::cause::Cause;
use crate::id::{Hash, Incarnation, JobId, MachineId, WorkerId};
use crate::job::JobEvent;
use crate::machine::{Presence, WorkerState};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rental::RentalPhase;
use crate::time::Timestamp;
use crate::wire::{HeldAttempt, JoinReply, JoinRequest};
use crate::worker::{Hold, Worker};

/// No worker joins so often; a claim beyond it is nonsense.
const INCARNATION_MAX: u64 = u64::MAX / 2;

impl Plane {
    pub(super) fn join(
        &mut self,
        now: Timestamp,
        join: &JoinRequest,
        token_hash: Hash,
        proof: &JoinProof,
    ) -> Result<PlaneAnswer, Refusal> {
        let id = join.worker.clone();
        self.proved(join, proof)?;
        let claimed = join.incarnation.filter(|it| it.0 < INCARNATION_MAX);
        let incarnation = self.next_incarnation(&id).max(claimed.unwrap_or(Incarnation(0)).next());
        let mut worker = Worker::join(now, join, incarnation, token_hash);
        let former = self.workers.remove(&id);
        let was_offline = former.as_ref().is_none_or(|former| former.presence == Presence::Offline);
        let moved_from = former.as_ref().map(|it| it.machine.clone()).filter(|it| *it != worker.machine);
        if let Some(former) = &former {
            (worker.tally, worker.probation) = (former.tally, former.probation.clone());
            worker.reliability.clone_from(&former.reliability);
            worker.reliability.came(now);
            worker.probation.joined(now, Some(former.joined_at), self.settings.probation_after);
        }
        if let Some(rental) = self.fleets.rentals.get_mut(&worker.machine) {
            // It gets work once its machine is up, not before.
            (worker.state, worker.fleet) = (rental.phase.state(), Some(rental.fleet.clone()));
            rental.joined_at.get_or_insert(now);
        }
        let machine = worker.machine.clone();
        self.fleets.housed(&worker);
        self.workers.insert(id.clone(), worker);
        self.store_rental(&machine);
        if let Some(former) = former {
            self.succeed(now, &id, &former, &join.held);
            let is_same = self.workers.get(&id).is_some_and(|it| {
                (&it.services, &it.offer, it.slots) == (&former.services, &former.offer, former.slots)
                    && it.probation.until().is_none()
            });
            // If it is less than it was, others get what they left to it.
            self.needs_assign |= !is_same;
        } else {
            self.cancel_unknown(&id, &join.held);
        }
        self.raise_fences(now, &join.held);
        self.heard_after_loss(now, &id);
        self.store_worker(now, &id);
        self.worker_news(now, "worker:online", &id, detail([("incarnation", incarnation.0.into())]));
        if let Some(machine) = moved_from.as_ref().filter(|_| !was_offline) {
            self.machine_lost_one(now, machine);
        }
        if was_offline || moved_from.is_some() {
            self.machine_follows(now, &id, Went::Came);
        }
        self.watch_worker(now, &id);
        self.assign(now, &id);
        if !self.settings.fleets.is_empty() {
            self.cycle_soon(now);
        }
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (beat_idle, stale_after) = self.workers.get(&id).map_or_else(Default::default, |worker| {
            (worker.beat_idle(&self.settings), worker.stale_after(&self.settings))
        });
        Ok(PlaneAnswer::Joined(JoinReply {
            worker: id,
            incarnation,
            token: String::new(),
            term: self.term,
            beat_idle_millis: millis(beat_idle),
            beat_busy_millis: millis(self.settings.beat_busy),
            lease_millis: millis(self.settings.lease),
            stale_after_millis: millis(stale_after),
        }))
    }

    /// A rented machine is known by the token it was given, not by its name or address. The token is good for one join
    /// under each name; whoever comes again shows what it was given then.
    fn proved(&self, join: &JoinRequest, proof: &JoinProof) -> Result<(), Refusal> {
        let former = self.workers.get(&join.worker);
        let named = join.machine.clone().or_else(|| join.worker.as_str().parse().ok());
        let by_name = join.worker.as_str().parse::<MachineId>().ok();
        let claimed = [named, by_name, former.map(|former| former.machine.clone())];
        let rental = claimed.into_iter().flatten().find_map(|machine| self.fleets.rentals.get(&machine));
        let Some(rental) = rental else {
            return match (proof, &join.machine) {
                (JoinProof::MachineToken(machine), _) => Err(Refusal::MachineRetired(machine.clone())),
                // It was let in once, and its machine is not ours any more: given up, or our store was put back to
                // a time before it. Its pod is swept up; nothing must be begun there.
                (JoinProof::PreviousToken(_), Some(machine)) if self.rents(join) => {
                    Err(Refusal::MachineRetired(machine.clone()))
                }
                (JoinProof::JoinToken | JoinProof::PreviousToken(_), _) => Ok(()),
            };
        };
        let machine = rental.machine.clone();
        let is_proved = match (proof, former) {
            (JoinProof::MachineToken(proved), None) => *proved == machine,
            // The answer to its first join may have been lost: nobody has spoken under that name since.
            (JoinProof::MachineToken(proved), Some(former)) => {
                *proved == machine && former.watch.seen_at() <= former.joined_at
            }
            (JoinProof::PreviousToken(hash), Some(former)) => *hash == former.token_hash,
            _ => false,
        };
        // Whoever is not what it says may not learn how the machine stands.
        if !is_proved || join.machine.as_ref().is_some_and(|named| *named != machine) {
            return Err(Refusal::IdentityUnproven(machine));
        }
        if rental.phase == RentalPhase::Returning { Err(Refusal::MachineRetired(machine)) } else { Ok(()) }
    }

    /// Whether it names a fleet whose machines are rented.
    fn rents(&self, join: &JoinRequest) -> bool {
        join.fleet.as_ref().and_then(|fleet| self.fleet_settings(fleet)).is_some_and(|fleet| fleet.can_rent)
    }

    /// A worker of a rented machine wants to go, or has gone: so does the machine, once that is true of all on it.
    pub(super) fn machine_goes_along(&mut self, now: Timestamp, id: &WorkerId, reason: &str) {
        let Some(machine) = self.workers.get(id).map(|worker| worker.machine.clone()) else { return };
        if !self.fleets.rentals.contains_key(&machine) {
            return;
        }
        let workers = self.workers_on(&machine);
        let states: Vec<_> =
            workers.iter().filter_map(|worker| self.workers.get(worker)).map(|worker| worker.state).collect();
        if states.iter().all(|state| *state == WorkerState::Terminated) {
            self.move_rental(now, &machine, WorkerState::Terminated, reason);
        } else if states
            .iter()
            .all(|state| matches!(state, WorkerState::Terminating | WorkerState::Terminated))
        {
            self.move_rental(now, &machine, WorkerState::Terminating, reason);
        }
    }

    /// A worker that holds an attempt we never gave out: our store was put back from a backup. Its attempt does not
    /// count, and its number is not given out again.
    fn raise_fences(&mut self, now: Timestamp, held: &[HeldAttempt]) {
        for held in held {
            if let Some(job) = self.jobs.get_mut(&held.job)
                && job.raise_attempt(held.attempt)
            {
                let status = job.status(now);
                self.records.push(Record::JobStatus { job: held.job, status });
            }
        }
    }

    /// A new incarnation takes over what it still holds of the old one's attempts; the rest died with the old one.
    fn succeed(&mut self, now: Timestamp, id: &WorkerId, former: &Worker, held: &[HeldAttempt]) {
        let is_held = |job, attempt| held.iter().any(|held| held.job == job && held.attempt == attempt);
        // First all that stays, so that no room is given away twice.
        let lost: Vec<_> = former
            .holds
            .iter()
            .filter(|(job, hold)| {
                // What nobody was told of is as good as new: the order goes to whoever is there now.
                let stays = hold.tells == 0 || is_held(**job, hold.attempt);
                !(stays && self.adopt(now, id, **job, hold))
            })
            .map(|(job, hold)| (*job, if hold.has_begun() { Blame::Crashed } else { Blame::Nobody }))
            .collect();
        self.cancel_unknown(id, held);
        for (job, blame) in lost {
            self.lose(now, job, Cause::Worker, format!("worker {id} started anew without it"), blame);
        }
    }

    fn adopt(&mut self, now: Timestamp, id: &WorkerId, job_id: JobId, former: &Hold) -> bool {
        let (attempt, is_told) = (former.attempt, former.tells > 0);
        let Some(worker) = self.workers.get_mut(id) else { return false };
        let Some(job) = self.jobs.get_mut(&job_id) else { return false };
        let event = JobEvent::Adopt { attempt, worker: id.clone(), incarnation: worker.incarnation };
        if job.apply(now, event, &self.settings).is_err() {
            return false;
        }
        worker.hold(now, job, &self.settings);
        if let Some(hold) = worker.holds.get_mut(&job_id).filter(|_| is_told) {
            (hold.told, hold.tells, hold.is_named) = (Some(0), former.tells, true);
            hold.is_begun = former.is_begun;
        }
        let status = job.status(now);
        self.records.push(Record::JobStatus { job: job_id, status });
        true
    }

    /// Offline at once; what it held is taken elsewhere, and it is nobody's fault.
    pub(super) fn leave(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        token_hash: Option<Hash>,
        reason: &str,
    ) -> Result<PlaneAnswer, Refusal> {
        if let Some(token_hash) = token_hash {
            self.authenticate(id, token_hash)?;
        }
        let worker = self.workers.get_mut(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))?;
        worker.has_left |= token_hash.is_some();
        if (worker.presence, worker.state) == (Presence::Offline, WorkerState::Terminated) {
            return Ok(PlaneAnswer::Done);
        }
        (worker.presence, worker.state, worker.changed_at) =
            (Presence::Offline, WorkerState::Terminated, now);
        // Who says goodbye itself has hung up; whom a person sends away is told on the open line.
        worker.is_polling &= token_hash.is_none();
        worker.reliability.left(now);
        self.undelivered.insert(id.clone());
        reason.clone_into(&mut worker.reason);
        let held: Vec<_> = worker.holds.keys().copied().collect();
        self.needs_assign = true;
        self.watch_worker(now, id);
        for job in held {
            self.lose(now, job, Cause::Provider, format!("worker {id} left: {reason}"), Blame::Nobody);
        }
        self.store_worker(now, id);
        self.worker_news(now, "worker:offline", id, detail([("reason", reason.into())]));
        self.machine_follows(now, id, Went::Left);
        self.machine_goes_along(now, id, reason);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn drain(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        reason: &str,
        within: Option<Duration>,
    ) -> Result<PlaneAnswer, Refusal> {
        let worker = self.workers.get(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))?;
        if !matches!(worker.state, WorkerState::Active | WorkerState::Spawning) {
            return Err(Refusal::Leaving(id.clone()));
        }
        self.undelivered.insert(id.clone());
        let drain_until = within.map(|within| now.plus(within));
        let machine = worker.machine.clone();
        if let Some(worker) = self.workers.get_mut(id) {
            worker.drain_until = drain_until;
        }
        self.move_worker(now, id, WorkerState::Terminating, reason.to_owned());
        if let Some(rental) = self.fleets.rentals.get_mut(&machine) {
            rental.drain_until = drain_until;
        }
        self.machine_goes_along(now, id, reason);
        self.cycle_soon(now);
        self.alarms.set(Alarm::Provider, Some(now));
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn drain_machine(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        reason: &str,
        within: Option<Duration>,
    ) -> Result<PlaneAnswer, Refusal> {
        let there: Vec<_> =
            self.workers.values().filter(|it| it.machine == *machine).map(|it| it.id.clone()).collect();
        if let Some(rental) = self.fleets.rentals.get_mut(machine) {
            if matches!(rental.phase, RentalPhase::Draining | RentalPhase::Returning) {
                return Err(Refusal::MachineLeaving(machine.clone()));
            }
            rental.drain_until = within.map(|within| now.plus(within));
            self.move_rental(now, machine, WorkerState::Terminating, reason);
            self.cycle_soon(now);
        } else if there.is_empty() {
            return Err(Refusal::UnknownMachine(machine.clone()));
        }
        for worker in there {
            // One that is on its way out already is as good as drained.
            drop(self.drain(now, &worker, reason, within));
        }
        Ok(PlaneAnswer::Done)
    }
}
