//! How many workers a fleet should have. Arithmetic only; `cycle` decides what to do about it.
//!
//! ```text
//!  short    queued / (active + spawning) > jobs_per_worker, or no worker and a waiting job
//!  wanted   max(machines_min, ceil(queued / jobs_per_worker)), at most machines_max
//!  missing  wanted - (active + spawning)
//!  surplus  idle workers among the active ones above wanted
//! ```
//!
//! Two differences from the predecessor program. An empty fleet ordered `machines_min` there, which is too few for a long queue and, with
//! a minimum of zero, none for ever; here one formula serves both, and a waiting job always wants at least one worker.
//! And it shrank to the minimum regardless of the queue, so that it rented again what it had just returned;
//! here the target is kept.
//!
//! Load that oscillates around a threshold would still rent and return in turn. `ScalingTrend` remembers the direction and
//! when it changed, and allows one reversal per `reversal_cooldown`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::settings::Scaling;
use crate::time::Timestamp;

/// Whether the fleet needs more than `capacity`, its active and spawning workers.
pub fn is_short(queued: u32, capacity: u32, jobs_per_worker: u32) -> bool {
    // Multiplied instead of divided, so that a capacity of zero needs no special case.
    u64::from(queued) > u64::from(capacity) * u64::from(at_least_one(jobs_per_worker))
}

/// The target number of workers for `queued` jobs.
pub fn wanted(queued: u32, scaling: &Scaling) -> u32 {
    queued.div_ceil(at_least_one(scaling.jobs_per_worker)).max(scaling.machines_min).min(scaling.machines_max)
}

/// How many workers to rent to reach the target; `capacity` includes spawning ones.
pub fn missing(wanted: u32, capacity: u32) -> u32 {
    wanted.saturating_sub(capacity)
}

/// How many of the `idle` workers among the `active` ones can be drained.
pub fn surplus(wanted: u32, active: u32, idle: u32) -> u32 {
    active.saturating_sub(wanted).min(idle)
}

/// A threshold of zero would want infinitely many workers for one job.
fn at_least_one(jobs_per_worker: u32) -> u32 {
    jobs_per_worker.max(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingDirection {
    Up,
    Down,
}

/// The last scaling direction of a fleet, and when it changed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingTrend(Option<(ScalingDirection, Timestamp)>);

impl ScalingTrend {
    /// Workers were rented or drained.
    pub fn record(&mut self, now: Timestamp, direction: ScalingDirection) {
        if self.0.is_none_or(|(before, _)| before != direction) {
            self.0 = Some((direction, now));
        }
    }

    /// When the fleet may scale in this direction; a past moment if it already does.
    pub fn allowed_at(&self, direction: ScalingDirection, reversal_cooldown: Duration) -> Timestamp {
        match self.0 {
            Some((before, turned_at)) if before != direction => turned_at.plus(reversal_cooldown),
            Some(_) | None => Timestamp::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scaling(machines_min: u32, machines_max: u32, jobs_per_worker: u32) -> Scaling {
        Scaling { machines_min, machines_max, jobs_per_worker, ..Scaling::default() }
    }

    /// `should_scale_up` of the predecessor.
    fn predecessor_is_short(queued: u32, active: u32, threshold: u32) -> bool {
        if active == 0 {
            return queued > 0;
        }
        let tasks_per_worker = f64::from(queued) / f64::from(active);
        tasks_per_worker > f64::from(threshold)
    }

    /// `calculate_workers_needed` of the predecessor without its special case for an empty fleet.
    fn predecessor_missing(queued: u32, active: u32, scaling: &Scaling) -> f64 {
        let ideal = (f64::from(queued) / f64::from(scaling.jobs_per_worker)).ceil();
        (ideal.max(f64::from(scaling.machines_min)) - f64::from(active)).max(0.0)
    }

    #[test]
    fn defaults_scale_as_documented() {
        for (queued, capacity, short, expected) in [
            (0, 0, false, 2), // used only when short: an empty fleet without work stays empty
            (1, 0, true, 2),
            (30, 0, true, 10), // the predecessor: 2 now, 8 more a cycle later
            (6, 2, false, 0),
            (7, 2, true, 1),
            (15, 5, false, 0),
            (16, 5, true, 1),
            (15, 2, true, 3),
            (300, 4, true, 6), // the ceiling: 10
            (300, 12, true, 0),
        ] {
            assert_eq!(is_short(queued, capacity, 3), short, "{queued} for {capacity}");
            assert_eq!(
                missing(wanted(queued, &Scaling::default()), capacity),
                expected,
                "{queued} for {capacity}"
            );
        }
    }

    #[test]
    fn waiting_job_wants_a_worker_even_with_minimum_zero() {
        let none_needed = scaling(0, 10, 3);
        assert_eq!((wanted(0, &none_needed), wanted(1, &none_needed)), (0, 1));
    }

    #[test]
    fn idle_workers_are_surplus_above_queue_and_minimum() {
        for (queued, active, idle, expected) in
            [(0, 5, 5, 3), (0, 5, 1, 1), (0, 2, 2, 0), (12, 5, 2, 1), (15, 5, 2, 0), (0, 0, 0, 0)]
        {
            assert_eq!(
                surplus(wanted(queued, &Scaling::default()), active, idle),
                expected,
                "{queued}, {active}, {idle}"
            );
        }
    }

    #[test]
    fn fleet_reverses_at_most_once_per_cooldown() {
        let at = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let mut heading = ScalingTrend::default();
        assert_eq!(heading.allowed_at(ScalingDirection::Down, minutes(10)), Timestamp::ZERO);
        heading.record(at(1), ScalingDirection::Up);
        heading.record(at(9), ScalingDirection::Up);
        assert_eq!(heading.allowed_at(ScalingDirection::Up, minutes(10)), Timestamp::ZERO);
        assert_eq!(
            heading.allowed_at(ScalingDirection::Down, minutes(10)),
            at(11),
            "counted from the reversal"
        );
        heading.record(at(11), ScalingDirection::Down);
        assert_eq!(heading.allowed_at(ScalingDirection::Up, minutes(10)), at(21));
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_the_predecessor(
            queued in 0_u32..100_000, capacity in 0_u32..500, min in 0_u32..20, max in 0_u32..500, per in 1_u32..50,
        ) {
            let scaling = scaling(min, max, per);
            prop_assert_eq!(is_short(queued, capacity, per), predecessor_is_short(queued, capacity, per));
            let room = f64::from(max.saturating_sub(capacity));
            let ours = missing(wanted(queued, &scaling), capacity);
            prop_assert_eq!(f64::from(ours), predecessor_missing(queued, capacity, &scaling).min(room));
            prop_assert!(ours == 0 || ours + capacity <= max);
            prop_assert!(capacity > 0 || queued == 0 || max == 0 || ours > 0);
        }

        #[test]
        fn extreme_numbers_never_grow_and_shrink_at_once(queued: u32, capacity: u32, min: u32, max: u32, per: u32, idle: u32) {
            let scaling = scaling(min, max, per);
            let ours = missing(wanted(queued, &scaling), capacity);
            prop_assert!(ours == 0 || is_short(queued, capacity, per) || capacity < min);
            prop_assert!(ours == 0 || surplus(wanted(queued, &scaling), capacity, idle) == 0, "grow or shrink, not both");
        }
    }
}
