//! How much of its quota each tenant and each of its tokens uses, and whether it may have one more job. One tenant at its
//! limit never affects another, and one token at its limit no other token.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{Tenant, TokenId};
use crate::queue::Demand;
use crate::rate::{Debt, RateLimit};
use crate::record::AcceptedJob;
use crate::refusal::{QuotaKind, Refusal};
use crate::settings::quota::TenantQuota;
use crate::time::Timestamp;

/// A job or a need has to go before there is room again: suggested to clients as the wait.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(5);
/// Tenants and tokens without jobs are forgotten when this many are known, or twice as many as were left the last time.
const SWEEP_MIN: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct TenantUsages {
    tenants: BTreeMap<Tenant, Usage>,
    tokens: BTreeMap<TokenId, Share>,
    sweep_at: usize,
}

#[derive(Clone, Debug, Default)]
struct Usage {
    share: Share,
    needs: BTreeMap<Demand, usize>,
}

/// What is counted for a tenant and for a token alike.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    open_jobs: usize,
    submissions: Debt,
}

/// A limit that would be exceeded: which, how much it allows, what is used, and when to come back.
struct Excess(QuotaKind, usize, usize, Duration);

impl Share {
    fn check_open_jobs(&self, kind: QuotaKind, max: usize) -> Result<(), Excess> {
        match self.open_jobs >= max {
            true => Err(Excess(kind, max, self.open_jobs, RETRY_WHEN_FULL)),
            false => Ok(()),
        }
    }

    fn check_rate(&self, now: Timestamp, kind: QuotaKind, per_second: u32, burst: u32) -> Result<(), Excess> {
        let Some(limit) = RateLimit::new(per_second, burst) else { return Ok(()) };
        let owed = || self.submissions.uses(now, &limit);
        self.submissions.admit(now, 1, &limit).map_err(|wait| Excess(kind, per_second as usize, owed(), wait))
    }

    fn charge(&mut self, now: Timestamp, per_second: u32, burst: u32) {
        if let Some(limit) = RateLimit::new(per_second, burst) {
            self.submissions.charge(now, 1, &limit);
        }
    }

    fn is_used(&self, now: Timestamp) -> bool {
        self.open_jobs > 0 || !self.submissions.is_paid(now)
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
        TenantUsages { tenants: BTreeMap::new(), tokens: BTreeMap::new(), sweep_at: SWEEP_MIN }
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
        self.check(now, job, quota).map_err(|Excess(quota, limit, current, retry_after)| {
            let (tenant, limit, current) = (job.tenant.clone(), limit as u64, current as u64);
            Refusal::QuotaExceeded { tenant, quota, limit, current, retry_after: Some(retry_after) }
        })
    }

    fn check(&self, now: Timestamp, job: &AcceptedJob, quota: &TenantQuota) -> Result<(), Excess> {
        let none = Usage::default();
        let usage = self.tenants.get(&job.tenant).unwrap_or(&none);
        usage.share.check_open_jobs(QuotaKind::OpenJobs, quota.open_jobs_max)?;
        if usage.needs.len() >= quota.distinct_needs_max {
            let demand = Demand::new(job.service.clone(), job.needs.clone());
            if !usage.needs.contains_key(&demand) {
                let (max, current) = (quota.distinct_needs_max, usage.needs.len());
                return Err(Excess(QuotaKind::DistinctNeeds, max, current, RETRY_WHEN_FULL));
            }
        }
        let burst = quota.submissions_burst;
        usage.share.check_rate(now, QuotaKind::SubmissionRate, quota.submissions_per_second, burst)?;
        let Some(token) = &job.token else { return Ok(()) };
        let share = self.tokens.get(token).copied().unwrap_or_default();
        share.check_open_jobs(QuotaKind::TokenOpenJobs, quota.token_open_jobs_max)?;
        share.check_rate(now, QuotaKind::TokenSubmissionRate, quota.token_submissions_per_second, burst)
    }

    /// Counts a new submission against the rates.
    pub(super) fn record_submission(&mut self, now: Timestamp, job: &AcceptedJob, quota: &TenantQuota) {
        self.forget_unused(now);
        let burst = quota.submissions_burst;
        if quota.submissions_per_second > 0 {
            let usage = self.tenants.entry(job.tenant.clone()).or_default();
            usage.share.charge(now, quota.submissions_per_second, burst);
        }
        if let Some(token) = job.token.as_ref().filter(|_| quota.token_submissions_per_second > 0) {
            let share = self.tokens.entry(token.clone()).or_default();
            share.charge(now, quota.token_submissions_per_second, burst);
        }
    }

    fn forget_unused(&mut self, now: Timestamp) {
        if self.tenants.len() + self.tokens.len() >= self.sweep_at {
            self.tenants.retain(|_, usage| usage.share.is_used(now));
            self.tokens.retain(|_, share| share.is_used(now));
            self.sweep_at = SWEEP_MIN.max(2 * (self.tenants.len() + self.tokens.len()));
        }
    }

    /// A job is open from now on.
    pub(super) fn insert(&mut self, tenant: &Tenant, token: Option<&TokenId>, demand: &Demand) {
        let usage = self.tenants.entry(tenant.clone()).or_default();
        usage.share.open_jobs += 1;
        *usage.needs.entry(demand.clone()).or_default() += 1;
        if let Some(token) = token {
            self.tokens.entry(token.clone()).or_default().open_jobs += 1;
        }
    }

    /// A job has ended.
    pub(super) fn remove(&mut self, tenant: &Tenant, token: Option<&TokenId>, demand: &Demand) {
        if let Some(share) = token.and_then(|token| self.tokens.get_mut(token)) {
            share.open_jobs -= 1;
        }
        let Some(usage) = self.tenants.get_mut(tenant) else { return };
        usage.share.open_jobs -= 1;
        if let Some(jobs) = usage.needs.get_mut(demand) {
            *jobs -= 1;
            if *jobs == 0 {
                usage.needs.remove(demand);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Tenant, TenantUsage)> {
        self.tenants.iter().filter(|(_, usage)| usage.share.open_jobs > 0).map(|(tenant, usage)| {
            (tenant, TenantUsage { open_jobs: usage.share.open_jobs, distinct_needs: usage.needs.len() })
        })
    }
}
