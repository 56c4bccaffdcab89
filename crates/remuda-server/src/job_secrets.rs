//! The keys of open jobs. They are in memory only, until the job has ended. A restarted plane has lost them; a node that
//! needs one then fails and reports the missing key itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::JobId;
use remuda_core::workflow::JobKeys;

/// Clones share the keys.
#[derive(Clone, Default)]
pub struct JobSecrets(Arc<Mutex<BTreeMap<JobId, JobKeys>>>);

impl fmt::Debug for JobSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecrets(***)")
    }
}

impl JobSecrets {
    pub fn insert(&self, job: JobId, keys: JobKeys) {
        if !keys.is_empty() {
            self.lock().insert(job, keys);
        }
    }

    /// Called when the job has ended or was refused.
    pub fn remove(&self, job: JobId) {
        self.lock().remove(&job);
    }

    /// The keys that its worker gets with a job.
    pub fn find(&self, job: JobId) -> JobKeys {
        self.lock().get(&job).cloned().unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, JobKeys>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
