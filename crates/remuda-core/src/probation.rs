//! Probation of workers: failures in a row over different shapes, or repeated joins, stop new work for a while; then
//! one job at a time, until one succeeds.
//!
//! ```text
//!  trusted ──3 failures in a row, flapping──▶ on probation until T ──T──▶ one trial ──success──▶ trusted
//!                                                   ▲                        │
//!                                                   └──── failure: wait ×2 ──┘
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Shape;
use crate::supervise::{Backoff, Breaker, BreakerState};
use crate::time::Timestamp;

/// Every failure on probation renews it, also one that was in flight: a worker that fails
/// everything at once fails many attempts in parallel, and each of them counts.
const COOLDOWN: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_secs(600));
/// Joining again sooner than this after the last join, without having completed anything, is flapping.
const FLAP: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probation {
    /// Shapes that failed since the last success.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streak: Vec<Shape>,
    /// Joins in quick succession without a success in between.
    flaps: u32,
    #[serde(flatten)]
    breaker: Breaker,
}

impl Probation {
    pub fn succeeded(&mut self) {
        *self = Probation::default();
    }

    /// Returns whether the worker is on probation now.
    pub fn failed(&mut self, now: Timestamp, shape: Shape, probation_after: u32) -> bool {
        if self.until().is_some() {
            self.breaker.trip(now, COOLDOWN);
            return true;
        }
        if !self.streak.contains(&shape) {
            self.streak.push(shape);
        }
        let is_over = self.streak.len() >= probation_after.max(1) as usize;
        if is_over {
            self.breaker.trip(now, COOLDOWN);
        }
        is_over
    }

    /// A start of the worker. A few are normal; many in a row are a crash loop.
    pub fn joined(&mut self, now: Timestamp, joined_before: Option<Timestamp>, probation_after: u32) {
        let is_flap = joined_before.is_some_and(|before| now.since(before) < FLAP);
        self.flaps = if is_flap { self.flaps + 1 } else { 0 };
        if self.flaps >= probation_after.max(1) {
            self.breaker.trip(now, COOLDOWN);
        }
    }

    /// Until when nothing goes to it; afterwards one job at a time.
    pub fn until(&self) -> Option<Timestamp> {
        self.breaker.until()
    }

    /// The number of attempts it may hold at once.
    pub fn slots(&self, now: Timestamp, slots: u32) -> u32 {
        match self.breaker.state(now) {
            BreakerState::Closed => slots,
            BreakerState::Open { .. } => 0,
            BreakerState::HalfOpen | BreakerState::Trial(()) => slots.min(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n: u8) -> Shape {
        Shape::from_bytes([n; 32])
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn a_black_hole_gets_one_job_at_a_time_and_ever_more_rarely() {
        let mut probation = Probation::default();
        assert!(!probation.failed(at(0), shape(1), 3));
        assert!(!probation.failed(at(1), shape(1), 3), "one bad workflow says nothing about the worker");
        assert!(!probation.failed(at(2), shape(2), 3));
        assert!(probation.failed(at(3), shape(3), 3));
        assert_eq!((probation.slots(at(32), 8), probation.slots(at(33), 8)), (0, 1));
        assert!(probation.failed(at(34), shape(4), 3));
        assert_eq!((probation.slots(at(93), 8), probation.slots(at(94), 8)), (0, 1));
        probation.succeeded();
        assert_eq!(probation.slots(at(94), 8), 8);
    }

    #[test]
    fn a_flapping_worker_waits_longer_each_time() {
        let mut probation = Probation::default();
        probation.joined(at(0), None, 3);
        for second in [5, 10] {
            probation.joined(at(second), Some(at(second - 5)), 3);
            assert_eq!(probation.slots(at(second), 4), 4);
        }
        probation.joined(at(15), Some(at(10)), 3);
        assert_eq!((probation.slots(at(44), 4), probation.slots(at(45), 4)), (0, 1));
        probation.joined(at(46), Some(at(15)), 3);
        assert_eq!((probation.slots(at(105), 4), probation.slots(at(106), 4)), (0, 1));
    }
}
