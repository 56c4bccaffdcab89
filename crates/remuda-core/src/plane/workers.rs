//! The workers: who there is, who has a free slot, who has orders that were not sent yet. The index of free workers
//! changes here only.
//!
//! | part | decides |
//! |---|---|
//! | `watch` | when a worker is looked at again, who is suspect, and the mass-loss brake |
//! | `machines` | presence and uptime of machines, and alerts for unreliable ones |
//! | `restarts` | whether workers restarted together, so that no job of theirs was the reason |

mod machines;
mod restarts;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{DomainEvent, Outbox};
use crate::brake::MassLossBrake;
use crate::id::{Hash, Incarnation, MachineId, Service, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::record::{Record, WorkerRow};
use crate::refusal::Refusal;
use crate::reliability::Reliability;
use crate::time::Timestamp;
use crate::wire::HeldAttempt;
use crate::worker::{PendingCancel, Worker, WorkerLine};

pub(super) use self::machines::PresenceChange;
use self::restarts::Restarts;
pub(super) use self::restarts::{Restart, Suspect};

#[derive(Clone, Debug, Default)]
pub(super) struct Workers {
    known: BTreeMap<WorkerId, Worker>,
    /// Workers with a free slot.
    free: BTreeSet<WorkerId>,
    /// Workers with pending orders and an open long poll.
    undelivered: BTreeSet<WorkerId>,
    /// Uptime history of each machine.
    machines: BTreeMap<MachineId, Reliability>,
    mass_loss: MassLossBrake,
    restarts: Restarts,
}

impl Workers {
    pub(super) fn restore(&mut self, now: Timestamp, rows: Vec<WorkerRow>) {
        self.known.extend(rows.into_iter().map(|row| (row.id.clone(), Worker::restore(now, row))));
        self.mass_loss.listen_from(now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn get(&self, id: &WorkerId) -> Option<&Worker> {
        self.known.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &WorkerId) -> Option<&mut Worker> {
        self.known.get_mut(id)
    }

    /// Like `get_mut`, for messages that name a worker.
    pub(super) fn expect(&mut self, id: &WorkerId) -> Result<&mut Worker, Refusal> {
        self.known.get_mut(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.known.values()
    }

    pub(super) fn ids(&self) -> Vec<WorkerId> {
        self.known.keys().cloned().collect()
    }

    pub(super) fn on_machine<'a>(&'a self, machine: &'a MachineId) -> impl Iterator<Item = &'a Worker> {
        self.known.values().filter(move |worker| worker.machine == *machine)
    }

    /// The worker with this id and token.
    pub(super) fn authenticate(&self, id: &WorkerId, token_hash: Hash) -> Result<&Worker, Refusal> {
        let worker = self.known.get(id).ok_or_else(|| Refusal::UnknownWorker(id.clone()))?;
        // Hashes are compared, not tokens, so timing reveals nothing about the token.
        if worker.token_hash == token_hash { Ok(worker) } else { Err(Refusal::WrongToken) }
    }

    /// Whether a worker that has not left has this token.
    pub(super) fn has_token(&self, token_hash: Hash) -> bool {
        let mut there = self.known.values().filter(|worker| worker.state() != WorkerState::Terminated);
        there.any(|worker| worker.token_hash == token_hash)
    }

    /// The incarnation for the next join under this name: above all earlier ones.
    pub(super) fn next_incarnation(&self, id: &WorkerId) -> Incarnation {
        self.known.get(id).map_or(Incarnation(0), |worker| worker.incarnation).next()
    }

    /// A worker joined; returns its former incarnation. Whether it is free is judged after it took over its attempts.
    pub(super) fn insert(&mut self, worker: Worker) -> Option<Worker> {
        self.known.insert(worker.id.clone(), worker)
    }

    pub(super) fn forget(&mut self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) -> Option<Worker> {
        let worker = self.known.remove(id)?;
        self.free.remove(id);
        self.stop_judging(now, id, outbox);
        self.forget_machine(&worker.machine, outbox);
        outbox.publish(now, DomainEvent::WorkerForgotten(id));
        outbox.record(Record::WorkerForgotten { worker: id.clone() });
        Some(worker)
    }

    pub(super) fn store(&mut self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) {
        if let Some(worker) = self.known.get_mut(id) {
            (worker.stored_at, worker.stored_counts) = (now, worker.counts);
            outbox.record(Record::Worker(Box::new(worker.row())));
        }
    }

    /// Other machines whose workers fell silent recently: not judged yet, or judged within this time.
    pub(super) fn silent_lately(&self, now: Timestamp, id: &WorkerId, within: Duration) -> usize {
        let own = self.known.get(id).map(|worker| &worker.machine);
        let is_lost = |worker: &&Worker| match worker.presence() {
            Presence::Online => false,
            Presence::Suspect => worker.state() != WorkerState::Terminated,
            Presence::Offline => {
                worker.state() != WorkerState::Terminated && now.since(worker.changed_at) < within
            }
        };
        let lost = self.known.values().filter(is_lost).map(|worker| &worker.machine);
        lost.filter(|machine| Some(*machine) != own).collect::<BTreeSet<_>>().len()
    }

    /// How many other machines went down at about the time when this worker was last heard: they are silent since then, or
    /// have restarted since, without this shape. One whose connection is gone is not late yet, but restarts as well.
    pub(super) fn went_down_with(
        &self,
        id: &WorkerId,
        heard_at: Timestamp,
        apart_max: Duration,
        shape: Hash,
    ) -> usize {
        let own = self.known.get(id).map(|worker| &worker.machine);
        let is_silent = |worker: &&Worker| {
            (worker.presence() != Presence::Online || worker.line == WorkerLine::Gone)
                && worker.state() != WorkerState::Terminated
                && worker.watch.seen_at().apart(heard_at) <= apart_max
        };
        let silent = self.known.values().filter(is_silent).map(|worker| &worker.machine);
        let others = silent.chain(self.restarts.since(heard_at, apart_max, shape));
        others.filter(|machine| Some(*machine) != own).collect::<BTreeSet<_>>().len()
    }

    pub(super) fn record_restart(&mut self, restart: Restart) -> Vec<Suspect> {
        self.restarts.record(restart)
    }

    pub(super) fn free(&self) -> &BTreeSet<WorkerId> {
        &self.free
    }

    /// Workers with a free slot whose line was closed a moment ago: they are about to beat.
    pub(super) fn between_polls(&self) -> impl Iterator<Item = &Worker> {
        self.known.values().filter(|worker| worker.is_between_polls())
    }

    /// Updates the index of free workers for one of them.
    pub(super) fn update_free(&mut self, now: Timestamp, id: &WorkerId) {
        let is_free = self.known.get(id).is_some_and(|worker| worker.free_slots(now) > 0);
        if !is_free {
            self.free.remove(id);
        } else if !self.free.contains(id) {
            self.free.insert(id.clone());
        }
    }

    /// The worker has orders that the next flush sends, if it polls then.
    pub(super) fn deliver_at_next_flush(&mut self, id: &WorkerId) {
        self.undelivered.insert(id.clone());
    }

    pub(super) fn take_undelivered(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.undelivered)
    }

    /// Attempts that the worker lists and the plane did not assign are cancelled; they occupy slots until then.
    pub(super) fn cancel_unknown(&mut self, id: &WorkerId, named: &[HeldAttempt]) {
        let Some(worker) = self.known.get_mut(id) else { return };
        for held in named {
            let is_believed =
                worker.assignments.get(&held.job).is_some_and(|hold| hold.attempt == held.attempt);
            if !is_believed {
                let stop =
                    || PendingCancel::new("this attempt is no longer the job's current one".to_owned());
                worker.cancels.entry((held.job, held.attempt)).or_insert_with(stop);
            }
        }
    }

    /// Those of these node classes that no worker has. Empty if no worker offers the service, or if one does not list
    /// its classes.
    pub(super) fn unknown_classes(
        &self,
        service: &Service,
        mut classes: BTreeSet<String>,
    ) -> BTreeSet<String> {
        let offers = self.known.values().filter(|worker| {
            worker.services.contains(service)
                && matches!(worker.state(), WorkerState::Spawning | WorkerState::Active)
        });
        let mut is_listed = false;
        for worker in offers {
            let Some(listed) = &worker.offer.classes else { return BTreeSet::new() };
            is_listed = true;
            classes.retain(|class| !listed.contains(class));
        }
        if is_listed { classes } else { BTreeSet::new() }
    }
}
