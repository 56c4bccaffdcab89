//! The messages between plane and agent, as JSON: beats up, orders down. Flat on purpose, so that a worker in any language
//! is twenty lines (`examples/worker.py`). Unknown fields are ignored and every field added later is optional, because
//! both versions run side by side during an upgrade.
//!
//! ```text
//! POST   /remuda/v1/workers                    Join  → Joined
//! POST   /remuda/v1/workers/{id}/beat?wait=25  Beat  → Reply
//! DELETE /remuda/v1/workers/{id}               leave
//! ```

pub mod bounds;
pub mod live;
pub mod live_budget;
pub mod metric;
pub mod preview;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::id::{Attempt, FleetId, Incarnation, JobId, MachineId, Service, Term, WorkerId};
use crate::need::Capabilities;
use crate::service::memory::MemoryShortage;
use crate::service::{FailingNode, ServiceFault, ServiceState};
use crate::workflow::JobKeys;

/// A worker registers: who it is, what it can do, and which attempts it still holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    pub worker: WorkerId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetId>,
    pub services: BTreeSet<Service>,
    #[serde(default = "one_slot")]
    pub slots: u32,
    /// The most slots it will ever report, if it has fewer now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    #[serde(default)]
    pub offer: Capabilities,
    /// The newest incarnation this worker ever had; a plane restored from a backup then assigns a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// How long it may be silent while idle, in place of the fleet's or the plane's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_after_millis: Option<u64>,
    /// Drawn for each request (64 bytes at most): a copy of a join that arrives again, at once or minutes later, is
    /// recognised by it and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// Drawn once by each process (64 bytes at most), which numbers its joins: one that was delayed on its way is older
    /// than the newest that arrived, and changes nothing, even if the plane sees it for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Rises with every join of the process.
    #[serde(default)]
    pub join_number: u64,
    /// Attempts that an earlier process of this worker started and this one found still running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldAttempt>,
}

fn one_slot() -> u32 {
    1
}

/// The worker's identity and the timing it has to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReply {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    /// To be sent with every beat; the plane keeps only its hash.
    pub token: String,
    pub term: Term,
    pub beat_idle_millis: u64,
    pub beat_busy_millis: u64,
    pub lease_millis: u64,
    /// An idle worker that is silent for longer counts as gone.
    #[serde(default)]
    pub stale_after_millis: u64,
}

/// A heartbeat. It names every attempt the worker holds; an attempt it does not name is lost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beat {
    pub incarnation: Incarnation,
    /// Rises with every beat, so that a delayed one is recognised as stale.
    pub seq: u64,
    /// The term of the plane that last answered this worker.
    pub term: Term,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldAttempt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<FinishedAttempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Why it takes no work; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_reason: Option<String>,
    /// Sent only after a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Capabilities>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metrics: serde_json::Map<String, serde_json::Value>,
    /// The start check's result, from workers that make one; a rented machine gets no work before it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<StartCheck>,
    /// The worker wants to stop and takes no new work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// How often its service has started again since the worker joined, from workers that know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_restarts: Option<u64>,
}

/// The result of trying a machine: its disk, its GPU with a real computation, its service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCheck {
    pub passed: bool,
    /// The problem; such a machine is returned, and its offer avoided for a while.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The GPU's own name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu: String,
}

/// A running attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldAttempt {
    pub job: JobId,
    pub attempt: Attempt,
    /// From 0 to 1, as far as known.
    #[serde(default)]
    pub progress: f32,
    /// Rises with every sign of progress; an attempt whose counter stands still is stuck.
    #[serde(default)]
    pub step: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The service's last report, from workers that probe one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceStatus>,
}

/// A service's report about an attempt and its age. Ages, because the worker's clock may differ from the plane's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub status: ServiceState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_millis_ago: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_millis_ago: Option<u64>,
}

/// An attempt that has ended; sent in every beat until a reply settles it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedAttempt {
    pub job: JobId,
    pub attempt: Attempt,
    pub outcome: AttemptOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<RawValue>>,
    /// For `failed`; absent means class *job*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The kind of failure, if the service reported it: some are final, some need a larger worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ServiceFault>,
    /// The node of the workflow that failed, if the service reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<FailingNode>>,
    /// For a failure for want of memory: what was asked for, if the service reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<MemoryShortage>,
    /// For `completed`: the service's message about it was lost, and a probe found the end. `message` says when.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    Completed,
    Failed,
    /// Stopped by order of the plane or because the worker stops.
    Cancelled,
    /// Not started: no free slot.
    Rejected,
}

/// The plane's orders, and the attempts it has settled.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BeatReply {
    pub term: Term,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<StartOrder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<CancelOrder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<SettledAttempt>,
    /// No new work will come: finish the held attempts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
    /// The beat was not applied; send the next one immediately, under `term`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beat_again: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartOrder {
    pub job: JobId,
    pub attempt: Attempt,
    pub service: Service,
    /// The id to use with the service, so that any later process can probe for this attempt.
    pub service_job_id: String,
    /// Nodes whose outputs are fetched; empty means all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub include_outputs: BTreeSet<String>,
    /// Filled in by the server: the core never holds a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Arc<RawValue>>,
    /// Filled in by the server, too.
    #[serde(default, skip_serializing_if = "JobKeys::is_empty")]
    pub keys: JobKeys,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelOrder {
    pub job: JobId,
    pub attempt: Attempt,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledAttempt {
    pub job: JobId,
    pub attempt: Attempt,
    /// Why the report was refused; absent if it was recorded. Either way the worker may forget the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl BeatReply {
    pub fn is_empty(&self) -> bool {
        self.start.is_empty() && self.cancel.is_empty() && self.settled.is_empty() && !self.beat_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: C5.
    #[test]
    fn older_and_newer_versions_understand_each_other() {
        // What the first version sent, and a message with fields of a later one.
        let old = r#"{"worker":"a","services":["exec"],"slots":1}"#;
        let new = r#"{"worker":"a","services":["exec"],"slots":1,"zone":{"name":"eu"},"held":[]}"#;
        for join in [old, new] {
            assert_eq!(serde_json::from_str::<JoinRequest>(join).unwrap().slots, 1, "{join}");
        }
        let id = JobId::from_u128(7);
        let held = format!(r#"{{"job":"{id}","attempt":1,"mood":"good"}}"#);
        let finished = format!(r#"{{"job":"{id}","attempt":1,"outcome":"completed","energy_joules":9}}"#);
        let beat = format!(
            r#"{{"incarnation":1,"seq":1,"term":1,"held":[{held}],"finished":[{finished}],"weather":"fair"}}"#
        );
        let beat: Beat = serde_json::from_str(&beat).unwrap();
        assert_eq!((beat.held[0].attempt, beat.finished[0].outcome), (Attempt(1), AttemptOutcome::Completed));
        let reply = r#"{"term":1,"start":[],"dance":true}"#;
        assert!(serde_json::from_str::<BeatReply>(reply).unwrap().is_empty());
    }
}
