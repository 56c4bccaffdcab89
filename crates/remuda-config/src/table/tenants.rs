//! Quotas: those of every tenant, under `[quota]`, and the keys under `[[tenant]]`, which replace them for one.

use super::super::key::{Key, slot, tenant_slot};
use super::super::tenant::TenantConfig;
use super::super::value::Kind::{self, Name};
use super::number;

const OPEN_JOBS: Kind = number(1, 100_000_000);
const OPEN_JOBS_MEANING: &str =
    "Unfinished jobs of a tenant; further ones are refused with 429 and `Retry-After`.";
const SUBMISSIONS: Kind = number(0, 1_000_000);
const SUBMISSIONS_MEANING: &str = "New jobs of a tenant per second in the long run; 0 means no limit.";
const BURST: Kind = number(1, 100_000_000);
const BURST_MEANING: &str = "New jobs that a tenant may submit at once after a pause.";
const DISTINCT_NEEDS: Kind = number(1, 1_000_000);
const DISTINCT_NEEDS_MEANING: &str =
    "Different needs (service, labels, models, node classes, memory, pins) of a tenant's unfinished jobs.";

/// Under `[quota]`.
pub(super) const QUOTAS: &[Key] = &[
    Key::new("quota.open_jobs_max", slot!(settings.quota.open_jobs_max), OPEN_JOBS, OPEN_JOBS_MEANING),
    Key::new(
        "quota.submissions_per_second",
        slot!(settings.quota.submissions_per_second),
        SUBMISSIONS,
        SUBMISSIONS_MEANING,
    ),
    Key::new("quota.submissions_burst", slot!(settings.quota.submissions_burst), BURST, BURST_MEANING),
    Key::new(
        "quota.distinct_needs_max",
        slot!(settings.quota.distinct_needs_max),
        DISTINCT_NEEDS,
        DISTINCT_NEEDS_MEANING,
    ),
];

/// Under `[[tenant]]`.
pub(crate) const KEYS: &[Key<TenantConfig>] = &[
    Key::new("name", tenant_slot!(name), Name, "Name of the tenant; required."),
    Key::new("open_jobs_max", tenant_slot!(quota.open_jobs_max), OPEN_JOBS, OPEN_JOBS_MEANING),
    Key::new(
        "submissions_per_second",
        tenant_slot!(quota.submissions_per_second),
        SUBMISSIONS,
        SUBMISSIONS_MEANING,
    ),
    Key::new("submissions_burst", tenant_slot!(quota.submissions_burst), BURST, BURST_MEANING),
    Key::new(
        "distinct_needs_max",
        tenant_slot!(quota.distinct_needs_max),
        DISTINCT_NEEDS,
        DISTINCT_NEEDS_MEANING,
    ),
];
