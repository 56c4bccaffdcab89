//! Laws about the records of machines: who was given up does not come back, what is forgotten is gone, who is drained
//! goes, and no fleet swings.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::document::{Document, Shelf};
use remuda_core::id::{FleetId, MachineId};
use remuda_core::plane::{Answer, Plane, Step};
use remuda_core::record::{Happened, Record, StateRow};
use remuda_core::rental::{Rental, RentalPhase};
use remuda_core::time::Timestamp;
use remuda_core::wire::JoinRequest;

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::provider::{Account, SimPod};
use crate::scenario::Scenario;

/// A drain is over when the cycle looks next, and the return has begun.
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
                Record::Document(document) if document.shelf == Shelf::Machine => self.stored(at, document),
                Record::DocumentGone { shelf: Shelf::Machine, id } => self.forgotten(at, id, account),
                _ => {}
            }
        }
        for record in records {
            if let Record::Happened(event) = record {
                self.no_swing(at, event, &known, scenario);
            }
        }
    }

    fn stored(&mut self, at: u64, document: &Arc<Document>) {
        let Ok(rental) = serde_json::from_str::<Rental>(document.body.get()) else {
            return self.violated(Law::S8, at, format!("the record of {} cannot be read", document.id));
        };
        let before = self.pods.rentals.insert(document.id.clone(), rental.clone());
        if rental.phase == RentalPhase::Returning {
            self.pods.given_up.entry(rental.tag.clone()).or_insert(at);
        }
        self.count_failures(&rental, before.as_ref());
        let was_given_up = before.is_some_and(|before| before.phase == RentalPhase::Returning);
        if was_given_up && rental.phase != RentalPhase::Returning {
            let what = format!("{} was given up and is {}", rental.tag, rental.phase.as_str());
            self.violated(Law::S8, at, what);
        }
    }

    /// How many of a fleet's machines in a row came to nothing.
    fn count_failures(&mut self, rental: &Rental, before: Option<&Rental>) {
        let failures = self.pods.failures.entry(rental.fleet.clone()).or_default();
        let was = before.map_or(RentalPhase::Wanted, |before| before.phase);
        match (was, rental.phase) {
            (_, RentalPhase::Up) => *failures = 0,
            // It was not its fault that there is no money left, nor that the plane died before it asked for it.
            (RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made, RentalPhase::Returning) => {
                let is_unasked = rental.is_unheard && rental.made_at.is_none();
                *failures += u32::from(!is_unasked && !rental.reason.contains("a day are spent"));
            }
            _ => {}
        }
    }

    /// S8: what is forgotten is gone, as far as anyone could know.
    fn forgotten(&mut self, at: u64, id: &str, account: &Account) {
        let Some(rental) = self.pods.rentals.remove(id) else { return };
        let is_seen = |pod: &&SimPod| {
            let omitted = self.pods.omitted.get(&(rental.fleet.clone(), pod.id.clone()));
            omitted.is_none_or(|omitted| *omitted < 2)
        };
        match account.with_tag(&rental.tag).find(is_seen) {
            Some(pod) => {
                self.violated(Law::S8, at, format!("{} is forgotten, and {} is there", rental.tag, pod.id));
            }
            None => {
                self.pods.unseen.insert(rental.tag.clone());
            }
        }
    }

    /// A plane that starts over may not have heard what a person wants.
    pub(super) fn forget_drains(&mut self) {
        self.pods.drained.clear();
    }

    /// The store was put back to a time before this machine.
    pub(crate) fn machine_rolled_back(&mut self, machine: &str) {
        if let Some(rental) = self.pods.rentals.remove(machine) {
            // The one that was tried may have been this.
            self.pods.failures.remove(&rental.fleet);
            self.pods.unseen.insert(rental.tag);
        }
    }

    /// L5: up, down, up is for people, and for a fleet that lost what it cannot do without.
    fn no_swing(&mut self, at: u64, event: &Happened, known: &[String], scenario: &Scenario) {
        let is_up = match &*event.name {
            "scale:up" => true,
            "scale:down" => false,
            _ => return,
        };
        let fleet = event.detail.get("fleet").and_then(|it| it.as_str()).unwrap_or_default();
        let Some(plan) = scenario.fleets.iter().find(|plan| plan.settings.id.as_str() == fleet) else {
            return;
        };
        let (id, scaling) = (&plan.settings.id, &plan.settings.scaling);
        let before = self.pods.turned.get(id).copied();
        if before.is_some_and(|(was_up, _)| was_up == is_up) {
            return;
        }
        self.pods.turned.insert(id.clone(), (is_up, at));
        let Some((_, turned_at)) = before else { return };
        let is_ordered = self.pods.ordered_at.get(id).is_some_and(|then| {
            at < then + scaling.reversal_cooldown.as_millis() as u64 || *then == u64::MAX
        });
        let capacity = self.pods.rentals.iter().filter(|(name, rental)| {
            let is_capacity = matches!(
                rental.phase,
                RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made | RentalPhase::Up
            );
            rental.fleet == *id && is_capacity && known.contains(name)
        });
        let is_bare = is_up && capacity.count() < scaling.machines_min.max(1) as usize;
        let is_spent = !is_up && plan.settings.day_max.is_some();
        let since = at - turned_at;
        if since + 1000 < scaling.reversal_cooldown.as_millis() as u64 && !is_ordered && !is_bare && !is_spent
        {
            let way = if is_up { "grows" } else { "shrinks" };
            self.violated(Law::L5, at, format!("{id} {way} {} s after it turned", since / 1000));
        }
    }

    /// M4: who was given up is not let in.
    pub(super) fn no_late_comers(&mut self, at: u64, plane: &Plane, join: &JoinRequest, step: &Step) {
        let (Some(machine), Ok(Answer::Joined(_))) = (&join.machine, &step.answer) else { return };
        let phase = plane.rental(machine).map(|rental| rental.phase);
        if join.fleet.is_some() && phase.is_none_or(|phase| phase == RentalPhase::Returning) {
            self.violated(Law::S8, at, format!("{machine} was given up and is let in"));
        }
    }

    /// S12: nobody works before the models are there, nor on a machine that is not what was ordered. S4: nobody gets
    /// anything who is on the way out.
    pub(super) fn no_early_work(
        &mut self,
        now: Timestamp,
        at: u64,
        plane: &Plane,
        step: &Step,
        hosts: &[Host],
    ) {
        for record in &step.records {
            let Record::Life { job, life } = record else { continue };
            let StateRow::Running { worker, started_at, .. } = &life.state else { continue };
            let its = hosts.iter().find(|host| host.pod.is_some() && host.name() == worker);
            let Some(host) = its.filter(|_| *started_at == now) else { continue };
            if host.has_bad_gpu || host.is_wrong_machine || at < host.ready_at {
                self.violated(Law::S12, at, format!("{worker} gets job {job} and cannot work"));
            }
            let Some(machine) = &host.plan.machine else { continue };
            if self.pods.drained.contains(machine) {
                self.violated(Law::S4, at, format!("{worker} gets job {job}, and somebody drained it"));
            }
            let rental = plane.rental(machine);
            if let Some(rental) = rental.filter(|rental| rental.phase != RentalPhase::Up) {
                let what = format!("{worker} gets job {job} and is {}", rental.phase.as_str());
                self.violated(Law::S4, at, what);
            }
        }
    }

    /// A person drained a machine, and was told so.
    pub(super) fn note_drain(&mut self, machine: &MachineId, step: &Step) {
        if step.answer.is_ok() {
            self.pods.drained.insert(machine.clone());
            // It may have been the one that was tried.
            self.pods.failures.clear();
        }
    }

    /// L4: who is drained is let go in time.
    pub(super) fn draining_ends(&mut self, now: Timestamp, at: u64, plane: &Plane, scenario: &Scenario) {
        let listens_long = now.since(self.listens_since.max(self.braked_at)) > DRAIN_MARGIN;
        if !listens_long || now.since(self.stepped_at) >= self.rules.plane_stall_max {
            return;
        }
        for rental in plane.rentals().filter(|rental| rental.phase == RentalPhase::Draining) {
            let plan = scenario.fleets.iter().find(|plan| plan.settings.id == rental.fleet);
            let usual = plan.map_or(Duration::ZERO, |plan| plan.settings.scaling.drain_timeout);
            let until = rental.drain_until.unwrap_or(rental.since.plus(usual));
            if now > until.max(rental.since).plus(DRAIN_MARGIN) {
                let what = format!("{} drains since {} and is not done", rental.machine, rental.since);
                return self.violated(Law::L4, at, what);
            }
        }
    }

    /// A person ordered a fleet about: what follows is their doing.
    pub(crate) fn operator_ordered(&mut self, at: u64, fleet: &FleetId) {
        self.pods.ordered_at.insert(fleet.clone(), at);
        self.pods.failures.remove(fleet);
        self.forgot_waits();
    }
}
