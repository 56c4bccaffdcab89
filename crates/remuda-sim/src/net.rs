//! Messages between agents, clients and the plane. `world::network` delivers them.

use remuda_core::agent::CallError;
use remuda_core::clock::ClockStart;
use remuda_core::fleet::FleetOrder;
use remuda_core::id::{FleetId, Hash, JobId, MachineId, WorkerId};
use remuda_core::plane::JoinProof;
use remuda_core::provider::ProviderEvent;
use remuda_core::refusal::Refusal;
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest};

/// A call on its way to the plane.
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
    /// A duplicated message, or a call that the simulator makes for the plane: no one waits for the answer.
    None,
}

#[derive(Clone, Debug)]
pub(crate) enum PlaneRequest {
    Join {
        join: Box<JoinRequest>,
        proof: JoinProof,
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
    /// The result of a provider call.
    ProviderEvent {
        fleet: FleetId,
        news: Box<ProviderEvent>,
    },
    /// An operator's order for a fleet.
    Order {
        fleet: FleetId,
        order: FleetOrder,
    },
    DrainMachine {
        machine: MachineId,
        within: Option<u64>,
    },
    /// An operator changed the settings.
    Reload,
    /// Tells the plane the name of its deployment.
    Deployment,
    /// Tells the plane at which time it starts.
    ClockStarted(ClockStart),
}

#[derive(Clone, Debug)]
pub(crate) enum AgentResponse {
    Joined(JoinReply, Hash),
    Reply(BeatReply),
    Failed(CallError),
    /// The machine was given up and must stop.
    Unwanted,
}

impl AgentResponse {
    /// The answer to an agent whose call the plane refused.
    pub(crate) fn refused(refusal: Refusal) -> AgentResponse {
        AgentResponse::Failed(match refusal {
            Refusal::MachineRetired(_) => return AgentResponse::Unwanted,
            Refusal::UnknownWorker(_) => CallError::Unknown,
            refusal @ (Refusal::StaleIncarnation { .. }
            | Refusal::WrongToken
            | Refusal::IdentityUnproven(_)) => CallError::Replaced(refusal.to_string()),
            refusal => CallError::Unreachable(refusal.to_string()),
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) cut_up_until: u64,
    pub(crate) cut_down_until: u64,
}

/// What a client gets as an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientResponse {
    Accepted { job: JobId, created: bool },
    Conflict { job: JobId },
    RetryLater,
    CancelDone,
}
