//! Outcomes of jobs that ended recently and left memory.

use std::collections::{BTreeMap, VecDeque};

use super::submit;
use crate::id::{Attempt, JobId, Tenant};
use crate::job::Job;

/// Recent outcomes, so that a repeated report or submission gets a definite answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) outcomes: BTreeMap<JobId, (Attempt, &'static str)>,
    /// With their idempotency keys: a client that looked up a key before the job was stored may submit it after the
    /// job has ended.
    order: VecDeque<(JobId, Option<(Tenant, String)>)>,
}

/// Minutes of work for a large fleet.
const ENDED_MAX: usize = 8192;

impl Ended {
    /// Remembers a job that ended; returns the idempotency key that is dropped with the oldest entry.
    pub(super) fn insert(&mut self, job: &Job, state: &'static str) -> Option<(Tenant, String)> {
        if self.outcomes.insert(job.id, (job.attempt(), state)).is_none() {
            self.order.push_back((job.id, submit::key_of(job)));
        }
        let (oldest, key) = if self.order.len() > ENDED_MAX { self.order.pop_front() } else { None }?;
        self.outcomes.remove(&oldest);
        key
    }
}
