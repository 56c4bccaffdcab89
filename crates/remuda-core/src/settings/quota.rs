//! What one tenant may have and do, so that it costs the others no more than its share.

use serde::{Deserialize, Serialize};

use crate::id::Tenant;
use crate::refusal::{QuotaKind, Refusal};

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
    /// Bytes of blobs, workflows and results; zero, the default: no limit. The right share depends on the disk, and a full
    /// disk is noticed in any case.
    pub stored_bytes_max: u64,
    /// Unfinished jobs of one token. As many as its tenant may have: a limit below that is for tenants whose tokens are used by
    /// different people.
    pub token_open_jobs_max: usize,
    /// New jobs a second of one token in the long run, with the burst of its tenant; zero, the default: no limit.
    pub token_submissions_per_second: u32,
}

impl Default for TenantQuota {
    fn default() -> Self {
        TenantQuota {
            open_jobs_max: 1_000_000,
            submissions_per_second: 0,
            submissions_burst: 20_000,
            distinct_needs_max: 1000,
            stored_bytes_max: 0,
            token_open_jobs_max: 1_000_000,
            token_submissions_per_second: 0,
        }
    }
}

impl TenantQuota {
    /// How much a tenant that has stored so many bytes may still store; `None`: as much as it likes.
    pub fn storage_room(&self, stored_bytes: u64) -> Option<u64> {
        (self.stored_bytes_max > 0).then(|| self.stored_bytes_max.saturating_sub(stored_bytes))
    }

    /// Whether a tenant that has stored so many bytes may store so many more.
    pub fn check_storage(&self, tenant: &Tenant, stored_bytes: u64, more_bytes: u64) -> Result<(), Refusal> {
        match self.storage_room(stored_bytes) {
            Some(room) if more_bytes > room => Err(Refusal::QuotaExceeded {
                tenant: tenant.clone(),
                quota: QuotaKind::StoredBytes,
                limit: self.stored_bytes_max,
                current: stored_bytes,
                retry_after: None,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// For a program that contains the plane: its only tenant is the program itself.
    pub fn unlimited() -> TenantQuota {
        TenantQuota {
            open_jobs_max: usize::MAX,
            submissions_per_second: 0,
            submissions_burst: 0,
            distinct_needs_max: usize::MAX,
            stored_bytes_max: 0,
            token_open_jobs_max: usize::MAX,
            token_submissions_per_second: 0,
        }
    }
}
