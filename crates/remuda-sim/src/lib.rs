//! Worlds that go wrong, and the laws that hold all the same. A world is a seed: who works, who submits, what fails and
//! when are drawn from it, and the same seed is the same world to the last step.
//!
//! ```text
//!            virtual time, one heap of things to come
//!  ┌──────────────────────────────────────────────────────────────────────┐
//!  │  client ──submit, cancel──▶┐                                         │
//!  │                            │  net: late, lost, doubled, cut          │
//!  │  host: core::Agent ──beat──┼─────────▶ driver: core::Plane ──▶ store │
//!  │    └─ service: a ComfyUI ◀─┴─orders──      step, flush, commit, then │
//!  │       and all its fault_rates                 answer: as in production  │
//!  │  provider: pods, each with a host in it ◀──rent, list, return──┘     │
//!  └──────────────────────────────────────────────────────────────────────┘
//!       faults: the storm, then the calm          laws: look on at every step
//! ```
//!
//! The plane and the agents are the real ones. Nothing here knows a rule of theirs: the laws compare what they decide
//! with what is true in the world. A failing seed is replayed with `replay`, one line a step.

mod client;
mod driver;
mod event_queue;
mod faults;
mod host;
mod law;
mod laws;
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

pub use law::{LAWS, Law};
pub use outcome::{Outcome, Violation};
pub use sabotage::Sabotage;
pub use settings::WorldSettings;
pub use trouble::Trouble;
pub use weather::Weather;
pub use world::World;

/// Lives through one world.
pub fn run(seed: u64, settings: &WorldSettings) -> Outcome {
    World::new(seed, settings).run()
}

/// Lives through it again, one line a step.
pub fn replay(seed: u64, settings: &WorldSettings, tell: &mut dyn FnMut(&str)) -> Outcome {
    let mut world = World::new(seed, settings);
    world.trace(tell);
    world.run()
}
