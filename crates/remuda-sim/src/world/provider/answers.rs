//! What the provider answers to a call, and what it does. The two need not agree.

use std::time::Duration;

use remuda_core::id::{FleetId, MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};

use crate::event_queue::SimEvent;
use crate::provider::SimPod;
use crate::trouble::Trouble;
use crate::world::World;

/// How long the plane waits for an answer.
const CALL_TIMEOUT: u64 = 60_000;
/// How long a new pod may be missing from lists.
const LIST_LAG_MAX: u64 = 20_000;

type Answer<T> = (Result<T, ProviderError>, u64);

impl World<'_> {
    pub(super) fn answer_call(
        &mut self,
        driver: usize,
        fleet: &FleetId,
        call: &ProviderCall,
    ) -> (ProviderEvent, u64) {
        match call.clone() {
            ProviderCall::Rent { machine, tag, offer } => {
                let (result, delay) = self.rent(driver, fleet, &machine, &tag, &offer);
                (ProviderEvent::Rented { machine, result }, delay)
            }
            ProviderCall::List => {
                let (result, delay) = self.list();
                (ProviderEvent::Listed { result }, delay)
            }
            ProviderCall::Return { pod } if self.is_faked(call) => {
                (ProviderEvent::Returned { pod, result: Ok(()) }, 100)
            }
            ProviderCall::Return { pod } => {
                let (result, delay) = self.end_pod(&pod);
                (ProviderEvent::Returned { pod, result }, delay)
            }
            ProviderCall::Price => {
                let (result, delay) = self.prices(fleet);
                (ProviderEvent::Priced { result }, delay)
            }
            ProviderCall::Bootstrap { machine, .. } => {
                let delay = self.random.between(1000, 20_000);
                (ProviderEvent::Bootstrapped { machine, result: Ok(()) }, delay)
            }
        }
    }

    /// Refusals that any call can get.
    fn account_refusal(&mut self) -> Option<Answer<()>> {
        let delay = self.random.between(20, 500);
        let is_active = |world: &Self, trouble| world.account.is_active(trouble, world.now);
        if is_active(self, Trouble::Outage) {
            let hangs = self.random.permille(200);
            let delay = if hangs { CALL_TIMEOUT } else { delay };
            return Some((Err(ProviderError::new(ProviderErrorClass::Ambiguous, "502")), delay));
        }
        // Never two in a row: that would be a refused key.
        if !std::mem::take(&mut self.account.has_hiccuped) && self.draw_trouble(Trouble::KeyHiccup) {
            self.account.has_hiccuped = true;
            let message = if delay.is_multiple_of(2) { "401" } else { "403" };
            return Some((Err(ProviderError::new(ProviderErrorClass::Auth, message)), delay));
        }
        if is_active(self, Trouble::KeyRefused) {
            return Some((Err(ProviderError::new(ProviderErrorClass::Auth, "401")), delay));
        }
        if is_active(self, Trouble::RateLimit) && self.random.permille(600) {
            let wait = self.random.permille(700).then(|| Duration::from_secs(self.random.between(5, 120)));
            return Some((
                Err(ProviderError { wait, ..ProviderError::new(ProviderErrorClass::RateLimited, "429") }),
                delay,
            ));
        }
        None
    }

    fn rent(
        &mut self,
        driver: usize,
        fleet: &FleetId,
        machine: &MachineId,
        tag: &str,
        offer: &str,
    ) -> Answer<Pod> {
        let delay = self.random.between(500, 6000);
        if let Some((Err(fault), delay)) = self.account_refusal() {
            return (Err(fault), delay);
        }
        if self.account.is_active(Trouble::NoCredit, self.now) {
            return (Err(ProviderError::new(ProviderErrorClass::Billing, "402")), delay);
        }
        if self.account.empty.get(offer).is_some_and(|until| self.now < *until) {
            return (Err(ProviderError::new(ProviderErrorClass::Capacity, "no instances available")), delay);
        }
        let ambiguous = |what: &str| Err(ProviderError::new(ProviderErrorClass::Ambiguous, what));
        if self.draw_trouble(Trouble::ErrorNotMade) {
            return (ambiguous("500"), delay);
        }
        if self.draw_trouble(Trouble::CreateHangs) {
            return (ambiguous("no answer"), CALL_TIMEOUT);
        }
        let pod = self.create_pod(driver, fleet, machine, tag, offer);
        let listed = pod.listed(self.now, false);
        self.account.pods.insert(pod.id.clone(), pod);
        self.laws.pod_created(self.now, fleet, tag);
        self.laws.pods_changed(self.now, fleet, &self.account, &self.scenario);
        if self.draw_trouble(Trouble::AnswerLost) {
            return (ambiguous("no answer"), CALL_TIMEOUT);
        }
        if self.draw_trouble(Trouble::ErrorThoughMade) {
            return (ambiguous("500"), delay);
        }
        (Ok(listed), delay)
    }

    fn create_pod(
        &mut self,
        driver: usize,
        fleet: &FleetId,
        machine: &MachineId,
        tag: &str,
        offer: &str,
    ) -> SimPod {
        let now = self.now;
        let price = self.account.offers.get(offer).copied().unwrap_or_default();
        let is_recorded = self.store.machine(machine.as_str()).is_some();
        let base = self.account.new_pod(now, &mut self.random);
        let fate = if self.is_calm { None } else { base.fate.or_else(|| self.draw_fate()) };
        if fate == Some(Trouble::BadHosts) {
            self.account.count_trouble(Trouble::BadHosts);
        }
        let mut pod = SimPod {
            tag: tag.to_owned(),
            fleet: Some(fleet.clone()),
            offer: offer.to_owned(),
            kind: offer.to_owned(),
            price,
            quoted_price: Some(price),
            fate,
            is_created_by_old_plane: !is_recorded && self.lead != Some(driver),
            ..base
        };
        if self.draw_trouble(Trouble::ListedLate) {
            pod.listed_from = now + self.random.below(LIST_LAG_MAX);
        }
        match fate {
            Some(Trouble::WrongGpu) => "T4".clone_into(&mut pod.kind),
            Some(Trouble::PricierPod) => {
                pod.price = price.plus(price);
                pod.quoted_price = Some(pod.price);
            }
            Some(Trouble::NoPrice) => pod.quoted_price = self.random.permille(500).then_some(Money::ZERO),
            _ => {}
        }
        self.plan_start(&mut pod);
        pod
    }

    fn draw_fate(&mut self) -> Option<Trouble> {
        const FATES: [Trouble; 12] = [
            Trouble::NeverRuns,
            Trouble::NoAgent,
            Trouble::LateAgent,
            Trouble::BadGpu,
            Trouble::SlowModels,
            Trouble::WrongGpu,
            Trouble::PricierPod,
            Trouble::NoPrice,
            Trouble::PodExits,
            Trouble::PodVanishes,
            Trouble::HostDies,
            Trouble::NoSelfStop,
        ];
        FATES.into_iter().find(|fate| self.draw_trouble(*fate))
    }

    fn list(&mut self) -> Answer<Vec<Pod>> {
        let delay = self.random.between(50, 1500);
        if let Some((Err(fault), delay)) = self.account_refusal() {
            return (Err(fault), delay);
        }
        if self.draw_trouble(Trouble::ListFails) {
            let class = self.random.pick(&[ProviderErrorClass::Transient, ProviderErrorClass::Ambiguous]);
            return (Err(ProviderError::new(class, "the second page of the list failed")), delay);
        }
        let now = self.now;
        let seen = self.account.pods.values().filter(|pod| pod.is_alive() && pod.listed_from <= now);
        let seen: Vec<_> =
            seen.map(|pod| (pod.id.clone(), pod.runs_at.is_some_and(|at| at <= now))).collect();
        let mut listed = Vec::new();
        for (id, runs) in seen {
            let flickers = runs && self.draw_trouble(Trouble::StatusFlickers);
            listed.extend(self.account.pods.get(&id).map(|pod| pod.listed(now, flickers)));
        }
        // Newest first.
        listed.reverse();
        if self.draw_trouble(Trouble::ListEmpty) {
            listed.clear();
        } else if self.draw_trouble(Trouble::ListCut) {
            listed.truncate(listed.len() / 3);
        } else if !listed.is_empty() && self.draw_trouble(Trouble::ListOmits) {
            let at = self.random.index(listed.len());
            listed.remove(at);
        }
        (Ok(listed), delay)
    }

    fn end_pod(&mut self, id: &PodId) -> Answer<()> {
        let delay = self.random.between(100, 3000);
        let grace = self.scenario.fleets.iter().map(|plan| plan.settings.limits.orphan_grace).min();
        let grace = grace.map_or(0, |grace| grace.as_millis() as u64);
        self.laws.returned(self.now, id, &self.account, grace);
        if let Some(refusal) = self.account_refusal() {
            return refusal;
        }
        let ambiguous = || Err(ProviderError::new(ProviderErrorClass::Ambiguous, "500"));
        let now = self.now;
        let is_there = |pod: &&SimPod| pod.is_alive() && pod.listed_from <= now;
        if self.account.pods.get(id).filter(is_there).is_none() {
            return (Err(ProviderError::new(ProviderErrorClass::NotFound, "404")), delay);
        }
        if self.draw_trouble(Trouble::ReturnFails) {
            return (ambiguous(), delay);
        }
        if self.draw_trouble(Trouble::ReturnIgnored) {
            // Some disappear later by themselves, the others when the return is repeated.
            if self.random.permille(500) {
                let later = self.random.between(5000, 300_000);
                self.at(later, SimEvent::PodDelete { pod: id.clone() });
            }
            return (Ok(()), delay);
        }
        self.delete_pod(id);
        if self.draw_trouble(Trouble::ErrorThoughReturned) {
            return (ambiguous(), delay);
        }
        (Ok(()), delay)
    }

    fn prices(&mut self, fleet: &FleetId) -> Answer<std::collections::BTreeMap<String, Money>> {
        let delay = self.random.between(50, 500);
        if let Some((Err(fault), delay)) = self.account_refusal() {
            return (Err(fault), delay);
        }
        let mut prices = self.account.offers.clone();
        if self.draw_trouble(Trouble::NoPrice) {
            prices.retain(|_, _| self.random.permille(500));
        }
        self.account.quoted_offers.insert(fleet.clone(), prices.keys().cloned().collect());
        (Ok(prices), delay)
    }
}
