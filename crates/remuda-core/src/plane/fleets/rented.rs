//! Renting machines and returning them, as far as only the fleet is concerned: orders, numbers, return calls, and what
//! a provider's answers say about the provider.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Fleets;
use crate::document::Collection;
use crate::id::{FleetId, MachineId, WorkerId};
use crate::plane::fleet_event::Scaling;
use crate::plane::{FleetEvent, Outbox};
use crate::provider::{Pod, PodTag, ProviderCall, ProviderError, ProviderErrorClass};
use crate::record::Record;
use crate::rental::{Rental, RentalEvent, RentalState};
use crate::scale::ScalingDirection;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::LifeEvent;

/// Missing capacity is often back soon.
const CAPACITY_WAIT: Duration = Duration::from_secs(60);

impl Fleets {
    /// The plane was away: that time counts against no machine that it waits for.
    pub(in crate::plane) fn excuse(&mut self, now: Timestamp, away: Duration, outbox: &mut Outbox) {
        let excused =
            self.rentals.values_mut().filter_map(|it| it.excuse(now, away).then(|| it.machine.clone()));
        for machine in excused.collect::<Vec<_>>() {
            self.store_rental(&machine, outbox);
        }
    }

    /// Orders machines. They are stored in the same commit that releases the call to the provider.
    pub(in crate::plane) fn rent(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        count: u32,
        reason: &str,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(settings) = settings.fleet(id) else { return };
        let Some(deployment) = self.deployment.clone() else { return };
        let direction = ScalingDirection::Up;
        self.record_direction(now, id, direction, outbox);
        let scaling = Scaling { direction, fleet: Some(id), worker: None, count, reason };
        outbox.publish(now, FleetEvent::Scaled(scaling));
        for _ in 0..count {
            let fleet = self.state(id);
            let Ok(offer) = fleet.offer(now, settings) else { return };
            // The counted offer may be avoided by now, and the next one may cost more.
            let coming = u32::try_from(self.spawning(id)).unwrap_or(u32::MAX);
            let is_paid = self.affordable(now, &fleet, settings).is_none_or(|(count, _)| count > 0);
            // A failure within this very cycle may have tripped the brake.
            if !is_paid || fleet.creation.creations_max(now, coming) == 0 {
                return;
            }
            let number = self.next_number(now);
            let tag = PodTag { deployment: &deployment, fleet: id.as_str(), number: &number }.to_string();
            let Ok(machine) = format!("{id}-{number}").parse::<MachineId>() else { return };
            let mut rental = Rental::wanted(now, machine.clone(), tag.clone(), offer.clone(), settings);
            rental.price = self.price_of(settings, &offer);
            reason.clone_into(&mut rental.reason);
            self.rentals.insert(machine.clone(), rental);
            self.store_rental(&machine, outbox);
            self.publish_phase(now, &machine, outbox);
            outbox.call_provider(id, ProviderCall::Rent { machine, tag, offer });
        }
    }

    /// A unique machine number: from the time, and increasing within one millisecond.
    fn next_number(&mut self, now: Timestamp) -> String {
        self.last_number = now.as_millis().max(self.last_number + 1);
        let (mut number, mut digits) = (self.last_number, Vec::new());
        while number > 0 {
            digits.push(char::from_digit(u32::try_from(number % 36).unwrap_or(0), 36).unwrap_or('0'));
            number /= 36;
        }
        digits.iter().rev().collect()
    }

    /// The provider created the pod of this machine. False for a machine that was forgotten meanwhile: its pod is
    /// recognised later by its tag.
    pub(in crate::plane) fn pod_created(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        pod: &Pod,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        self.book_repriced(now, machine, pod, settings, outbox);
        let Some(rental) = self.rentals.get_mut(machine).filter(|rental| rental.tag == pod.tag) else {
            return false;
        };
        let fleet = rental.fleet.clone();
        rental.seen(now, pod);
        self.provider_answered(&fleet, outbox);
        self.store_rental(machine, outbox);
        self.publish_phase(now, machine, outbox);
        true
    }

    /// The provider did not create the pod of this machine, or its answer is lost. True if the machine is not going to
    /// exist.
    pub(in crate::plane) fn pod_not_created(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        fault: &ProviderError,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let Some(rental) = self.rentals.get_mut(machine) else { return false };
        // A list has shown it since, so it exists whatever this answer says.
        if rental.pod().is_some() {
            return false;
        }
        if fault.class == ProviderErrorClass::Ambiguous {
            let reason = format!("unknown whether it was created: {fault}");
            if rental.apply(now, RentalEvent::ReplyLost { by_restart: false }, reason) {
                self.store_rental(machine, outbox);
                self.publish_phase(now, machine, outbox);
            }
            return false;
        }
        let (id, offer) = (rental.fleet.clone(), rental.offer.clone());
        let wait = offer_cooldown(&id, settings);
        let fleet = self.state_mut(&id);
        match fault.class {
            ProviderErrorClass::Capacity => {
                fleet.avoid(now, &offer, wait.min(CAPACITY_WAIT), &fault.to_string());
            }
            ProviderErrorClass::Denied => fleet.avoid(now, &offer, wait, &fault.to_string()),
            ProviderErrorClass::RateLimited | ProviderErrorClass::Billing => {}
            // `Auth` counts, too: a key may be allowed to list and not to create.
            _ => drop(fleet.creation.failed(now, &fault.to_string())),
        }
        self.store_fleet(&id, outbox);
        true
    }

