//! How much a worker may send. A join agrees on the number of slots; whatever a later message lists or counts is bounded by
//! it, so that one worker costs the plane no more than its share. A message with a list above its bound is refused as a
//! whole: a worker that keeps to the protocol never sends one. Excess slots are cut to the agreed number.

use super::{Beat, JoinRequest};
use crate::refusal::Refusal;

/// Slots of one worker.
pub const SLOTS_MAX: u32 = 4096;
/// Of each list of attempts: two for each slot, and so many more for attempts of an earlier process that the plane is about
/// to cancel.
const ATTEMPTS_EXTRA: usize = 64;
const SERVICES_MAX: usize = 64;
/// Metrics are shown, never used in decisions.
const METRICS_MAX: usize = 256;
/// Model files, node classes and labels together.
const CAPABILITIES_MAX: usize = 100_000;

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
        within("capabilities", self.offer.count(), CAPABILITIES_MAX)
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
        within("capabilities", self.offer.as_ref().map_or(0, |offer| offer.count()), CAPABILITIES_MAX)
    }
}

fn attempts_max(slots: usize) -> usize {
    2 * slots + ATTEMPTS_EXTRA
}

fn within(what: &'static str, found: usize, max: usize) -> Result<(), Refusal> {
    if found <= max { Ok(()) } else { Err(Refusal::OutOfBounds { what, found, max }) }
}
