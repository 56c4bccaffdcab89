//! What a worker reports of a running attempt besides its beats: progress, messages of its service, outputs so far. Live
//! only: nothing is decided from it, and it is gone with the attempt.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What a worker tells of an attempt: `PUT /remuda/v1/workers/{id}/live?job=&attempt=`. What is absent has not changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LiveReport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressSnapshot>,
    /// What its service said since the last report, in order and in the service's own words: `{"type", "data"}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<RawValue>>,
    /// All outputs that are stored already, each as it will stand in the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Arc<RawValue>>>,
}

/// How far an attempt is; complete, so that the newest one tells all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressSnapshot {
    /// From 0 to 1, by nodes and steps; never less than before.
    pub value: f64,
    pub nodes_done: u64,
    pub nodes_total: u64,
    #[serde(default)]
    pub current_node: Option<String>,
    #[serde(default)]
    pub current_node_class: Option<String>,
    #[serde(default)]
    pub step: Option<u64>,
    #[serde(default)]
    pub steps: Option<u64>,
    /// In words: `KSampler 21/50`.
    #[serde(default)]
    pub message: Option<String>,
}
