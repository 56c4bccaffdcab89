//! Looks at the machine's clock. `crate::clock` says what follows; here it is reported. No decision of the plane depends
//! on it.

use super::domain_event::DomainEvent;
use super::{Plane, PlaneAnswer, PlaneEffect};
use crate::clock::{ClockDifference, ClockFinding, ClockStart, ClockWatch};
use crate::time::Timestamp;

impl Plane {
    pub(super) fn clock_started(&mut self, now: Timestamp, start: &ClockStart) -> PlaneAnswer {
        self.clock = ClockWatch::started(start);
        if start.problem().is_some() {
            self.outbox.publish(now, DomainEvent::ClockAtStart(start));
        }
        PlaneAnswer::Done
    }

    pub(super) fn clock_read(&mut self, now: Timestamp, wall: Timestamp) -> PlaneAnswer {
        match self.clock.compare(now, wall) {
            ClockFinding::Nothing => {}
            ClockFinding::Changed(difference) => {
                self.outbox.publish(now, DomainEvent::ClockChanged(difference));
            }
            ClockFinding::Restart => self.outbox.effect(PlaneEffect::RestartPlane),
        }
        PlaneAnswer::Done
    }

    /// How far the machine's clock is from the plane's time.
    pub fn clock_difference(&self) -> ClockDifference {
        self.clock.difference()
    }
}
