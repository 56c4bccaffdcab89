//! What is stored. The core produces records, the store keeps them, `Plane::restore` reads them back.
//!
//! A record is the current state of one thing, keyed by that thing: writing it twice changes nothing, and within a
//! batch the last record of a thing wins. Workflows and results are stored apart from headers, because the plane
//! holds headers in memory and never a workflow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::document::{Collection, Document};
use crate::event_kind::EventKind;
use crate::id::{
    Attempt, FleetId, Hash, Incarnation, JobId, MachineId, Sequence, Service, Shape, Tenant, TokenId,
    WorkerId, WorkflowHash,
};
use crate::machine::{Presence, WorkerState};
use crate::money::Money;
use crate::need::Requirements;
use crate::options::JobOptions;
use crate::scope::{BlockScope, TenantShape};
use crate::service::{FailingNode, ServiceFault, ServiceState};
use crate::time::Timestamp;
use crate::verdict::{AttemptVerdict, CrashEvidence};

/// One change to store.
#[derive(Clone, Debug)]
pub enum Record {
    /// A job was accepted: its fixed part, its status, and its workflow.
    JobAccepted {
        job: Arc<AcceptedJob>,
        status: JobStatus,
        workflow: Arc<RawValue>,
    },
    /// The current status of a job.
    JobStatus {
        job: JobId,
        status: JobStatus,
    },
    /// The result of a job, stored together with its end.
    Result {
        job: JobId,
        result: Arc<RawValue>,
    },
    /// The current state of a worker.
    Worker(Box<WorkerRow>),
    /// A worker that was offline for long is forgotten.
    WorkerForgotten {
        worker: WorkerId,
    },
    /// A block of a worker for a shape, or its trial.
    Block(BlockRow),
    BlockLifted {
        worker: WorkerId,
        scope: BlockScope,
    },
    /// Failures of a shape, or its quarantine.
    Quarantine(QuarantineRow),
    QuarantineLifted(TenantShape),
    /// An event for subscribers.
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
    /// The latest time in the record; zero if it has none.
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
            | Record::QuarantineLifted(_)
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
    /// The token that it was submitted with, if one was needed; its quota counts the job while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
    /// Higher runs first.
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
    /// The submitter's own data, repeated on every event of the job.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// A submission with a known key returns the known job; with a known key and another body it is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey {
    pub key: String,
    /// Hash of the whole request.
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
    /// The node at which a failed job failed last.
    pub fn failing_node(&self) -> Option<&FailingNode> {
        match self.state {
            StateRow::Failed { .. } => self.attempts.last()?.node.as_deref(),
            StateRow::Queued { .. }
            | StateRow::Running { .. }
            | StateRow::Completed { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. } => None,
        }
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
        was_stopped: bool,
    },
    /// Its deadline passed before it ended.
    Expired {
        was_running: bool,
    },
    Cancelled {
        message: String,
    },
}

impl StateRow {
    pub const NAMES: [&'static str; 5] = ["queued", "running", "completed", "failed", "cancelled"];

    /// The name used by the native API, where an expired job is one that failed.
    pub fn name(&self) -> &'static str {
        match self {
            StateRow::Queued { .. } => "queued",
            StateRow::Running { .. } => "running",
            StateRow::Completed { .. } => "completed",
            StateRow::Failed { .. } | StateRow::Expired { .. } => "failed",
            StateRow::Cancelled { .. } => "cancelled",
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self, StateRow::Queued { .. } | StateRow::Running { .. })
    }

    pub fn worker(&self) -> Option<&WorkerId> {
        match self {
            StateRow::Running { worker, .. } | StateRow::Completed { worker } => Some(worker),
            StateRow::Queued { .. }
            | StateRow::Failed { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. } => None,
        }
    }

    /// Cause and message of a job that failed or expired.
    pub fn failure(&self) -> Option<(Cause, &str)> {
        match self {
            StateRow::Failed { cause, message, .. } => Some((*cause, message)),
            StateRow::Expired { was_running: true } => Some((Cause::Job, "the deadline passed while it ran")),
            StateRow::Expired { was_running: false } => {
                Some((Cause::Job, "the deadline passed while it waited"))
            }
            StateRow::Queued { .. }
            | StateRow::Running { .. }
            | StateRow::Completed { .. }
            | StateRow::Cancelled { .. } => None,
        }
    }
}

/// One attempt in a job's history; the newest may still run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastAttempt {
    pub attempt: Attempt,
    pub worker: WorkerId,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// None if the attempt completed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What ended it; None while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<AttemptVerdict>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The kind of failure that the service reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ServiceFault>,
    /// The node of the workflow at which it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<FailingNode>>,
    /// Set if its worker or service went down with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_down: Option<CrashEvidence>,
    /// Memory of the worker that ran out of it; 0 if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<u64>,
    /// What it asked for when it ran out of memory, in bytes, if the service said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_memory: Option<u64>,
    /// Hourly price of its slot; None if the machine was not rented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceRow>>,
}

