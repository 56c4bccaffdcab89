//! S10: wall clocks decide nothing. A world is run a second time in which every host's clock shows another year, the plane
//! starts on another day, and its clock is set differently while it runs: every decision must fall at the same moment.
//!
//! | clock | what a world does to it |
//! |---|---|
//! | a worker's | off by years, 5 % fast or slow: in every world, so the other laws hold with it (K3, K5) |
//! | the plane's, when it starts | an hour off, either way, or fifty years ahead: `Fault::KillPlane`, `Fault::ReplacePlane`, `Scenario::first_jump` |
//! | the plane's, while it runs | set by an hour or by more than a lease: `Fault::JumpClock` (K1) |
//!
//! The core has no wall clock: it is given the time of each step. `remuda serve` and `remuda worker` read the wall clock
//! once, when they start, and add a monotonic clock (`remuda-net/src/clock.rs`, with its own tests); so does the simulated
//! plane. At which time it starts then, `core::clock` decides, and S10 also says: with a right clock the plane starts at the
//! right time, whatever an earlier start did, and no stored record is ahead of it. What is left to show here is that nothing else takes a time from a clock that jumps, and that no time of one
//! machine is compared with that of another. A start at another time of the day is not part of the comparison: budgets are
//! per day, and deadlines are stored as wall time.

use crate::law::Law;
use crate::outcome::{Outcome, Violation};
use crate::scenario::ClockShift;
use crate::settings::WorldSettings;
use crate::world::World;

/// One world in so many is run twice.
const COMPARED_EVERY: u64 = 8;

/// Adds a violation if another time on every wall clock changes what happens.
pub(crate) fn check(seed: u64, settings: &WorldSettings, mut outcome: Outcome) -> Outcome {
    if !seed.is_multiple_of(COMPARED_EVERY) {
        return outcome;
    }
    let other = World::with_clocks(seed, settings, ClockShift::Other).run();
    if other.trace_hash != outcome.trace_hash {
        let what = format!(
            "with other wall clocks this world takes {} steps and {} attempts in place of {} and {}",
            other.steps, other.attempts, outcome.steps, outcome.attempts
        );
        outcome.violations.push(Violation { law: Law::S10, at: 0, what });
    }
    outcome
}
