//! The network between agents, clients and the plane. A message may take its time, get lost on the way there or back,
//! come twice, overtake another, or come again minutes later. Nobody is told what became of it.

use remuda_core::agent::CallError;
use remuda_core::fleet::FleetOrder;
use remuda_core::id::{FleetId, Hash, MachineId, WorkerId};
use remuda_core::plane::Proof;
use remuda_core::provider::ProviderEvent;
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest};

use crate::client::Told;
use crate::happening::Happening;
use crate::world::World;

/// A question on its way to the plane.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) from: Caller,
    pub(crate) id: u64,
    pub(crate) ask: Ask,
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Host {
        host: usize,
        process: u32,
    },
    Client(usize),
    /// A copy of a message, or the plane's own doing: nobody waits.
    Nobody,
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Join {
        join: Box<JoinRequest>,
        proof: Proof,
    },
    Beat {
        worker: WorkerId,
        token: Hash,
        beat: Box<Beat>,
        wait: u64,
    },
    Leave {
        worker: WorkerId,
        token: Hash,
    },
    LineDropped {
        worker: WorkerId,
        seq: u64,
    },
    Submit {
        client: usize,
        is_changed: bool,
    },
    Cancel {
        client: usize,
    },
    Drain {
        worker: WorkerId,
    },
    LiftBlocks,
    /// What a provider said.
    News {
        fleet: FleetId,
        news: Box<ProviderEvent>,
    },
    /// What a person wants of a fleet, or of a machine.
    Order {
        fleet: FleetId,
        order: FleetOrder,
    },
    DrainMachine {
        machine: MachineId,
        within: Option<u64>,
    },
    /// What this deployment is called.
    Deployment,
}

#[derive(Clone, Debug)]
pub(crate) enum Answered {
    Joined(JoinReply, Hash),
    Reply(BeatReply),
    Not(CallError),
    /// Its machine was given up: it is to stop.
    NotWanted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) cut_up_until: u64,
    pub(crate) cut_down_until: u64,
}

/// A call's fate on one way.
enum Way {
    Lost,
    After(u64),
}

impl World<'_> {
    /// Sends a host's call up; what is lost shows as silence, or sometimes as an error at once.
    pub(crate) fn send_up(&mut self, host: usize, call: Call) {
        let is_cut = self.now < self.hosts[host].link.cut_up_until;
        let Way::After(delay) = self.way(is_cut) else {
            self.hosts[host].is_pristine = false;
            self.maybe_reset(host, &call);
            return;
        };
        if self.is_copied(self.scene.copies) {
            let delay = self.random.between(1, 3000);
            self.send_copy(&call, delay);
        }
        if self.is_copied(self.scene.late_copies) {
            let delay = self.random.between(10_000, 300_000);
            self.send_copy(&call, delay);
        }
        self.at(delay, Happening::Arrive(Box::new(call)));
    }

    /// A connection that breaks is noticed at once by some, and by the rest when their patience ends.
    fn maybe_reset(&mut self, host: usize, call: &Call) {
        if let Caller::Host { process, .. } = call.from
            && self.random.permille(300)
        {
            let answer = Answered::Not(CallError::Unreachable("connection reset".to_owned()));
            let delay = self.random.between(1, 1000);
            self.at(delay, Happening::Answer { host, process, call: call.id, answer: Box::new(answer) });
        }
    }

    fn is_copied(&mut self, permille: u64) -> bool {
        !self.is_calm && self.random.permille(permille)
    }

    /// Joins are not copied: nobody but the agent repeats them.
    fn send_copy(&mut self, call: &Call, delay: u64) {
        if matches!(call.ask, Ask::Beat { .. }) {
            let copy = Call { from: Caller::Nobody, ..call.clone() };
            self.at(delay, Happening::Arrive(Box::new(copy)));
        }
    }

    /// Brings an answer back; whether anything was lost on the way.
    pub(crate) fn send_down(&mut self, to: Caller, call: u64, answer: Answered) -> bool {
        let Caller::Host { host, process } = to else { return false };
        let is_cut = self.now < self.hosts[host].link.cut_down_until;
        match self.way(is_cut) {
            Way::Lost => {
                self.hosts[host].is_pristine = false;
                true
            }
            Way::After(delay) => {
                self.at(delay, Happening::Answer { host, process, call, answer: Box::new(answer) });
                false
            }
        }
    }

    pub(crate) fn send_to_client(&mut self, client: usize, call: u64, told: Told) {
        if let Way::After(delay) = self.way(false) {
            self.at(delay, Happening::ToClient { client, call, told });
        }
    }

    pub(crate) fn client_sends(&mut self, client: usize, call: Call) {
        let id = call.id;
        if let Way::After(delay) = self.way(false) {
            self.at(delay, Happening::Arrive(Box::new(call)));
        }
        let patience = self.random.between(5000, 10_000);
        self.at(patience, Happening::ClientGaveUp { client, call: id });
    }

    fn way(&mut self, is_cut: bool) -> Way {
        let is_foul = self.now < self.foul_until;
        let loss = match (self.is_calm, is_foul) {
            (true, _) => 0,
            (false, true) => 300,
            (false, false) => self.scene.loss,
        };
        if is_cut || self.random.permille(loss) {
            return Way::Lost;
        }
        Way::After(if is_foul { self.random.between(1500, 2500) } else { self.random.between(1, 40) })
    }

    pub(crate) fn cut(&mut self, host: usize, up: Option<u64>, down: Option<u64>) {
        let host = &mut self.hosts[host];
        host.is_pristine = false;
        let link = &mut host.link;
        link.cut_up_until = link.cut_up_until.max(up.unwrap_or(0));
        link.cut_down_until = link.cut_down_until.max(down.unwrap_or(0));
    }
}
