//! A program's own say in which worker takes a job: it may veto a worker, or put it before or behind others.
//!
//! The core still decides. It asks a strategy only about a worker that every rule of its own allows (requirements, blocks,
//! quarantine, exclusions, availability), one pair of job and worker at a time, so that a strategy can neither send a job
//! where it must not run nor run one twice. A strategy is a pure function: the answer depends on what it is shown and on
//! nothing else, in particular not on time, because nothing would ask it again when its mind changes. A list of all
//! candidates to sort was rejected: a free worker looks for its next job without looking at other workers.
//!
//! Without a strategy workers are chosen as always: warm first, then fastest, least loaded, longest idle. The same order
//! decides between workers of equal rank.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{JobId, MachineId, Shape, Tenant, WorkerId};

/// Decides between workers that could take a job. It is asked in the middle of a step, so it must be quick: no IO, no lock
/// that another thread holds for long.
///
/// ```
/// use remuda_core::strategy::{FailoverStrategy, StrategyJob, StrategyVerdict, StrategyWorker};
///
/// /// Retries go to machines that have the label `retries`.
/// struct RetriesApart;
///
/// impl FailoverStrategy for RetriesApart {
///     fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
///         match job.attempts > 0 && !worker.labels.contains_key("retries") {
///             true => StrategyVerdict::Veto,
///             false => StrategyVerdict::NEUTRAL,
///         }
///     }
/// }
/// ```
pub trait FailoverStrategy: Send + Sync {
    /// What to do with a worker that could take the job now.
    fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict;
}

/// What a strategy says about a job and a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyVerdict {
    /// Workers with a lower rank are chosen first.
    Rank(i32),
    /// The worker does not get the job, even if no other worker is left; `why` shows that.
    Veto,
}

impl StrategyVerdict {
    /// As without a strategy.
    pub const NEUTRAL: StrategyVerdict = StrategyVerdict::Rank(0);
}

/// A job as a strategy sees it.
#[derive(Clone, Copy, Debug)]
pub struct StrategyJob<'a> {
    pub id: JobId,
    pub tenant: &'a Tenant,
    pub priority: i8,
    pub shape: &'a Shape,
    /// Attempts that have ended.
    pub attempts: usize,
    /// Failures of the job's own, and all others.
    pub failures: (u8, u8),
}

/// A worker as a strategy sees it.
#[derive(Clone, Copy, Debug)]
pub struct StrategyWorker<'a> {
    pub worker: &'a WorkerId,
    pub machine: &'a MachineId,
    pub labels: &'a BTreeMap<String, String>,
    /// An attempt of this job failed there.
    pub has_failed_job: bool,
    /// It ran a job of this shape last.
    pub is_warm: bool,
    /// How long a job of this shape takes there, if one has completed.
    pub pace: Option<Duration>,
    pub running: usize,
    pub slots: u32,
    pub completed: u64,
    pub failed: u64,
    /// Attempts that were lost with it.
    pub lost: u64,
}

/// The strategy of a plane, if it has one. Two are equal if they are the same object.
#[derive(Clone, Default)]
pub struct OwnStrategy(Option<Arc<dyn FailoverStrategy>>);

impl OwnStrategy {
    pub fn new(strategy: Arc<dyn FailoverStrategy>) -> OwnStrategy {
        OwnStrategy(Some(strategy))
    }

    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn get(&self) -> Option<&dyn FailoverStrategy> {
        self.0.as_deref()
    }
}

impl fmt::Debug for OwnStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "own" } else { "default" })
    }
}

impl PartialEq for OwnStrategy {
    fn eq(&self, other: &OwnStrategy) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}
