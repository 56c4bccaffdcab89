//! Acceptance, cancellation and expiry of jobs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::domain_event::{DomainEvent, JobEnding};
use super::{Plane, PlaneAnswer};
use crate::alarm::Alarm;
use crate::id::{Hash, JobId, Tenant};
use crate::job::JobEvent;
use crate::record::{AcceptedJob, Record};
use crate::refusal::Refusal;

use crate::time::Timestamp;

/// A job to accept, with its checked workflow.
#[derive(Clone, Debug)]
pub struct JobSubmission {
    /// Complete but for the times: those follow from when the plane accepts it.
    pub job: AcceptedJob,
    /// Counted from acceptance.
    pub deadline: Option<Duration>,
    /// What the store knows about the job's key, for jobs that ended long ago.
    pub known: Option<KnownKey>,
    pub workflow: Arc<RawValue>,
    /// What is stored for its tenant: files, workflows and results.
    pub stored_bytes: u64,
}

/// The job of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownKey {
    pub job: JobId,
    pub fingerprint: Hash,
}

/// Suggested to clients when the queue is full.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(5);

impl Plane {
    pub(super) fn submit(
        &mut self,
        now: Timestamp,
        mut submission: JobSubmission,
    ) -> Result<PlaneAnswer, Refusal> {
        if let Some(known) = self.jobs.known_key(&submission) {
            let fingerprint = submission.job.key.as_ref().map(|key| key.fingerprint);
            if fingerprint != Some(known.fingerprint) {
                return Err(Refusal::KeyConflict { job: known.job });
            }
            return Ok(PlaneAnswer::Accepted { job: known.job, created: false });
        }
        if self.jobs.len() >= self.settings.open_jobs_max {
            let open_max = self.settings.open_jobs_max;
            return Err(Refusal::QueueFull { open_max, retry_after: RETRY_WHEN_FULL });
        }
        let AcceptedJob { tenant, needs, .. } = &mut submission.job;
        self.settings.tenants.apply(tenant, needs)?;
        self.jobs.check_quota(now, &submission.job, &self.settings)?;
        let bytes = submission.workflow.get().len() as u64;
        self.check_storage(&submission.job.tenant, submission.stored_bytes, bytes)?;
        self.admit(&submission.job)?;
        self.jobs.record_submission(now, &submission.job, &self.settings);
        let id = submission.job.id;
        assert!(self.jobs.get(id).is_none(), "job ids are drawn once");
        let JobSubmission { job: mut accepted, deadline, workflow, .. } = submission;
        accepted.accepted_at = now;
        accepted.deadline = deadline.map(|deadline| now.plus(deadline));
        let job = self.jobs.accept(accepted.clone());
        let status = job.status(now);
        self.outbox.record(Record::JobAccepted { job: Arc::new(accepted), status, workflow });
        self.outbox.publish(now, DomainEvent::JobQueued(job));
        self.outbox.set_alarm(Alarm::Job(id), job.wake_at(now));
        self.ready(now, id);
        if !self.settings.fleets.is_empty() && !self.jobs.queue().is_empty() {
            self.cycle_soon(now);
        }
        Ok(PlaneAnswer::Accepted { job: id, created: true })
    }

    /// Whether a tenant that has stored so many bytes may store so many more.
    pub fn check_storage(&self, tenant: &Tenant, stored_bytes: u64, more_bytes: u64) -> Result<(), Refusal> {
        self.settings.quota_of(tenant).check_storage(tenant, stored_bytes, more_bytes)
    }

    /// Cancels at once, whether or not the worker can be reached: its attempt is fenced, and it gets the cancel order
    /// with its next beat.
    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        id: JobId,
        message: String,
    ) -> Result<PlaneAnswer, Refusal> {
        let event = JobEvent::Cancel { message: message.clone() };
        self.end_early(now, id, event, &JobEnding::Cancelled { reason: message })
    }

    pub(super) fn expire(&mut self, now: Timestamp, id: JobId) {
        let ending = JobEnding::Condemned { reason: "the deadline passed".to_owned() };
        self.end_early(now, id, JobEvent::Expire, &ending).expect("an open job can expire");
    }

    /// Ends an open job by the plane's decision and takes it from the worker that holds it.
    fn end_early(
        &mut self,
        now: Timestamp,
        id: JobId,
        event: JobEvent,
        ending: &JobEnding,
    ) -> Result<PlaneAnswer, Refusal> {
        let (ran, _) = self.jobs.apply(now, id, event, &self.settings)?;
        if let Some(ran) = ran {
            self.revoke(now, &ran.worker, id, ending.reason());
        }
        self.ended(now, id, ending);
        Ok(PlaneAnswer::Done)
    }
}
