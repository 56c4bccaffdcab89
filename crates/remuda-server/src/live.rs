//! Live state of running attempts, and the events that subscribers get. All of it is in memory only: it ends with the
//! attempt, a worker reports it again after a restart, and no decision depends on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{Attempt, JobId, Tenant, WorkerId};
use remuda_core::record::StoredEvent;
use remuda_core::wire::live::{LiveReport, ProgressSnapshot};
use remuda_core::wire::preview::PreviewFormat;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What subscribers receive.
#[derive(Clone, Debug)]
pub enum LiveEvent {
    /// Stored and numbered; a subscriber that lags reads it from the store.
    Stored(Arc<StoredEvent>),
    /// Not stored: the first to be dropped.
    Progress {
        job: JobId,
        tenant: Tenant,
        metadata: Arc<Map<String, Value>>,
        worker: WorkerId,
        progress: f32,
        phase: String,
    },
    /// Not stored: the first to be dropped.
    Preview(Arc<PreviewUpdate>),
    /// Not stored: the first to be dropped.
    Update(Arc<LiveUpdate>),
}

/// A new preview can be fetched.
#[derive(Clone, Debug)]
pub struct PreviewUpdate {
    pub job: JobId,
    /// Distinguishes it from the other previews of the job.
    pub number: u64,
    pub tenant: Tenant,
    pub metadata: Map<String, Value>,
    pub worker: WorkerId,
    pub attempt: Attempt,
    pub media: PreviewFormat,
    pub size_bytes: usize,
    /// The node it shows, if the worker named one.
    pub node: Option<String>,
}

/// A worker's report that the plane accepted.
#[derive(Clone, Debug)]
pub struct LiveUpdate {
    pub job: JobId,
    pub attempt: Attempt,
    pub tenant: Tenant,
    /// As submitted with the job.
    pub metadata: Map<String, Value>,
    pub worker: WorkerId,
    pub report: LiveReport,
}

/// The newest report of a running attempt.
#[derive(Clone, Debug)]
pub struct LiveAttempt {
    pub attempt: Attempt,
    pub progress: Option<ProgressSnapshot>,
    pub outputs: Vec<Arc<RawValue>>,
}

impl LiveAttempt {
    fn new(attempt: Attempt) -> LiveAttempt {
        LiveAttempt { attempt, progress: None, outputs: Vec::new() }
    }
}

/// The running attempt of each job. Clones share the table.
#[derive(Clone, Debug, Default)]
pub struct LiveAttempts(Arc<Mutex<BTreeMap<JobId, LiveAttempt>>>);

impl LiveAttempts {
    /// Merges a report: absent fields have not changed, and another attempt starts empty.
    pub fn apply(&self, job: JobId, attempt: Attempt, report: &LiveReport) {
        let mut attempts = self.lock();
        let live = attempts.entry(job).or_insert_with(|| LiveAttempt::new(attempt));
        if live.attempt != attempt {
            *live = LiveAttempt::new(attempt);
        }
        if let Some(progress) = &report.progress {
            live.progress = Some(progress.clone());
        }
        if let Some(outputs) = &report.outputs {
            live.outputs.clone_from(outputs);
        }
    }

    pub fn find(&self, job: JobId) -> Option<LiveAttempt> {
        self.lock().get(&job).cloned()
    }

    /// Called when the attempt has ended.
    pub fn remove(&self, job: JobId) {
        self.lock().remove(&job);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, LiveAttempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_keep_their_value_and_another_attempt_starts_empty() {
        let attempts = LiveAttempts::default();
        let job = JobId::from_u128(1);
        let report = |text: &str| serde_json::from_str::<LiveReport>(text).unwrap();
        let half = r#"{"progress":{"value":0.5,"nodes_done":1,"nodes_total":2},"outputs":[{"node":"9"}]}"#;
        attempts.apply(job, Attempt(1), &report(half));
        attempts.apply(job, Attempt(1), &report(r#"{"messages":[{"type":"executing","data":{}}]}"#));
        let live = attempts.find(job).unwrap();
        assert_eq!((live.progress.unwrap().nodes_done, live.outputs.len()), (1, 1));
        attempts.apply(job, Attempt(2), &LiveReport::default());
        let live = attempts.find(job).unwrap();
        assert_eq!((live.attempt, live.progress, live.outputs.len()), (Attempt(2), None, 0));
        attempts.remove(job);
        assert!(attempts.find(job).is_none());
    }
}
