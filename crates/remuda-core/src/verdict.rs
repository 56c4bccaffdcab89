//! What ended an attempt. The plane decides it once, where the attempt ends; the store, `why` and the simulator's laws
//! read the type. The sentence in `PastAttempt::message` is for people only.
//!
//! | verdict | decided by | cause |
//! |---|---|---|
//! | `Completed`, `Failed` | the worker's report | none, the report's |
//! | `Stopped`, `Rejected` | the worker's report | `provider`, `worker` |
//! | `Cancelled`, `Expired` | the submitter, the deadline | none, `job` |
//! | the others: the attempt is lost | the plane, from what it heard | `AttemptVerdict::lost_cause` |

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::service::memory::MemoryShortage;
use crate::service::{FailingNode, ServiceFault};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptVerdict {
    Completed,
    Failed,
    /// The worker stopped it because it stops itself.
    Stopped,
    /// The worker had no free slot for it.
    Rejected,
    Cancelled,
    /// The job's deadline passed.
    Expired,
    /// No beat within the lease.
    WorkerSilent,
    /// A new process of the worker joined without it.
    WorkerRestarted,
    WorkerLeft,
    /// The control cycle declared the worker failed.
    WorkerFailed,
    /// A beat no longer lists it.
    NoLongerHeld,
    /// No beat ever listed it, although the order was sent often enough.
    NeverReceived,
    Stuck,
    /// Not started within the job's own limit.
    StartLimit,
    /// No progress within the job's own limit.
    NodeLimit,
    /// Not done when the drain of its worker ended.
    DrainOverdue,
    /// Its machine is gone or failed.
    MachineLost,
    /// Its machine is not what was ordered.
    MachineRefused,
}

impl AttemptVerdict {
    /// Its name at the edge.
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptVerdict::Completed => "completed",
            AttemptVerdict::Failed => "failed",
            AttemptVerdict::Stopped => "stopped",
            AttemptVerdict::Rejected => "rejected",
            AttemptVerdict::Cancelled => "cancelled",
            AttemptVerdict::Expired => "expired",
            AttemptVerdict::WorkerSilent => "worker_silent",
            AttemptVerdict::WorkerRestarted => "worker_restarted",
            AttemptVerdict::WorkerLeft => "worker_left",
            AttemptVerdict::WorkerFailed => "worker_failed",
            AttemptVerdict::NoLongerHeld => "no_longer_held",
            AttemptVerdict::NeverReceived => "never_received",
            AttemptVerdict::Stuck => "stuck",
            AttemptVerdict::StartLimit => "start_limit",
            AttemptVerdict::NodeLimit => "node_limit",
            AttemptVerdict::DrainOverdue => "drain_overdue",
            AttemptVerdict::MachineLost => "machine_lost",
            AttemptVerdict::MachineRefused => "machine_refused",
        }
    }

    /// The cause of an attempt that ended without a report; a failure that was reported has the cause of its report.
    pub fn lost_cause(self) -> Option<Cause> {
        match self {
            AttemptVerdict::Completed
            | AttemptVerdict::Failed
            | AttemptVerdict::Stopped
            | AttemptVerdict::Rejected
            | AttemptVerdict::Cancelled => None,
            AttemptVerdict::Expired | AttemptVerdict::NodeLimit => Some(Cause::Job),
            AttemptVerdict::WorkerSilent
            | AttemptVerdict::WorkerRestarted
            | AttemptVerdict::WorkerFailed
            | AttemptVerdict::NoLongerHeld
            | AttemptVerdict::NeverReceived
            | AttemptVerdict::DrainOverdue => Some(Cause::Worker),
            AttemptVerdict::Stuck | AttemptVerdict::StartLimit => Some(Cause::Service),
            AttemptVerdict::WorkerLeft | AttemptVerdict::MachineLost | AttemptVerdict::MachineRefused => {
                Some(Cause::Provider)
            }
        }
    }
}

/// How sure it is that an attempt took its worker or its service down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrashEvidence {
    /// It was alone on what went down, and nothing else explains that.
    Direct,
    /// Something went down with it, and it is not known why, or others ran there too.
    Circumstantial,
}

/// A failed attempt: what ended it, what is at fault, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFailure {
    pub verdict: AttemptVerdict,
    pub cause: Cause,
    pub message: String,
    /// What the service reported, if it did.
    pub fault: Option<ServiceFault>,
    pub node: Option<Box<FailingNode>>,
    /// What was asked for, if it ran out of memory and the service said it.
    pub shortage: Option<MemoryShortage>,
    /// Set if something went down with the attempt.
    pub took_down: Option<CrashEvidence>,
}

impl AttemptFailure {
    pub fn new(verdict: AttemptVerdict, cause: Cause, message: impl Into<String>) -> Self {
        let (fault, node, shortage, took_down) = (None, None, None, None);
        AttemptFailure { verdict, cause, message: message.into(), fault, node, shortage, took_down }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_limit_and_deadline_use_up_the_jobs_attempts_and_a_lost_worker_does_not() {
        let is_job_fault = |verdict: AttemptVerdict| verdict.lost_cause().is_some_and(Cause::is_job_fault);
        assert!(is_job_fault(AttemptVerdict::NodeLimit) && is_job_fault(AttemptVerdict::Expired));
        assert!(!is_job_fault(AttemptVerdict::WorkerSilent) && !is_job_fault(AttemptVerdict::Stuck));
        assert_eq!(AttemptVerdict::Failed.lost_cause(), None, "the report has the cause");
    }
}
