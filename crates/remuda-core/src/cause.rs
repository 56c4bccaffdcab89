//! Whose fault a failed attempt was. Only the job's own faults use up the job's own attempts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The class of a failure; each has its cap (`Settings::attempts_max`, `Settings::infra_failures_max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Bad graph, node error, a command that says no: trying it elsewhere will probably say the same.
    Job,
    /// The worker died, went silent, or could not take what it was given.
    Worker,
    /// What does the work restarted, forgot, ran out of memory or was interrupted by someone else.
    Service,
    /// The machine was taken away.
    Provider,
    /// Our own doing.
    Plane,
}

impl Cause {
    pub const ALL: [Cause; 5] = [Cause::Job, Cause::Worker, Cause::Service, Cause::Provider, Cause::Plane];

    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Job => "job",
            Cause::Worker => "worker",
            Cause::Service => "service",
            Cause::Provider => "provider",
            Cause::Plane => "plane",
        }
    }

    /// Whether it counts against the job's own attempts.
    pub fn is_job_fault(self) -> bool {
        self == Cause::Job
    }

    /// Whether it says something about this worker and this kind of workflow together.
    pub fn blames_pair(self) -> bool {
        matches!(self, Cause::Job | Cause::Worker | Cause::Service)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
