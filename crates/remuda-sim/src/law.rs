//! The names of the laws; `laws` describes and checks them.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// An acknowledged job is stored.
    S1,
    /// An outcome never changes and is published once.
    S2,
    /// Stale reports and beats change nothing.
    S3,
    /// Attempt numbers rise, and one attempt runs on one worker.
    S4,
    /// Only what is committed has effects.
    S5,
    /// An attempt is lost only on evidence.
    S6,
    /// Attempts are bounded, and poison does not spread.
    S7,
    /// Machines and money stay within their limits, and foreign pods are untouched.
    S8,
    /// Nothing of an older term is written.
    S9,
    /// Clocks that jump or drift change no verdict.
    S10,
    /// What is kept stays within its limits.
    S11,
    /// Blocks, pins, readiness and reasons hold, and every index is correct.
    S12,
    /// A worker whose messages arrive in time is never called silent.
    S16,
    /// No tenant pays for another.
    S17,
    /// No shape is quarantined without evidence against it.
    S18,
    /// No job fails untried.
    S19,
    /// Poison needs a cause.
    S20,
    /// Every job ends.
    L1,
    /// Every end at a service is noticed and recorded.
    L2,
    /// A dead worker's attempts are taken from it in time.
    L3,
    /// The view of workers, services and pods becomes true again.
    L4,
    /// There are no storms of calls, and fleets do not oscillate.
    L5,
    /// No block and no trial outlives its reason.
    L6,
    /// An error that no further attempt can change is told.
    L7,
    /// The brake lets go once there is proof that messages arrive.
    L8,
    /// After a mass loss the dead lose their attempts in time.
    L9,
    /// A plane that was away judges no one when it wakes.
    L10,
    /// No tenant is passed over again and again.
    Fair,
    /// Event numbers have no gaps.
    Events,
}

pub const LAWS: [Law; 29] = [
    Law::S1,
    Law::S2,
    Law::S3,
    Law::S4,
    Law::S5,
    Law::S6,
    Law::S7,
    Law::S8,
    Law::S9,
    Law::S10,
    Law::S11,
    Law::S12,
    Law::S16,
    Law::S17,
    Law::S18,
    Law::S19,
    Law::S20,
    Law::L1,
    Law::L2,
    Law::L3,
    Law::L4,
    Law::L5,
    Law::L6,
    Law::L7,
    Law::L8,
    Law::L9,
    Law::L10,
    Law::Fair,
    Law::Events,
];

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
