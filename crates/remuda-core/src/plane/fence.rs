//! Who may speak for an attempt. A question: nothing changes by asking, and what is let through by it is shown and never
//! stored, such as a preview. What ends an attempt is judged in `attempts`.

use super::Plane;
use crate::id::{Attempt, Hash, JobId, WorkerId};
use crate::job::Job;
use crate::machine::WorkerState;
use crate::refusal::Refusal;

impl Plane {
    /// Whether a worker that has not left goes by this token.
    pub fn has_joined(&self, token_hash: Hash) -> bool {
        let mut there = self.workers.values().filter(|worker| worker.state != WorkerState::Terminated);
        there.any(|worker| worker.token_hash == token_hash)
    }

    /// The job, if this worker runs this very attempt of it. The token was drawn when it joined, so that it tells the
    /// incarnation too.
    pub fn runs(
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
