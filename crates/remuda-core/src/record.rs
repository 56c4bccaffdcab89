//! What is stored. The core says it, the store keeps it, `Plane::restore` reads it back; nobody else looks inside.
//!
//! Records are facts as they stand now, keyed by what they are about: writing one twice changes nothing, and within
//! a batch the last one about a thing is the one that counts. Workflows and results are kept apart from the headers,
//! because the plane holds headers in memory and never a body.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::document::{Collection, Document};
use crate::id::{
    Attempt, FleetId, Hash, Incarnation, JobId, MachineId, Sequence, Service, Shape, Tenant, WorkerId,
    WorkflowHash,
};
use crate::job::DEADLINE_PASSED;
use crate::money::Money;
use crate::need::Requirements;
use crate::options::JobOptions;
use crate::time::Timestamp;

/// One fact to keep.
#[derive(Clone, Debug)]
pub enum Record {
    /// A job was accepted: its fixed part, its life so far, and its workflow.
    JobAccepted {
        job: Arc<AcceptedJob>,
        status: JobStatus,
        workflow: Arc<RawValue>,
    },
    /// How a job stands now.
    JobStatus {
        job: JobId,
        status: JobStatus,
    },
    /// What a job gave, stored together with its end.
    Result {
        job: JobId,
        result: Arc<RawValue>,
    },
    /// How a worker stands now.
    Worker(Box<WorkerRow>),
    /// Nobody has heard of a worker for so long that it is forgotten.
    WorkerForgotten {
        worker: WorkerId,
    },
    /// A worker and a shape kept apart, or on trial.
    Block(BlockRow),
    BlockLifted {
        worker: WorkerId,
        shape: Shape,
    },
    /// A shape under suspicion or in quarantine.
    Quarantine(QuarantineRow),
    QuarantineLifted {
        shape: Shape,
    },
    /// Something happened that people and programs may follow.
    Event(Arc<StoredEvent>),
    /// A cycle report, kept for a while.
    Cycle {
        at: Timestamp,
        report: Arc<RawValue>,
    },
    Document(Arc<Document>),
    DocumentDeleted {
        collection: Collection,
        id: String,
    },
}

impl Record {
    /// The latest moment it speaks of; nothing for what has no time of its own.
    pub fn moment(&self) -> Timestamp {
        match self {
            Record::JobAccepted { job, status, .. } => job.accepted_at.max(status.changed_at),
            Record::JobStatus { status, .. } => status.changed_at,
            Record::Worker(row) => row.seen_at.max(row.changed_at),
            Record::Event(event) => event.at,
            Record::Cycle { at, .. } => *at,
            Record::Result { .. }
            | Record::Block(_)
            | Record::BlockLifted { .. }
            | Record::Quarantine(_)
            | Record::QuarantineLifted { .. }
            | Record::Document(_)
            | Record::DocumentDeleted { .. }
            | Record::WorkerForgotten { .. } => Timestamp::ZERO,
        }
    }
}

/// The part of a job that never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedJob {
    pub id: JobId,
    pub accepted_at: Timestamp,
    pub tenant: Tenant,
    /// Higher goes first.
    pub priority: i8,
    pub service: Service,
    pub shape: Shape,
    pub workflow_hash: WorkflowHash,
    #[serde(default, skip_serializing_if = "Requirements::is_empty")]
    pub needs: Requirements,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Overrides `Settings::attempts_max` for this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u8>,
    #[serde(default, skip_serializing_if = "JobOptions::is_empty")]
    pub options: JobOptions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<IdempotencyKey>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whatever the submitter wants to see again on every event.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// A submission under the same key is the same job; under the same key with another body it is a mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey {
    pub key: String,
    /// Hash of all that was asked for.
    pub fingerprint: Hash,
}

/// The part of a job that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    pub state: StateRow,
    /// The newest attempt; 0 before the first.
    pub attempt: Attempt,
    /// Failures of class *job*.
    #[serde(default)]
    pub failures: u8,
    /// Failures of every other class.
    #[serde(default)]
    pub infra_failures: u8,
    /// Distinct workers that were lost while they ran this job.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub crashed_workers: BTreeSet<WorkerId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<PastAttempt>,
    pub changed_at: Timestamp,
}

impl JobStatus {
    /// Whether the deadline ended it, and nothing that its worker said.
    pub fn has_expired(&self, deadline: Option<Timestamp>) -> bool {
        let is_past = deadline.is_some_and(|deadline| self.changed_at >= deadline);
        is_past
            && matches!(&self.state, StateRow::Failed { message, .. } if message.starts_with(DEADLINE_PASSED))
    }
}