    /// Moves a machine, and draws the conclusions for its fleet. False if that changes nothing.
    pub(in crate::plane) fn move_machine(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        (event, life): (RentalEvent<'_>, LifeEvent),
        reason: &str,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        let Some(rental) = self.rentals.get_mut(machine) else { return false };
        let (id, was_up) = (rental.fleet.clone(), rental.was_up());
        // A machine ordered by the previous plane and never seen since says nothing about the provider.
        let is_failure = !(was_up || matches!(rental.state(), RentalState::Lost { is_unheard: true }));
        if !rental.apply(now, event, reason.to_owned()) {
            return false;
        }
        if life == LifeEvent::Promote && !was_up {
            self.state_mut(&id).creation.succeeded();
            self.store_fleet(&id, outbox);
        }
        if life == LifeEvent::GiveUp && is_failure {
            self.creation_failed(now, machine, reason, settings, outbox);
        }
        self.store_rental(machine, outbox);
        self.publish_phase(now, machine, outbox);
        true
    }

    /// The machine is gone, or never existed: its cost is kept, its name never used again. Returns it with the workers
    /// that were on it.
    pub(in crate::plane) fn forget(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        reason: &str,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> BTreeSet<WorkerId> {
        if self.rentals.get(machine).is_some_and(|rental| rental.pod().is_some()) {
            self.book(now, machine, settings, outbox);
        }
        let Some(rental) = self.rentals.remove(machine) else { return BTreeSet::new() };
        self.bootstraps.remove(machine);
        outbox.record(Record::DocumentDeleted { collection: Collection::Machine, id: machine.to_string() });
        outbox.publish(now, FleetEvent::MachineGone { rental: &rental, reason });
        self.workers_on.remove(machine).unwrap_or_default()
    }

    /// If the provider shows another price than before, books the cost until now at the former one.
    pub(super) fn book_repriced(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        pod: &Pod,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        if self.rentals.get(machine).is_some_and(|rental| rental.is_repriced(pod)) {
            self.book(now, machine, settings, outbox);
        }
    }

    /// A machine that was paid for and never worked: its offer and host are avoided for a while.
    fn creation_failed(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        reason: &str,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(rental) = self.rentals.get(machine) else { return };
        let (id, offer, host) =
            (rental.fleet.clone(), rental.offer.clone(), rental.pod().and_then(|pod| pod.host.clone()));
        let wait = offer_cooldown(&id, settings);
        let has_choice = settings.fleet(&id).is_some_and(|settings| settings.offers.len() > 1);
        let fleet = self.state_mut(&id);
        fleet.creation.failed(now, reason);
        if has_choice {
            fleet.avoid(now, &offer, wait, reason);
        }
        // A host that is avoided already has done nothing new: it would be avoided for ever.
        if let Some(host) = host.filter(|host| !fleet.is_bad_host(now, host)) {
            fleet.avoid_host(now, &host, wait.saturating_mul(6), reason);
        }
        self.store_fleet(&id, outbox);
    }

    /// Requests the return of a machine, if due; a machine without a known pod must be found by its tag first.
    pub(in crate::plane) fn request_return(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        outbox: &mut Outbox,
    ) {
        let Some(rental) = self.rentals.get_mut(machine) else { return };
        let id = rental.fleet.clone();
        if self.states.get(&id).is_some_and(|fleet| !fleet.can_call_provider(now)) {
            return;
        }
        if let Some(pod) = rental.request_return(now) {
            self.store_rental(machine, outbox);
            outbox.call_provider(&id, ProviderCall::Return { pod });
        }
    }

    pub(in crate::plane) fn provider_answered(&mut self, id: &FleetId, outbox: &mut Outbox) {
        if self.state_mut(id).answered() {
            self.store_fleet(id, outbox);
        }
    }

    /// A call failed; `list_asked_at`: it was a list, requested then.
    pub(in crate::plane) fn provider_failed(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        (call, list_asked_at): (&'static str, Option<Timestamp>),
        fault: &ProviderError,
        outbox: &mut Outbox,
    ) {
        if fault.class == ProviderErrorClass::Auth {
            self.key_refused(now, id, fault, list_asked_at);
        }
        self.state_mut(id).provider_failed(now, fault);
        self.store_fleet(id, outbox);
        outbox.publish(now, FleetEvent::Fault { fleet: id, call, fault });
    }
}

/// How long an offer that failed is avoided.
fn offer_cooldown(id: &FleetId, settings: &Settings) -> Duration {
    settings.fleet(id).map_or(CAPACITY_WAIT, |settings| settings.limits.offer_cooldown)
}
