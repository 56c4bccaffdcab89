//! The WebSocket on which a service announces what it does. Messages are lost, late, duplicated, or about foreign
//! prompts. The socket closes and opens again, and may stay mute after that until it is reopened.

use remuda_core::agent::AgentEvent;
use remuda_core::service::ServiceEvent;

use crate::event_queue::SimEvent;
use crate::sabotage::Sabotage;
use crate::service::SocketMessage;
use crate::world::World;

impl World<'_> {
    pub(in crate::world) fn send_message(&mut self, host: usize, message: SocketMessage) {
        let socket = self.hosts[host].service.socket;
        let fault_rates = self.scenario.fault_rates;
        if !socket.is_open || socket.mute_since.is_some() || self.draw_fault(fault_rates.messages_lost) {
            return;
        }
        if self.draw_fault(fault_rates.messages_disordered) {
            let late = self.random.below(5000);
            self.schedule_for_host(host, late, |process| SimEvent::SocketMessage { host, process, message });
            if self.random.permille(500) {
                return;
            }
        }
        self.schedule_for_host(host, 0, |process| SimEvent::SocketMessage { host, process, message });
    }

    pub(in crate::world) fn socket_message(&mut self, host: usize, process: u32, message: SocketMessage) {
        if self.hosts[host].process != process {
            return;
        }
        match message {
            SocketMessage::Progress((job, attempt), progress) => {
                self.hosts[host].signals += 1;
                let phase = String::new();
                self.step_agent(host, AgentEvent::Signal { job, attempt, progress, phase });
            }
            SocketMessage::Done(key) if self.hosts[host].service.plan.reports_outcome => {
                self.report_outcome(host, key);
            }
            SocketMessage::Done((job, attempt)) if self.is_sabotaged(Sabotage::TrustDoneMessages) => {
                let outcome = remuda_core::service::AttemptEnd::Completed { result: self.result.clone() };
                self.step_agent(host, AgentEvent::Ended { job, attempt, outcome });
            }
            SocketMessage::Done((job, attempt)) => {
                self.step_agent(host, AgentEvent::CompletionHint { job, attempt });
            }
            SocketMessage::Foreign => {}
        }
    }

    /// Opens a new socket as soon as the service accepts it.
    pub(in crate::world) fn open_socket(&mut self, host: usize, delay: u64) {
        let socket = &mut self.hosts[host].service.socket;
        (socket.is_open, socket.mute_since) = (false, None);
        socket.number += 1;
        let number = socket.number;
        self.schedule_for_host(host, delay, |process| SimEvent::SocketOpen { host, process, number });
    }

    pub(in crate::world) fn socket_opens(&mut self, host: usize, process: u32, number: u32) {
        let it = &self.hosts[host];
        if it.process != process || it.agent.is_none() || it.service.socket.number != number {
            return;
        }
        if !it.service.is_up(self.now) || self.now < it.service.mute_until {
            let again = self.random.between(500, 3000);
            return self.at(again, SimEvent::SocketOpen { host, process, number });
        }
        let is_mute = number > 1 && self.draw_fault(self.scenario.fault_rates.mute_sockets);
        let (now, life) = (self.now, self.hosts[host].confirm_incarnation());
        let socket = &mut self.hosts[host].service.socket;
        (socket.is_open, socket.mute_since) = (true, is_mute.then_some(now));
        self.step_agent(host, AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: life }));
    }

    /// The connection breaks, which is noticed at once or later.
    pub(in crate::world) fn break_socket(&mut self, host: usize) {
        let is_half_open = self.draw_fault(300);
        let noticed = if is_half_open { self.random.below(20_000) } else { self.random.below(20) };
        self.hosts[host].service.socket.is_open = false;
        let number = self.hosts[host].service.socket.number;
        self.schedule_for_host(host, noticed, |process| SimEvent::SocketClosed { host, process, number });
    }

    pub(in crate::world) fn socket_closed(&mut self, host: usize, process: u32, number: u32) {
        let it = &self.hosts[host];
        if it.process != process || it.agent.is_none() || it.service.socket.number != number {
            return;
        }
        self.hosts[host].incarnations.suspect_restart();
        let delay = self.random.between(100, 2000);
        self.open_socket(host, delay);
        let why = "connection reset".to_owned();
        self.step_agent(host, AgentEvent::Service(ServiceEvent::SocketClosed { why }));
    }

    pub(in crate::world) fn reopen_socket(&mut self, host: usize) {
        if !self.is_sabotaged(Sabotage::NeverReopen) {
            let delay = self.random.between(5, 100);
            self.open_socket(host, delay);
        }
    }
}
