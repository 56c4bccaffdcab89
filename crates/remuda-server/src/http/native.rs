//! The native API, `/remuda/v1`: its route table, and the handlers about machines, fleets, blocks, quarantine, costs, the
//! control cycle and health. Jobs, workers, blobs and events have files of their own next to this one.

mod alerts;
mod audit;
mod blocks;
mod cost;
mod cycles;
mod fleets;
mod health;
pub(super) mod machines;
mod metrics;
mod overview;
mod quarantine;
mod routes;
mod status;
mod workflows;

use remuda_core::money::Money;

pub(super) use self::overview::OverviewCache;
pub(super) use self::routes::ROUTES;

/// Money in answers: dollars as a number.
fn dollars(money: Money) -> f64 {
    money.as_dollars()
}
