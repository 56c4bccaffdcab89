//! The socket on which a service says what it does. Messages are lost, late, doubled and meant for others; the socket
//! closes and opens again, and may be deaf from then on until somebody opens it anew.

use remuda_core::agent::AgentEvent;
use remuda_core::service::ServiceEvent;

use super::Key;
use crate::happening::Happening;
use crate::sabotage::Sabotage;
use crate::world::World;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Socket {
    pub(super) is_open: bool,
    /// Since when it hears nothing.
    pub(crate) deaf_since: Option<u64>,
    /// Which one it is: only the newest is ever opened.
    number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Progress(Key, f32),
    /// It is over, one way or another.
    Done(Key),
    /// About something that somebody else handed in.
    Foreign,
}

impl World<'_> {
    pub(crate) fn say_over_socket(&mut self, host: usize, message: Message) {
        let socket = self.hosts[host].service.socket;
        let oddities = self.scene.oddities;
        if !socket.is_open || socket.deaf_since.is_some() || self.is_odd(oddities.messages_lost) {
            return;
        }
        if self.is_odd(oddities.messages_odd) {
            let late = self.random.below(5000);
            self.at_host(host, late, |process| Happening::Heard { host, process, message });
            if self.random.permille(500) {
                return;
            }
        }
        self.at_host(host, 0, |process| Happening::Heard { host, process, message });
    }

    pub(crate) fn heard(&mut self, host: usize, process: u32, message: Message) {
        if self.hosts[host].process != process {
            return;
        }
        match message {
            Message::Progress((job, attempt), progress) => {
                let phase = String::new();
                self.tell_agent(host, AgentEvent::Signal { job, attempt, progress, phase });
            }
            Message::Done(key) if self.hosts[host].service.plan.is_plain => self.end_plainly(host, key),
            Message::Done((job, attempt)) if self.is_sabotaged(Sabotage::BelieveMessages) => {
                let outcome = remuda_core::agent::AttemptEnd::Completed { result: self.result.clone() };
                self.tell_agent(host, AgentEvent::Ended { job, attempt, outcome });
            }
            Message::Done((job, attempt)) => {
                self.tell_agent(host, AgentEvent::SaidDone { job, attempt });
            }
            Message::Foreign => {}
        }
    }

    /// It is opened as soon as it can be.
    pub(crate) fn open_socket(&mut self, host: usize, delay: u64) {
        let socket = &mut self.hosts[host].service.socket;
        (socket.is_open, socket.deaf_since) = (false, None);
        socket.number += 1;
        let number = socket.number;
        self.at_host(host, delay, |process| Happening::SocketOpens { host, process, number });
    }

    pub(crate) fn socket_opens(&mut self, host: usize, process: u32, number: u32) {
        let it = &self.hosts[host];
        if it.process != process || it.agent.is_none() || it.service.socket.number != number {
            return;
        }
        if !it.service.is_up(self.now) || self.now < it.service.mute_until {
            let again = self.random.between(500, 3000);
            return self.at(again, Happening::SocketOpens { host, process, number });
        }
        let is_deaf = number > 1 && self.is_odd(self.scene.oddities.deaf);
        let (now, life) = (self.now, self.hosts[host].service.life);
        let socket = &mut self.hosts[host].service.socket;
        (socket.is_open, socket.deaf_since) = (true, is_deaf.then_some(now));
        self.tell_agent(host, AgentEvent::Service(ServiceEvent::SocketOpened { life }));
    }

    /// The connection breaks, which is noticed at once or when somebody tries it.
    pub(crate) fn break_socket(&mut self, host: usize) {
        let is_half_open = self.is_odd(300);
        let noticed = if is_half_open { self.random.below(20_000) } else { self.random.below(20) };
        self.hosts[host].service.socket.is_open = false;
        let number = self.hosts[host].service.socket.number;
        self.at_host(host, noticed, |process| Happening::SocketClosed { host, process, number });
    }

    pub(crate) fn socket_closed(&mut self, host: usize, process: u32, number: u32) {
        let it = &self.hosts[host];
        if it.process != process || it.agent.is_none() || it.service.socket.number != number {
            return;
        }
        let delay = self.random.between(100, 2000);
        self.open_socket(host, delay);
        let why = "connection reset".to_owned();
        self.tell_agent(host, AgentEvent::Service(ServiceEvent::SocketClosed { why }));
    }

    pub(crate) fn reopen_socket(&mut self, host: usize) {
        if !self.is_sabotaged(Sabotage::NeverReopen) {
            let delay = self.random.between(5, 100);
            self.open_socket(host, delay);
        }
    }
}
