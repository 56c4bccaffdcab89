//! Laws about the records of machines: a machine that was given up does not come back, a forgotten one is gone, a
//! drained one is returned in time, and no fleet oscillates.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use remuda_core::document::{Collection, Document};
use remuda_core::event_kind::EventKind;
use remuda_core::id::{FleetId, MachineId};
use remuda_core::plane::{Plane, PlaneAnswer, Step};
use remuda_core::record::{Record, StateRow, StoredEvent};
use remuda_core::rental::{Rental, RentalPhase, ReturnCause};
use remuda_core::time::Timestamp;
use remuda_core::wire::JoinRequest;

use super::Laws;
use super::pods::{LISTS_MIN, LISTS_UNHEARD_MIN};
use crate::host::Host;
use crate::law::Law;
use crate::provider::{Account, SimPod};
use crate::scenario::Scenario;

/// A drain ends with the next cycle, when the return starts.
const DRAIN_MARGIN: Duration = Duration::from_secs(40);

impl Laws {
    pub(crate) fn rentals_committed(
        &mut self,
        at: u64,
        records: &[Record],
        account: &Account,
        scenario: &Scenario,
    ) {
        if scenario.fleets.is_empty() {
            return;
        }
        let known: Vec<_> = self.pods.rentals.keys().cloned().collect();
        for record in records {
            match record {
                Record::Document(document) if document.collection == Collection::Machine => {
                    self.machine_stored(at, document);
                }
                Record::Document(document) if document.collection == Collection::Fleet => {
                    self.fleet_stored(document);
                }
                Record::DocumentDeleted { collection: Collection::Machine, id } => {
                    self.machine_forgotten(at, id, account);
                }
                _ => {}
            }
        }
        for record in records {
            if let Record::Event(event) = record {
                self.check_oscillation(at, event, &known, scenario);
            }
        }
    }

    fn machine_stored(&mut self, at: u64, document: &Arc<Document>) {
        let Ok(rental) = serde_json::from_str::<Rental>(document.body.get()) else {
            return self.violated(Law::S8, at, format!("the record of {} is unreadable", document.id));
        };
        let before = self.pods.rentals.insert(document.id.clone(), rental.clone());
        if rental.phase() == RentalPhase::Returning {
            self.pods.given_up.entry(rental.tag.clone()).or_insert(at);
        }
        self.count_failures(&rental, before.as_ref());
        let was_given_up = before.is_some_and(|before| before.phase() == RentalPhase::Returning);
        if was_given_up && rental.phase() != RentalPhase::Returning {
            let what = format!("{} was given up and is {}", rental.tag, rental.phase().as_str());
            self.violated(Law::S8, at, what);
        }
    }

    /// Counts a fleet's consecutive failed machines.
    fn count_failures(&mut self, rental: &Rental, before: Option<&Rental>) {
        let failures = self.pods.failures.entry(rental.fleet.clone()).or_default();
        let was = before.map_or(RentalPhase::Wanted, |before| before.phase());
        match (was, rental.phase()) {
            (_, RentalPhase::Up) => *failures = 0,
            // An exhausted budget is not the machine's failure, nor is a plane that died before it requested the pod.
            (RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made, RentalPhase::Returning) => {
                let is_excused = rental
                    .return_progress()
                    .is_some_and(|progress| progress.is_unheard || progress.cause == ReturnCause::OverLimit);
                *failures += u32::from(!is_excused);
            }
            _ => {}
        }
    }

    /// S8: a forgotten machine is gone, as far as the plane can know.
    fn machine_forgotten(&mut self, at: u64, id: &str, account: &Account) {
        let Some(rental) = self.pods.rentals.remove(id) else { return };
        let is_seen = |pod: &&SimPod| {
            let omitted = self.pods.omitted.get(&(rental.fleet.clone(), pod.id.clone()));
            let lists = if rental.joined_at().is_some() { LISTS_MIN } else { LISTS_UNHEARD_MIN };
            omitted.is_none_or(|omitted| *omitted < lists)
        };
        match account.with_tag(&rental.tag).find(is_seen) {
            Some(pod) => {
                self.violated(
                    Law::S8,
                    at,
                    format!("{} was forgotten, and {} still exists", rental.tag, pod.id),
                );
            }
            None => {
                self.pods.unseen.insert(rental.tag.clone());
            }
        }
    }

    /// A reloaded plane may not know of drains that were not committed.
    pub(super) fn forget_drains(&mut self) {
        self.pods.drained.clear();
    }

    /// The store was restored to a time before this machine.
    pub(crate) fn machine_rolled_back(&mut self, machine: &str) {
        if let Some(rental) = self.pods.rentals.remove(machine) {
            // This machine may have been the trial.
            self.pods.failures.remove(&rental.fleet);
            self.pods.unseen.insert(rental.tag);
        }
    }

