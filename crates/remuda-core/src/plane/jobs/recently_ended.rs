//! Outcomes of jobs that ended recently and left memory.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{Attempt, JobId, Tenant};
use crate::job::Job;
use crate::record::StateRow;
use crate::refusal::Refusal;

/// Recent outcomes, so that a repeated report or submission gets a definite answer.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentlyEnded {
    outcomes: BTreeMap<JobId, EndedJob>,
    /// With their idempotency keys: a client that looked up a key before the job was stored may submit it after the
    /// job has ended.
    order: VecDeque<(JobId, Option<(Tenant, String)>)>,
}

#[derive(Clone, Copy, Debug)]
struct EndedJob {
    attempt: Attempt,
    /// For messages.
    state: &'static str,
    is_completed: bool,
}

/// Minutes of work for a large fleet.
const ENDED_MAX: usize = 8192;

impl RecentlyEnded {
    /// Whether this attempt completed the job.
    pub(super) fn is_completed_by(&self, id: JobId, attempt: Attempt) -> bool {
        self.outcomes.get(&id).is_some_and(|ended| ended.is_completed && ended.attempt == attempt)
    }

    /// The answer to a message about a job that is not open.
    pub(super) fn refusal(&self, id: JobId) -> Refusal {
        match self.outcomes.get(&id) {
            Some(ended) => Refusal::Ended { state: ended.state },
            None => Refusal::UnknownJob(id),
        }
    }

    /// Remembers a job that ended; returns the idempotency key that is dropped with the oldest entry.
    pub(super) fn insert(&mut self, job: &Job, state: &StateRow) -> Option<(Tenant, String)> {
        let is_completed = matches!(state, StateRow::Completed { .. });
        let ended = EndedJob { attempt: job.attempt(), state: state.name(), is_completed };
        if self.outcomes.insert(job.id, ended).is_none() {
            let key = super::key_of(job).map(|key| (job.tenant.clone(), key.key.clone()));
            self.order.push_back((job.id, key));
        }
        let (oldest, key) = if self.order.len() > ENDED_MAX { self.order.pop_front() } else { None }?;
        self.outcomes.remove(&oldest);
        key
    }
}
