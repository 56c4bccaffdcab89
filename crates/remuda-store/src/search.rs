//! Search for jobs: by worker, by shape, and by a text in what people know of a job (id, tenant, service, labels,
//! idempotency key, error). No index could serve all of these without a write at every change of a job, so a search
//! reads jobs from the newest back, at most `SEARCH_SCAN_MAX` at a time, and says where it stopped.

use remuda_core::id::{JobId, Shape, WorkerId};
use remuda_core::record::{AcceptedJob, JobStatus};

use crate::JobFilter;

/// Jobs that one search reads: a tenth of a second of reading, so that no search delays other readers for long.
pub const SEARCH_SCAN_MAX: usize = 20_000;

/// Selects jobs; each field that is set must match.
#[derive(Clone, Debug, Default)]
pub struct JobSearch {
    pub filter: JobFilter,
    /// A worker that ran an attempt of it.
    pub worker: Option<WorkerId>,
    pub shape: Option<Shape>,
    /// Part of the id, tenant, service, a label, the idempotency key or an error, in any case of letters.
    pub text: Option<String>,
}

/// Jobs that a search found, newest first.
#[derive(Clone, Debug, Default)]
pub struct JobSearchPage {
    pub jobs: Vec<(AcceptedJob, JobStatus)>,
    /// Where the next page begins (`before`); `None` if there is nothing older.
    pub next: Option<JobId>,
    /// Jobs read for this page.
    pub scanned: usize,
}

impl JobSearch {
    /// Whether a page of jobs by state and tenant is enough, which needs no search.
    pub fn is_plain(&self) -> bool {
        self.worker.is_none() && self.shape.is_none() && self.text.is_none()
    }

    pub(crate) fn is_met(&self, job: &AcceptedJob, status: &JobStatus) -> bool {
        self.filter.is_met(job, status)
            && self.shape.is_none_or(|shape| shape == job.shape)
            && self.worker.as_ref().is_none_or(|worker| has_run_on(status, worker))
            && self.text.as_ref().is_none_or(|text| has_text(&text.to_lowercase(), job, status))
    }
}

impl JobSearchPage {
    /// Reads jobs, newest first, until the page is full or enough were read.
    pub(crate) fn collect<E>(
        search: &JobSearch,
        limit: usize,
        mut jobs: impl Iterator<Item = Result<(AcceptedJob, JobStatus), E>>,
    ) -> Result<JobSearchPage, E> {
        let mut page = JobSearchPage::default();
        while page.jobs.len() < limit && page.scanned < SEARCH_SCAN_MAX {
            let Some(read) = jobs.next() else {
                page.next = None;
                return Ok(page);
            };
            let (job, status) = read?;
            (page.scanned, page.next) = (page.scanned + 1, Some(job.id));
            if search.is_met(&job, &status) {
                page.jobs.push((job, status));
            }
        }
        Ok(page)
    }
}

fn has_run_on(status: &JobStatus, worker: &WorkerId) -> bool {
    status.state.worker() == Some(worker) || status.attempts.iter().any(|attempt| attempt.worker == *worker)
}

/// `wanted` is in lower case.
fn has_text(wanted: &str, job: &AcceptedJob, status: &JobStatus) -> bool {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    let has_label = || job.labels.iter().any(|(key, value)| has(&format!("{key}={value}")));
    let has_key = || job.key.as_ref().is_some_and(|key| has(&key.key));
    let has_error = || {
        let failure = status.state.failure().is_some_and(|(_, message)| has(message));
        failure || status.attempts.iter().any(|attempt| has(&attempt.message))
    };
    let has_name = || [job.tenant.as_str(), job.service.as_str()].into_iter().any(has);
    has(&job.id.to_string())
        || has_name()
        || has(&job.shape.to_string())
        || has_label()
        || has_key()
        || has_error()
}
