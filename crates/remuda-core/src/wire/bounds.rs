//! How much a worker may send. A join agrees on the number of slots; whatever a later message lists or counts is bounded by
//! it, so that one worker costs the plane no more than its share. A message with a list above its bound is refused as a
//! whole: a worker that keeps to the protocol never sends one. Excess slots are cut to the agreed number.

use super::live::{LiveReport, ProgressSnapshot};
use super::{Beat, JoinRequest};
use crate::need::Capabilities;
use crate::refusal::Refusal;

/// Slots of one worker.
pub const SLOTS_MAX: u32 = 4096;
/// Of each list of attempts: two for each slot, and so many more for attempts of an earlier process that the plane is about
/// to cancel.
const ATTEMPTS_EXTRA: usize = 64;
const SERVICES_MAX: usize = 64;
/// Metrics are shown, never used in decisions.
const METRICS_MAX: usize = 256;
/// Of a live report: enough for a graph of thousands of nodes.
const REPORT_ENTRIES_MAX: usize = 10_000;
/// Of a text in a live report: a line for people, a node's name.
const REPORT_TEXT_BYTES_MAX: usize = 4096;
/// Of all metrics together, as JSON.
const METRICS_BYTES_MAX: usize = 64 << 10;
/// Model files, node classes and labels together.
const CAPABILITIES_MAX: usize = 100_000;
/// Of each of their names; a path has 4,096 at most, and models are named by less.
const CAPABILITY_BYTES_MAX: usize = 1024;

impl JoinRequest {
    /// The most slots that it may ever report.
    pub fn slots_max(&self) -> u32 {
        self.slots_max.unwrap_or(1).max(self.slots)
    }

    pub fn check(&self) -> Result<(), Refusal> {
        let slots = self.slots_max() as usize;
        within("slots", slots, SLOTS_MAX as usize)?;
        if self.services.is_empty() {
            return Err(Refusal::NoService(self.worker.clone()));
        }
        within("services", self.services.len(), SERVICES_MAX)?;
        within("held attempts", self.held.len(), attempts_max(slots))?;
        check_capabilities(&self.offer)
    }
}

impl Beat {
    /// The slots it reports, at most the agreed ones.
    pub fn slots_within(&self, slots_max: u32) -> Option<u32> {
        self.slots.map(|slots| slots.min(slots_max))
    }

    /// `slots_max`: what the worker's join agreed on.
    pub fn check(&self, slots_max: u32) -> Result<(), Refusal> {
        let slots_max = slots_max as usize;
        within("held attempts", self.held.len(), attempts_max(slots_max))?;
        within("ended attempts", self.finished.len(), attempts_max(slots_max))?;
        within("metrics", self.metrics.len(), METRICS_MAX)?;
        let metrics_bytes = serde_json::to_string(&self.metrics).map_or(0, |text| text.len());
        within("bytes of metrics", metrics_bytes, METRICS_BYTES_MAX)?;
        self.offer.as_ref().map_or(Ok(()), check_capabilities)
    }
}

impl LiveReport {
    pub fn check(&self) -> Result<(), Refusal> {
        within("messages", self.messages.len(), REPORT_ENTRIES_MAX)?;
        within("outputs", self.outputs.as_ref().map_or(0, Vec::len), REPORT_ENTRIES_MAX)?;
        let Some(progress) = &self.progress else { return Ok(()) };
        let ProgressSnapshot { current_node, current_node_class, message, .. } = progress;
        let texts = [current_node, current_node_class, message].into_iter().flatten();
        within("bytes of a text", texts.map(String::len).max().unwrap_or(0), REPORT_TEXT_BYTES_MAX)
    }
}

fn check_capabilities(offer: &Capabilities) -> Result<(), Refusal> {
    within("capabilities", offer.count(), CAPABILITIES_MAX)?;
    within("bytes of a capability's name", offer.longest_name(), CAPABILITY_BYTES_MAX)
}

fn attempts_max(slots: usize) -> usize {
    2 * slots + ATTEMPTS_EXTRA
}

fn within(what: &'static str, found: usize, max: usize) -> Result<(), Refusal> {
    if found <= max { Ok(()) } else { Err(Refusal::OutOfBounds { what, found, max }) }
}
