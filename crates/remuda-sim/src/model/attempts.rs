//! One job, two workers, one plane: attempt fencing, adoption and cancellation. The state of this small world; `actions` says
//! what can happen in it, `plane`, `worker` and `service` do it, `rules` judges it.
//!
//! ```text
//!   client ── cancel, drain ──▶ plane ──commit──▶ store
//!                               ▲   │
//!              calls, answers:  │   ▼   late, lost, copied
//!                        worker 0, worker 1 ──submit, probe──▶ a service each
//! ```

pub(super) mod actions;
mod plane;
mod rules;
mod sabotage;
mod service;
mod start;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::agent::Agent;
use remuda_core::id::{Hash, JobId, Term, WorkerId};
use remuda_core::plane::Plane;
use remuda_core::record::Record;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;

use self::actions::AttemptAction;
pub(super) use self::sabotage::AttemptSabotage;
use super::fingerprint::{Shared, fingerprint, unordered};
use super::search::{BrokenRule, Fingerprint, Model};
use crate::net::{AgentResponse, PlaneRequest};
use crate::service::{Key, job_result};
use crate::store::Store;

/// Time moves in steps of this size; every timer that is due by then fires at its end, in any order with everything else
/// that happens there. All times of the settings are multiples of it.
const QUANTUM: Duration = Duration::from_secs(5);

/// The model: how many faults of each kind, and for how long.
pub(super) struct Attempts {
    pub(super) faults: FaultBudget,
    /// After this many quanta nothing new is explored; calm runs go on.
    pub(super) horizon: u64,
    pub(super) sabotage: Option<AttemptSabotage>,
    is_pinned: bool,
    begins_with_zombie: bool,
    settings: Settings,
    workers: [WorkerId; 2],
    job: JobId,
    workflow: Arc<RawValue>,
}

/// How many faults may still happen: of each kind, and altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultBudget {
    pub(super) total: u8,
    /// Messages that are lost, or overtaken by others and by time.
    pub(super) late: u8,
    /// Messages of which a copy arrives at any later time.
    pub(super) copies: u8,
    /// Crashes of the plane.
    pub(super) crashes: u8,
    /// Ends of an agent process; its service goes on.
    pub(super) kills: u8,
    /// Agent processes that stand still for a while.
    pub(super) pauses: u8,
    pub(super) cancels: u8,
    pub(super) drains: u8,
}

#[derive(Clone, Debug)]
pub(super) struct AttemptState {
    /// When the search began.
    began_at: u64,
    now: u64,
    plane: Shared<Plane>,
    /// Records that a sabotage leaves for the next commit.
    unstored: Vec<Record>,
    store: Shared<Store>,
    hosts: [WorkerHost; 2],
    /// On their way now: delivered in any order, before time goes on.
    messages: Vec<Shared<Message>>,
    /// Lost or late: delivered at any time, or never.
    late: Vec<Shared<Message>>,
    faults: FaultBudget,
    /// When the plane last heard of each worker or was not there itself.
    heard_at: [u64; 2],
    /// The newest call of each worker that the plane has seen: its process and its number.
    newest_calls: [(u32, u64); 2],
    /// Workers whose drain was confirmed.
    drained: [bool; 2],
    print: Fingerprint,
}

