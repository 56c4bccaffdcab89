//! Commands that look at the plane, and the few that change something in it by hand.

mod blocks;
mod cycle;
mod events;
mod jobs;
mod quarantine;
mod why;
mod workers;

pub(super) use self::blocks::Blocks;
pub(super) use self::cycle::Cycle;
pub(super) use self::events::Events;
pub(super) use self::jobs::{Cancel, Jobs};
pub(super) use self::quarantine::Quarantine;
pub(super) use self::why::Why;
pub(super) use self::workers::{Drain, Workers};
