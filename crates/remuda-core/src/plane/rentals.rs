//! What providers say about rented machines, and what follows from it.

use super::{Answer, Plane};
use crate::id::FleetId;
use crate::provider::News;
use crate::time::Timestamp;

impl Plane {
    pub(super) fn provider_said(&mut self, now: Timestamp, _fleet: &FleetId, _news: News) -> Answer {
        self.cycle_soon(now);
        Answer::Done
    }
}