impl PastAttempt {
    /// An attempt that has just started.
    pub fn new(attempt: Attempt, worker: WorkerId, started_at: Timestamp) -> Self {
        PastAttempt {
            attempt,
            worker,
            started_at,
            ended_at: None,
            cause: None,
            verdict: None,
            message: String::new(),
            fault: None,
            node: None,
            took_down: None,
            out_of_memory: None,
            requested_memory: None,
            price: None,
            service: None,
        }
    }
}

/// The service's view of an attempt, as the worker last reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    pub service_job_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_submitted_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_service_check: Option<Timestamp>,
    pub service_status: ServiceState,
}

impl ServiceRow {
    /// The attempt has ended. What the service last said of a lost one is out of date.
    pub(crate) fn close(&mut self, now: Timestamp, verdict: AttemptVerdict) {
        self.service_status = match verdict {
            AttemptVerdict::Completed => ServiceState::Succeeded,
            AttemptVerdict::Failed => ServiceState::Failed,
            AttemptVerdict::Cancelled | AttemptVerdict::Stopped | AttemptVerdict::Expired => {
                ServiceState::Interrupted
            }
            _ => ServiceState::Unknown,
        };
        if matches!(verdict, AttemptVerdict::Completed | AttemptVerdict::Failed) {
            self.last_service_check = Some(now);
        }
    }
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
    pub state: WorkerState,
    pub presence: Presence,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    /// The most slots that its beats may report, as its join agreed.
    #[serde(default)]
    pub slots_max: u32,
    pub offer: crate::need::Capabilities,
    pub joined_at: Timestamp,
    /// Time of the last beat; nothing that the plane does moves it.
    pub seen_at: Timestamp,
    pub changed_at: Timestamp,
    #[serde(default)]
    pub reason: String,
    /// Why it takes no work although it is online: its service is sick or unreachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_reason: Option<String>,
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
    /// Silence allowed while it holds nothing, if the worker asked for a limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_after_millis: Option<u64>,
    /// The newest joins under this name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub join_nonces: Vec<String>,
    /// The newest processes that joined under this name; the last is the current one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined_processes: Vec<JoinedProcess>,
    /// Uptime history; missing in old rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<crate::reliability::Reliability>,
    /// The worker's last metrics (VRAM, GPU %, RAM): shown, never used in decisions.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metrics: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<crate::wire::StartCheck>,
    /// When a drain ends; attempts that still run are requeued then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
}

/// A process of a worker, and the number of its newest join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedProcess {
    pub process: String,
    pub join_number: u64,
}

/// A worker blocked for a workflow or a shape until a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockRow {
    pub worker: WorkerId,
    pub scope: BlockScope,
    pub shape: Shape,
    pub failures: u32,
    pub until: Timestamp,
    /// Length of the current block; doubles with every failed trial.
    pub cooldown_millis: u64,
    /// The end of the block was published; a trial may run or is running.
    #[serde(default)]
    pub has_ended: bool,
    pub reason: String,
    pub cause: Cause,
    /// The workflow that failed last, and who submitted it.
    pub workflow_hash: WorkflowHash,
    pub tenant: Tenant,
}

/// A tenant's shape that fails on several workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuarantineRow {
    #[serde(flatten)]
    pub jobs: TenantShape,
    /// Distinct workers it failed on since its last success.
    pub failed_on: BTreeSet<WorkerId>,
    /// Set while it is quarantined: when the next trial may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_at: Option<Timestamp>,
    #[serde(default)]
    pub trials_failed: u32,
    pub reason: String,
}

/// An event in the one sequence of all events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEvent {
    pub seq: Sequence,
    pub at: Timestamp,
    #[serde(rename = "name")]
    pub kind: EventKind,
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

/// Everything a plane needs to continue where another one stopped.
#[derive(Clone, Debug, Default)]
pub struct StoredState {
    /// Jobs that have not ended.
    pub jobs: Vec<(AcceptedJob, JobStatus)>,
    pub workers: Vec<WorkerRow>,
    pub blocks: Vec<BlockRow>,
    pub quarantine: Vec<QuarantineRow>,
    /// Documents of the collections that the plane holds in memory, in the order of their ids.
    pub documents: Vec<Arc<Document>>,
    /// Sequence number of the newest event.
    pub sequence: Sequence,
    /// The latest time in any record: the plane's time continues from here, even if the wall clock is behind.
    pub latest: Timestamp,
}
