//! What a worker streams about a running attempt besides its beats: progress, service messages, outputs so far. For display
//! only: no decision reads it, and it is dropped when the attempt ends.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// An update about one attempt: `PUT /remuda/v1/workers/{id}/live?job=&attempt=`. An absent field has not changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LiveReport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressSnapshot>,
    /// The service's messages since the last report, in order and unchanged: `{"type", "data"}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<RawValue>>,
    /// All outputs stored so far, each as it will appear in the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Arc<RawValue>>>,
}

/// The type of a message `{"type", "data": {"node", "text"}}` that stands for a text frame of ComfyUI, which is binary.
pub const PROGRESS_TEXT: &str = "progress_text";

/// An attempt's progress; always complete, so that the newest snapshot suffices.
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
    /// For people: `KSampler 21/50`.
    #[serde(default)]
    pub message: Option<String>,
}
