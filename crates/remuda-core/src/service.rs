//! The vocabulary between an agent and its service (a ComfyUI server, a command, a model pool), shared by every
//! connector. A connector translates and decides nothing; `agent` decides.
//!
//! A service is probed about an attempt by the id that the plane chose for it (`service_job_id`), queue first, then
//! history:
//!
//! | probe result | verdict |
//! |---|---|
//! | `Succeeded` | the outputs are fetched, then the attempt is completed |
//! | `Failed`, `Interrupted` | the attempt failed, with the kind of fault |
//! | `Unknown` or `Gone`, twice, `unknown_recheck` apart | the attempt is lost |
//! | `Pending`, `Running`, `NoAnswer` | it is watched on |

pub mod command;
pub mod incarnation;
pub mod memory;
pub mod models;
pub mod outputs;
pub mod startup;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::memory::MemoryShortage;
use crate::cause::Cause;
use crate::need::Capabilities;

/// Counts the restarts of a service. The connector raises it whenever the service has lost its in-memory queue and
/// history, so "unknown" from a newer incarnation says that it restarted, and did not merely forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceIncarnation(pub u64);

/// Why a service is probed about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeTrigger {
    Submitted,
    /// A message said that the attempt is over. The message is a hint; the probe result decides.
    CompletionHint,
    Silence,
    SocketClosed,
    SocketOpened,
    AgentStarted,
    Cancelled,
    /// The last probe was not conclusive.
    Recheck,
}

impl fmt::Display for ProbeTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeTrigger::Submitted => "after submission",
            ProbeTrigger::CompletionHint => "after a completion message",
            ProbeTrigger::Silence => "after a long silence",
            ProbeTrigger::SocketClosed => "after the socket closed",
            ProbeTrigger::SocketOpened => "after the socket reopened",
            ProbeTrigger::AgentStarted => "after the agent started",
            ProbeTrigger::Cancelled => "after cancellation",
            ProbeTrigger::Recheck => "on a recheck",
        })
    }
}

/// What the agent can do for a sick service, mildest first. When the last one fails, the agent reports the service as
/// unavailable and the plane decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceRemedy {
    /// Unload models and empty caches.
    FreeMemory,
    /// End the process and start it again; only for a process that the agent started.
    Restart,
}

/// An event about the service itself rather than one attempt.
#[derive(Clone, Debug)]
pub enum ServiceEvent {
    SocketOpened {
        incarnation: ServiceIncarnation,
    },
    SocketClosed {
        why: String,
    },
    /// The process that the agent started has exited.
    Exited {
        why: String,
        how: ServiceExit,
    },
    RemedyDone {
        remedy: ServiceRemedy,
        problem: Option<String>,
    },
    /// The result of a self-test, with the service's present capabilities: see `self_tested` for its incarnation.
    SelfTested {
        incarnation: ServiceIncarnation,
        result: SelfTestResult,
        offer: Option<Box<Capabilities>>,
    },
}

/// How a self-test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTestResult {
    Passed,
    Failed(String),
    /// Its time was over while it still waited behind other work in the service's queue. That work may be an attempt of
    /// an hour: the agent decides what it proves.
    Queued(String),
}

impl ServiceEvent {
    /// The result of a self-test. One that passed proves that the present process works; one that failed says something only
    /// about the process in which it began.
    pub fn self_tested(
        began_in: ServiceIncarnation,
        current: ServiceIncarnation,
        result: SelfTestResult,
        offer: Option<Box<Capabilities>>,
    ) -> ServiceEvent {
        let incarnation = if result == SelfTestResult::Passed { current } else { began_in };
        ServiceEvent::SelfTested { incarnation, result, offer }
    }
}

/// How the process of a service ended, as far as its exit status tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceExit {
    /// By itself: an exit status, a fault such as SIGSEGV, or the kernel for want of memory.
    Crashed,
    /// By a signal that another process sent.
    Killed,
    /// It is not a child of this process, so its exit status is not known.
    Unknown,
}

/// The result of submitting an attempt to the service.
#[derive(Clone, Debug)]
pub enum SubmitOutcome {
    Accepted,
    Refused(ServiceFailure),
    /// The reply was lost: the attempt may be running or not.
    Unconfirmed(String),
}

/// What the service reports about an attempt.
#[derive(Clone, Debug)]
pub enum ProbeResult {
    /// In the service's own queue. `ahead` fingerprints the work that runs there instead, if any.
    Pending {
        ahead: Option<u64>,
    },
    Running,
    /// Done; `outputs` is the connector's own description of what to fetch.
    Succeeded {
        outputs: Arc<RawValue>,
    },
    Failed(ServiceFailure),
    Interrupted,
    /// The service answered and does not know the attempt.
    Unknown,
    /// Nothing listens at the address: the process, and with it its in-memory queue, is gone.
    Gone(String),
    /// A timeout or an error. It is no evidence about the attempt.
    NoAnswer(String),
}

