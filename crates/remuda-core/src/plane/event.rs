//! Events, answers and effects of the plane.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::JobSubmission;
use crate::affinity::Affinity;
use crate::clock::ClockStart;
use crate::cycle;
use crate::document::{Collection, Document};
use crate::fleet;
use crate::id::{FleetId, Hash, JobId, MachineId, Shape, Tenant, WorkerId};
use crate::provider;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;
use crate::wire::{Beat, BeatReply, JoinReply, JoinRequest};

/// Something that happened outside.
#[derive(Clone, Debug)]
pub enum PlaneEvent {
    Submit(Box<JobSubmission>),
    Cancel {
        job: JobId,
        message: String,
    },
    /// `proof`: how the caller proved its identity; workers of rented machines must.
    Join {
        join: Box<JoinRequest>,
        token_hash: Hash,
        proof: JoinProof,
    },
    /// `long_poll`: the connection stays open for orders.
    Beat {
        worker: WorkerId,
        token_hash: Hash,
        beat: Box<Beat>,
        long_poll: bool,
    },
    /// A long poll was closed by the worker's end, usually because it sends its next beat.
    ConnectionDropped {
        worker: WorkerId,
        seq: u64,
    },
    /// Whether the plane's own listener answers the plane itself: if not, it hears no worker.
    ListenerChecked {
        is_answering: bool,
    },
    /// A worker leaves (with its token), or an operator removes it.
    Leave {
        worker: WorkerId,
        token_hash: Option<Hash>,
        reason: String,
    },
    /// No new work for this worker; it terminates when it holds nothing, or after `within`.
    Drain {
        worker: WorkerId,
        reason: String,
        within: Option<Duration>,
    },
    /// The same for every worker of a machine, which is then returned.
    DrainMachine {
        machine: MachineId,
        reason: String,
        within: Option<Duration>,
    },
    /// An answer of a fleet's provider.
    Provider {
        fleet: FleetId,
        news: Box<provider::ProviderEvent>,
    },
    /// An operator's order for a fleet.
    OrderFleet {
        fleet: FleetId,
        order: fleet::FleetOrder,
    },
    /// The name that is part of every pod tag: drawn once and kept for good.
    NameDeployment(String),
    /// An operator lifts the worker's blocks for a workflow or a shape, by its hash.
    LiftBlock {
        worker: WorkerId,
        hash: Hash,
    },
    /// An operator releases a quarantined shape.
    ReleaseShape {
        shape: Shape,
    },
    /// An operator sets where a shape should run, and where not.
    SetAffinity {
        shape: Shape,
        affinity: Affinity,
    },
    RemoveAffinity {
        shape: Shape,
    },
    /// A webhook was delivered or abandoned.
    WebhookSettled(Box<DeliveryResult>),
    /// Stores a document; replaces the one with the same id in its collection.
    PutDocument(Arc<Document>),
    /// Deletes a document.
    DeleteDocument {
        collection: Collection,
        id: String,
    },
    /// The settings were reloaded.
    ReloadSettings(Box<Settings>),
    /// The plane starts at this time; the first event after `Plane::restore`.
    ClockStarted(ClockStart),
    /// What the machine's clock shows; sent about once a second.
    ClockRead {
        wall: Timestamp,
    },
    /// An operator requests a control cycle now.
    RunCycle,
    /// Time passed.
    Tick,
    /// The batch is complete: pending orders are sent together.
    Flush,
}

impl PlaneEvent {
    /// Whether it may be applied now. Without the store's disk reserve nothing is accepted that only makes the store
    /// larger: what space is left is for the ends of jobs already accepted.
    pub fn is_admitted(&self, has_reserve: bool) -> bool {
        let is_new_work = match self {
            PlaneEvent::Submit(_) => true,
            PlaneEvent::PutDocument(document) => document.collection.is_client_data(),
            _ => false,
        };
        has_reserve || !is_new_work
    }
}

/// How a joining worker proved its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinProof {
    /// A general join token: any name that belongs to no rented machine.
    JoinToken,
    /// The token that this machine got when it was rented.
    MachineToken(MachineId),
    /// The token of an earlier incarnation of the same worker.
    PreviousToken(Hash),
}

/// The answer to the caller, sent after the records are committed.
#[derive(Clone, Debug)]
pub enum PlaneAnswer {
    Done,
    Accepted {
        job: JobId,
        created: bool,
    },
    Joined(JoinReply),
    Reply(BeatReply),
    /// The report of the requested cycle.
    Cycled(Arc<cycle::CycleReport>),
    /// No orders yet: the connection stays open until `PlaneEffect::SendOrders`.
    Pending,
}

/// Something to do outside, after the commit.
#[derive(Clone, Debug)]
pub enum PlaneEffect {
    /// Answers the worker's open long poll; if it is gone, the orders are sent again with the next beat.
    SendOrders { worker: WorkerId, reply: BeatReply },
    /// Progress of a job: live only, never stored, dropped first under load.
    Progress {
        job: JobId,
        tenant: Tenant,
        metadata: Map<String, Value>,
        worker: WorkerId,
        progress: f32,
        phase: String,
    },
    /// A webhook document was stored and is ready to be sent.
    WebhookQueued,
    /// A provider call; its result comes back as `PlaneEvent::Provider`. Calls of a fleet are made in order. If the
    /// plane dies before making them they are lost, and the next plane lists the pods first.
    CallProvider { fleet: FleetId, call: provider::ProviderCall },
    /// The machine's clock was set back: the plane has to stop and start again, to take its time.
    RestartPlane,
    /// A cycle report for the log.
    ReportCycle(Arc<cycle::CycleReport>),
}

/// Everything that follows from an event.
#[derive(Debug)]
pub struct Step {
    pub answer: Result<PlaneAnswer, Refusal>,
    pub records: Vec<Record>,
    pub effects: Vec<PlaneEffect>,
}
