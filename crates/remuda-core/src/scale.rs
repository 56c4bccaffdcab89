//! How many workers a fleet should have. Only arithmetic; `cycle` decides what is done about it.
//!
//! ```text
//!  short    queued / (active + spawning) > jobs_per_worker, or nothing is there and something waits
//!  wanted   max(machines_min, ceil(queued / jobs_per_worker)), at most machines_max
//!  missing  wanted - (active + spawning)
//!  surplus  idle workers among the active ones above wanted
//! ```
//!
//! Where this differs from the seed: with nothing there the seed always ordered `machines_min`, which for a long
//! queue is too few (the rest came a cycle later) and for a minimum of zero is none at all, for ever. Here one formula
//! serves both, and a waiting job always wants at least one worker. And the seed shrank to the minimum whatever
//! waited, so that it could order tomorrow what it returned today; here what is wanted now is kept.
//!
//! Load that swings round a threshold would still rent and return in turn. `ScalingTrend` remembers which way the fleet
//! went and when it turned, and allows one turn in ten minutes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::settings::Scaling;
use crate::time::Timestamp;

/// Whether more workers should be there than `capacity`, the active and the spawning ones together.
pub fn is_short(queued: u32, capacity: u32, jobs_per_worker: u32) -> bool {
    // Multiplied out rather than divided, so that nothing there needs no case of its own.
    u64::from(queued) > u64::from(capacity) * u64::from(at_least_one(jobs_per_worker))
}

/// How many workers should be there for `queued` jobs.
pub fn wanted(queued: u32, scaling: &Scaling) -> u32 {
    queued.div_ceil(at_least_one(scaling.jobs_per_worker)).max(scaling.machines_min).min(scaling.machines_max)
}

/// How many workers to order so that `wanted` are there. What is spawning is there.
pub fn missing(queued: u32, capacity: u32, scaling: &Scaling) -> u32 {
    wanted(queued, scaling).saturating_sub(capacity)
}

/// How many of the `idle` ones among the `active` workers can go.
pub fn surplus(queued: u32, active: u32, idle: u32, scaling: &Scaling) -> u32 {
    active.saturating_sub(wanted(queued, scaling)).min(idle)
}

/// A threshold of zero would want endlessly many workers for a single job.
fn at_least_one(jobs_per_worker: u32) -> u32 {
    jobs_per_worker.max(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingDirection {
    Up,
    Down,
}

/// Which way a fleet last went, and when it turned that way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingTrend(Option<(ScalingDirection, Timestamp)>);

impl ScalingTrend {
    /// Workers were ordered, or the first of them told to go.
    pub fn went(&mut self, now: Timestamp, direction: ScalingDirection) {
        if self.0.is_none_or(|(before, _)| before != direction) {
            self.0 = Some((direction, now));
        }
    }

    /// When the fleet may go this way; a moment long past if it already does.
    pub fn free_at(&self, direction: ScalingDirection, reversal_cooldown: Duration) -> Timestamp {
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

    /// `should_scale_up` of the seed, letter by letter.
    fn seed_is_short(queued: u32, active: u32, threshold: u32) -> bool {
        if active == 0 {
            return queued > 0;
        }
        let tasks_per_worker = f64::from(queued) / f64::from(active);
        tasks_per_worker > f64::from(threshold)
    }

    /// `calculate_workers_needed` of the seed without its special case for an empty fleet.
    fn seed_missing(queued: u32, active: u32, scaling: &Scaling) -> f64 {
        let ideal = (f64::from(queued) / f64::from(scaling.jobs_per_worker)).ceil();
        (ideal.max(f64::from(scaling.machines_min)) - f64::from(active)).max(0.0)
    }

    #[test]
    fn ten_fleets_of_the_seeds_defaults() {
        for (queued, capacity, short, expected) in [
            (0, 0, false, 2), // asked only when short: an empty fleet without work stays empty
            (1, 0, true, 2),
            (30, 0, true, 10), // the seed: 2 now, 8 more a cycle later
            (6, 2, false, 0),
            (7, 2, true, 1),
            (15, 5, false, 0),
            (16, 5, true, 1),
            (15, 2, true, 3),
            (300, 4, true, 6), // the ceiling: 10
            (300, 12, true, 0),
        ] {
            assert_eq!(is_short(queued, capacity, 3), short, "{queued} for {capacity}");
            assert_eq!(missing(queued, capacity, &Scaling::default()), expected, "{queued} for {capacity}");
        }
    }

    #[test]
    fn a_minimum_of_zero_still_wants_one_for_a_waiting_job() {
        let none_needed = scaling(0, 10, 3);
        assert_eq!((missing(0, 0, &none_needed), missing(1, 0, &none_needed)), (0, 1));
    }

    #[test]
    fn the_idle_go_unless_the_queue_or_the_minimum_wants_them() {
        for (queued, active, idle, expected) in
            [(0, 5, 5, 3), (0, 5, 1, 1), (0, 2, 2, 0), (12, 5, 2, 1), (15, 5, 2, 0), (0, 0, 0, 0)]
        {
            assert_eq!(
                surplus(queued, active, idle, &Scaling::default()),
                expected,
                "{queued}, {active}, {idle}"
            );
        }
    }

    #[test]
    fn a_fleet_turns_once_in_ten_minutes() {
        let at = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let mut heading = ScalingTrend::default();
        assert_eq!(heading.free_at(ScalingDirection::Down, minutes(10)), Timestamp::ZERO);
        heading.went(at(1), ScalingDirection::Up);
        heading.went(at(9), ScalingDirection::Up);
        assert_eq!(heading.free_at(ScalingDirection::Up, minutes(10)), Timestamp::ZERO);
        assert_eq!(heading.free_at(ScalingDirection::Down, minutes(10)), at(11), "counted from the turn");
        heading.went(at(11), ScalingDirection::Down);
        assert_eq!(heading.free_at(ScalingDirection::Up, minutes(10)), at(21));
    }

    proptest! {
        #[test]
        fn the_seeds_arithmetic_and_ours_agree(
            queued in 0_u32..100_000, capacity in 0_u32..500, min in 0_u32..20, max in 0_u32..500, per in 1_u32..50,
        ) {
            let scaling = scaling(min, max, per);
            prop_assert_eq!(is_short(queued, capacity, per), seed_is_short(queued, capacity, per));
            let room = f64::from(max.saturating_sub(capacity));
            let ours = missing(queued, capacity, &scaling);
            prop_assert_eq!(f64::from(ours), seed_missing(queued, capacity, &scaling).min(room));
            prop_assert!(ours == 0 || ours + capacity <= max);
            prop_assert!(capacity > 0 || queued == 0 || max == 0 || ours > 0);
        }

        #[test]
        fn no_number_is_too_odd(queued: u32, capacity: u32, min: u32, max: u32, per: u32, idle: u32) {
            let scaling = scaling(min, max, per);
            let ours = missing(queued, capacity, &scaling);
            prop_assert!(ours == 0 || is_short(queued, capacity, per) || capacity < min);
            prop_assert!(ours == 0 || surplus(queued, capacity, idle, &scaling) == 0, "grow or shrink, not both");
        }
    }
}