/// A worker's machine: the agent process, its connection, and the service, which outlives the agent.
#[derive(Clone, Debug)]
struct WorkerHost {
    agent: Option<Shared<Agent>>,
    process: u32,
    is_paused: bool,
    /// It was asked to stop: no supervisor starts it again.
    has_stopped: bool,
    ticked_at: u64,
    token: Hash,
    /// The call under way.
    call: Option<OpenCall>,
    calls: u64,
    /// The long poll that the plane keeps open.
    parked: Option<OpenPoll>,
    prompts: BTreeMap<Key, PromptPhase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenCall {
    id: u64,
    /// `None` for a join.
    seq: Option<u64>,
    times_out_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenPoll {
    process: u32,
    call: u64,
    seq: u64,
    term: Term,
    until: u64,
}

/// A prompt at a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptPhase {
    /// `is_answered`: the agent was told that it is accepted.
    Running {
        is_answered: bool,
    },
    /// In the service's history.
    Succeeded,
    Interrupted,
}

#[derive(Clone, Debug)]
enum Message {
    /// To the plane; `seq` is the beat's.
    Call {
        host: usize,
        process: u32,
        call: u64,
        request: PlaneRequest,
    },
    /// To the agent that made the call.
    Answer {
        host: usize,
        process: u32,
        call: u64,
        answer: AgentResponse,
    },
    /// The service accepted a submission.
    Submitted {
        host: usize,
        process: u32,
        key: Key,
    },
    /// A probe, before its look at the queue or before its look at history.
    Probe {
        host: usize,
        process: u32,
        key: Key,
        stage: ProbeStage,
    },
    OutputsFetched {
        host: usize,
        process: u32,
        key: Key,
    },
    /// The service's message that a run is over.
    CompletionHint {
        host: usize,
        process: u32,
        key: Key,
    },
    SocketOpened {
        host: usize,
        process: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStage {
    Queue,
    History,
}

impl Message {
    /// The worker that sent it or gets it.
    fn host(&self) -> usize {
        match self {
            Message::Call { host, .. }
            | Message::Answer { host, .. }
            | Message::Submitted { host, .. }
            | Message::Probe { host, .. }
            | Message::OutputsFetched { host, .. }
            | Message::CompletionHint { host, .. }
            | Message::SocketOpened { host, .. } => *host,
        }
    }
}

impl Attempts {
    pub(super) fn new(faults: FaultBudget, horizon: u64, sabotage: Option<AttemptSabotage>) -> Attempts {
        Attempts {
            faults,
            horizon,
            sabotage,
            is_pinned: false,
            begins_with_zombie: false,
            settings: start::settings(),
            workers: ["worker-0", "worker-1"].map(|name| name.parse().expect("a valid name")),
            job: JobId::from_u128(1 << 80 | 7),
            workflow: job_result(),
        }
    }

    /// The search begins when the first worker returns from a pause in which it lost its attempt.
    pub(super) fn with_zombie(mut self) -> Attempts {
        self.begins_with_zombie = true;
        self
    }

    /// The job may run on the first worker only, so that its second attempt comes to the same worker.
    pub(super) fn pinned(mut self) -> Attempts {
        self.is_pinned = true;
        self.settings.max_failures_before_block = u32::MAX;
        self
    }

    fn is_sabotaged(&self, sabotage: AttemptSabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn host_of(&self, worker: &WorkerId) -> usize {
        usize::from(*worker == self.workers[1])
    }
}

impl Model for Attempts {
    type State = AttemptState;
    type Action = AttemptAction;

    fn start(&self) -> AttemptState {
        let state = self.first_state();
        if self.begins_with_zombie { self.after_lost_lease(state) } else { state }
    }

    fn actions(&self, state: &AttemptState) -> Vec<AttemptAction> {
        self.possible_actions(state)
    }

    fn calm_action(&self, state: &AttemptState) -> Option<AttemptAction> {
        self.next_calm_action(state)
    }

    fn apply(&self, state: &AttemptState, action: &AttemptAction) -> Result<AttemptState, BrokenRule> {
        let mut after = state.clone();
        self.act(&mut after, *action)?;
        after.forget_pointless_messages();
        after.update_print();
        Ok(after)
    }

    fn fingerprint(&self, state: &AttemptState) -> Fingerprint {
        state.print
    }

    fn describe(&self, state: &AttemptState, action: &AttemptAction) -> String {
        format!("{:>3} s  {}", (state.now - start::BEGIN) / 1000, self.describe_action(state, *action))
    }
}

impl AttemptState {
    fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn send(&mut self, message: Message) {
        self.messages.push(Shared::new(message));
    }

    /// Answers to a call that is over, and messages to a process that ended, have no effect: without them more states
    /// are the same.
    fn forget_pointless_messages(&mut self) {
        let hosts = &self.hosts;
        let is_pointless = |message: &Message| match message {
            Message::Call { .. } => false,
            Message::Answer { host, process, call, .. } => {
                let it = &hosts[*host];
                it.agent.is_none()
                    || it.process != *process
                    || it.call.is_none_or(|current| current.id != *call)
            }
            Message::Submitted { host, process, .. }
            | Message::Probe { host, process, .. }
            | Message::OutputsFetched { host, process, .. }
            | Message::CompletionHint { host, process, .. }
            | Message::SocketOpened { host, process } => {
                hosts[*host].agent.is_none() || hosts[*host].process != *process
            }
        };
        self.messages.retain(|message| !is_pointless(message));
        self.late.retain(|message| !is_pointless(message));
    }

    fn update_print(&mut self) {
        let (messages, late) = (unordered(&self.messages), unordered(&self.late));
        let plane = (&self.plane, &self.unstored);
        let truth = (self.heard_at, self.newest_calls, self.drained);
        let rest = (self.now, plane, &self.store, &self.hosts, self.faults, truth);
        self.print = fingerprint(&(rest, messages, late));
    }
}
