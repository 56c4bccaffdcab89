//! How many machines a fleet should have: by manual order, by the latency policy, or by the queue (`scale`).

use super::Cycle;
use crate::scale;

impl Cycle<'_> {
    pub(super) fn wanted(&self) -> u32 {
        let scaling = &self.settings.scaling;
        match (self.snapshot.ordered, &self.snapshot.policy_target) {
            (Some(ordered), _) => ordered.min(scaling.machines_max),
            (None, Some((wanted, _))) => {
                (*wanted).clamp(scaling.machines_min.min(scaling.machines_max), scaling.machines_max)
            }
            (None, None) => scale::wanted(self.queued, scaling),
        }
    }
}
