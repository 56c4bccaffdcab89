//! Rented machines: ordered, recognised, prepared, given up, and returned until they are proven gone. A failed call
//! proves nothing, and an implausible list creates or returns nothing.

use std::time::Duration;

use super::domain_event::Scaling;
use super::{DomainEvent, Plane, PlaneAnswer, PlaneEffect};
use crate::document::Collection;
use crate::id::{FleetId, MachineId, WorkerId};
use crate::machine::WorkerState;
use crate::provider::{Pod, PodTag, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use crate::record::Record;
use crate::rental::{Rental, RentalPhase};
use crate::scale::ScalingDirection;
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;

/// Missing capacity is often back soon.
const CAPACITY_WAIT: Duration = Duration::from_secs(60);

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
                Ok(()) => self.provider_answered(fleet),
                Err(fault) if fault.class == ProviderErrorClass::NotFound => self.provider_answered(fleet),
                Err(fault) => self.provider_failed(now, fleet, "return", &fault),
            },
            ProviderEvent::Priced { result: Ok(prices) } => {
                self.provider_answered(fleet);
                let known = self.fleets.fleets.entry(fleet.clone()).or_default();
                if known.prices != prices {
                    known.prices = prices;
                    self.store_fleet(fleet);
                }
            }
            ProviderEvent::Priced { result: Err(fault) } => self.provider_failed(now, fleet, "price", &fault),
            ProviderEvent::Bootstrapped { machine, result } => self.prepared(now, &machine, result),
        }
        self.cycle_soon(now);
        PlaneAnswer::Done
    }

    pub(super) fn call(&mut self, fleet: &FleetId, call: ProviderCall) {
        self.outbox.effect(PlaneEffect::CallProvider { fleet: fleet.clone(), call });
    }

    /// Orders machines. They are stored in the same commit that releases the call to the provider.
    pub(super) fn rent(&mut self, now: Timestamp, id: &FleetId, count: u32, reason: &str) {
        let Some(settings) = self.fleet_settings(id).cloned() else { return };
        let Some(deployment) = self.fleets.deployment.clone() else { return };
        let direction = ScalingDirection::Up;
        self.record_direction(now, Some(id), direction);
        let scaling = Scaling { direction, fleet: Some(id), worker: None, count, reason };
        self.outbox.publish(now, DomainEvent::Scaled(scaling));
        for _ in 0..count {
            let fleet = self.fleet(id);
            let Ok(offer) = fleet.offer(now, &settings) else { return };
            // The counted offer may be avoided by now, and the next one may cost more.
            let coming = self.rentals_of(id).filter(|rental| rental.phase.state() == WorkerState::Spawning);
            let coming = u32::try_from(coming.count()).unwrap_or(u32::MAX);
            let is_paid = self.affordable(now, &fleet, &settings).is_none_or(|(count, _)| count > 0);
            // A failure within this very cycle may have tripped the brake.
            if !is_paid || fleet.creation.creations_max(now, coming) == 0 {
                return;
            }
            let number = self.next_number(now);
            let tag = PodTag { deployment: &deployment, fleet: id.as_str(), number: &number }.to_string();
            let Ok(machine) = format!("{id}-{number}").parse::<MachineId>() else { return };
            let mut rental = Rental::wanted(now, machine.clone(), tag.clone(), offer.clone(), &settings);
            rental.price = self.price_of(&fleet, &settings, &offer);
            reason.clone_into(&mut rental.reason);
            self.fleets.rentals.insert(machine.clone(), rental);
            self.store_rental(&machine);
            self.machine_state(now, &machine);
            self.call(id, ProviderCall::Rent { machine, tag, offer });
        }
    }

    /// A unique machine number: from the time, and increasing within one millisecond.
    fn next_number(&mut self, now: Timestamp) -> String {
        self.fleets.last_number = now.as_millis().max(self.fleets.last_number + 1);
        let (mut number, mut digits) = (self.fleets.last_number, Vec::new());
        while number > 0 {
            digits.push(char::from_digit(u32::try_from(number % 36).unwrap_or(0), 36).unwrap_or('0'));
            number /= 36;
        }
        digits.iter().rev().collect()
    }

    fn rent_succeeded(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        // A machine that was forgotten meanwhile is recognised later by its tag.
        let Some(rental) = self.fleets.rentals.get_mut(machine).filter(|rental| rental.tag == pod.tag) else {
            return;
        };
        let fleet = rental.fleet.clone();
        rental.seen(now, pod);
        self.provider_answered(&fleet);
        self.store_rental(machine);
        self.machine_state(now, machine);
        self.judge_pod(now, machine, pod);
    }

    fn rent_failed(&mut self, now: Timestamp, id: &FleetId, machine: &MachineId, fault: &ProviderError) {
        self.provider_failed(now, id, "rent", fault);
        let Some(rental) = self.fleets.rentals.get_mut(machine) else { return };
        // A list has shown it since, so it exists whatever this answer says.
        if rental.made_at.is_some() {
            return;
        }
        if fault.class == ProviderErrorClass::Ambiguous {
            if rental.phase == RentalPhase::Wanted {
                rental.go(now, RentalPhase::Lost, format!("unknown whether it was created: {fault}"));
                self.store_rental(machine);
                self.machine_state(now, machine);
            }
            return;
        }
        let (offer, wait) = (rental.offer.clone(), self.offer_cooldown(id));
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        match fault.class {
            ProviderErrorClass::Capacity => {
                fleet.avoid(now, &offer, wait.min(CAPACITY_WAIT), &fault.to_string());
            }
            ProviderErrorClass::Denied => fleet.avoid(now, &offer, wait, &fault.to_string()),
            ProviderErrorClass::RateLimited | ProviderErrorClass::Auth | ProviderErrorClass::Billing => {}
            _ => drop(fleet.creation.failed(now, &fault.to_string())),
        }
        self.store_fleet(id);
        self.forget_rental(now, machine, &format!("not created: {fault}"));
    }

    fn offer_cooldown(&self, id: &FleetId) -> Duration {
        self.fleet_settings(id).map_or(CAPACITY_WAIT, |settings| settings.limits.offer_cooldown)
    }

    /// Checks that the pod is what was ordered.
    pub(super) fn judge_pod(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rentals.get(machine) else { return };
        if rental.phase == RentalPhase::Returning {
            return self.request_return(now, machine);
        }
        let fleet = self.fleet(&rental.fleet);
        let settings = self.fleet_settings(&rental.fleet);
        let ordered = offered_kind(&rental.offer);
        let allowed =
            settings.and_then(|settings| self.price_of(&fleet, settings, &rental.offer)).or(rental.price);
        let wrong = if !pod.kind.is_empty() && !ordered.is_empty() && pod.kind != ordered {
            let why = format!("{} was delivered in place of {ordered}", pod.kind);
            Some((AttemptVerdict::MachineRefused, why))
        } else if let Some((price, allowed)) = pod.price.zip(allowed).filter(|(price, max)| price > max) {
            let why = format!("it costs {price} an hour, {allowed} was agreed");
            Some((AttemptVerdict::MachineRefused, why))
        } else {
            // A machine that is already working has proven itself.
            let is_new = rental.phase == RentalPhase::Made;
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
        let Some(rental) = self.fleets.rentals.get_mut(machine) else { return };
        let (id, was_up) =
            (rental.fleet.clone(), matches!(rental.phase, RentalPhase::Up | RentalPhase::Draining));
        let phase = match state {
            WorkerState::Spawning => return,
            WorkerState::Active => RentalPhase::Up,
            WorkerState::Terminating => RentalPhase::Draining,
            WorkerState::Terminated | WorkerState::Error => RentalPhase::Returning,
        };
        if rental.phase == RentalPhase::Returning || rental.phase == phase {
            return;
        }
        // A machine ordered by the previous plane and never seen since says nothing about the provider.
        let is_failure = !(was_up || rental.is_unheard && rental.made_at.is_none());
        rental.go(now, phase, reason.to_owned());
        if state == WorkerState::Active && !was_up {
            let fleet = self.fleets.fleets.entry(id.clone()).or_default();
            fleet.creation.succeeded();
            self.store_fleet(&id);
        }
        if state == WorkerState::Error && is_failure {
            self.creation_failed(now, machine, reason);
        }
        self.store_rental(machine);
        self.machine_state(now, machine);
        for worker in self.workers_on(machine) {
            if state != WorkerState::Active {
                self.workers.has_orders(&worker);
            }
            self.move_worker(now, &worker, state, reason.to_owned());
        }
        if phase == RentalPhase::Returning {
            self.request_return(now, machine);
        }
    }

    pub(super) fn workers_on(&self, machine: &MachineId) -> Vec<WorkerId> {
        self.fleets.workers_on.get(machine).into_iter().flatten().cloned().collect()
    }

    /// A machine that was paid for and never worked: its offer and host are avoided for a while.
    fn creation_failed(&mut self, now: Timestamp, machine: &MachineId, reason: &str) {
        let Some(rental) = self.fleets.rentals.get(machine) else { return };
        let (id, offer, host) = (rental.fleet.clone(), rental.offer.clone(), rental.host.clone());
        let wait = self.offer_cooldown(&id);
        let has_choice = self.fleet_settings(&id).is_some_and(|settings| settings.offers.len() > 1);
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        fleet.creation.failed(now, reason);
        if has_choice {
            fleet.avoid(now, &offer, wait, reason);
        }
        if let Some(host) = host {
            fleet.avoid_host(now, &host, wait.saturating_mul(6), reason);
        }
        self.store_fleet(&id);
    }

    /// Requests the return of a machine, if due; a machine without a known pod must be found by its tag first.
    pub(super) fn request_return(&mut self, now: Timestamp, machine: &MachineId) {
        let Some(rental) = self.fleets.rentals.get_mut(machine) else { return };
        let is_due = rental.phase == RentalPhase::Returning && rental.return_at.is_none_or(|at| at <= now);
        let id = rental.fleet.clone();
        let can_call_provider = self.fleets.fleets.get(&id).is_none_or(|fleet| fleet.can_call_provider(now));
        let Some(pod) = rental.pod.clone().filter(|_| is_due && can_call_provider) else { return };
        rental.return_requested(now);
        self.store_rental(machine);
        self.call(&id, ProviderCall::Return { pod });
    }

    /// The machine is gone, or never existed: its cost is kept, its name never used again.
    pub(super) fn forget_rental(&mut self, now: Timestamp, machine: &MachineId, reason: &str) {
        let Some(rental) = self.fleets.rentals.remove(machine) else { return };
        self.fleets.bootstraps.remove(machine);
        let fleet = self.fleet(&rental.fleet);
        let settings = self.fleet_settings(&rental.fleet);
        let price =
            rental.price.or_else(|| self.price_of(&fleet, settings?, &rental.offer)).unwrap_or_default();
        if rental.made_at.is_some() {
            let fleet = self.fleets.fleets.entry(rental.fleet.clone()).or_default();
            fleet.record_cost(rental.wanted_at, now, price);
            self.store_fleet(&rental.fleet);
        }
        self.outbox
            .record(Record::DocumentDeleted { collection: Collection::Machine, id: machine.to_string() });
        self.outbox.publish(now, DomainEvent::MachineGone { rental: &rental, reason });
        let workers = self.workers_on(machine);
        self.fleets.workers_on.remove(machine);
        for worker in workers {
            let is_over = self.workers.get(&worker).is_some_and(|it| it.state == WorkerState::Terminated);
            if !is_over {
                self.move_worker(now, &worker, WorkerState::Terminated, reason.to_owned());
            }
        }
    }

    /// Publishes a machine's state.
    pub(super) fn machine_state(&mut self, now: Timestamp, machine: &MachineId) {
        if let Some(rental) = self.fleets.rentals.get(machine) {
            self.outbox.publish(now, DomainEvent::MachinePhase(rental));
        }
    }

    pub(super) fn provider_answered(&mut self, id: &FleetId) {
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        if fleet.quiet_until.is_some() {
            fleet.answered();
            self.store_fleet(id);
        }
    }

    pub(super) fn provider_failed(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        call: &'static str,
        fault: &ProviderError,
    ) {
        self.fleets.fleets.entry(id.clone()).or_default().provider_failed(now, fault);
        self.store_fleet(id);
        self.outbox.publish(now, DomainEvent::FleetFault { fleet: id, call, fault });
    }
}

/// The GPU an offer is for: `NVIDIA L4` for `NVIDIA L4@EU-RO-1/SECURE`; empty if the offer names none.
pub(super) fn offered_kind(offer: &str) -> &str {
    let kind = offer.split(['@', '/']).next().unwrap_or(offer);
    if kind == ANY { "" } else { kind }
}

/// The offer of providers that have only one kind of machine.
const ANY: &str = "any";
