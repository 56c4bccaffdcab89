//! What runs at a service, ours or somebody else's, and how it will end: that is decided when it begins.

use remuda_core::service::ServiceFault;

use super::{Ailment, Key};
use crate::scene::{Nature, Quirk};
use crate::world::World;

#[derive(Debug)]
pub(crate) struct Prompt {
    /// Nothing for what somebody else handed in.
    pub(super) key: Option<Key>,
    pub(super) mark: u64,
    pub(super) takes: u64,
    pub(super) started_at: u64,
    pub(super) every: u64,
    pub(super) told_at: u64,
    pub(super) end: End,
    /// Deaf to being told to stop, until then.
    pub(super) stubborn_until: u64,
    /// Nothing had to be computed: it is over at once, and nobody hears of it.
    pub(super) is_cached: bool,
    /// The second of two under one id.
    pub(super) is_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeds,
    Fails(ServiceFault),
    Interrupted,
    KillsAgent,
    /// It never ends, whatever it is told.
    Hangs,
}

/// How something ended, and when that was or will be written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) end: End,
    pub(super) at: u64,
    pub(super) written_at: u64,
    /// The agent has heard of a failure, or brought the outputs home.
    pub(super) is_taken: bool,
}

/// What a run that fails says.
pub(crate) const FAILED: &str = "it did not work";

impl Prompt {
    pub(super) fn new(key: Option<Key>, mark: u64, takes: u64, every: u64) -> Self {
        Prompt {
            key,
            mark,
            takes,
            started_at: 0,
            every,
            told_at: 0,
            end: End::Succeeds,
            stubborn_until: 0,
            is_cached: false,
            is_copy: false,
        }
    }

    pub(super) fn ends_at(&self) -> u64 {
        if self.end == End::Hangs { u64::MAX } else { self.started_at + self.takes }
    }

    pub(super) fn progress(&self, now: u64) -> f32 {
        (now - self.started_at) as f32 / self.takes.max(1) as f32
    }
}

impl World<'_> {
    /// What is asked for, and where, decides; for the rest there is luck, and only in the storm.
    pub(super) fn decide_end(&mut self, host: usize, key: Key, mark: u64) {
        let nature = self.scene.nature(self.scene.jobs[crate::client::of(key.0)].shape);
        let oddities = self.scene.oddities;
        let (quirk, ailment) = (self.hosts[host].plan.quirk, self.hosts[host].service.ailment);
        let is_fault = self.is_odd(oddities.fails);
        let is_cached = self.is_odd(oddities.cached);
        let luck = self.random.draw();
        let (end, most) = match (quirk, nature, ailment) {
            (_, _, Ailment::Device) => (End::Fails(ServiceFault::Device), 500),
            (_, _, Ailment::Disk) => (End::Fails(ServiceFault::Disk), u64::MAX),
            (Quirk::BlackHole, ..) => (End::Fails(ServiceFault::Lost), 1),
            (_, Nature::Bad, _) => (End::Fails(ServiceFault::Node), 2000),
            (_, Nature::Poison, _) => (End::KillsAgent, 1000),
            (_, Nature::Picky, _) if self.is_picky(host) => (End::Fails(ServiceFault::Missing), 500),
            (Quirk::None | Quirk::Boaster, Nature::Good | Nature::Quiet | Nature::Picky, _) => {
                match luck % 6 {
                    _ if !is_fault => (End::Succeeds, if is_cached { 5 } else { u64::MAX }),
                    0 => (End::Hangs, u64::MAX),
                    1 | 2 => (End::Fails(ServiceFault::Memory), u64::MAX),
                    3 => (End::Fails(ServiceFault::Node), u64::MAX),
                    4 if !self.hosts[host].service.plan.is_plain => {
                        (End::Fails(ServiceFault::Device), u64::MAX)
                    }
                    _ => (End::Interrupted, u64::MAX),
                }
            }
        };
        let stubborn_until = match self.is_odd(oddities.stubborn) {
            true if luck.is_multiple_of(4) => u64::MAX,
            true => self.now + self.random.between(1000, 60_000),
            false => 0,
        };
        let service = &mut self.hosts[host].service;
        if end == End::Fails(ServiceFault::Device) {
            service.ailment = Ailment::Device;
        }
        // Some nodes only stand still; others take the thread that runs everything with them.
        if end == End::Hangs && luck.is_multiple_of(2) && !service.plan.is_plain {
            service.ailment = Ailment::Executor;
        }
        if let Some(prompt) = service.running_mut(mark) {
            (prompt.end, prompt.takes) = (end, prompt.takes.min(most));
            (prompt.stubborn_until, prompt.is_cached) = (stubborn_until, is_cached && end == End::Succeeds);
            if end == End::Hangs {
                prompt.every = u64::MAX;
            }
        }
    }

    /// Every other worker lacks something, until somebody brings it.
    pub(super) fn is_picky(&self, host: usize) -> bool {
        !self.is_calm && host.is_multiple_of(2)
    }
}
