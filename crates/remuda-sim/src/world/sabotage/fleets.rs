//! Sabotage where machines are rented: at the boundary between the plane and its provider.

use std::time::Duration;

use remuda_core::document::Collection;
use remuda_core::fleet::FleetOrder;
use remuda_core::plane::JoinProof;
use remuda_core::provider::{Pod, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use remuda_core::record::StoredState;
use remuda_core::rental::RentalPhase;
use remuda_core::wire::{Beat, JoinRequest};

use crate::driver::Driver;
use crate::net::{self, Caller, PlaneRequest};
use crate::provider::{DEPLOYMENT, OTHER_DEPLOYMENT};
use crate::sabotage::Sabotage;
use crate::world::World;

impl World<'_> {
    /// The provider events that the plane sees.
    pub(in crate::world) fn forged_provider_events(&self, news: ProviderEvent) -> Vec<ProviderEvent> {
        match (self.sabotage, news) {
            (Some(Sabotage::TrustFailedLists), ProviderEvent::Listed { result: Err(_) }) => {
                vec![ProviderEvent::Listed { result: Ok(Vec::new()) }]
            }
            (Some(Sabotage::TrustOneList), news @ ProviderEvent::Listed { .. }) => vec![news.clone(), news],
            (Some(Sabotage::ClaimForeignPods), ProviderEvent::Listed { result: Ok(pods) }) => {
                let claim = |pod: Pod| Pod { tag: pod.tag.replace(OTHER_DEPLOYMENT, DEPLOYMENT), ..pod };
                vec![ProviderEvent::Listed { result: Ok(pods.into_iter().map(claim).collect()) }]
            }
            (Some(Sabotage::AcceptAnyMachine), ProviderEvent::Listed { result: Ok(pods) }) => {
                vec![ProviderEvent::Listed { result: Ok(pods.into_iter().map(without_details).collect()) }]
            }
            (Some(Sabotage::AcceptAnyMachine), ProviderEvent::Rented { machine, result: Ok(pod) }) => {
                vec![ProviderEvent::Rented { machine, result: Ok(without_details(pod)) }]
            }
            (Some(Sabotage::IgnoreWaits), ProviderEvent::Listed { result: Err(fault) }) => {
                vec![ProviderEvent::Listed { result: Err(without_wait(fault)) }]
            }
            (Some(Sabotage::IgnoreWaits), ProviderEvent::Rented { machine, result: Err(fault) }) => {
                vec![ProviderEvent::Rented { machine, result: Err(without_wait(fault)) }]
            }
            (Some(Sabotage::StopOnRefusedKey), news) => vec![with_long_wait(news)],
            (Some(Sabotage::TrustOneRefusal), ProviderEvent::Listed { .. }) if self.account.was_refused => {
                let fault = ProviderError::new(ProviderErrorClass::Auth, "401");
                vec![ProviderEvent::Listed { result: Err(fault) }]
            }
            (_, news) => vec![news],
        }
    }

    /// Whether a call is reported as done without being made.
    pub(in crate::world) fn is_faked(&self, call: &ProviderCall) -> bool {
        self.is_sabotaged(Sabotage::FakeReturns) && matches!(call, ProviderCall::Return { .. })
    }

    /// Whether a call with an unknown outcome is repeated.
    pub(in crate::world) fn is_repeated_call(&self, news: &ProviderEvent) -> bool {
        let is_unknown = matches!(news, ProviderEvent::Rented { result: Err(fault), .. }
            if fault.class == ProviderErrorClass::Ambiguous);
        self.is_sabotaged(Sabotage::RentAgain) && is_unknown
    }

    /// Lets a machine that was given up join under another name.
    pub(in crate::world) fn forged_join(
        &self,
        driver: &Driver,
        mut join: Box<JoinRequest>,
        proof: JoinProof,
    ) -> (Box<JoinRequest>, JoinProof) {
        let rental = join.machine.as_ref().and_then(|machine| driver.plane.rental(machine));
        let is_late = rental.is_some_and(|rental| rental.phase() == RentalPhase::Returning);
        if !is_late || !self.is_sabotaged(Sabotage::AdmitRetiredMachines) {
            return (join, proof);
        }
        let name = format!("late-{}", join.worker);
        (join.machine, join.fleet) = (None, None);
        join.worker = name.parse().unwrap_or(join.worker);
        (join, JoinProof::JoinToken)
    }

    /// Hides that a machine is not ready.
    pub(in crate::world) fn maybe_hide_unready(&self, beat: &mut Beat) {
        if self.is_sabotaged(Sabotage::WorkBeforeReady) {
            beat.check = None;
            beat.unavailable_reason = None;
        }
    }

    /// Lifts the creation brake as soon as it is on.
    pub(in crate::world) fn maybe_lift_brakes(&mut self) {
        if self.is_sabotaged(Sabotage::NoCreationBrake) {
            let fleets: Vec<_> = self.scenario.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            for fleet in fleets {
                let id = self.next_call();
                let request = PlaneRequest::Order { fleet, order: FleetOrder::ResetBrake };
                self.arrive(net::PlaneCall { from: Caller::None, id, request });
            }
        }
    }

    pub(super) fn maybe_forget_machines(&self, stored: &mut StoredState) {
        if self.is_sabotaged(Sabotage::ForgetMachines) {
            stored.documents.retain(|document| document.collection != Collection::Machine);
        }
    }
}

fn without_details(pod: Pod) -> Pod {
    Pod { kind: String::new(), price: None, ..pod }
}

/// A refused key in the place of a rate limit of five minutes.
fn with_long_wait(news: ProviderEvent) -> ProviderEvent {
    let limited = |fault: ProviderError| {
        let class = match fault.class {
            ProviderErrorClass::Auth => ProviderErrorClass::RateLimited,
            other => other,
        };
        let wait = if class == fault.class { fault.wait } else { Some(Duration::from_secs(300)) };
        ProviderError { class, wait, ..fault }
    };
    match news {
        ProviderEvent::Listed { result } => ProviderEvent::Listed { result: result.map_err(limited) },
        ProviderEvent::Returned { pod, result } => {
            ProviderEvent::Returned { pod, result: result.map_err(limited) }
        }
        ProviderEvent::Priced { result } => ProviderEvent::Priced { result: result.map_err(limited) },
        ProviderEvent::Rented { machine, result } => {
            ProviderEvent::Rented { machine, result: result.map_err(limited) }
        }
        news @ ProviderEvent::Bootstrapped { .. } => news,
    }
}

fn without_wait(fault: ProviderError) -> ProviderError {
    ProviderError { class: ProviderErrorClass::Transient, wait: None, ..fault }
}
