//! Rented machines: ordered, recognised, prepared, given up, and returned until they are proven gone. A failed call
//! proves nothing, and an implausible list creates or returns nothing.

use super::fleets::rented::{CAPACITY_WAIT, offer_cooldown};
use super::{FleetEvent, Plane, PlaneAnswer};
use crate::document::Collection;
use crate::id::{FleetId, MachineId};
use crate::machine::WorkerState;
use crate::provider::{Pod, ProviderError, ProviderErrorClass, ProviderEvent, offered_kind};
use crate::record::Record;
use crate::rental::{RentalEvent, RentalPhase, RentalState};
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;

impl Plane {
    pub(super) fn apply_provider_event(
        &mut self,
        now: Timestamp,
        fleet: &FleetId,
        news: ProviderEvent,
    ) -> PlaneAnswer {
        match news {
            ProviderEvent::Rented { machine, result: Ok(pod) } => self.rent_succeeded(now, &machine, &pod),
            ProviderEvent::Rented { machine, result: Err(fault) } => {
                self.rent_failed(now, fleet, &machine, &fault);
            }
            ProviderEvent::Listed { result } => self.apply_list(now, fleet, result),
            ProviderEvent::Returned { result, .. } => match result {
                Ok(()) => self.fleets.provider_answered(fleet, &mut self.outbox),
                Err(fault) if fault.class == ProviderErrorClass::NotFound => {
                    self.fleets.provider_answered(fleet, &mut self.outbox);
                }
                Err(fault) => self.fleets.provider_failed(now, fleet, "return", &fault, &mut self.outbox),
            },
            ProviderEvent::Priced { result: Ok(prices) } => {
                self.fleets.provider_answered(fleet, &mut self.outbox);
                let known = self.fleets.state_mut(fleet);
                if known.prices != prices {
                    known.prices = prices;
                    self.fleets.store_fleet(fleet, &mut self.outbox);
                }
            }
            ProviderEvent::Priced { result: Err(fault) } => {
                self.fleets.provider_failed(now, fleet, "price", &fault, &mut self.outbox);
            }
            ProviderEvent::Bootstrapped { machine, result } => self.prepared(now, &machine, result),
        }
        self.cycle_soon(now);
        PlaneAnswer::Done
    }

    fn rent_succeeded(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        // A machine that was forgotten meanwhile is recognised later by its tag.
        let Some(rental) = self.fleets.rental_mut(machine).filter(|rental| rental.tag == pod.tag) else {
            return;
        };
        let fleet = rental.fleet.clone();
        rental.seen(now, pod);
        self.fleets.provider_answered(&fleet, &mut self.outbox);
        self.fleets.store_rental(machine, &mut self.outbox);
        self.fleets.publish_phase(now, machine, &mut self.outbox);
        self.judge_pod(now, machine, pod);
    }

    fn rent_failed(&mut self, now: Timestamp, id: &FleetId, machine: &MachineId, fault: &ProviderError) {
        self.fleets.provider_failed(now, id, "rent", fault, &mut self.outbox);
        let Some(rental) = self.fleets.rental_mut(machine) else { return };
        // A list has shown it since, so it exists whatever this answer says.
        if rental.pod.is_some() {
            return;
        }
        if fault.class == ProviderErrorClass::Ambiguous {
            let reason = format!("unknown whether it was created: {fault}");
            if rental.apply(now, RentalEvent::ReplyLost { by_restart: false }, reason) {
                self.fleets.store_rental(machine, &mut self.outbox);
                self.fleets.publish_phase(now, machine, &mut self.outbox);
            }
            return;
        }
        let (offer, wait) = (rental.offer.clone(), offer_cooldown(id, &self.settings));
        let fleet = self.fleets.state_mut(id);
        match fault.class {
            ProviderErrorClass::Capacity => {
                fleet.avoid(now, &offer, wait.min(CAPACITY_WAIT), &fault.to_string());
            }
            ProviderErrorClass::Denied => fleet.avoid(now, &offer, wait, &fault.to_string()),
            ProviderErrorClass::RateLimited | ProviderErrorClass::Auth | ProviderErrorClass::Billing => {}
            _ => drop(fleet.creation.failed(now, &fault.to_string())),
        }
        self.fleets.store_fleet(id, &mut self.outbox);
        self.forget_rental(now, machine, &format!("not created: {fault}"));
    }

