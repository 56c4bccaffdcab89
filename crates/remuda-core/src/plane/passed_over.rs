//! Why a worker cannot take a job now, as a value and as a sentence for people.

use std::fmt;

use crate::id::JobId;
use crate::need::Mismatch;
use crate::time::Timestamp;
use crate::worker::Availability;

/// Why a worker cannot take a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    Mismatch(Mismatch),
    /// An operator excluded it for this shape.
    Excluded,
    /// The program's own strategy keeps the job from it.
    Vetoed,
    /// It takes no work at all now.
    Unavailable(Availability),
    Blocked {
        until: Timestamp,
    },
    /// Another job is the one trial allowed for this pair.
    BlockTrial {
        job: JobId,
    },
    Quarantined {
        trial_at: Timestamp,
    },
    QuarantineTrial {
        job: JobId,
    },
    /// The job failed there before, and other workers could take it.
    FailedBefore,
    /// The job ran out of memory on a worker no larger, and larger ones could take it.
    TooSmall,
    /// The job runs alone on its worker, and this one runs something.
    NotIdle,
    Busy {
        slots: u32,
    },
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassedOver::Mismatch(unfit) => unfit.fmt(f),
            PassedOver::Excluded => f.write_str("is excluded for this shape by an affinity"),
            PassedOver::Vetoed => f.write_str("is refused for it by the program's own strategy"),
            PassedOver::Unavailable(availability) => availability.fmt(f),
            PassedOver::Blocked { until } => write!(f, "is blocked for it until {until}"),
            PassedOver::BlockTrial { job } => write!(f, "is on trial for it with job {job}"),
            PassedOver::Quarantined { trial_at } => write!(f, "the shape is quarantined until {trial_at}"),
            PassedOver::QuarantineTrial { job } => write!(f, "the shape is on trial with job {job}"),
            PassedOver::FailedBefore => f.write_str("an attempt failed there, and others could take it"),
            PassedOver::TooSmall => f.write_str("ran out of memory there, and larger ones could take it"),
            PassedOver::NotIdle => f.write_str("runs other work, and the job is to run alone"),
            PassedOver::Busy { slots } => write!(f, "is busy ({slots} of {slots} slots)"),
        }
    }
}

impl PassedOver {
    /// Whether waiting cannot change it.
    pub fn is_permanent(&self) -> bool {
        matches!(self, PassedOver::Mismatch(_) | PassedOver::Excluded)
    }
}
