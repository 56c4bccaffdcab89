//! Where waiting jobs are found by what they need, so that a worker never looks at jobs that need a label or a worker
//! that it is not.
//!
//! Every demand is filed in one bucket: under the worker to which it is pinned, else under one of its labels, else under
//! its service alone. A worker looks into the bucket of its name, of each of its labels, and of each of its services. Of
//! several labels the one with the fewest demands is taken, so that demands that share a common label and differ in
//! another are told apart by the other.
//!
//! Model files and node classes do not decide on the bucket: within it, `name_groups` finds the kinds whose names a worker
//! has. Memory and excluded workers are compared one by one; the quota of distinct needs bounds how many a tenant has.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::kinds::Demand;
use super::lane::Level;
use super::{QueueEntry, ServedAt, WorkerProfile};
use crate::id::{Service, WorkerId};

#[derive(Clone, Debug, Default)]
pub(super) struct NeedsIndex {
    services: BTreeMap<Service, ServiceBuckets>,
    filed: BTreeMap<Demand, Filed>,
}

#[derive(Clone, Debug, Default)]
struct ServiceBuckets {
    unlabelled: Bucket,
    pinned: BTreeMap<WorkerId, Bucket>,
    /// By name and value of a label.
    labelled: BTreeMap<String, BTreeMap<String, Bucket>>,
    demands: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    pub(super) levels: BTreeMap<Reverse<i8>, Level>,
    /// Distinct demands with waiting jobs.
    demands: usize,
}

/// Where a demand's waiting jobs are.
#[derive(Clone, Debug)]
struct Filed {
    under: BucketKey,
    jobs: usize,
}

/// The values are those of the demand itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BucketKey {
    Unlabelled,
    Pinned,
    Label { name: String },
}

impl NeedsIndex {
    pub(super) fn insert(&mut self, entry: QueueEntry<'_>, served_at: &ServedAt) -> bool {
        let demand = &entry.kind.demand;
        let buckets = self.services.entry(demand.service().clone()).or_default();
        let filed = self.filed.entry(demand.clone()).or_insert_with(|| {
            let under = buckets.choose(demand);
            buckets.bucket_entry(demand, &under).demands += 1;
            buckets.demands += 1;
            Filed { under, jobs: 0 }
        });
        let bucket = buckets.bucket_entry(demand, &filed.under);
        let is_new = bucket.levels.entry(Reverse(entry.priority)).or_default().insert(entry, served_at);
        filed.jobs += usize::from(is_new);
        is_new
    }

    pub(super) fn remove(&mut self, entry: QueueEntry<'_>) -> bool {
        let demand = &entry.kind.demand;
        let Some(filed) = self.filed.get_mut(demand) else { return false };
        let Some(buckets) = self.services.get_mut(demand.service()) else { return false };
        let bucket = buckets.bucket_entry(demand, &filed.under);
        let Some(level) = bucket.levels.get_mut(&Reverse(entry.priority)) else { return false };
        if !level.remove(entry) {
            return false;
        }
        if level.is_empty() {
            bucket.levels.remove(&Reverse(entry.priority));
        }
        filed.jobs -= 1;
        if filed.jobs == 0 {
            bucket.demands -= 1;
            buckets.demands -= 1;
            buckets.remove_empty(demand, &filed.under);
            if buckets.demands == 0 {
                self.services.remove(demand.service());
            }
            self.filed.remove(demand);
        }
        true
    }

    pub(super) fn level_mut(&mut self, demand: &Demand, priority: i8) -> Option<&mut Level> {
        let filed = self.filed.get(demand)?;
        let bucket = self.services.get_mut(demand.service())?.bucket_entry(demand, &filed.under);
        bucket.levels.get_mut(&Reverse(priority))
    }

    /// The buckets with jobs that this worker might run: at most one for each of its services and labels, and its own.
    pub(super) fn reachable<'a>(&'a self, worker: &WorkerProfile<'_>) -> Vec<&'a Bucket> {
        let mut found = Vec::new();
        for service in worker.services {
            let Some(buckets) = self.services.get(service) else { continue };
            found.push(&buckets.unlabelled);
            found.extend(buckets.pinned.get(worker.id));
            let labels = worker.offer.labels.iter();
            found.extend(labels.filter_map(|(name, value)| buckets.labelled.get(name)?.get(value)));
        }
        found
    }

    /// Every bucket.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.services.values().flat_map(|buckets| {
            let labelled = buckets.labelled.values().flat_map(BTreeMap::values);
            std::iter::once(&buckets.unlabelled).chain(buckets.pinned.values()).chain(labelled)
        })
    }
}

impl ServiceBuckets {
    fn choose(&self, demand: &Demand) -> BucketKey {
        let needs = demand.needs();
        if needs.pin.is_some() {
            return BucketKey::Pinned;
        }
        let crowd = |name: &String, value: &String| {
            self.labelled.get(name).and_then(|values| values.get(value)).map_or(0, |bucket| bucket.demands)
        };
        let rarest = needs.labels.iter().min_by_key(|(name, value)| crowd(name, value));
        rarest.map_or(BucketKey::Unlabelled, |(name, _)| BucketKey::Label { name: name.clone() })
    }

    fn bucket_entry(&mut self, demand: &Demand, key: &BucketKey) -> &mut Bucket {
        let needs = demand.needs();
        match (key, &needs.pin) {
            (BucketKey::Pinned, Some(pin)) => self.pinned.entry(pin.clone()).or_default(),
            (BucketKey::Label { name }, _) => {
                let value = needs.labels.get(name).cloned().unwrap_or_default();
                self.labelled.entry(name.clone()).or_default().entry(value).or_default()
            }
            (BucketKey::Unlabelled | BucketKey::Pinned, _) => &mut self.unlabelled,
        }
    }

    /// Drops the bucket if no demand is left in it.
    fn remove_empty(&mut self, demand: &Demand, key: &BucketKey) {
        if self.bucket_entry(demand, key).demands > 0 {
            return;
        }
        match key {
            BucketKey::Unlabelled => {}
            BucketKey::Pinned => {
                demand.needs().pin.as_ref().and_then(|pin| self.pinned.remove(pin));
            }
            BucketKey::Label { name } => {
                let Some(values) = self.labelled.get_mut(name) else { return };
                demand.needs().labels.get(name).and_then(|value| values.remove(value));
                if values.is_empty() {
                    self.labelled.remove(name);
                }
            }
        }
    }
}
