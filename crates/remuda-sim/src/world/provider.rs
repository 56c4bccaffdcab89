//! Calls from the plane to the provider: one queue per plane and fleet, one call at a time. `answers` decides what the
//! provider does and says, `machine` runs the machine inside a pod.

mod answers;
mod machine;

use remuda_core::id::FleetId;
use remuda_core::provider::{ProviderCall, ProviderEvent};

use super::World;
use crate::event_queue::SimEvent;
use crate::net::{self, Caller, PlaneRequest};
use crate::trouble::Trouble;

impl World<'_> {
    /// Draws whether a trouble occurs, and counts it.
    pub(super) fn draw_trouble(&mut self, trouble: Trouble) -> bool {
        let permille_for = self.account.troubles.permille_for(trouble);
        let happens = !self.is_calm && self.random.permille(permille_for);
        if happens {
            self.account.count_trouble(trouble);
            self.note("trouble", trouble as u64, 0);
            self.trace_line(&format!("trouble {trouble:?}"));
        }
        happens
    }

    pub(super) fn begin_trouble(&mut self, trouble: Trouble, lasts: u64) {
        let until = (self.now + lasts).min(self.scenario.storm_end);
        self.account.count_trouble(trouble);
        if trouble == Trouble::NoCapacity {
            let offers: Vec<_> = self.account.offers.keys().cloned().collect();
            for offer in offers {
                if self.random.permille(700) {
                    self.account.empty.insert(offer, until);
                }
            }
            return;
        }
        self.account.active.insert(trouble, until);
    }

    pub(super) fn calm_provider(&mut self) {
        self.account.active.clear();
        self.account.empty.clear();
    }

    /// Queues a call to a fleet's provider; `quiet_until`: until when the fleet had to wait when that was decided.
    pub(super) fn queue_provider_call(
        &mut self,
        driver: usize,
        fleet: FleetId,
        call: ProviderCall,
        quiet_until: Option<u64>,
    ) {
        let is_late = self.lead != Some(driver);
        self.laws.provider_call_queued(self.now, &fleet, &call, quiet_until, is_late, &self.store);
        let queue = self.account.call_queues.entry((driver, fleet.clone())).or_default();
        queue.waiting.push_back(call);
        self.send_next_call(driver, fleet);
    }

    fn send_next_call(&mut self, driver: usize, fleet: FleetId) {
        let number = self.next_call();
        let Some(queue) = self.account.call_queues.get_mut(&(driver, fleet.clone())) else { return };
        if queue.under_way.is_some() {
            return;
        }
        let Some(call) = queue.waiting.pop_front() else { return };
        queue.under_way = Some(number);
        if self.is_traced() {
            self.trace_line(&format!("call {number} for {fleet}: {call:?}"));
        }
        let delay = self.random.between(5, 300);
        let call = Box::new(call);
        self.at(delay, SimEvent::ProviderCallArrives { driver, fleet, number, call });
    }

    /// A call reaches the provider, unless the plane died before it was sent.
    pub(super) fn provider_call_arrives(
        &mut self,
        driver: usize,
        fleet: FleetId,
        number: u64,
        call: &ProviderCall,
    ) {
        let is_removed = self.drivers[driver].is_none();
        if is_removed && self.random.permille(500) {
            return;
        }
        self.note("provider", number, driver as u64);
        self.laws.provider_call_sent(self.now, &fleet, call);
        let (mut news, mut delay) = self.answer_call(driver, &fleet, call);
        if self.is_repeated_call(&news) {
            self.laws.provider_call_sent(self.now, &fleet, call);
            (news, delay) = self.answer_call(driver, &fleet, call);
        }
        if self.is_traced() {
            self.trace_line(&format!("call {number}: {news:?} in {delay} ms"));
        }
        self.at(delay, SimEvent::ProviderAnswer { driver, fleet, number, news: Box::new(news) });
    }

    pub(super) fn provider_answer(
        &mut self,
        driver: usize,
        fleet: FleetId,
        number: u64,
        news: Box<ProviderEvent>,
    ) {
        let Some(queue) = self.account.call_queues.get_mut(&(driver, fleet.clone())) else { return };
        if queue.under_way != Some(number) {
            return;
        }
        queue.under_way = None;
        self.laws.answered(self.now, &fleet, &news);
        let is_list = matches!(*news, ProviderEvent::Listed { .. });
        if let ProviderEvent::Listed { result: Ok(listed) } = &*news {
            self.laws.listed(self.now, &fleet, listed, self.is_calm, &self.account);
        }
        let news = self.forged_provider_events(*news);
        self.account.was_refused = self.account.has_hiccuped || self.account.was_refused && !is_list;
        for news in news {
            let id = self.next_call();
            let request = PlaneRequest::ProviderEvent { fleet: fleet.clone(), news: Box::new(news) };
            self.deliver(driver, net::PlaneCall { from: Caller::None, id, request });
        }
        self.send_next_call(driver, fleet);
    }

    /// Calls of a plane that ended are dropped, with their answers.
    pub(super) fn drop_provider_calls(&mut self, driver: usize) {
        self.account.call_queues.retain(|(of, _), _| *of != driver);
    }

    /// A reloaded plane may lose its queued calls; it still gets the answer to the call under way.
    pub(super) fn maybe_drop_queued_calls(&mut self, driver: usize) {
        if self.random.permille(500) {
            let call_queues = self.account.call_queues.iter_mut().filter(|((of, _), _)| *of == driver);
            call_queues.for_each(|(_, queue)| queue.waiting.clear());
        }
    }
}
