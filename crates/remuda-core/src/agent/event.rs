//! What can happen to an agent, and what it wants done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::cause::Cause;
use crate::id::{Attempt, JobId, Service};
use crate::need::Capabilities;
use crate::service::{
    ProbeResult, ProbeTrigger, ServiceEvent, ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use crate::wire::{Beat, BeatReply, JoinReply, JoinRequest, StartCheck};

#[derive(Clone, Debug)]
pub enum AgentEvent {
    /// It cannot work yet, and this is what it waits for: it joins without room, so that the plane can tell.
    Preparing {
        what: String,
    },
    /// What it found when it tried its machine.
    StartChecked(StartCheck),
    /// The process began; attempts that a former one left with the service were found.
    Began {
        found: Vec<FoundAttempt>,
        life: ServiceIncarnation,
    },
    Joined(JoinReply),
    /// The answer to beat `seq`.
    Reply {
        seq: u64,
        reply: BeatReply,
    },
    /// A join or a beat got no answer that counts. `luck` spreads the next try.
    Unanswered {
        seq: Option<u64>,
        why: CallError,
        luck: u64,
    },
    /// The service does something for this attempt.
    Signal {
        job: JobId,
        attempt: Attempt,
        progress: f32,
        phase: String,
    },
    /// The service is done with this attempt.
    Ended {
        job: JobId,
        attempt: Attempt,
        outcome: AttemptEnd,
    },
    /// What came of handing an attempt to the service.
    Submitted {
        job: JobId,
        attempt: Attempt,
        life: ServiceIncarnation,
        answer: SubmitOutcome,
    },
    /// A message of the service says that the attempt is over: a reason to ask.
    SaidDone {
        job: JobId,
        attempt: Attempt,
    },
    /// What the service said when it was asked.
    Probed {
        job: JobId,
        attempt: Attempt,
        life: ServiceIncarnation,
        seen: ProbeResult,
    },
    Service(ServiceEvent),
    /// It can do other things than before.
    Offer(Box<Capabilities>),
    Metrics(serde_json::Map<String, serde_json::Value>),
    /// Finish what is held, then leave. A second time: leave now.
    Stop,
    Tick,
}

/// An attempt of a former incarnation that the service still knows.
#[derive(Clone, Debug)]
pub struct FoundAttempt {
    pub job: JobId,
    pub attempt: Attempt,
}

#[derive(Clone, Debug)]
pub enum AttemptEnd {
    Completed { result: Arc<RawValue> },
    Failed { cause: Cause, message: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No connection, a timeout, an error on their side: try again.
    Unreachable(String),
    /// The plane does not know this worker: join again.
    Unknown,
    /// Somebody else has this name now, or the token is wrong: two of us must not fight over it.
    Replaced(String),
    /// The machine was given up, or never was the plane's: it is to stop.
    NotWanted(String),
}

/// How it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// It was asked to stop.
    Stopped,
    /// Another of its name goes on, or a person has to look; what the service runs is not touched.
    Replaced(String),
    /// Nobody wants its machine any more, or nobody is left who could: all that it started ends with it, and the
    /// machine is to end as well.
    Dismissed(String),
}

#[derive(Clone, Debug)]
pub enum AgentEffect {
    Join(Box<JoinRequest>),
    /// Replaces a beat that is still waiting for its answer.
    Beat {
        beat: Box<Beat>,
        wait: Duration,
    },
    Run {
        job: JobId,
        attempt: Attempt,
        service: Service,
        service_job_id: String,
        /// Nodes whose outputs are wanted; all if none is named.
        include_outputs: BTreeSet<String>,
        workflow: Arc<RawValue>,
    },
    Cancel {
        job: JobId,
        attempt: Attempt,
        reason: String,
    },
    /// Ask the service about the attempt: its queue first, then its history.
    Probe {
        job: JobId,
        attempt: Attempt,
        trigger: ProbeTrigger,
    },
    /// The service is done: bring home what it made. Answered with `Ended`.
    Collect {
        job: JobId,
        attempt: Attempt,
        outputs: Arc<RawValue>,
        /// Nodes whose outputs are wanted; all if none is named.
        include_outputs: BTreeSet<String>,
    },
    /// Close the socket and open it again: it may have gone deaf.
    Reopen,
    Treat(ServiceRemedy),
    /// Have the service do something small for real. Answered with `ServiceEvent::Checked`.
    Check,
    Leave {
        reason: String,
    },
    /// It is over.
    Exit(AgentExit),
}
