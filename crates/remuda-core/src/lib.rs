//! Every decision Remuda makes, as pure computation: `step(now, event) -> Step`.
//!
//! Nothing in here waits, reads a clock, draws a random number or does IO; see `plane` for the control plane and
//! `agent` for what decides inside a worker.

pub mod cause;
pub mod id;
pub mod need;
pub mod record;
pub mod settings;
pub mod standing;
pub mod time;
