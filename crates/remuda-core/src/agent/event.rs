//! The agent's inputs (`AgentEvent`) and outputs (`AgentEffect`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::id::{Attempt, JobId, Service};
use crate::need::Capabilities;
use crate::service::{
    AttemptEnd, ProbeResult, ProbeTrigger, ServiceEvent, ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use crate::wire::{Beat, BeatReply, JoinReply, JoinRequest, StartCheck};
use crate::workflow::JobKeys;

#[derive(Clone, Debug)]
pub enum AgentEvent {
    /// The service is not ready; `what` says what it waits for. The agent joins with zero slots, so that the plane can
    /// show the reason.
    Preparing {
        what: String,
    },
    /// The result of the machine's start check.
    StartChecked(StartCheck),
    /// The service is ready. `found` are attempts that an earlier process of this worker left running there.
    Started {
        found: Vec<FoundAttempt>,
        incarnation: ServiceIncarnation,
    },
    Joined(JoinReply),
    /// The reply to beat `seq`.
    Reply {
        seq: u64,
        reply: BeatReply,
    },
    /// A join (`seq` is `None`) or a beat failed. `jitter` is a random number that spreads the retries of many workers.
    CallFailed {
        seq: Option<u64>,
        why: CallError,
        jitter: u64,
    },
    /// The service showed activity for this attempt.
    Signal {
        job: JobId,
        attempt: Attempt,
        progress: f32,
        phase: String,
    },
    /// The attempt has ended and its outputs are stored.
    Ended {
        job: JobId,
        attempt: Attempt,
        outcome: AttemptEnd,
    },
    /// The result of submitting an attempt to the service.
    Submitted {
        job: JobId,
        attempt: Attempt,
        incarnation: ServiceIncarnation,
        answer: SubmitOutcome,
    },
    /// A message of the service says that the attempt is over. It only triggers a probe: messages can be lost or stale.
    CompletionHint {
        job: JobId,
        attempt: Attempt,
    },
    Probed {
        job: JobId,
        attempt: Attempt,
        incarnation: ServiceIncarnation,
        result: ProbeResult,
    },
    Service(ServiceEvent),
    CapabilitiesChanged(Box<Capabilities>),
    Metrics(serde_json::Map<String, serde_json::Value>),
    /// First time: finish the held attempts, then leave. Second time: leave now.
    Stop,
    Tick,
}

/// An attempt of an earlier agent process that the service still knows.
#[derive(Clone, Debug)]
pub struct FoundAttempt {
    pub job: JobId,
    pub attempt: Attempt,
}

/// Why a call to the plane failed, sorted by what the agent does about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No connection, a timeout or a server error: retry.
    Unreachable(String),
    /// The plane does not know this worker: join again.
    Unknown,
    /// Another process joined under this name, or the token is wrong. The agent exits, because two agents must not
    /// take turns evicting each other.
    Replaced(String),
    /// The plane gave this machine up or never owned it: the machine is to stop.
    Retired(String),
}

/// Why the agent exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// It was asked to stop.
    Stopped,
    /// Another process has this worker's name, or a person has to fix the credentials. Attempts at the service are left
    /// running for that process.
    Replaced(String),
    /// The plane retired the machine, or has not answered for so long that it may be gone for good. The agent has
    /// cancelled its attempts; the machine is to stop as well, because it costs money.
    Dismissed(String),
}

#[derive(Clone, Debug)]
pub enum AgentEffect {
    Join(Box<JoinRequest>),
    /// Replaces a beat that is still waiting for its reply.
    Beat {
        beat: Box<Beat>,
        wait: Duration,
    },
    Run {
        job: JobId,
        attempt: Attempt,
        service: Service,
        service_job_id: String,
        /// Nodes whose outputs are fetched; empty means all.
        include_outputs: BTreeSet<String>,
        workflow: Arc<RawValue>,
        /// They belong into the workflow's `extra_data`.
        keys: JobKeys,
    },
    Cancel {
        job: JobId,
        attempt: Attempt,
        reason: String,
    },
    /// Query the service about the attempt: its queue first, then its history.
    Probe {
        job: JobId,
        attempt: Attempt,
        trigger: ProbeTrigger,
    },
    /// The service has completed the attempt: fetch and store its outputs. Answered with `Ended`.
    FetchOutputs {
        job: JobId,
        attempt: Attempt,
        outputs: Arc<RawValue>,
        /// Nodes whose outputs are fetched; empty means all.
        include_outputs: BTreeSet<String>,
    },
    /// Close and reopen the service's socket: it may be half-open and deliver nothing any more.
    ReopenSocket,
    ApplyRemedy(ServiceRemedy),
    /// Run a small real workload on the service. Answered with `ServiceEvent::SelfTested`.
    SelfTest,
    Leave {
        reason: String,
    },
    Exit(AgentExit),
}
