//! The queue of jobs that may start: by priority, then in turn between tenants, then age.
//!
//! Jobs are grouped by what decides which worker may run them, so that finding work never iterates over jobs:
//!
//! ```text
//!  needs index (service, label or pin) ▸ priority ▸ tenant ▸ kind (needs, shape) ▸ jobs by age
//! ```
//!
//! Taking the next job costs the services and labels of the worker, and the kinds of the tenant whose turn it is that
//! this worker may not run; never the number of jobs, nor what other tenants wait for that this worker does not have: a
//! label, a model file, a node class.
//! Tenants take turns at each priority: of those that a worker reaches, the one served longest ago from there goes first.
//! `ageing` says when a job goes before others of higher priority.

mod ageing;
mod kinds;
mod lane;
mod name_groups;
mod needs_index;
mod order;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{JobId, Service, Shape, Tenant, WorkerId};
use crate::need::Capabilities;

pub use self::ageing::{NextJob, QueueRules};
pub use self::kinds::{Demand, JobKind, JobKinds};
use self::lane::Search;
use self::needs_index::{Bucket, NeedsIndex};
use self::order::WaitingOrder;

#[derive(Clone, Debug, Default)]
pub struct Queue {
    index: NeedsIndex,
    order: WaitingOrder,
    served_at: ServedAt,
    waiting: usize,
}

/// The position of a job in the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueEntry<'a> {
    pub job: JobId,
    pub priority: i8,
    pub tenant: &'a Tenant,
    pub kind: &'a JobKind,
}

/// What decides where a worker looks for jobs.
#[derive(Clone, Copy, Debug)]
pub struct WorkerProfile<'a> {
    pub id: &'a WorkerId,
    pub services: &'a BTreeSet<Service>,
    pub offer: &'a Capabilities,
}

/// What the queue must know about a worker.
pub trait Matcher {
    fn profile(&self) -> WorkerProfile<'_>;
    fn fits(&self, demand: &Demand) -> bool;
    fn allows_shape(&self, tenant: &Tenant, shape: &Shape) -> bool;
    fn is_warm(&self, shape: &Shape) -> bool;
    /// The final check of a single job.
    fn accepts(&self, job: JobId) -> bool;
    /// Whether the job has waited so long that no warm job may overtake it.
    fn is_overdue(&self, job: JobId) -> bool;
    fn waited(&self, job: JobId) -> Duration;
    /// Whether the last job that it took went before others because of its age.
    fn took_aged(&self) -> bool;
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub fn insert(&mut self, entry: QueueEntry<'_>) {
        if self.index.insert(entry, &self.served_at) {
            self.order.insert(entry);
            self.waiting += 1;
        }
    }

    pub fn remove(&mut self, entry: QueueEntry<'_>) -> bool {
        let was_there = self.index.remove(entry);
        if was_there {
            self.order.remove(entry);
            self.waiting -= 1;
        }
        was_there
    }

    pub fn contains(&self, entry: QueueEntry<'_>) -> bool {
        self.order.contains(entry)
    }

    /// The next job of this priority that has waited for so long.
    fn next_at(
        &self,
        priority: i8,
        buckets: &[&Bucket],
        matcher: &impl Matcher,
        look_ahead: usize,
        waited_min: Duration,
    ) -> Option<JobId> {
        let levels: Vec<_> =
            buckets.iter().filter_map(|bucket| bucket.levels.get(&Reverse(priority))).collect();
        lane::next(&levels, Search { matcher, look_ahead, waited_min })
    }

    /// Records that this tenant was served.
    pub fn record_served(&mut self, entry: QueueEntry<'_>) {
        let turn = self.served_at.record(entry.priority, entry.tenant);
        if let Some(level) = self.index.level_mut(&entry.kind.demand, entry.priority) {
            level.record_served(entry.tenant, turn);
        }
    }

    /// Number of jobs of its service ahead of this one; see `WaitingOrder::jobs_ahead`.
    pub fn jobs_ahead(&self, entry: QueueEntry<'_>, max: usize) -> Option<usize> {
        self.order.jobs_ahead(entry, max)
    }

    /// Waiting jobs by demand, highest priority first; a demand appears once for each priority.
    pub fn waiting_by_demand(&self) -> impl Iterator<Item = (&Demand, usize)> {
        let levels = self.index.buckets().flat_map(|bucket| &bucket.levels);
        let mut counts: BTreeMap<(&Reverse<i8>, &Demand), usize> = BTreeMap::new();
        for (priority, level) in levels {
            for (kind, count) in level.waiting() {
                *counts.entry((priority, &kind.demand)).or_default() += count;
            }
        }
        counts.into_iter().map(|((_, demand), count)| (demand, count))
    }

    /// Waiting jobs by demand and shape.
    pub fn waiting_by_shape(&self) -> impl Iterator<Item = (&Demand, &Shape, usize)> {
        let levels = self.index.buckets().flat_map(|bucket| bucket.levels.values());
        levels.flat_map(|level| level.waiting()).map(|(kind, count)| (&kind.demand, &*kind.shape, count))
    }
}

/// When each tenant was last served at a priority, as a counter value.
#[derive(Clone, Debug, Default)]
struct ServedAt {
    turns: BTreeMap<i8, BTreeMap<Tenant, u64>>,
    serves: u64,
    entries: usize,
}

/// Tenants that were not served for long are forgotten when this many are remembered.
const SERVED_MAX: usize = 8192;

impl ServedAt {
    fn get(&self, priority: i8, tenant: &Tenant) -> u64 {
        self.turns.get(&priority).and_then(|tenants| tenants.get(tenant)).copied().unwrap_or(0)
    }

    fn record(&mut self, priority: i8, tenant: &Tenant) -> u64 {
        self.serves += 1;
        let tenants = self.turns.entry(priority).or_default();
        self.entries += usize::from(tenants.insert(tenant.clone(), self.serves).is_none());
        if self.entries > SERVED_MAX {
            // Half of them stay at most, so that the next sweep is as many serves away.
            let keep_from = self.serves.saturating_sub(SERVED_MAX as u64 / 2);
            self.turns.values_mut().for_each(|tenants| tenants.retain(|_, turn| *turn > keep_from));
            self.turns.retain(|_, tenants| !tenants.is_empty());
            self.entries = self.turns.values().map(BTreeMap::len).sum();
        }
        self.serves
    }
}

#[cfg(test)]
mod tests;
