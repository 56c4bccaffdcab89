//! Outcomes of jobs that ended recently and left memory.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{Attempt, JobId, Tenant};
use crate::job::Job;
use crate::refusal::Refusal;

/// Recent outcomes, so that a repeated report or submission gets a definite answer.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentlyEnded {
    outcomes: BTreeMap<JobId, (Attempt, &'static str)>,
    /// With their idempotency keys: a client that looked up a key before the job was stored may submit it after the
    /// job has ended.
    order: VecDeque<(JobId, Option<(Tenant, String)>)>,
}

/// Minutes of work for a large fleet.
const ENDED_MAX: usize = 8192;

impl RecentlyEnded {
    /// The last attempt of a job, and its final state.
    pub(super) fn outcome(&self, id: JobId) -> Option<(Attempt, &'static str)> {
        self.outcomes.get(&id).copied()
    }

    /// The answer to a message about a job that is not open.
    pub(super) fn refusal(&self, id: JobId) -> Refusal {
        match self.outcome(id) {
            Some((_, state)) => Refusal::Ended { state },
            None => Refusal::UnknownJob(id),
        }
    }

    /// Remembers a job that ended; returns the idempotency key that is dropped with the oldest entry.
    pub(super) fn insert(&mut self, job: &Job, state: &'static str) -> Option<(Tenant, String)> {
        if self.outcomes.insert(job.id, (job.attempt(), state)).is_none() {
            let key = super::key_of(job).map(|key| (job.tenant.clone(), key.key.clone()));
            self.order.push_back((job.id, key));
        }
        let (oldest, key) = if self.order.len() > ENDED_MAX { self.order.pop_front() } else { None }?;
        self.outcomes.remove(&oldest);
        key
    }
}
