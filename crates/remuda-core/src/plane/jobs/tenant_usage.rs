//! How much of its quota each tenant uses, and whether it may have one more job. One tenant at its limit never affects
//! another.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::Tenant;
use crate::queue::Demand;
use crate::record::AcceptedJob;
use crate::refusal::{QuotaKind, Refusal};
use crate::settings::quota::TenantQuota;
use crate::time::Timestamp;

/// A job or a need has to go before there is room again: suggested to clients as the wait.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(5);
/// Tenants without jobs are forgotten when this many are known, or twice as many as were left the last time.
const SWEEP_MIN: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct TenantUsages {
    tenants: BTreeMap<Tenant, Usage>,
    sweep_at: usize,
}

#[derive(Clone, Debug, Default)]
struct Usage {
    open_jobs: usize,
    needs: BTreeMap<Demand, usize>,
    /// What submissions owed at a time: each costs a part of a second, and time pays it back.
    owed: (Timestamp, Duration),
}

impl Usage {
    fn owed(&self, now: Timestamp) -> Duration {
        let (at, owed) = self.owed;
        owed.saturating_sub(now.since(at))
    }
}

/// What a tenant uses of its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    pub open_jobs: usize,
    pub distinct_needs: usize,
}

impl Default for TenantUsages {
    fn default() -> Self {
        TenantUsages { tenants: BTreeMap::new(), sweep_at: SWEEP_MIN }
    }
}

impl TenantUsages {
    /// Whether the tenant may have this job as well. Nothing is counted yet.
    pub(super) fn admit(
        &self,
        now: Timestamp,
        job: &AcceptedJob,
        quota: &TenantQuota,
    ) -> Result<(), Refusal> {
        let none = Usage::default();
        let usage = self.tenants.get(&job.tenant).unwrap_or(&none);
        let refuse = |quota, limit: usize, current: usize, retry_after| {
            let (tenant, limit, current) = (job.tenant.clone(), limit as u64, current as u64);
            Err(Refusal::QuotaExceeded { tenant, quota, limit, current, retry_after })
        };
        if usage.open_jobs >= quota.open_jobs_max {
            return refuse(QuotaKind::OpenJobs, quota.open_jobs_max, usage.open_jobs, RETRY_WHEN_FULL);
        }
        if usage.needs.len() >= quota.distinct_needs_max {
            let demand = Demand::new(job.service.clone(), job.needs.clone());
            if !usage.needs.contains_key(&demand) {
                let (limit, current) = (quota.distinct_needs_max, usage.needs.len());
                return refuse(QuotaKind::DistinctNeeds, limit, current, RETRY_WHEN_FULL);
            }
        }
        let Some(rate) = Rate::new(quota) else { return Ok(()) };
        // A whole burst is owed: the next submission waits until one has been paid for.
        let owed = usage.owed(now);
        if owed + rate.each > rate.burst {
            let (limit, current) = (quota.submissions_per_second as usize, rate.owed_jobs(owed));
            return refuse(QuotaKind::SubmissionRate, limit, current, owed + rate.each - rate.burst);
        }
        Ok(())
    }

    /// Counts a new submission against the rate.
    pub(super) fn record_submission(&mut self, now: Timestamp, tenant: &Tenant, quota: &TenantQuota) {
        if self.tenants.len() >= self.sweep_at && !self.tenants.contains_key(tenant) {
            self.tenants.retain(|_, usage| usage.open_jobs > 0 || !usage.owed(now).is_zero());
            self.sweep_at = SWEEP_MIN.max(2 * self.tenants.len());
        }
        if let Some(rate) = Rate::new(quota) {
            let usage = self.tenants.entry(tenant.clone()).or_default();
            usage.owed = (now, usage.owed(now) + rate.each);
        }
    }

    /// A job is open from now on.
    pub(super) fn insert(&mut self, tenant: &Tenant, demand: &Demand) {
        let usage = self.tenants.entry(tenant.clone()).or_default();
        usage.open_jobs += 1;
        *usage.needs.entry(demand.clone()).or_default() += 1;
    }

    /// A job has ended.
    pub(super) fn remove(&mut self, tenant: &Tenant, demand: &Demand) {
        let Some(usage) = self.tenants.get_mut(tenant) else { return };
        usage.open_jobs -= 1;
        if let Some(jobs) = usage.needs.get_mut(demand) {
            *jobs -= 1;
            if *jobs == 0 {
                usage.needs.remove(demand);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Tenant, TenantUsage)> {
        self.tenants.iter().filter(|(_, usage)| usage.open_jobs > 0).map(|(tenant, usage)| {
            (tenant, TenantUsage { open_jobs: usage.open_jobs, distinct_needs: usage.needs.len() })
        })
    }
}

/// Submissions as time: each costs a part of a second, and a burst may be owed.
struct Rate {
    each: Duration,
    burst: Duration,
}

impl Rate {
    fn new(quota: &TenantQuota) -> Option<Rate> {
        let each = Duration::from_secs(1).checked_div(quota.submissions_per_second)?;
        Some(Rate { each, burst: each.saturating_mul(quota.submissions_burst.max(1)) })
    }

    fn owed_jobs(&self, owed: Duration) -> usize {
        usize::try_from(owed.as_nanos() / self.each.as_nanos().max(1)).unwrap_or(usize::MAX)
    }
}
