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
//!  │       and all its oddities                 answer: as in production  │
//!  │  provider: pods, each with a host in it ◀──rent, list, return──┘     │
//!  └──────────────────────────────────────────────────────────────────────┘
//!       faults: the storm, then the calm          laws: look on at every step
//! ```
//!
//! The plane and the agents are the real ones. Nothing here knows a rule of theirs: the laws compare what they decide
//! with what is true in the world. A failing seed is replayed with `replay`, one line a step.

mod client;
mod driver;
mod faults;
mod happening;
mod host;
mod laws;
mod net;
mod people;
mod provider;
mod random;
mod sabotage;
mod scene;
mod service;
mod store;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use laws::{LAWS, Law};
pub use provider::trouble::Trouble;
pub use sabotage::Sabotage;
pub use world::World;

/// What kind of world to draw. The defaults draw everything from the seed.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// Submissions; from 30 to 300 unless said.
    pub jobs: Option<usize>,
    /// Workers; from 3 to 8 unless said.
    pub workers: Option<usize>,
    /// Without faults the weather is fair.
    pub faults: bool,
    pub weather: Option<Weather>,
    /// What the provider gets wrong where machines are rented; drawn unless said.
    pub troubles: Option<Vec<Trouble>>,
    /// How long the storm lasts, give or take half of it.
    pub storm: Duration,
    /// A deliberate breakage that the laws must notice.
    pub sabotage: Option<Sabotage>,
}

impl Default for WorldSettings {
    fn default() -> Self {
        WorldSettings {
            jobs: None,
            workers: None,
            faults: true,
            weather: None,
            troubles: None,
            storm: Duration::from_secs(60),
            sabotage: None,
        }
    }
}

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing does: here the laws of fairness are looked at.
    Fair,
    /// Agents and services die, stop, come twice.
    Agents,
    /// Messages are lost, doubled, late; links are cut.
    Network,
    /// Services lose, forget, deny and repeat things, fall ill and have other guests; the rest is well.
    Service,
    /// The plane dies, stops, is replaced; workers are well and must not suffer for it.
    Plane,
    /// The store is slow or away; workers are well and must not suffer for it.
    Store,
    /// All of it at once.
    Wild,
    /// Machines are rented and returned, and the provider gets everything wrong that one can.
    Fleet,
}

impl Weather {
    pub const ALL: [Weather; 8] = [
        Weather::Fair,
        Weather::Agents,
        Weather::Network,
        Weather::Service,
        Weather::Plane,
        Weather::Store,
        Weather::Wild,
        Weather::Fleet,
    ];
}

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Jobs that were accepted: lives lived.
    pub jobs: u64,
    pub attempts: u64,
    /// How often a service began to run something for us: what exceeds the jobs was done again or for nothing.
    pub executions: u64,
    pub steps: u64,
    /// Pods that were made for us.
    pub pods: u64,
    /// How often each trouble was met.
    pub met: BTreeMap<Trouble, u64>,
    pub violations: Vec<Violation>,
    /// The same for the same seed, whoever runs it.
    pub trace_hash: u64,
}

/// A law was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub law: Law,
    /// Milliseconds since the world began.
    pub at: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ms: {}", self.law, self.at, self.what)
    }
}

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
