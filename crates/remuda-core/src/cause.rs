//! The cause of a failed attempt. Only failures caused by the job use up the job's own attempts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Cause of a failure. `Job` is limited by `Settings::attempts_max`, all others together by
/// `Settings::infra_failures_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Bad graph, node error, failing command: another worker would probably fail too.
    Job,
    /// The worker died, fell silent, or could not take the job.
    Worker,
    /// The service restarted, lost the job, ran out of memory, or was interrupted from outside.
    Service,
    /// The worker left, or its machine was taken away: no one's fault.
    Provider,
    /// The plane itself.
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

    /// Whether it is evidence about this worker together with this shape.
    pub fn blames_pair(self) -> bool {
        matches!(self, Cause::Job | Cause::Worker | Cause::Service)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
