//! Breakages where machines are rented: at the boundary between the plane and its provider, or in a fleet's settings.

use std::time::Duration;

use remuda_core::document::Shelf;
use remuda_core::fleet::FleetOrder;
use remuda_core::plane::Proof;
use remuda_core::provider::{Pod, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use remuda_core::record::Stored;
use remuda_core::rental::RentalPhase;
use remuda_core::settings::Settings;
use remuda_core::wire::{Beat, JoinRequest};

use super::Sabotage;
use crate::driver::Driver;
use crate::net::{self, Ask, Caller};
use crate::provider::{DEPLOYMENT, STRANGER};
use crate::world::World;

impl Sabotage {
    /// Breakages that a fleet's setting can express.
    pub(super) fn set_fleets(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        for fleet in &mut core.fleets {
            match self {
                Sabotage::NoMaximum => fleet.scaling.machines_max = 1000,
                Sabotage::NoHourlyBudget => fleet.hour_max = None,
                Sabotage::NoDailyBudget => fleet.day_max = None,
                Sabotage::NoDamper => {
                    (fleet.scaling.reversal_cooldown, fleet.scaling.uptime_min) =
                        (Duration::ZERO, Duration::ZERO);
                }
                Sabotage::BusyLists => fleet.limits.list_every = Duration::from_secs(1),
                Sabotage::NoSweep => fleet.limits.orphan_grace = never,
                Sabotage::EndlessDrains => fleet.scaling.drain_timeout = never,
                _ => {}
            }
        }
    }
}

impl World<'_> {
    /// What a provider said, as the saboteur lets the plane hear it.
    pub(crate) fn forged_news(&self, news: ProviderEvent) -> Vec<ProviderEvent> {
        match (self.sabotage, news) {
            (Some(Sabotage::BelieveFailedLists), ProviderEvent::Listed { result: Err(_) }) => {
                vec![ProviderEvent::Listed { result: Ok(Vec::new()) }]
            }
            (Some(Sabotage::TrustOneList), news @ ProviderEvent::Listed { .. }) => vec![news.clone(), news],
            (Some(Sabotage::ReturnStrangers), ProviderEvent::Listed { result: Ok(pods) }) => {
                let claim = |pod: Pod| Pod { tag: pod.tag.replace(STRANGER, DEPLOYMENT), ..pod };
                vec![ProviderEvent::Listed { result: Ok(pods.into_iter().map(claim).collect()) }]
            }
            (Some(Sabotage::TakeAnything), ProviderEvent::Listed { result: Ok(pods) }) => {
                vec![ProviderEvent::Listed { result: Ok(pods.into_iter().map(unsaid).collect()) }]
            }
            (Some(Sabotage::TakeAnything), ProviderEvent::Rented { machine, result: Ok(pod) }) => {
                vec![ProviderEvent::Rented { machine, result: Ok(unsaid(pod)) }]
            }
            (Some(Sabotage::DeafToWaits), ProviderEvent::Listed { result: Err(fault) }) => {
                vec![ProviderEvent::Listed { result: Err(deaf(fault)) }]
            }
            (Some(Sabotage::DeafToWaits), ProviderEvent::Rented { machine, result: Err(fault) }) => {
                vec![ProviderEvent::Rented { machine, result: Err(deaf(fault)) }]
            }
            (_, news) => vec![news],
        }
    }

    /// Whether a call is taken for made, and is not.
    pub(crate) fn is_pretended(&self, call: &ProviderCall) -> bool {
        self.is_sabotaged(Sabotage::PretendToReturn) && matches!(call, ProviderCall::Return { .. })
    }

    /// Whether a call whose outcome is unknown is made once more.
    pub(crate) fn is_repeated(&self, news: &ProviderEvent) -> bool {
        let is_unknown = matches!(news, ProviderEvent::Rented { result: Err(fault), .. }
            if fault.class == ProviderErrorClass::Ambiguous);
        self.is_sabotaged(Sabotage::RentAgain) && is_unknown
    }

    /// Whoever comes late comes as somebody else.
    pub(crate) fn forged_join(
        &self,
        driver: &Driver,
        mut join: Box<JoinRequest>,
        proof: Proof,
    ) -> (Box<JoinRequest>, Proof) {
        let rental = join.machine.as_ref().and_then(|machine| driver.plane.rental(machine));
        let is_late = rental.is_some_and(|rental| rental.phase == RentalPhase::Returning);
        if !is_late || !self.is_sabotaged(Sabotage::LetInTheLate) {
            return (join, proof);
        }
        let name = format!("late-{}", join.worker);
        (join.machine, join.fleet) = (None, None);
        join.worker = name.parse().unwrap_or(join.worker);
        (join, Proof::Anybody)
    }

    /// Nobody is told that a machine is not ready.
    pub(crate) fn maybe_call_ready(&self, beat: &mut Beat) {
        if self.is_sabotaged(Sabotage::WorkBeforeReady) {
            beat.check = None;
            beat.closed.clear();
        }
    }

    /// Somebody lifts the brake as soon as it holds.
    pub(crate) fn maybe_lift_brakes(&mut self) {
        if self.is_sabotaged(Sabotage::NoCreationBrake) {
            let fleets: Vec<_> = self.scene.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            for fleet in fleets {
                let id = self.next_call();
                let ask = Ask::Order { fleet, order: FleetOrder::LiftBrake };
                self.arrive(net::Call { from: Caller::Nobody, id, ask });
            }
        }
    }

    pub(super) fn maybe_forget_machines(&self, stored: &mut Stored) {
        if self.is_sabotaged(Sabotage::ForgetMachines) {
            stored.documents.retain(|document| document.shelf != Shelf::Machine);
        }
    }
}

fn unsaid(pod: Pod) -> Pod {
    Pod { kind: String::new(), price: None, ..pod }
}

fn deaf(fault: ProviderError) -> ProviderError {
    ProviderError { class: ProviderErrorClass::Transient, wait: None, ..fault }
}