/// A job's state as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum StateRow {
    Queued {
        not_before: Timestamp,
    },
    Running {
        worker: WorkerId,
        incarnation: Incarnation,
        started_at: Timestamp,
    },
    Completed {
        worker: WorkerId,
    },
    Failed {
        cause: Cause,
        message: String,
        #[serde(default)]
        quarantined: bool,
    },
    Cancelled {
        message: String,
    },
}

impl StateRow {
    pub const NAMES: [&'static str; 5] = ["queued", "running", "completed", "failed", "cancelled"];

    /// The word every surface uses.
    pub fn name(&self) -> &'static str {
        match self {
            StateRow::Queued { .. } => "queued",
            StateRow::Running { .. } => "running",
            StateRow::Completed { .. } => "completed",
            StateRow::Failed { .. } => "failed",
            StateRow::Cancelled { .. } => "cancelled",
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self, StateRow::Queued { .. } | StateRow::Running { .. })
    }

    pub fn worker(&self) -> Option<&WorkerId> {
        match self {
            StateRow::Running { worker, .. } | StateRow::Completed { worker } => Some(worker),
            StateRow::Queued { .. } | StateRow::Failed { .. } | StateRow::Cancelled { .. } => None,
        }
    }
}

/// One attempt as the story of a job tells it; the newest may still be under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastAttempt {
    pub attempt: Attempt,
    pub worker: WorkerId,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// `completed`, or what went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub verdict: String,
    /// The memory of the worker that ran out of it, if that is what happened; 0 if it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<u64>,
    /// What an hour of the place it had cost; nothing if its machine was not rented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceRow>>,
}

/// The service's side of an attempt, as the worker last told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    pub service_job_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_submitted_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_service_check: Option<Timestamp>,
    pub service_status: String,
}

/// A worker as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    pub id: WorkerId,
    pub machine: MachineId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetId>,
    pub incarnation: Incarnation,
    pub token_hash: Hash,
    /// `spawning`, `active`, `terminating`, `terminated` or `error`.
    pub state: String,
    /// `online`, `suspect` or `offline`.
    pub presence: String,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: crate::need::Capabilities,
    pub joined_at: Timestamp,
    /// The last real sign of life; nothing of our own doing ever moves it.
    pub seen_at: Timestamp,
    pub changed_at: Timestamp,
    #[serde(default)]
    pub reason: String,
    /// Why it takes no work although it is there: its service is sick or out of reach.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unavailable_reason: String,
    #[serde(default)]
    pub completed: u64,
    #[serde(default)]
    pub failed: u64,
    #[serde(default)]
    pub lost: u64,
    /// Milliseconds spent on completed attempts.
    #[serde(default)]
    pub busy_millis: u64,
    #[serde(default)]
    pub went_stale: u64,
    #[serde(default)]
    pub probation: crate::probation::Probation,
    /// How long it may be silent while it holds nothing, if it said so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_after_millis: Option<u64>,
    /// How well it was heard; nothing in rows of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<crate::reliability::Reliability>,
    /// What the worker last said of itself: VRAM, GPU %, RAM; shown, never decided upon.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metrics: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<crate::wire::StartCheck>,
    /// What it holds by then is taken from it, if it is to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
}

/// A worker and a shape kept apart until a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockRow {
    pub worker: WorkerId,
    pub shape: Shape,
    pub failures: u32,
    pub until: Timestamp,
    /// How long it lasted this time; doubles with every failed trial.
    pub cooldown_millis: u64,
    pub reason: String,
    /// The workflow that failed last, to the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_hash: Option<WorkflowHash>,
}

/// A shape that fails wherever it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuarantineRow {
    pub shape: Shape,
    /// Distinct workers it failed on since it last succeeded anywhere.
    pub failed_on: BTreeSet<WorkerId>,
    /// Set once it is quarantined: when the next single trial may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_at: Option<Timestamp>,
    #[serde(default)]
    pub trials_failed: u32,
    pub reason: String,
}

/// Something that happened, in the one order of all events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEvent {
    pub seq: Sequence,
    pub at: Timestamp,
    /// `job:queued`, `worker:offline`, …
    pub name: std::borrow::Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub detail: serde_json::Map<String, serde_json::Value>,
}

/// Everything a plane needs to go on where another one stopped.
#[derive(Clone, Debug, Default)]
pub struct StoredState {
    /// Jobs that have not ended.
    pub jobs: Vec<(AcceptedJob, JobStatus)>,
    pub workers: Vec<WorkerRow>,
    pub blocks: Vec<BlockRow>,
    pub quarantine: Vec<QuarantineRow>,
    /// Those of shelves that the plane holds, in the order of their ids.
    pub documents: Vec<Arc<Document>>,
    /// The newest event's place.
    pub sequence: Sequence,
    /// The latest moment any record speaks of: time goes on from here, whatever the wall clock says.
    pub latest: Timestamp,
}
