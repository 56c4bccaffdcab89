//! Workflows of jobs that will start soon, so that starting a job does not read its workflow from the store.
//!
//! A workflow enters when its job is accepted. When more wait than fit, the oldest leave, and those are the next to start:
//! so a miss reads the following workflows too, in one query. Jobs of one priority start in the order of their ids.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::JobId;
use remuda_store::{Store, StoreError};
use serde_json::value::RawValue;

/// Enough for thousands of ordinary workflows; the rest is read from the store.
const CACHE_BYTES_MAX: usize = 8 << 20;
/// What one miss reads at most. Reading one workflow costs a thread's wake-up, which is then shared by so many.
const READ_AHEAD_MAX: usize = 128;
const READ_AHEAD_BYTES_MAX: usize = 1 << 20;

/// Clones share the cache.
#[derive(Clone, Debug, Default)]
pub struct WorkflowCache(Arc<Mutex<CachedWorkflows>>);

#[derive(Debug, Default)]
struct CachedWorkflows {
    workflows: HashMap<JobId, (u64, Arc<RawValue>)>,
    /// By the number of their insertion: the oldest first.
    order: BTreeMap<u64, JobId>,
    insertions: u64,
    bytes: usize,
}

impl WorkflowCache {
    /// Adds a workflow; the oldest ones leave when the cache is full.
    pub fn insert(&self, job: JobId, workflow: Arc<RawValue>) {
        self.lock().insert(job, workflow);
    }

    pub fn find(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.lock().workflows.get(&job).map(|(_, workflow)| workflow.clone())
    }

    /// The workflow of a job that starts now; from the store together with those that probably start next.
    pub async fn read(&self, store: &Store, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        if let Some(workflow) = self.find(job) {
            return Ok(Some(workflow));
        }
        let page = store.workflows_from(job, READ_AHEAD_MAX, READ_AHEAD_BYTES_MAX).await?;
        let mut cached = self.lock();
        for (job, workflow) in page {
            cached.insert(job, workflow);
        }
        Ok(cached.workflows.get(&job).map(|(_, workflow)| workflow.clone()))
    }

    pub fn remove(&self, job: JobId) {
        self.lock().remove(job);
    }

    fn lock(&self) -> MutexGuard<'_, CachedWorkflows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedWorkflows {
    fn insert(&mut self, job: JobId, workflow: Arc<RawValue>) {
        self.remove(job);
        self.insertions += 1;
        self.bytes += workflow.get().len();
        self.workflows.insert(job, (self.insertions, workflow));
        self.order.insert(self.insertions, job);
        // The newest stays even if it alone is too large: it is what the caller wants next.
        while self.bytes > CACHE_BYTES_MAX
            && self.order.len() > 1
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, job: JobId) {
        if let Some((inserted, workflow)) = self.workflows.remove(&job) {
            self.order.remove(&inserted);
            self.bytes -= workflow.get().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workflow(bytes: usize) -> Arc<RawValue> {
        let text = format!("\"{}\"", "x".repeat(bytes - 2));
        Arc::from(RawValue::from_string(text).unwrap())
    }

    #[test]
    fn oldest_workflows_leave_a_full_cache() {
        let cache = WorkflowCache::default();
        for id in 0..=8 {
            cache.insert(JobId::from_u128(id), workflow(1 << 20));
        }
        assert!(cache.find(JobId::from_u128(0)).is_none());
        assert!(cache.find(JobId::from_u128(1)).is_some());
    }

    #[test]
    fn nothing_remains_of_removed_and_replaced_workflows() {
        let cache = WorkflowCache::default();
        for id in 0..1000 {
            cache.insert(JobId::from_u128(id), workflow(100));
            cache.insert(JobId::from_u128(id), workflow(200));
        }
        assert_eq!(cache.lock().bytes, 200_000);
        // A long job stays, and later ones come and go behind it.
        for id in 1..1000 {
            cache.remove(JobId::from_u128(id));
        }
        let cached = cache.lock();
        assert_eq!((cached.order.len(), cached.workflows.len(), cached.bytes), (1, 1, 200));
    }

    #[test]
    fn workflow_larger_than_the_cache_is_returned_once() {
        let cache = WorkflowCache::default();
        cache.insert(JobId::from_u128(1), workflow(CACHE_BYTES_MAX + 1));
        assert!(cache.find(JobId::from_u128(1)).is_some());
        cache.insert(JobId::from_u128(2), workflow(100));
        assert!(cache.find(JobId::from_u128(1)).is_none());
    }
}
