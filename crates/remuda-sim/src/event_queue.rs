//! Everything that can happen in a world, and the order in which it happens: by time, then by the order of scheduling.

use std::cmp::Ordering;

use remuda_core::id::{FleetId, PodId, WorkerId};
use remuda_core::provider;
use remuda_core::service::{ProbeResult, SelfTestResult, ServiceIncarnation, ServiceRemedy};

use crate::net::ClientResponse;
use crate::net::{AgentResponse, PlaneCall};
use crate::service::{Key, SocketMessage, Submission, SubmitAnswer};

#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    // To the plane.
    CallArrives(Box<PlaneCall>),
    PlaneStep { driver: usize, at: u64 },
    CommitDone { driver: usize },
    PollTimeout { at: usize, worker: WorkerId, call: u64 },
    ConnectionClosed { worker: WorkerId, call: u64 },
    PlaneStart { jump: i64 },
    PlaneResume { driver: usize },
    // To a host.
    AgentStart { host: usize },
    AgentResume { host: usize },
    TwinStop { host: usize },
    AgentTimer { host: usize, process: u32, at: u64 },
    AgentResponse { host: usize, process: u32, call: u64, answer: Box<AgentResponse> },
    AgentCallTimeout { host: usize, process: u32, call: u64 },
    // To a host's agent, from its service.
    SubmitAnswered { host: usize, process: u32, key: Key, life: ServiceIncarnation, answer: SubmitAnswer },
    ReadQueue { host: usize, process: u32, key: Key, was_known: bool },
    ReadHistory { host: usize, process: u32, key: Key, was_known: bool },
    Probed { host: usize, process: u32, key: Key, life: ServiceIncarnation, seen: Box<ProbeResult> },
    OutputsFetched { host: usize, process: u32, key: Key, life: ServiceIncarnation },
    SocketMessage { host: usize, process: u32, message: SocketMessage },
    SocketOpen { host: usize, process: u32, number: u32 },
    SocketClosed { host: usize, process: u32, number: u32 },
    RemedyDone { host: usize, process: u32, remedy: ServiceRemedy, problem: Option<&'static str> },
    CheckDone { host: usize, process: u32, began_in: ServiceIncarnation, result: SelfTestResult },
    // To a service.
    SubmissionArrives { host: usize, submission: Submission },
    PromptDue { host: usize, mark: u64 },
    StopPrompt { host: usize, key: Key, is_ours: bool },
    // Between a plane and its provider.
    ProviderCallArrives { driver: usize, fleet: FleetId, number: u64, call: Box<provider::ProviderCall> },
    ProviderAnswer { driver: usize, fleet: FleetId, number: u64, news: Box<provider::ProviderEvent> },
    // To a pod.
    PodStart { pod: PodId },
    PodFate { pod: PodId },
    PodDelete { pod: PodId },
    ContactTimeout { host: usize },
    // To a client.
    ClientSubmit { client: usize, is_changed: bool },
    ClientResponse { client: usize, call: u64, response: ClientResponse },
    ClientTimeout { client: usize, call: u64 },
    ClientRetry { client: usize },
    ClientCancel { client: usize },
    // To the world.
    Fault { index: usize },
    StormEnd,
    Inspect,
}

/// An event with its due time.
#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) at: u64,
    pub(crate) serial: u64,
    pub(crate) what: SimEvent,
}

impl PartialEq for QueuedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for QueuedEvent {}

impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `BinaryHeap` pops the greatest first: the earliest event, and of two at the same time the one scheduled first.
impl Ord for QueuedEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}
