//! What a service says about our attempts, in words every connector shares, and what those words mean.
//!
//! A service is asked about an attempt by the id the plane chose for it (`service_job_id`), queue first, then history:
//!
//! | it says | so we |
//! |---|---|
//! | `Succeeded` | bring the outputs home, then `complete_job` |
//! | `Failed`, `Interrupted` | `fail_job`, with whose fault it was |
//! | `Unknown`, twice in one incarnation of the service or once in a new one | `return_to_queue` |
//! | `Pending`, `Running`, no answer | `continue_monitoring` |

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cause::Cause;

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
    Pending,
    Running,
    /// Done; `outputs` is for the connector, which brings them home.
    Succeeded {
        outputs: Arc<RawValue>,
    },
    Failed(Failure),
    Interrupted,
    /// It answered, and knows nothing of it.
    Unknown,
    /// A timeout, a refused connection, an error: says nothing about the attempt.
    NoAnswer(String),
}

impl Seen {
    /// The word shown as `service_status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Seen::Pending => "pending",
            Seen::Running => "running",
            Seen::Succeeded { .. } => "succeeded",
            Seen::Failed(_) => "failed",
            Seen::Interrupted => "interrupted",
            Seen::Unknown => "unknown",
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
    /// It restarted, forgot, was interrupted by someone else, or lost what it made.
    Lost,
}

impl Fault {
    pub const ALL: [Fault; 7] =
        [Fault::Graph, Fault::Node, Fault::Missing, Fault::Memory, Fault::Device, Fault::Disk, Fault::Lost];

    pub fn cause(self) -> Cause {
        match self {
            Fault::Graph | Fault::Node => Cause::Job,
            Fault::Missing | Fault::Memory | Fault::Disk => Cause::Worker,
            Fault::Device | Fault::Lost => Cause::Service,
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
