//! Rented machines: ordered, recognised, prepared, given up and returned until they are proved gone. Nothing is
//! concluded from a call that failed; nothing is created or returned because of a list that cannot be right.

use std::time::Duration;

use super::{About, Plane, PlaneAnswer, PlaneEffect, detail};
use crate::document::Collection;
use crate::id::{FleetId, MachineId, WorkerId};
use crate::machine::WorkerState;
use crate::provider::{Pod, PodTag, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use crate::record::Record;
use crate::rental::{Rental, RentalPhase};
use crate::scale::ScalingDirection;
use crate::time::Timestamp;

/// What is not free now may be in a moment.
const CAPACITY_WAIT: Duration = Duration::from_secs(60);

impl Plane {
    pub(super) fn provider_said(
        &mut self,
        now: Timestamp,
        fleet: &FleetId,
        news: ProviderEvent,
    ) -> PlaneAnswer {
        match news {
            ProviderEvent::Rented { machine, result: Ok(pod) } => self.rented(now, &machine, &pod),
            ProviderEvent::Rented { machine, result: Err(fault) } => {
                self.not_rented(now, fleet, &machine, &fault)
            }
            ProviderEvent::Listed { result } => self.listed(now, fleet, result),
            ProviderEvent::Returned { result, .. } => match result {
                Ok(()) => self.answered(fleet),
                Err(fault) if fault.class == ProviderErrorClass::NotFound => self.answered(fleet),
                Err(fault) => self.provider_failed(now, fleet, "return", &fault),
            },
            ProviderEvent::Priced { result: Ok(prices) } => {
                self.answered(fleet);
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
        self.effects.push(PlaneEffect::CallProvider { fleet: fleet.clone(), call });
    }

    /// Wishes are stored with the same commit that lets the provider hear of them.
    pub(super) fn rent(&mut self, now: Timestamp, id: &FleetId, count: u32, reason: &str) {
        let Some(settings) = self.fleet_settings(id).cloned() else { return };
        let Some(deployment) = self.fleets.deployment.clone() else { return };
        self.went(now, Some(id), ScalingDirection::Up);
        self.scaled(now, Some(id), "scale:up", None, count, reason);
        for _ in 0..count {
            let fleet = self.fleet(id);
            let Ok(offer) = fleet.offer(now, &settings) else { return };
            // What was counted on may have been passed over since, and what is next may cost more.
            let coming = self.rentals_of(id).filter(|rental| rental.phase.state() == WorkerState::Spawning);
            let coming = u32::try_from(coming.count()).unwrap_or(u32::MAX);
            let is_paid = self.affordable(now, &fleet, &settings).is_none_or(|(count, _)| count > 0);
            // So may the brake have gone on: what failed in this very cycle counts.
            if !is_paid || fleet.creation.room(now, coming) == 0 {
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

    /// No two machines are ever called alike: by the moment, and by the order within it.
    fn next_number(&mut self, now: Timestamp) -> String {
        self.fleets.last_number = now.as_millis().max(self.fleets.last_number + 1);
        let (mut number, mut digits) = (self.fleets.last_number, Vec::new());
        while number > 0 {
            digits.push(char::from_digit(u32::try_from(number % 36).unwrap_or(0), 36).unwrap_or('0'));
            number /= 36;
        }
        digits.iter().rev().collect()
    }

    fn rented(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        // A machine that was forgotten meanwhile is found again by its tag.
        let Some(rental) = self.fleets.rentals.get_mut(machine).filter(|rental| rental.tag == pod.tag) else {
            return;
        };
        let fleet = rental.fleet.clone();
        rental.seen(now, pod);
        self.answered(&fleet);
        self.store_rental(machine);
        self.machine_state(now, machine);
        self.judge_pod(now, machine, pod);
    }

    fn not_rented(&mut self, now: Timestamp, id: &FleetId, machine: &MachineId, fault: &ProviderError) {
        self.provider_failed(now, id, "rent", fault);
        let Some(rental) = self.fleets.rentals.get_mut(machine) else { return };
        // It was seen since: whatever the answer says, it is there.
        if rental.made_at.is_some() {
            return;
        }
        if fault.class == ProviderErrorClass::Ambiguous {
            if rental.phase == RentalPhase::Wanted {
                rental.go(now, RentalPhase::Lost, format!("whether it was made is not known: {fault}"));
                self.store_rental(machine);
                self.machine_state(now, machine);
            }
            return;
        }
        let (offer, wait) = (rental.offer.clone(), self.offer_cooldown(id));
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        match fault.class {
            ProviderErrorClass::Capacity => {
                fleet.avoid(now, &offer, wait.min(CAPACITY_WAIT), &fault.to_string())
            }
            ProviderErrorClass::Denied => fleet.avoid(now, &offer, wait, &fault.to_string()),
            ProviderErrorClass::RateLimited | ProviderErrorClass::Auth | ProviderErrorClass::Billing => {}
            _ => drop(fleet.creation.failed(now, &fault.to_string())),
        }
        self.store_fleet(id);
        self.forget_rental(now, machine, &format!("not made: {fault}"));
    }

    fn offer_cooldown(&self, id: &FleetId) -> Duration {
        self.fleet_settings(id).map_or(CAPACITY_WAIT, |settings| settings.limits.offer_cooldown)
    }

    /// Is it what was ordered?
    pub(super) fn judge_pod(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rentals.get(machine) else { return };
        if rental.phase == RentalPhase::Returning {
            return self.ask_back(now, machine);
        }
        let fleet = self.fleet(&rental.fleet);
        let settings = self.fleet_settings(&rental.fleet);
        let ordered = offered_kind(&rental.offer);
        let allowed =
            settings.and_then(|settings| self.price_of(&fleet, settings, &rental.offer)).or(rental.price);
        let wrong = if !pod.kind.is_empty() && !ordered.is_empty() && pod.kind != ordered {
            Some(format!("{} was delivered in place of {ordered}", pod.kind))
        } else if let Some((price, allowed)) = pod.price.zip(allowed).filter(|(price, max)| price > max) {
            Some(format!("it costs {price} an hour, {allowed} were agreed"))
        } else {
            // Who is at work there already has shown that it can.
            let is_new = rental.phase == RentalPhase::Made;
            let host = pod.host.as_deref().filter(|host| is_new && fleet.is_bad_host(now, host));
            host.map(|host| format!("its host {host} gave a bad machine a while ago"))
        };
        if let Some(wrong) = wrong {
            return self.give_up(now, machine, &wrong);
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
        // One that nobody saw since the plane before us asked for it says nothing about its provider.
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
                self.undelivered.insert(worker.clone());
            }
            self.move_worker(now, &worker, state, reason.to_owned());
        }
        if phase == RentalPhase::Returning {
            self.ask_back(now, machine);
        }
    }

    pub(super) fn workers_on(&self, machine: &MachineId) -> Vec<WorkerId> {
        self.fleets.on.get(machine).into_iter().flatten().cloned().collect()
    }

    /// A machine that was paid for and never worked: its offer and host are passed over for a while.
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

    /// Asks for the return of a machine, if that is due; who has no pod yet is found by its tag first.
    pub(super) fn ask_back(&mut self, now: Timestamp, machine: &MachineId) {
        let Some(rental) = self.fleets.rentals.get_mut(machine) else { return };
        let is_due = rental.phase == RentalPhase::Returning && rental.return_at.is_none_or(|at| at <= now);
        let id = rental.fleet.clone();
        let can_call_provider = self.fleets.fleets.get(&id).is_none_or(|fleet| fleet.can_call_provider(now));
        let Some(pod) = rental.pod.clone().filter(|_| is_due && can_call_provider) else { return };
        rental.return_requested(now);
        self.store_rental(machine);
        self.call(&id, ProviderCall::Return { pod });
    }

    /// It is not there any more, or never was: its cost is kept, its name never used again.
    pub(super) fn forget_rental(&mut self, now: Timestamp, machine: &MachineId, reason: &str) {
        let Some(rental) = self.fleets.rentals.remove(machine) else { return };
        self.fleets.visits.remove(machine);
        let fleet = self.fleet(&rental.fleet);
        let settings = self.fleet_settings(&rental.fleet);
        let price =
            rental.price.or_else(|| self.price_of(&fleet, settings?, &rental.offer)).unwrap_or_default();
        if rental.made_at.is_some() {
            let fleet = self.fleets.fleets.entry(rental.fleet.clone()).or_default();
            fleet.record_cost(rental.wanted_at, now, price);
            self.store_fleet(&rental.fleet);
        }
        self.records
            .push(Record::DocumentDeleted { collection: Collection::Machine, id: machine.to_string() });
        let told = detail([
            ("machine", machine.as_str().into()),
            ("fleet", rental.fleet.as_str().into()),
            ("state", "gone".into()),
            ("reason", reason.into()),
        ]);
        self.happened(now, "machine:state", About::default(), told);
        let workers = self.workers_on(machine);
        self.fleets.on.remove(machine);
        for worker in workers {
            let is_over = self.workers.get(&worker).is_some_and(|it| it.state == WorkerState::Terminated);
            if !is_over {
                self.move_worker(now, &worker, WorkerState::Terminated, reason.to_owned());
            }
        }
    }

    /// How a machine stands, told to whoever follows.
    pub(super) fn machine_state(&mut self, now: Timestamp, machine: &MachineId) {
        let Some(rental) = self.fleets.rentals.get(machine) else { return };
        let told = detail([
            ("machine", machine.as_str().into()),
            ("fleet", rental.fleet.as_str().into()),
            ("state", rental.phase.as_str().into()),
            ("pod", rental.pod.as_ref().map_or(serde_json::Value::Null, |pod| pod.as_str().into())),
            ("reason", rental.reason.clone().into()),
        ]);
        self.happened(now, "machine:state", About::default(), told);
    }

    pub(super) fn answered(&mut self, id: &FleetId) {
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
        what: &str,
        fault: &ProviderError,
    ) {
        self.fleets.fleets.entry(id.clone()).or_default().provider_failed(now, fault);
        self.store_fleet(id);
        let told = detail([
            ("fleet", id.as_str().into()),
            ("call", what.into()),
            ("fault", fault.class.as_str().into()),
            ("reason", fault.message.clone().into()),
        ]);
        self.happened(now, "fleet:fault", About::default(), told);
    }
}

/// The GPU an offer is for: `NVIDIA L4@EU-RO-1/SECURE` is one of `NVIDIA L4`. Nothing for offers that name none.
pub(super) fn offered_kind(offer: &str) -> &str {
    let kind = offer.split(['@', '/']).next().unwrap_or(offer);
    if kind == ANY { "" } else { kind }
}

/// The offer of providers that have only one kind of machine.
const ANY: &str = "any";
