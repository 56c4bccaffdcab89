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
use crate::need::Offer;

/// Which life of a service it was: counted by whoever talks to it, raised when it lost its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceLife(pub u64);

/// Why a service is asked about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
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

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trigger::Submitted => "after it was handed in",
            Trigger::SaidDone => "after a message that it is done",
            Trigger::Silence => "after a long silence",
            Trigger::SocketClosed => "after the socket closed",
            Trigger::SocketOpened => "after the socket opened again",
            Trigger::AgentStarted => "after the agent started",
            Trigger::Cancelled => "after it was told to stop",
            Trigger::Again => "on a second look",
        })
    }
}

/// What may help a sick service, mildest first; behind the last one stands the level above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Unload models and empty caches.
    Free,
    /// End the process and start it anew; only for one that we started.
    Restart,
}

/// What becomes known of a service itself, beside the attempts.
#[derive(Clone, Debug)]
pub enum News {
    SocketOpened {
        life: ServiceLife,
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
        remedy: Remedy,
        problem: Option<String>,
    },
    /// What came of a check: does it really work, and what does it have now?
    Checked {
        life: ServiceLife,
        problem: Option<String>,
        offer: Option<Box<Offer>>,
    },
}

/// What became of handing an attempt to the service.
#[derive(Clone, Debug)]
pub enum Submission {
    Accepted,
    Refused(Failure),
    /// The answer was lost: it may run, or not.
    Unsure(String),
}

/// What the service says of an attempt.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Waits in the service's own queue, behind `ahead` (a mark of what runs there instead, if anything does).
    Pending {
        ahead: Option<u64>,
    },
    Running,
    /// Done; `outputs` is for the connector, which brings them home.
    Succeeded {
        outputs: Arc<RawValue>,
    },
    Failed(Failure),
    Interrupted,
    /// It answered, and knows nothing of it.
    Unknown,
    /// Nothing listens there any more: what it knew was in its memory, and is gone with it.
    Gone(String),
    /// A timeout, an error: says nothing about the attempt.
    NoAnswer(String),
}

impl Seen {
    /// The word shown as `service_status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Seen::Pending { .. } => "pending",
            Seen::Running => "running",
            Seen::Succeeded { .. } => "succeeded",
            Seen::Failed(_) => "failed",
            Seen::Interrupted => "interrupted",
            Seen::Unknown => "unknown",
            Seen::Gone(_) => "gone",
            Seen::NoAnswer(_) => "no answer",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub fault: Fault,
    pub message: String,
}

/// What kind of failure it was, as far as the service's words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
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

impl Fault {
    pub const ALL: [Fault; 8] = [
        Fault::Graph,
        Fault::Node,
        Fault::Missing,
        Fault::Memory,
        Fault::Device,
        Fault::Disk,
        Fault::Lost,
        Fault::Died,
    ];

    pub fn cause(self) -> Cause {
        match self {
            Fault::Graph | Fault::Node => Cause::Job,
            Fault::Missing | Fault::Memory | Fault::Disk => Cause::Worker,
            Fault::Device | Fault::Lost | Fault::Died => Cause::Service,
        }
    }

    /// Whether trying again anywhere would say the same.
    pub fn is_final(self) -> bool {
        self == Fault::Graph
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Fault::Graph => "graph",
            Fault::Node => "node",
            Fault::Missing => "missing",
            Fault::Memory => "memory",
            Fault::Device => "device",
            Fault::Disk => "disk",
            Fault::Lost => "lost",
            Fault::Died => "died",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Failure {
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Failure { fault, message: message.into() }
    }
}
