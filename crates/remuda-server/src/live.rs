//! What attempts are doing right now, as their workers tell it: how far, what the service said, which outputs are there
//! already. In memory only: it goes with the attempt, a worker tells it anew, and nothing is decided by it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{Attempt, JobId, Tenant, WorkerId};
use remuda_core::wire::live::{LiveReport, ProgressSnapshot};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// All that is known of an attempt under way.
#[derive(Clone, Debug)]
pub struct Doing {
    pub attempt: Attempt,
    pub progress: Option<ProgressSnapshot>,
    pub outputs: Vec<Arc<RawValue>>,
}

/// A report that was let through, for whoever listens.
#[derive(Clone, Debug)]
pub struct Told {
    pub job: JobId,
    pub attempt: Attempt,
    pub tenant: Tenant,
    /// As it was given with the job.
    pub metadata: Map<String, Value>,
    pub worker: WorkerId,
    pub report: LiveReport,
}

/// Clones share what they keep.
#[derive(Clone, Debug, Default)]
pub struct Doings(Arc<Mutex<BTreeMap<JobId, Doing>>>);

impl Doings {
    /// Takes a report in; what another attempt did before is of no more use.
    pub fn keep(&self, job: JobId, attempt: Attempt, report: &LiveReport) {
        let mut doings = self.doings();
        let doing = doings.entry(job).or_insert(Doing { attempt, progress: None, outputs: Vec::new() });
        if doing.attempt != attempt {
            *doing = Doing { attempt, progress: None, outputs: Vec::new() };
        }
        if let Some(progress) = &report.progress {
            doing.progress = Some(progress.clone());
        }
        if let Some(outputs) = &report.outputs {
            doing.outputs.clone_from(outputs);
        }
    }

    pub fn find(&self, job: JobId) -> Option<Doing> {
        self.doings().get(&job).cloned()
    }

    /// The attempt is over.
    pub fn forget(&self, job: JobId) {
        self.doings().remove(&job);
    }

    fn doings(&self) -> MutexGuard<'_, BTreeMap<JobId, Doing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_not_changed_and_another_attempt_begins_anew() {
        let doings = Doings::default();
        let job = JobId::from_u128(1);
        let report = |text: &str| serde_json::from_str::<LiveReport>(text).unwrap();
        let half = r#"{"progress":{"value":0.5,"nodes_done":1,"nodes_total":2},"outputs":[{"node":"9"}]}"#;
        doings.keep(job, Attempt(1), &report(half));
        doings.keep(job, Attempt(1), &report(r#"{"messages":[{"type":"executing","data":{}}]}"#));
        let doing = doings.find(job).unwrap();
        assert_eq!((doing.progress.unwrap().nodes_done, doing.outputs.len()), (1, 1));
        doings.keep(job, Attempt(2), &LiveReport::default());
        let doing = doings.find(job).unwrap();
        assert_eq!((doing.attempt, doing.progress, doing.outputs.len()), (Attempt(2), None, 0));
        doings.forget(job);
        assert!(doings.find(job).is_none());
    }
}
