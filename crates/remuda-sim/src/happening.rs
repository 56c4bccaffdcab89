//! What can happen, to whom, and which of two things happens first.

use std::cmp::Ordering;

use remuda_core::id::{FleetId, PodId, WorkerId};
use remuda_core::provider;
use remuda_core::service::{ProbeResult, ServiceIncarnation, ServiceRemedy};

use crate::client::Told;
use crate::net::{Answered, Call};
use crate::service::{Answer, Arrival, Key, Message};

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    // To the plane.
    Arrive(Box<Call>),
    Step { driver: usize, at: u64 },
    Committed { driver: usize },
    PollOver { at: usize, worker: WorkerId, call: u64 },
    HungUp { worker: WorkerId, call: u64 },
    PlaneStart { jump: i64 },
    PlaneResume { driver: usize },
    // To a host.
    Begin { host: usize },
    Resume { host: usize },
    TwinEnds { host: usize },
    Wake { host: usize, process: u32, at: u64 },
    Answer { host: usize, process: u32, call: u64, answer: Box<Answered> },
    GaveUp { host: usize, process: u32, call: u64 },
    // To a host's agent, from its service.
    Submitted { host: usize, process: u32, key: Key, life: ServiceIncarnation, answer: Answer },
    ReadQueue { host: usize, process: u32, key: Key, was_known: bool },
    ReadHistory { host: usize, process: u32, key: Key, was_known: bool },
    Probed { host: usize, process: u32, key: Key, life: ServiceIncarnation, seen: Box<ProbeResult> },
    Collected { host: usize, process: u32, key: Key, life: ServiceIncarnation },
    Heard { host: usize, process: u32, message: Message },
    SocketOpens { host: usize, process: u32, number: u32 },
    SocketClosed { host: usize, process: u32, number: u32 },
    Treated { host: usize, process: u32, remedy: ServiceRemedy, problem: Option<&'static str> },
    Checked { host: usize, process: u32, problem: Option<&'static str> },
    // To a service.
    HandedIn { host: usize, arrival: Arrival },
    PromptDue { host: usize, mark: u64 },
    Stop { host: usize, key: Key, is_ours: bool },
    // Between a plane and its provider.
    AtProvider { driver: usize, fleet: FleetId, number: u64, call: Box<provider::ProviderCall> },
    FromProvider { driver: usize, fleet: FleetId, number: u64, news: Box<provider::ProviderEvent> },
    // To a pod.
    PodRuns { pod: PodId },
    PodEnds { pod: PodId },
    PodGoes { pod: PodId },
    ContactTimeout { host: usize },
    // To a client.
    Submit { client: usize, is_changed: bool },
    ToClient { client: usize, call: u64, told: Told },
    ClientGaveUp { client: usize, call: u64 },
    TryAgain { client: usize },
    ChangeMind { client: usize },
    // To the world.
    Fault { index: usize },
    Calm,
    Look,
}

/// Something to come.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) serial: u64,
    pub(crate) what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap gives out the greatest first: that is the earliest, and among equals the one that was planned first.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}
