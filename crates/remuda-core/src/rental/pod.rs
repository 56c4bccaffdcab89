//! The pod of a rented machine, as its provider last reported it.

use serde::{Deserialize, Serialize};

use crate::id::PodId;
use crate::provider::{Pod, PodStatus};
use crate::time::Timestamp;

/// The pod of a machine, as last reported by its provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RentedPod {
    pub id: PodId,
    pub seen_at: Timestamp,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When the provider first reported it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// Lists in a row that showed it stopped or failed, since the machine is in its state.
    #[serde(default)]
    pub(super) ended: u32,
}

impl RentedPod {
    /// The pod as shown now. A field that the provider omits this time keeps its last value.
    pub(super) fn seen(known: Option<RentedPod>, now: Timestamp, shown: &Pod) -> RentedPod {
        let mut pod = known.unwrap_or_else(|| RentedPod {
            id: shown.id.clone(),
            seen_at: now,
            kind: String::new(),
            place: String::new(),
            host: None,
            running_at: None,
            ended: 0,
        });
        pod.update(now, shown);
        pod
    }

    fn update(&mut self, now: Timestamp, shown: &Pod) {
        if !shown.kind.is_empty() {
            self.kind.clone_from(&shown.kind);
        }
        if !shown.place.is_empty() {
            self.place.clone_from(&shown.place);
        }
        if shown.host.is_some() {
            self.host.clone_from(&shown.host);
        }
        if shown.status == PodStatus::Running {
            self.running_at.get_or_insert(now);
        }
        let has_ended = matches!(shown.status, PodStatus::Stopped | PodStatus::Failed);
        self.ended = if has_ended { self.ended.saturating_add(1) } else { 0 };
    }

    /// Lists in a row that showed it stopped or failed.
    pub fn ended(&self) -> u32 {
        self.ended
    }
}
