//! Tenants: quotas of every tenant, under `[quota]`, and the keys under `[[tenant]]`: quotas that replace them for one
//! tenant, and rules what it may use.

use super::super::key::{Key, slot, tenant_slot};
use super::super::tenant::TenantConfig;
use super::super::value::Kind::{self, List, Pairs, TenantName};
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

/// One pebibyte: more than any disk.
const STORED_BYTES: Kind = Kind::Bytes { min: 0, max: 1 << 50 };
const STORED_BYTES_MEANING: &str = "Bytes of a tenant's files, workflows and results; further uploads and jobs are refused with \
     429 until `retention` has cleared some away. 0 means no limit.";
const TOKEN_OPEN_JOBS_MEANING: &str =
    "Unfinished jobs submitted with one token; further ones are refused with 429 and `Retry-After`.";
const TOKEN_SUBMISSIONS_MEANING: &str = "New jobs submitted with one token per second in the long run, with bursts of \
     `submissions_burst`; 0 means no limit.";

/// For readers of the older spelling.
pub(crate) const RULES_MOVED: &str = "rules of a tenant are under `[[tenant]]`, with its `name` (`*` for every tenant), and \
     `denied_classes = [\"Execute*\"]`, `allowed_classes` or `worker_labels = { pool = \"a\" }`; see docs/security.md";

/// Whether a key of `[[tenant]]` is a quota, and not a rule.
pub(crate) fn is_quota(key: &str) -> bool {
    QUOTAS.iter().any(|quota| quota.name.strip_prefix("quota.") == Some(key))
}

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
    Key::new(
        "quota.stored_bytes_max",
        slot!(settings.quota.stored_bytes_max),
        STORED_BYTES,
        STORED_BYTES_MEANING,
    ),
    Key::new(
        "quota.token_open_jobs_max",
        slot!(settings.quota.token_open_jobs_max),
        OPEN_JOBS,
        TOKEN_OPEN_JOBS_MEANING,
    ),
    Key::new(
        "quota.token_submissions_per_second",
        slot!(settings.quota.token_submissions_per_second),
        SUBMISSIONS,
        TOKEN_SUBMISSIONS_MEANING,
    ),
];

/// Under `[[tenant]]`.
pub(crate) const KEYS: &[Key<TenantConfig>] = &[
    Key::new(
        "name",
        tenant_slot!(name),
        TenantName,
        "Name of the tenant; required. `*`: rules for every tenant, and no quotas.",
    ),
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
    Key::new("stored_bytes_max", tenant_slot!(quota.stored_bytes_max), STORED_BYTES, STORED_BYTES_MEANING),
    Key::new(
        "token_open_jobs_max",
        tenant_slot!(quota.token_open_jobs_max),
        OPEN_JOBS,
        TOKEN_OPEN_JOBS_MEANING,
    ),
    Key::new(
        "token_submissions_per_second",
        tenant_slot!(quota.token_submissions_per_second),
        SUBMISSIONS,
        TOKEN_SUBMISSIONS_MEANING,
    ),
    Key::new(
        "denied_classes",
        tenant_slot!(rule.denied_classes),
        List,
        "Node classes that the tenant's workflows may not use; `Name*` is every class that begins like this.",
    ),
    Key::new(
        "allowed_classes",
        tenant_slot!(rule.allowed_classes),
        List,
        "If the tenant has such a list, its workflows may use these node classes and those of `*`, and no others.",
    ),
    Key::new(
        "worker_labels",
        tenant_slot!(rule.worker_labels),
        Pairs,
        "The tenant's jobs run only on workers with these labels; those of `*` are for labels that a tenant has no rule for.",
    ),
];