    /// L5: a fleet reverses its direction only on an operator's order, or if it lost its minimum. An ordered number stands
    /// until it is withdrawn, however long ago it was given: a fleet that has fewer, because an operator drained one or
    /// one failed, grows back to it. That follows no load, so it cannot swing with it.
    fn check_oscillation(&mut self, at: u64, event: &StoredEvent, known: &[String], scenario: &Scenario) {
        let is_up = match event.kind {
            EventKind::ScaleUp => true,
            EventKind::ScaleDown => false,
            _ => return,
        };
        let fleet = event.detail.get("fleet").and_then(|it| it.as_str()).unwrap_or_default();
        let Some(plan) = scenario.fleets.iter().find(|plan| plan.settings.id.as_str() == fleet) else {
            return;
        };
        let (id, scaling) = (&plan.settings.id, &plan.settings.scaling);
        let before = self.pods.reversed.get(id).copied();
        if before.is_some_and(|(was_up, _)| was_up == is_up) {
            return;
        }
        self.pods.reversed.insert(id.clone(), (is_up, at));
        let Some((_, reversed_at)) = before else { return };
        let is_ordered = self.pods.ordered_at.get(id).is_some_and(|then| {
            at < then + scaling.reversal_cooldown.as_millis() as u64 || *then == u64::MAX
        });
        let capacity = self.pods.rentals.iter().filter(|(name, rental)| {
            let is_capacity = matches!(
                rental.phase(),
                RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made | RentalPhase::Up
            );
            rental.fleet == *id && is_capacity && known.contains(name)
        });
        let capacity = capacity.count();
        let is_bare = is_up && capacity < scaling.machines_min.max(1) as usize;
        let is_below_order =
            is_up && self.pods.ordered.get(id).is_some_and(|ordered| capacity < *ordered as usize);
        let is_spent = !is_up && plan.settings.day_max.is_some();
        let since = at - reversed_at;
        let is_excused = is_ordered || is_below_order || is_bare || is_spent;
        if since + 1000 < scaling.reversal_cooldown.as_millis() as u64 && !is_excused {
            let way = if is_up { "grows" } else { "shrinks" };
            self.violated(Law::L5, at, format!("{id} {way} {} s after its last reversal", since / 1000));
        }
    }

    /// M4: a machine that was given up may not join.
    pub(super) fn check_join(&mut self, at: u64, plane: &Plane, join: &JoinRequest, step: &Step) {
        let (Some(machine), Ok(PlaneAnswer::Joined(_))) = (&join.machine, &step.answer) else { return };
        let phase = plane.rental(machine).map(|rental| rental.phase());
        if join.fleet.is_some() && phase.is_none_or(|phase| phase == RentalPhase::Returning) {
            self.violated(Law::S8, at, format!("{machine} was given up and joined"));
        }
    }

    /// S12: no work before the models are loaded, nor on a machine that is not what was ordered. S4: no work for a
    /// machine that is being drained or returned.
    pub(super) fn check_ready(
        &mut self,
        now: Timestamp,
        at: u64,
        plane: &Plane,
        step: &Step,
        hosts: &[Host],
    ) {
        for record in &step.records {
            let Record::JobStatus { job, status } = record else { continue };
            let StateRow::Running { worker, started_at, .. } = &status.state else { continue };
            let its = hosts.iter().find(|host| host.pod.is_some() && host.name() == worker);
            let Some(host) = its.filter(|_| *started_at == now) else { continue };
            if host.has_bad_gpu || host.is_wrong_machine || at < host.ready_at {
                self.violated(Law::S12, at, format!("{worker} got job {job} and is not ready"));
            }
            let Some(machine) = &host.plan.machine else { continue };
            if self.pods.drained.contains(machine) {
                self.violated(Law::S4, at, format!("{worker} got job {job} after an operator drained it"));
            }
            let rental = plane.rental(machine);
            if let Some(rental) = rental.filter(|rental| rental.phase() != RentalPhase::Up) {
                let what = format!("{worker} got job {job} and is {}", rental.phase().as_str());
                self.violated(Law::S4, at, what);
            }
        }
    }

    /// An operator drained a machine, and the plane confirmed it.
    pub(super) fn note_drain(&mut self, machine: &MachineId, step: &Step) {
        if step.answer.is_ok() {
            self.pods.drained.insert(machine.clone());
            // It may have been the trial.
            self.pods.failures.clear();
        }
    }

    /// Whether the plane has been listening for longer than `margin`, unbraked.
    pub(super) fn listens_for(&self, now: Timestamp, margin: Duration) -> bool {
        now.since(self.listens_since.max(self.braked_at)) > margin
            && now.since(self.stepped_at) < self.rules.plane_stall_max
    }

    /// L4: a drained machine is returned in time.
    pub(super) fn check_drains_end(&mut self, now: Timestamp, at: u64, plane: &Plane, scenario: &Scenario) {
        if !self.listens_for(now, DRAIN_MARGIN) {
            return;
        }
        for rental in plane.rentals().filter(|rental| rental.phase() == RentalPhase::Draining) {
            let plan = scenario.fleets.iter().find(|plan| plan.settings.id == rental.fleet);
            let usual = plan.map_or(Duration::ZERO, |plan| plan.settings.scaling.drain_timeout);
            let until = rental.drain_until().unwrap_or(rental.since.plus(usual));
            if now > until.max(rental.since).plus(DRAIN_MARGIN) {
                let what =
                    format!("{} is draining since {} and was not returned", rental.machine, rental.since);
                return self.violated(Law::L4, at, what);
            }
        }
    }

    /// An operator gave an order: what follows is not the plane's decision.
    pub(crate) fn operator_ordered(&mut self, at: u64, fleet: &FleetId) {
        self.pods.ordered_at.insert(fleet.clone(), at);
        self.pods.failures.remove(fleet);
        self.forget_waits();
    }
}
