//! Read-only check whether a worker may report on an attempt. What it lets through is shown and never stored, such as
//! a preview; reports that end an attempt are judged in `attempts`.

use super::Plane;
use crate::id::{Attempt, Hash, JobId, WorkerId};
use crate::job::Job;
use crate::machine::WorkerState;
use crate::refusal::Refusal;

impl Plane {
    /// Whether a worker that has not left has this token.
    pub fn is_worker_token(&self, token_hash: Hash) -> bool {
        let mut there = self.workers.values().filter(|worker| worker.state != WorkerState::Terminated);
        there.any(|worker| worker.token_hash == token_hash)
    }

    /// The job, if this worker runs this attempt of it. The token is drawn at every join, so it identifies the
    /// incarnation too.
    pub fn running_job(
        &self,
        worker: &WorkerId,
        token_hash: Hash,
        job: JobId,
        attempt: Attempt,
    ) -> Result<&Job, Refusal> {
        let known = self.workers.get(worker).ok_or_else(|| Refusal::UnknownWorker(worker.clone()))?;
        if known.token_hash != token_hash {
            return Err(Refusal::WrongToken);
        }
        if self.holder(job) != Some((worker.clone(), attempt)) {
            return Err(self.not_held(job, attempt));
        }
        self.job(job).ok_or(Refusal::UnknownJob(job))
    }
}