impl ProbeResult {
    pub fn state(&self) -> ServiceState {
        match self {
            ProbeResult::Pending { .. } => ServiceState::Pending,
            ProbeResult::Running => ServiceState::Running,
            ProbeResult::Succeeded { .. } => ServiceState::Succeeded,
            ProbeResult::Failed(_) => ServiceState::Failed,
            ProbeResult::Interrupted => ServiceState::Interrupted,
            ProbeResult::Unknown => ServiceState::Unknown,
            ProbeResult::Gone(_) => ServiceState::Gone,
            ProbeResult::NoAnswer(_) => ServiceState::NoAnswer,
        }
    }
}

/// An attempt's state at its service, shown as `service_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Submitted,
    /// The reply to the submission was lost.
    Unconfirmed,
    Pending,
    Running,
    Succeeded,
    Failed,
    Interrupted,
    Gone,
    NoAnswer,
    /// Also every word of a worker that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ServiceState {
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceState::Submitted => "submitted",
            ServiceState::Unconfirmed => "unconfirmed",
            ServiceState::Pending => "pending",
            ServiceState::Running => "running",
            ServiceState::Succeeded => "succeeded",
            ServiceState::Failed => "failed",
            ServiceState::Interrupted => "interrupted",
            ServiceState::Gone => "gone",
            ServiceState::NoAnswer => "no_answer",
            ServiceState::Unknown => "unknown",
        }
    }
}

/// How an attempt ended at its service.
#[derive(Clone, Debug)]
pub enum AttemptEnd {
    Completed { result: Arc<RawValue> },
    Failed { cause: Cause, message: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFailure {
    pub fault: ServiceFault,
    pub message: String,
    /// The node of the workflow that failed, if it was one.
    pub node: Option<Box<FailingNode>>,
    /// For `Memory`: what was asked for, if the error says it.
    pub shortage: Option<MemoryShortage>,
}

/// The node of a workflow that failed, with its class and the exception if known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingNode {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The type of the exception, for telling two errors apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<String>,
}

/// The kind of failure, classified from the service's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceFault {
    /// The graph is invalid on every worker.
    Graph,
    /// A node raised an error.
    Node,
    /// This server lacks a model, a node class or a file that another may have.
    Missing,
    /// Out of memory: a larger worker may do it.
    Memory,
    /// The device or its context is broken: nothing runs here before a restart.
    Device,
    /// No disk space left: nothing runs here until a person frees some.
    Disk,
    /// The service forgot the attempt, was interrupted by another client, or lost the outputs.
    Lost,
    /// The service died or restarted while it had the attempt, and it is not known why.
    Died,
    /// The service's process crashed while it had only this attempt.
    Crashed,
    /// The service was ended from outside, by a signal.
    Killed,
}

impl ServiceFault {
    pub const ALL: [ServiceFault; 10] = [
        ServiceFault::Graph,
        ServiceFault::Node,
        ServiceFault::Missing,
        ServiceFault::Memory,
        ServiceFault::Device,
        ServiceFault::Disk,
        ServiceFault::Lost,
        ServiceFault::Died,
        ServiceFault::Crashed,
        ServiceFault::Killed,
    ];

    pub fn cause(self) -> Cause {
        match self {
            ServiceFault::Graph | ServiceFault::Node => Cause::Job,
            ServiceFault::Missing | ServiceFault::Memory | ServiceFault::Disk => Cause::Worker,
            ServiceFault::Device
            | ServiceFault::Lost
            | ServiceFault::Died
            | ServiceFault::Crashed
            | ServiceFault::Killed => Cause::Service,
        }
    }

    /// Whether a retry on any worker would fail the same way.
    pub fn is_final(self) -> bool {
        self == ServiceFault::Graph
    }

    pub fn as_str(self) -> &'static str {
        match self {
            ServiceFault::Graph => "graph",
            ServiceFault::Node => "node",
            ServiceFault::Missing => "missing",
            ServiceFault::Memory => "memory",
            ServiceFault::Device => "device",
            ServiceFault::Disk => "disk",
            ServiceFault::Lost => "lost",
            ServiceFault::Died => "died",
            ServiceFault::Crashed => "crashed",
            ServiceFault::Killed => "killed",
        }
    }
}

impl fmt::Display for ServiceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ServiceFailure {
    pub fn new(fault: ServiceFault, message: impl Into<String>) -> Self {
        ServiceFailure { fault, message: message.into(), node: None, shortage: None }
    }

    /// The same failure, of this node.
    pub fn at_node(mut self, id: impl Into<String>, class: Option<String>) -> Self {
        self.node = Some(Box::new(FailingNode { id: id.into(), class, exception: None }));
        self
    }

    /// The same failure, with what was asked for.
    pub fn with_shortage(mut self, shortage: Option<MemoryShortage>) -> Self {
        self.shortage = shortage;
        self
    }

    /// The same failure, with the type of the exception that its node raised.
    pub fn with_exception(mut self, exception: impl Into<String>) -> Self {
        if let Some(node) = &mut self.node {
            node.exception = Some(exception.into()).filter(|it| !it.is_empty());
        }
        self
    }
}
