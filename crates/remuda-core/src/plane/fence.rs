//! Read-only check whether a worker may report on an attempt. What it lets through is shown and never stored, such as
//! a preview; reports that end an attempt are judged in `attempts`.

use super::Plane;
use crate::id::{Attempt, Hash, JobId, WorkerId};
use crate::job::Job;
use crate::refusal::Refusal;

impl Plane {
    /// Whether a worker that has not left has this token.
    pub fn is_worker_token(&self, token_hash: Hash) -> bool {
        self.workers.has_token(token_hash)
    }

    /// The slots that this worker may have, if the credential is its own.
    pub fn slots_of(&self, worker: &WorkerId, token_hash: Hash) -> Result<u32, Refusal> {
        self.workers.authenticate(worker, token_hash).map(|worker| worker.slots_max)
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
        self.workers.authenticate(worker, token_hash)?;
        if !self.jobs.running(job).is_some_and(|it| it.is_held_by(worker, attempt)) {
            return Err(self.jobs.not_held(job, attempt));
        }
        self.job(job).ok_or(Refusal::UnknownJob(job))
    }
}
