//! What a service says about our attempts, in words every connector shares, and what those words mean.
//!
//! A service is asked about an attempt by the id the plane chose for it (`service_job_id`), queue first, then history:
//!
//! | it says | so we |
//! |---|---|
//! | `Succeeded` | bring the outputs home, then `complete_job` |
//! | `Failed`, `Interrupted` | `fail_job`, with whose fault it was |
//! | `Unknown`, twice in one life of the service or once in a new one; `Gone`, twice | `return_to_queue` |
//! | `Pending`, `Running`, no answer | `continue_monitoring` |

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::need::Capabilities;

/// Which life of a service it was: counted by whoever talks to it, raised when it lost its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceIncarnation(pub u64);

/// Why a service is asked about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeTrigger {
    Submitted,
    /// A message said that it is over; the message is a hint, the answer is the truth.
    SaidDone,
    Silence,
    SocketClosed,
    SocketOpened,
    AgentStarted,
    Cancelled,
    /// The last answer was not enough.
    Again,
}

impl fmt::Display for ProbeTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeTrigger::Submitted => "after it was handed in",
            ProbeTrigger::SaidDone => "after a message that it is done",
            ProbeTrigger::Silence => "after a long silence",
            ProbeTrigger::SocketClosed => "after the socket closed",
            ProbeTrigger::SocketOpened => "after the socket opened again",
            ProbeTrigger::AgentStarted => "after the agent started",
            ProbeTrigger::Cancelled => "after it was told to stop",
            ProbeTrigger::Again => "on a second look",
        })
    }
}

/// What may help a sick service, mildest first; behind the last one stands the level above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceRemedy {
    /// Unload models and empty caches.
    Free,
    /// End the process and start it anew; only for one that we started.
    Restart,
}

/// What becomes known of a service itself, beside the attempts.
#[derive(Clone, Debug)]
pub enum ServiceEvent {
    SocketOpened {
        life: ServiceIncarnation,
    },
    SocketClosed {
        why: String,
    },
    /// The process that we started has ended.
    Exited {
        why: String,
    },
    /// What came of a remedy.
    Treated {
        remedy: ServiceRemedy,
        problem: Option<String>,
    },
    /// What came of a check: does it really work, and what does it have now?
    Checked {
        life: ServiceIncarnation,
        problem: Option<String>,
        offer: Option<Box<Capabilities>>,
    },
}

/// What became of handing an attempt to the service.
#[derive(Clone, Debug)]
pub enum SubmitOutcome {
    Accepted,
    Refused(ServiceFailure),
    /// The answer was lost: it may run, or not.
    Unsure(String),
}

/// What the service says of an attempt.
#[derive(Clone, Debug)]
pub enum ProbeResult {
    /// Waits in the service's own queue, behind `ahead` (a mark of what runs there instead, if anything does).
    Pending {
        ahead: Option<u64>,
    },
    Running,
    /// Done; `outputs` is for the connector, which brings them home.
    Succeeded {
        outputs: Arc<RawValue>,
    },
    Failed(ServiceFailure),
    Interrupted,
    /// It answered, and knows nothing of it.
    Unknown,
    /// Nothing listens there any more: what it knew was in its memory, and is gone with it.
    Gone(String),
    /// A timeout, an error: says nothing about the attempt.
    NoAnswer(String),
}

impl ProbeResult {
    /// The word shown as `service_status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            ProbeResult::Pending { .. } => "pending",
            ProbeResult::Running => "running",
            ProbeResult::Succeeded { .. } => "succeeded",
            ProbeResult::Failed(_) => "failed",
            ProbeResult::Interrupted => "interrupted",
            ProbeResult::Unknown => "unknown",
            ProbeResult::Gone(_) => "gone",
            ProbeResult::NoAnswer(_) => "no answer",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFailure {
    pub fault: ServiceFault,
    pub message: String,
}

/// What kind of failure it was, as far as the service's words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceFault {
    /// The graph is wrong wherever it runs.
    Graph,
    /// A node raised an error.
    Node,
    /// This server lacks a model, a node class or a file that another may have.
    Missing,
    /// Out of memory: a larger worker may do it.
    Memory,
    /// The device or its context is broken: nothing runs here before a restart.
    Device,
    /// No space left: nothing runs here before somebody made room.
    Disk,
    /// It forgot, was interrupted by someone else, or lost what it made.
    Lost,
    /// It died or started anew while it had the attempt.
    Died,
}

impl ServiceFault {
    pub const ALL: [ServiceFault; 8] = [
        ServiceFault::Graph,
        ServiceFault::Node,
        ServiceFault::Missing,
        ServiceFault::Memory,
        ServiceFault::Device,
        ServiceFault::Disk,
        ServiceFault::Lost,
        ServiceFault::Died,
    ];

    pub fn cause(self) -> Cause {
        match self {
            ServiceFault::Graph | ServiceFault::Node => Cause::Job,
            ServiceFault::Missing | ServiceFault::Memory | ServiceFault::Disk => Cause::Worker,
            ServiceFault::Device | ServiceFault::Lost | ServiceFault::Died => Cause::Service,
        }
    }

    /// Whether trying again anywhere would say the same.
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
        ServiceFailure { fault, message: message.into() }
    }
}
