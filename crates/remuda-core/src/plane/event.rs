//! What can happen to the plane, and what follows from it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Submission;
use crate::affinity::Affinity;
use crate::cycle;
use crate::document::{Collection, Document};
use crate::fleet;
use crate::id::{FleetId, Hash, JobId, MachineId, Shape, Tenant, WorkerId};
use crate::provider;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::webhook::DeliveryResult;
use crate::wire::{Beat, BeatReply, JoinReply, JoinRequest};

/// Something happened outside.
#[derive(Clone, Debug)]
pub enum PlaneEvent {
    Submit(Box<Submission>),
    Cancel {
        job: JobId,
        message: String,
    },
    /// `proof`: how whoever asks has shown who it is; a rented machine's workers must.
    Join {
        join: Box<JoinRequest>,
        token_hash: Hash,
        proof: JoinProof,
    },
    /// `waits`: the worker will stay on the line for orders.
    Beat {
        worker: WorkerId,
        token_hash: Hash,
        beat: Box<Beat>,
        waits: bool,
    },
    /// The line on which orders were awaited is gone: a reason to look closer, and nothing more.
    ConnectionDropped {
        worker: WorkerId,
        seq: u64,
    },
    /// A worker says goodbye (with its token), or a person says it for the worker.
    Leave {
        worker: WorkerId,
        token_hash: Option<Hash>,
        reason: String,
    },
    /// No new work for this worker; it goes when it holds nothing, or when the time is over.
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
    /// What a fleet's provider answered, or showed.
    Provider {
        fleet: FleetId,
        news: Box<provider::ProviderEvent>,
    },
    /// What a person wants of a fleet.
    OrderFleet {
        fleet: FleetId,
        order: fleet::FleetOrder,
    },
    /// The name that is part of every tag: drawn once, by whoever can draw, and kept for ever.
    NameDeployment(String),
    /// A person ends a block.
    LiftBlock {
        worker: WorkerId,
        shape: Shape,
    },
    /// A person lets a quarantined shape go.
    ReleaseShape {
        shape: Shape,
    },
    /// A person says where a shape should run, and where not.
    SetAffinity {
        shape: Shape,
        affinity: Affinity,
    },
    RemoveAffinity {
        shape: Shape,
    },
    /// News of a job's end were taken, or given up.
    WebhookSettled(Box<DeliveryResult>),
    /// To be remembered, in place of what has its id on that shelf.
    PutDocument(Arc<Document>),
    /// Not to be remembered any longer.
    DeleteDocument {
        collection: Collection,
        id: String,
    },
    /// The settings were loaded anew.
    ReloadSettings(Box<Settings>),
    /// A person wants a control cycle now.
    RunCycle,
    /// Time has passed.
    Tick,
    /// The batch is over: orders that came together go out together.
    Flush,
}

/// How whoever joins has shown who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinProof {
    /// It may join, under any name that is nobody's in particular.
    JoinToken,
    /// It has the token that was given to this machine when it was rented.
    MachineToken(MachineId),
    /// It has what a former incarnation of the same worker was given.
    PreviousToken(Hash),
}

/// What the caller is told, after the records are safe.
#[derive(Clone, Debug)]
pub enum PlaneAnswer {
    Done,
    Accepted {
        job: JobId,
        created: bool,
    },
    Joined(JoinReply),
    Reply(BeatReply),
    /// What the cycle that was asked for did.
    Cycled(Arc<cycle::CycleReport>),
    /// Nothing to say yet: keep the line open, `PlaneEffect::SendOrders` will come.
    Pending,
}

/// Something to be done outside.
#[derive(Clone, Debug)]
pub enum PlaneEffect {
    /// Give this to the worker whose line is open; if it is gone, the orders go out again with its next beat.
    SendOrders { worker: WorkerId, reply: BeatReply },
    /// Live only, dropped first: how far a job is.
    Progress {
        job: JobId,
        tenant: Tenant,
        metadata: Map<String, Value>,
        worker: WorkerId,
        progress: f32,
        phase: String,
    },
    /// Somebody is to be told how a job ended: there is something new on the shelf.
    WebhookQueued,
    /// To be asked of a fleet's provider, once; the answer comes back as `PlaneEvent::Provider`. The calls of a fleet are
    /// made in order; if the plane ends before, they are forgotten, and the next one looks first.
    CallProvider { fleet: FleetId, call: provider::ProviderCall },
    /// A report for the log.
    ReportCycle(Arc<cycle::CycleReport>),
}

/// All that follows from an event.
#[derive(Debug)]
pub struct Step {
    pub answer: Result<PlaneAnswer, Refusal>,
    pub records: Vec<Record>,
    pub effects: Vec<PlaneEffect>,
}
