//! Messages between agents, clients and the plane. `world::network` delivers them.

use remuda_core::agent::CallError;
use remuda_core::fleet::FleetOrder;
use remuda_core::id::{FleetId, Hash, JobId, MachineId, WorkerId};
use remuda_core::plane::Proof;
use remuda_core::provider::ProviderEvent;
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest};

/// A question on its way to the plane.
#[derive(Clone, Debug)]
pub(crate) struct PlaneCall {
    pub(crate) from: Caller,
    pub(crate) id: u64,
    pub(crate) request: PlaneRequest,
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
    None,
}

#[derive(Clone, Debug)]
pub(crate) enum PlaneRequest {
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
    ConnectionLost {
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
    ProviderEvent {
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
pub(crate) enum AgentResponse {
    Joined(JoinReply, Hash),
    Reply(BeatReply),
    Failed(CallError),
    /// Its machine was given up: it is to stop.
    Unwanted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) cut_up_until: u64,
    pub(crate) cut_down_until: u64,
}

/// What a client hears.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientResponse {
    Accepted { job: JobId, is_new: bool },
    Conflict { job: JobId },
    RetryLater,
    CancelDone,
}
