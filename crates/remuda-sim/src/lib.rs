//! Randomised worlds with faults, and the laws that must hold in them. A world is drawn from a seed: workers, jobs, and
//! what fails when. The same seed gives the same world, step by step.
//!
//! ```text
//!            virtual time, one queue of events
//!  ┌──────────────────────────────────────────────────────────────────────┐
//!  │  client ──submit, cancel──▶┐                                         │
//!  │                            │  net: late, lost, duplicated, cut       │
//!  │  host: core::Agent ──beat──┼─────────▶ driver: core::Plane ──▶ store │
//!  │    └─ service: a ComfyUI ◀─┴─orders──      step, flush, commit, then │
//!  │       with its faults                      answer: as in production  │
//!  │  provider: pods, each with a host in it ◀──rent, list, return──┘     │
//!  └──────────────────────────────────────────────────────────────────────┘
//!       faults: a storm, then calm          laws: checked after every step
//! ```
//!
//! The plane and the agents are the real ones. The simulator knows none of their rules: the laws compare their
//! decisions with what is true in the world. `replay` prints a failing seed, one line per step.
//!
//! Modules, lowest first: `weather`, `law`, `random`, `trouble`, `sabotage` and `settings` are plain values; `service`,
//! `net`, `faults` and `focus` build on them; `scenario` draws a world; `client`, `host`, `provider`, `store` and `driver` hold
//! the state of each actor; `laws` judges; `world` owns all state and handles the events. `model`, which only tests use,
//! explores small models of the same core exhaustively.

mod client;
mod clocks;
mod driver;
mod event_queue;
mod faults;
mod focus;
mod host;
mod law;
mod laws;
#[cfg(test)]
mod model;
mod net;
mod outcome;
mod provider;
mod random;
mod sabotage;
mod scenario;
mod service;
mod settings;
mod store;
mod trouble;
mod weather;
mod world;

pub use focus::FaultFocus;
pub use law::{LAWS, Law};
pub use outcome::{Outcome, Violation};
pub use sabotage::Sabotage;
pub use settings::WorldSettings;
pub use trouble::Trouble;
pub use weather::Weather;
pub use world::World;

/// Runs one world.
pub fn run(seed: u64, settings: &WorldSettings) -> Outcome {
    clocks::check(seed, settings, World::new(seed, settings).run())
}

/// Runs one world and passes a line per step to `trace`.
pub fn replay(seed: u64, settings: &WorldSettings, trace: &mut dyn FnMut(&str)) -> Outcome {
    let mut world = World::new(seed, settings);
    world.trace(trace);
    clocks::check(seed, settings, world.run())
}