    /// Checks that the pod is what was ordered.
    pub(super) fn judge_pod(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rental(machine) else { return };
        if rental.is_returning() {
            return self.fleets.request_return(now, machine, &mut self.outbox);
        }
        let fleet = self.fleet(&rental.fleet);
        let settings = self.settings.fleet(&rental.fleet);
        let ordered = offered_kind(&rental.offer);
        let allowed =
            settings.and_then(|settings| self.fleets.price_of(settings, &rental.offer)).or(rental.price);
        let wrong = if !pod.kind.is_empty() && !ordered.is_empty() && pod.kind != ordered {
            let why = format!("{} was delivered in place of {ordered}", pod.kind);
            Some((AttemptVerdict::MachineRefused, why))
        } else if let Some((price, allowed)) = pod.price.zip(allowed).filter(|(price, max)| price > max) {
            let why = format!("it costs {price} an hour, {allowed} was agreed");
            Some((AttemptVerdict::MachineRefused, why))
        } else {
            // A machine that is already working has proven itself.
            let is_new = rental.phase() == RentalPhase::Made;
            let host = pod.host.as_deref().filter(|host| is_new && fleet.is_bad_host(now, host));
            host.map(|host| {
                (AttemptVerdict::MachineLost, format!("its host {host} had a bad machine recently"))
            })
        };
        if let Some((verdict, wrong)) = wrong {
            return self.give_up(now, machine, verdict, &wrong);
        }
        self.prepare(now, machine, pod);
    }

    /// Moves a machine with all its workers.
    pub(super) fn move_rental(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        state: WorkerState,
        reason: &str,
    ) {
        let event = match state {
            WorkerState::Spawning => return,
            WorkerState::Active => RentalEvent::Ready,
            WorkerState::Terminating => RentalEvent::Drain { until: None },
            WorkerState::Terminated | WorkerState::Error => RentalEvent::GiveUp,
        };
        self.apply_to_rental(now, machine, event, state, reason);
    }

    /// Drains a machine with all its workers.
    pub(super) fn drain_rental(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        until: Option<Timestamp>,
        reason: &str,
    ) {
        self.apply_to_rental(now, machine, RentalEvent::Drain { until }, WorkerState::Terminating, reason);
    }

    fn apply_to_rental(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        event: RentalEvent,
        state: WorkerState,
        reason: &str,
    ) {
        let Some(rental) = self.fleets.rental_mut(machine) else { return };
        let (id, was_up) = (rental.fleet.clone(), rental.was_up());
        // A machine ordered by the previous plane and never seen since says nothing about the provider.
        let is_failure = !(was_up || matches!(rental.state(), RentalState::Lost { is_unheard: true }));
        if !rental.apply(now, event, reason.to_owned()) {
            return;
        }
        if state == WorkerState::Active && !was_up {
            self.fleets.state_mut(&id).creation.succeeded();
            self.fleets.store_fleet(&id, &mut self.outbox);
        }
        if state == WorkerState::Error && is_failure {
            self.fleets.creation_failed(now, machine, reason, &self.settings, &mut self.outbox);
        }
        self.fleets.store_rental(machine, &mut self.outbox);
        self.fleets.publish_phase(now, machine, &mut self.outbox);
        for worker in self.fleets.workers_on(machine).cloned().collect::<Vec<_>>() {
            if state != WorkerState::Active {
                self.workers.has_orders(&worker);
            }
            self.move_worker(now, &worker, state, reason.to_owned());
        }
        self.fleets.request_return(now, machine, &mut self.outbox);
    }

    /// The machine is gone, or never existed: its cost is kept, its name never used again.
    pub(super) fn forget_rental(&mut self, now: Timestamp, machine: &MachineId, reason: &str) {
        let Some((rental, workers)) = self.fleets.remove(machine) else { return };
        let settings = self.settings.fleet(&rental.fleet);
        let price =
            rental.price.or_else(|| self.fleets.price_of(settings?, &rental.offer)).unwrap_or_default();
        if rental.pod.is_some() {
            let fleet = self.fleets.state_mut(&rental.fleet);
            fleet.record_cost(rental.wanted_at, now, price);
            self.fleets.store_fleet(&rental.fleet, &mut self.outbox);
        }
        self.outbox
            .record(Record::DocumentDeleted { collection: Collection::Machine, id: machine.to_string() });
        self.outbox.publish(now, FleetEvent::MachineGone { rental: &rental, reason });
        for worker in workers {
            let is_over = self.workers.get(&worker).is_some_and(|it| it.state == WorkerState::Terminated);
            if !is_over {
                self.move_worker(now, &worker, WorkerState::Terminated, reason.to_owned());
            }
        }
    }
}
