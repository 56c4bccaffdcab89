//! What plane and agent say to each other, as JSON: beat up, orders down. Flat on purpose: a worker in any language
//! is twenty lines (`examples/worker.py`). What one side does not know of yet it passes over, and every field that came
//! later may be missing: during an upgrade both versions speak to each other.
//!
//! ```text
//! POST   /remuda/v1/workers                    Join  → Joined
//! POST   /remuda/v1/workers/{id}/beat?wait=25  Beat  → Reply
//! DELETE /remuda/v1/workers/{id}               leave
//! ```

pub mod live;
pub mod metric;
pub mod preview;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::id::{Attempt, FleetId, Incarnation, JobId, MachineId, Service, Term, WorkerId};
use crate::need::Capabilities;
use crate::service::ServiceFault;

/// "Here I am, this is what I can do, and this is what I still hold."
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
    #[serde(default)]
    pub offer: Capabilities,
    /// The newest incarnation it ever had: a plane whose store was put back from a backup gives a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// How long it may be silent while it holds nothing, in place of what its fleet or the plane says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_after_millis: Option<u64>,
    /// Attempts a former incarnation took on and this one found still running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldAttempt>,
}

fn one_slot() -> u32 {
    1
}

/// "You are this one, and these are the rules."
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
    /// It counts as gone after so much silence while it holds nothing.
    #[serde(default)]
    pub stale_after_millis: u64,
}

/// A sign of life that names everything the worker holds: what it does not name, it does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beat {
    pub incarnation: Incarnation,
    /// Rises with every beat, so that a late one cannot pass for news.
    pub seq: u64,
    /// The plane this worker last heard from.
    pub term: Term,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldAttempt>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<FinishedAttempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Why there are none, if so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unavailable_reason: String,
    /// Sent when it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Capabilities>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metrics: serde_json::Map<String, serde_json::Value>,
    /// Whether its machine is what it should be, from workers that look; a rented one gets no work before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<StartCheck>,
    /// The worker wants to stop: no new work, please.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// What a worker found when it tried its machine: the disk, the GPU with a real computation, the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCheck {
    pub passed: bool,
    /// What is wrong; such a machine is returned, and not rented again for a while.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The GPU as it calls itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu: String,
}

/// An attempt under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldAttempt {
    pub job: JobId,
    pub attempt: Attempt,
    /// How far, from 0 to 1, as far as anyone knows.
    #[serde(default)]
    pub progress: f32,
    /// Rises with every sign of work; an attempt whose counter stands still is stuck.
    #[serde(default)]
    pub step: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// What its service last said of it, from workers that ask one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceStatus>,
}

/// What a service said of an attempt, and how long ago: durations, because the worker's clock is its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_millis_ago: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_millis_ago: Option<u64>,
}

/// An attempt that is over; sent again and again until a reply settles it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedAttempt {
    pub job: JobId,
    pub attempt: Attempt,
    pub outcome: AttemptOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<RawValue>>,
    /// For `failed`; class *job* if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What kind of failure, if the service told: some are final, some ask for a larger worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ServiceFault>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    Completed,
    Failed,
    /// Stopped because the plane, or nobody at all, wanted it any more.
    Cancelled,
    /// Never begun: there was no room for it.
    Rejected,
}

/// What the plane wants done, and what became of the attempts that were reported.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BeatReply {
    pub term: Term,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<StartOrder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<CancelOrder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<SettledAttempt>,
    /// No new work will come: finish what you hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
    /// The beat was not taken for news; send the next one at once, under `term`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beat_again: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartOrder {
    pub job: JobId,
    pub attempt: Attempt,
    pub service: Service,
    /// The id to use with the service, so that anyone can ask the service about this attempt later.
    pub service_job_id: String,
    /// Nodes whose outputs are wanted; without any, all are.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub include_outputs: BTreeSet<String>,
    /// Filled in by the shell: the core never holds a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Arc<RawValue>>,
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
    /// `recorded`, or why not; either way the worker may forget the attempt.
    pub verdict: String,
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
    fn an_older_and_a_newer_version_understand_each_other() {
        // What the first version sent, and what a later one may send beside it.
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
