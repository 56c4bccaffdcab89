//! Workflows of jobs accepted a moment ago, so that starting a job does not read its workflow back from the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::JobId;
use serde_json::value::RawValue;

/// Enough for thousands of ordinary workflows; the rest is read from the store.
const CACHE_BYTES_MAX: usize = 8 << 20;

/// Clones share the cache.
#[derive(Clone, Debug, Default)]
pub struct WorkflowCache(Arc<Mutex<CachedWorkflows>>);

#[derive(Debug, Default)]
struct CachedWorkflows {
    workflows: BTreeMap<JobId, Arc<RawValue>>,
    /// Oldest first; may name jobs that were removed already.
    order: VecDeque<JobId>,
    bytes: usize,
}

impl WorkflowCache {
    /// Adds a workflow; the oldest ones leave when the cache is full.
    pub fn insert(&self, job: JobId, workflow: Arc<RawValue>) {
        let mut cached = self.lock();
        cached.bytes += workflow.get().len();
        cached.workflows.insert(job, workflow);
        cached.order.push_back(job);
        while cached.bytes > CACHE_BYTES_MAX
            && let Some(oldest) = cached.order.pop_front()
        {
            cached.remove(oldest);
        }
    }

    pub fn find(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.lock().workflows.get(&job).cloned()
    }

    pub fn remove(&self, job: JobId) {
        let mut cached = self.lock();
        cached.remove(job);
        // Most jobs end in the order they were accepted: their entries in `order` go with them.
        while let Some(oldest) = cached.order.front().copied()
            && !cached.workflows.contains_key(&oldest)
        {
            cached.order.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, CachedWorkflows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedWorkflows {
    fn remove(&mut self, job: JobId) {
        if let Some(workflow) = self.workflows.remove(&job) {
            self.bytes -= workflow.get().len();
        }
    }
}
