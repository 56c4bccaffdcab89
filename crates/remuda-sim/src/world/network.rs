//! Delivery of calls and answers between agents, clients and the plane: delayed, lost, duplicated, reordered, or
//! repeated minutes later. The sender learns only from a timeout, or sometimes from a connection reset.

use remuda_core::agent::CallError;

use super::World;
use crate::event_queue::SimEvent;
use crate::net::{AgentResponse, Caller, ClientResponse, PlaneCall, PlaneRequest};

/// What happens to a message.
enum Transit {
    Lost,
    After(u64),
}

impl World<'_> {
    /// Sends an agent's call to the plane. A lost call ends in the agent's timeout, or sometimes in a connection reset.
    pub(super) fn send_to_plane(&mut self, host: usize, call: PlaneCall) {
        let is_cut = self.now < self.hosts[host].link.cut_up_until;
        let Transit::After(delay) = self.transit(is_cut) else {
            self.hosts[host].is_pristine = false;
            self.maybe_reset(host, &call);
            return;
        };
        self.maybe_send_copies(&call);
        self.at(delay, SimEvent::CallArrives(Box::new(call)));
    }

    /// Some broken connections are noticed at once, the others by the timeout.
    fn maybe_reset(&mut self, host: usize, call: &PlaneCall) {
        if let Caller::Host { process, .. } = call.from
            && self.random.permille(300)
        {
            let answer = AgentResponse::Failed(CallError::Unreachable("connection reset".to_owned()));
            let delay = self.random.between(1, 1000);
            self.at(
                delay,
                SimEvent::AgentResponse { host, process, call: call.id, answer: Box::new(answer) },
            );
        }
    }

    fn draw_copy(&mut self, permille: u64) -> bool {
        !self.is_calm && self.random.permille(permille)
    }

    /// Sends a message a second time, and sometimes a third time minutes later. No one waits for those answers.
    fn maybe_send_copies(&mut self, call: &PlaneCall) {
        if self.draw_copy(self.scenario.copies) {
            let delay = self.random.between(1, 3000);
            self.send_copy(call, delay);
        }
        if self.draw_copy(self.scenario.late_copies) {
            let delay = self.random.between(10_000, 300_000);
            self.send_copy(call, delay);
        }
    }

    /// A submission without an idempotency key is the one message that has no copies: a copy of it is a second job.
    fn send_copy(&mut self, call: &PlaneCall, delay: u64) {
        if let PlaneRequest::Submit { client, .. } = call.request
            && !self.scenario.jobs[client].has_key
        {
            return;
        }
        let copy = PlaneCall { from: Caller::None, ..call.clone() };
        self.at(delay, SimEvent::CallArrives(Box::new(copy)));
    }

    /// Sends an answer to an agent. Returns whether it was lost.
    pub(super) fn send_to_agent(&mut self, to: Caller, call: u64, answer: AgentResponse) -> bool {
        let Caller::Host { host, process } = to else { return false };
        let is_cut = self.now < self.hosts[host].link.cut_down_until;
        match self.transit(is_cut) {
            Transit::Lost => {
                self.hosts[host].is_pristine = false;
                true
            }
            Transit::After(delay) => {
                self.at(delay, SimEvent::AgentResponse { host, process, call, answer: Box::new(answer) });
                false
            }
        }
    }

    pub(super) fn send_to_client(&mut self, client: usize, call: u64, response: ClientResponse) {
        if let Transit::After(delay) = self.transit(false) {
            self.at(delay, SimEvent::ClientResponse { client, call, response });
        }
    }

    pub(super) fn send_from_client(&mut self, client: usize, call: PlaneCall) {
        let id = call.id;
        if let Transit::After(delay) = self.transit(false) {
            self.maybe_send_copies(&call);
            self.at(delay, SimEvent::CallArrives(Box::new(call)));
        }
        let timeout = self.random.between(5000, 10_000);
        self.at(timeout, SimEvent::ClientTimeout { client, call: id });
    }

    fn transit(&mut self, is_cut: bool) -> Transit {
        let is_degraded = self.now < self.degraded_until;
        let loss = match (self.is_calm, is_degraded) {
            (true, _) => 0,
            (false, true) => 300,
            (false, false) => self.scenario.loss,
        };
        if is_cut || self.random.permille(loss) {
            return Transit::Lost;
        }
        Transit::After(if is_degraded { self.random.between(1500, 2500) } else { self.random.between(1, 40) })
    }

    pub(super) fn cut_link(&mut self, index: usize, up: Option<u64>, down: Option<u64>) {
        let host = &mut self.hosts[index];
        host.is_pristine = false;
        let link = &mut host.link;
        link.cut_up_until = link.cut_up_until.max(up.unwrap_or(0));
        link.cut_down_until = link.cut_down_until.max(down.unwrap_or(0));
        self.maybe_forge_close(index);
    }
}
