//! Waiting jobs by service, priority, tenant and age, to tell a client how many go before its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::QueueEntry;
use crate::id::{JobId, Service, Tenant};

#[derive(Clone, Debug, Default)]
pub(super) struct WaitingOrder {
    services: BTreeMap<Service, BTreeMap<Reverse<i8>, TenantJobs>>,
}

type TenantJobs = BTreeMap<Tenant, BTreeSet<JobId>>;

impl WaitingOrder {
    pub(super) fn insert(&mut self, entry: QueueEntry<'_>) {
        let priorities = self.services.entry(entry.kind.demand.service().clone()).or_default();
        let tenants = priorities.entry(Reverse(entry.priority)).or_default();
        tenants.entry(entry.tenant.clone()).or_default().insert(entry.job);
    }

    pub(super) fn remove(&mut self, entry: QueueEntry<'_>) {
        let (service, priority) = (entry.kind.demand.service(), Reverse(entry.priority));
        let Some(priorities) = self.services.get_mut(service) else { return };
        let Some(tenants) = priorities.get_mut(&priority) else { return };
        let Some(jobs) = tenants.get_mut(entry.tenant) else { return };
        jobs.remove(&entry.job);
        if jobs.is_empty() {
            tenants.remove(entry.tenant);
        }
        if tenants.is_empty() {
            priorities.remove(&priority);
        }
        if priorities.is_empty() {
            self.services.remove(service);
        }
    }

    pub(super) fn contains(&self, entry: QueueEntry<'_>) -> bool {
        let priorities = self.services.get(entry.kind.demand.service());
        let tenants = priorities.and_then(|priorities| priorities.get(&Reverse(entry.priority)));
        tenants.and_then(|tenants| tenants.get(entry.tenant)).is_some_and(|jobs| jobs.contains(&entry.job))
    }

    /// Number of jobs of its service ahead of this one, if all waited for one worker: those of higher priority, older
    /// ones of its tenant, and for every other tenant as many as it is served until then. What ageing changes is not
    /// foreseen. None if the job is not queued or more than `max` are ahead, which bounds the cost.
    pub(super) fn jobs_ahead(&self, entry: QueueEntry<'_>, max: usize) -> Option<usize> {
        let priorities = self.services.get(entry.kind.demand.service())?;
        let own = Reverse(entry.priority);
        let tenants = priorities.get(&own)?;
        let mine = tenants.get(entry.tenant).filter(|jobs| jobs.contains(&entry.job))?;
        let older = mine.range(..entry.job).take(max + 1).count();
        let others = tenants.iter().filter(|(tenant, _)| *tenant != entry.tenant);
        let others: usize = others.map(|(_, jobs)| jobs.len().min(older)).sum();
        let higher = priorities.range(..own).flat_map(|(_, tenants)| tenants.values());
        let higher: usize = higher.map(BTreeSet::len).sum();
        Some(older + others + higher).filter(|ahead| *ahead <= max)
    }
}
