//! What one tenant may have and do, so that it costs the others no more than its share.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantQuota {
    /// Unfinished jobs. Half of what the plane holds: one tenant alone cannot fill it.
    pub open_jobs_max: usize,
    /// New jobs a second in the long run; zero, the default: no limit. A plane with one tenant should be as fast as it can,
    /// and the right share of several depends on the machine.
    pub submissions_per_second: u32,
    /// New jobs at once after a pause.
    pub submissions_burst: u32,
    /// Different needs (service, labels, models, node classes, memory, pins) of unfinished jobs. A free worker may have to
    /// compare each of them, which costs the plane about 0.2 µs.
    pub distinct_needs_max: usize,
}

impl Default for TenantQuota {
    fn default() -> Self {
        TenantQuota {
            open_jobs_max: 1_000_000,
            submissions_per_second: 0,
            submissions_burst: 20_000,
            distinct_needs_max: 1000,
        }
    }
}

impl TenantQuota {
    /// For a program that contains the plane: its only tenant is the program itself.
    pub fn unlimited() -> TenantQuota {
        TenantQuota {
            open_jobs_max: usize::MAX,
            submissions_per_second: 0,
            submissions_burst: 0,
            distinct_needs_max: usize::MAX,
        }
    }
}
