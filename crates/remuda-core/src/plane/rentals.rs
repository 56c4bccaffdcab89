//! Rented machines: ordered, recognised, prepared, given up, and returned until they are proven gone. A failed call
//! proves nothing, and an implausible list creates or returns nothing.

use super::{Plane, PlaneAnswer};
use crate::id::{FleetId, MachineId};
use crate::provider::{Pod, ProviderError, ProviderErrorClass, ProviderEvent, offered_kind};
use crate::rental::{Rental, RentalEvent, RentalPhase, ReturnCause};
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;
use crate::worker::LifeEvent;

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
                Err(fault) => {
                    self.fleets.provider_failed(now, fleet, ("return", None), &fault, &mut self.outbox);
                }
            },
            ProviderEvent::Priced { result: Ok(prices) } => {
                self.fleets.provider_answered(fleet, &mut self.outbox);
                self.fleets.set_prices(fleet, prices, &mut self.outbox);
            }
            ProviderEvent::Priced { result: Err(fault) } => {
                self.fleets.provider_failed(now, fleet, ("price", None), &fault, &mut self.outbox);
            }
            ProviderEvent::Bootstrapped { machine, result } => self.prepared(now, &machine, result),
        }
        self.cycle_soon(now);
        PlaneAnswer::Done
    }

    fn rent_succeeded(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        if self.fleets.pod_created(now, machine, pod, &self.settings, &mut self.outbox) {
            self.judge_pod(now, machine, pod);
        }
    }

    fn rent_failed(&mut self, now: Timestamp, id: &FleetId, machine: &MachineId, fault: &ProviderError) {
        self.fleets.provider_failed(now, id, ("rent", None), fault, &mut self.outbox);
        if self.fleets.pod_not_created(now, machine, fault, &self.settings, &mut self.outbox) {
            self.forget_rental(now, machine, &format!("not created: {fault}"));
        }
    }

    /// Checks that the pod is what was ordered.
    pub(super) fn judge_pod(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rental(machine) else { return };
        if rental.is_returning() {
            return self.fleets.request_return(now, machine, &mut self.outbox);
        }
        let (id, phase, is_new) = (rental.fleet.clone(), rental.phase(), !rental.was_up());
        match self.fault_of_pod(now, rental, pod) {
            // It goes, but takes no attempts with it.
            Some((_, wrong)) if phase == RentalPhase::Up => self.drain_rental(now, machine, None, &wrong),
            Some((verdict, wrong)) if is_new => {
                if verdict == AttemptVerdict::MachineRefused {
                    self.fleets.expire_prices(&id);
                }
                self.give_up(now, machine, verdict, &wrong);
            }
            Some(_) | None => self.prepare(now, machine, pod),
        }
    }

    /// What is wrong with a pod. A new one has to be what was agreed. For one that works already only the operator's
    /// limit counts, because prices change.
    fn fault_of_pod(&self, now: Timestamp, rental: &Rental, pod: &Pod) -> Option<(AttemptVerdict, String)> {
        let settings = self.settings.fleet(&rental.fleet);
        let (ordered, is_new) = (offered_kind(&rental.offer), !rental.was_up());
        if !pod.kind.is_empty() && !ordered.is_empty() && pod.kind != ordered {
            let why = format!("{} was delivered in place of {ordered}", pod.kind);
            return Some((AttemptVerdict::MachineRefused, why));
        }
        let agreed = || settings.and_then(|settings| self.fleets.price_of(settings, &rental.offer));
        let allowed = if is_new { agreed().or(rental.price) } else { settings.and_then(|it| it.price_max) };
        if let Some((price, allowed)) = pod.price.zip(allowed).filter(|(price, max)| price > max) {
            let why = format!("it costs {price} an hour, {allowed} was agreed");
            return Some((AttemptVerdict::MachineRefused, why));
        }
        // A machine that is already working has proven itself. One that comes after many failures is a trial, and a
        // trial shows more than what its host once did.
        let fleet = self.fleet(&rental.fleet);
        let is_judged = is_new && !fleet.creation.is_trial(now);
        let host = pod.host.as_deref().filter(|host| is_judged && fleet.is_bad_host(now, host))?;
        Some((AttemptVerdict::MachineLost, format!("its host {host} had a bad machine recently")))
    }

    /// Moves a machine with all its workers; `cause` counts only if it is returned.
    pub(super) fn move_rental(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        (life, cause): (LifeEvent, ReturnCause),
        reason: &str,
    ) {
        let event = match life {
            LifeEvent::Beat { .. } => return,
            LifeEvent::Promote => RentalEvent::Ready,
            LifeEvent::Drain { until } => RentalEvent::Drain { until },
            LifeEvent::Terminate | LifeEvent::GiveUp => RentalEvent::GiveUp(cause),
        };
        if !self.fleets.move_machine(now, machine, (event, life), reason, &self.settings, &mut self.outbox) {
            return;
        }
        for worker in self.fleets.workers_on(machine).cloned().collect::<Vec<_>>() {
            if life != LifeEvent::Promote {
                self.workers.deliver_at_next_flush(&worker);
            }
            self.move_worker(now, &worker, life, reason);
        }
        self.fleets.request_return(now, machine, &mut self.outbox);
    }

    /// Drains a machine with all its workers.
    pub(super) fn drain_rental(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        until: Option<Timestamp>,
        reason: &str,
    ) {
        self.move_rental(now, machine, (LifeEvent::Drain { until }, ReturnCause::NotWanted), reason);
    }

    /// The machine is gone, or never existed; so are its workers.
    pub(super) fn forget_rental(&mut self, now: Timestamp, machine: &MachineId, reason: &str) {
        for worker in self.fleets.forget(now, machine, reason, &self.settings, &mut self.outbox) {
            self.move_worker(now, &worker, LifeEvent::Terminate, reason);
        }
    }
}
