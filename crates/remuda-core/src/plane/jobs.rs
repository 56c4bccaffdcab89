//! The open jobs, the queue of those that may start, and what is remembered of ended ones. A job enters and leaves
//! map, queue and keys together, here.

mod recently_ended;
mod tenant_usage;

use std::collections::BTreeMap;

use self::recently_ended::RecentlyEnded;
pub use self::tenant_usage::TenantUsage;
use self::tenant_usage::TenantUsages;
use super::{JobSubmission, KnownKey};
use crate::id::{Attempt, Incarnation, JobId, Tenant, TokenId, WorkerId};
use crate::job::{Job, JobEvent, JobExtras, JobState};
use crate::queue::{JobKinds, Queue, QueueEntry};
use crate::record::{AcceptedJob, IdempotencyKey, JobStatus};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::wire::ServiceStatus;

#[derive(Clone, Debug, Default)]
pub(super) struct Jobs {
    open: BTreeMap<JobId, Box<Job>>,
    queue: Queue,
    kinds: JobKinds,
    keys: BTreeMap<(Tenant, String), KnownKey>,
    ended: RecentlyEnded,
    usages: TenantUsages,
}

/// An attempt that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningAttempt {
    pub(super) worker: WorkerId,
    pub(super) incarnation: Incarnation,
    pub(super) attempt: Attempt,
    pub(super) started_at: Timestamp,
}

impl RunningAttempt {
    pub(super) fn is_held_by(&self, worker: &WorkerId, attempt: Attempt) -> bool {
        self.worker == *worker && self.attempt == attempt
    }
}

/// Counting a job's position in the queue stops here: it costs microseconds on the shared event loop.
const AHEAD_MAX: usize = 10_000;

impl Jobs {
    /// A new job; it is not queued yet.
    pub(super) fn accept(&mut self, accepted: AcceptedJob) -> &Job {
        let job = self.header(accepted);
        self.insert(job)
    }

    /// Whether its tenant may have one more such job now.
    pub(super) fn check_quota(
        &self,
        now: Timestamp,
        job: &AcceptedJob,
        settings: &Settings,
    ) -> Result<(), Refusal> {
        self.usages.admit(now, job, settings.quota_of(&job.tenant))
    }

    /// Counts a submission that is about to be accepted.
    pub(super) fn record_submission(&mut self, now: Timestamp, job: &AcceptedJob, settings: &Settings) {
        self.usages.record_submission(now, job, settings.quota_of(&job.tenant));
    }

    /// What each tenant with open jobs uses of its quota.
    pub(super) fn usages(&self) -> impl Iterator<Item = (&Tenant, TenantUsage)> {
        self.usages.iter()
    }

    /// A stored job. It is queued if it may start.
    pub(super) fn restore(&mut self, now: Timestamp, accepted: AcceptedJob, status: JobStatus) -> &Job {
        let mut job = self.header(accepted);
        job.restore_status(status);
        if matches!(job.state(), JobState::Waiting { not_before } if *not_before <= now) {
            self.queue.insert(queue_entry(&job));
        }
        self.insert(job)
    }

    fn insert(&mut self, job: Box<Job>) -> &Job {
        if let Some(key) = key_of(&job) {
            let known = KnownKey { job: job.id, fingerprint: key.fingerprint };
            self.keys.insert((job.tenant.clone(), key.key.clone()), known);
        }
        self.usages.insert(&job.tenant, token_of(&job), &job.kind.demand);
        self.open.entry(job.id).insert_entry(job).into_mut()
    }

    /// The in-memory form of an accepted job.
    fn header(&mut self, accepted: AcceptedJob) -> Box<Job> {
        let kind = self.kinds.kind(accepted.service, accepted.needs, accepted.shape);
        let tenant = self.kinds.tenant(accepted.tenant);
        let mut job = Box::new(Job::new(accepted.id, accepted.accepted_at, tenant, accepted.priority, kind));
        (job.deadline, job.attempts_max) = (accepted.deadline, accepted.attempts_max);
        job.workflow_hash = accepted.workflow_hash;
        let extra = JobExtras {
            key: accepted.key,
            labels: accepted.labels,
            metadata: accepted.metadata,
            options: accepted.options,
            token: accepted.token,
        };
        job.extras = Some(extra).filter(|extra| *extra != JobExtras::default()).map(Box::new);
        job
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn get(&self, id: JobId) -> Option<&Job> {
        self.open.get(&id).map(|job| &**job)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.open.values().map(|job| &**job)
    }

    /// The waiting jobs that may start.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn is_queued(&self, job: &Job) -> bool {
        self.queue.contains(queue_entry(job))
    }

    /// Number of jobs ahead of a queued one; None if it is not queued or too many are ahead.
    pub(super) fn ahead_of(&self, id: JobId) -> Option<usize> {
        self.queue.jobs_ahead(queue_entry(self.open.get(&id)?), AHEAD_MAX)
    }

    /// The job of the submission's idempotency key.
    pub(super) fn known_key(&self, submission: &JobSubmission) -> Option<KnownKey> {
        let key = submission.job.key.as_ref()?;
        let open = self.keys.get(&(submission.job.tenant.clone(), key.key.clone())).copied();
        open.or(submission.known)
    }

    /// The attempt of a running job.
    pub(super) fn running(&self, id: JobId) -> Option<RunningAttempt> {
        running_attempt(self.open.get(&id)?)
    }

    pub(super) fn started_at(&self, id: JobId) -> Option<Timestamp> {
        match self.open.get(&id)?.state() {
            JobState::Running { started_at, .. } => Some(*started_at),
            JobState::Waiting { .. } | JobState::Ended(_) => None,
        }
    }

    /// A waiting job may start now.
    pub(super) fn enqueue(&mut self, id: JobId) -> Option<&Job> {
        let job = self.open.get(&id)?;
        self.queue.insert(queue_entry(job));
        Some(job)
    }

    /// A queued job starts: it leaves the queue, and its tenant was served.
    pub(super) fn start(
        &mut self,
        now: Timestamp,
        id: JobId,
        event: JobEvent,
        settings: &Settings,
    ) -> Result<&Job, Refusal> {
        let job = self.open.get_mut(&id).ok_or_else(|| self.ended.refusal(id))?;
        self.queue.record_served(queue_entry(job));
        self.queue.remove(queue_entry(job));
        job.apply(now, event, settings)?;
        Ok(job)
    }

    /// Applies an event. Returns the attempt that ran until then with the job.
    pub(super) fn apply(
        &mut self,
        now: Timestamp,
        id: JobId,
        event: JobEvent,
        settings: &Settings,
    ) -> Result<(Option<RunningAttempt>, &Job), Refusal> {
        let job = self.open.get_mut(&id).ok_or_else(|| self.ended.refusal(id))?;
        let ran = running_attempt(job);
        job.apply(now, event, settings)?;
        Ok((ran, job))
    }

    /// The service's report on the running attempt; `None` if it brings nothing new.
    pub(super) fn note_service(&mut self, now: Timestamp, id: JobId, note: &ServiceStatus) -> Option<&Job> {
        let job = self.open.get_mut(&id)?;
        job.note_service(now, note).then_some(&**job)
    }

    /// A worker holds an attempt number above ours; `None` if that changes nothing.
    pub(super) fn raise_attempt(&mut self, id: JobId, attempt: Attempt) -> Option<&Job> {
        let job = self.open.get_mut(&id)?;
        job.raise_attempt(attempt).then_some(&**job)
    }

    /// Something else explains why a worker went down under this attempt; `None` if that changes nothing.
    pub(super) fn withdraw_crash(&mut self, id: JobId, attempt: Attempt) -> Option<&Job> {
        let job = self.open.get_mut(&id)?;
        job.withdraw_crash(attempt).then_some(&**job)
    }

    /// Takes a job that has its outcome out of memory; only the list of recent outcomes knows it from now on.
    pub(super) fn take_ended(&mut self, now: Timestamp, id: JobId) -> Option<(Box<Job>, JobStatus)> {
        let job = self.open.remove(&id)?;
        debug_assert!(matches!(job.state(), JobState::Ended(_)));
        self.queue.remove(queue_entry(&job));
        self.usages.remove(&job.tenant, token_of(&job), &job.kind.demand);
        let status = job.status(now);
        if let Some(forgotten) = self.ended.insert(&job, &status.state) {
            self.keys.remove(&forgotten);
        }
        Some((job, status))
    }

    pub(super) fn unknown(&self, id: JobId) -> Refusal {
        self.ended.refusal(id)
    }

    /// Why a report on an attempt that is not the current one is refused.
    pub(super) fn not_held(&self, id: JobId, attempt: Attempt) -> Refusal {
        match self.open.get(&id) {
            Some(_) => Refusal::StaleAttempt,
            None if self.ended.is_completed_by(id, attempt) => Refusal::AlreadyRecorded,
            None => self.unknown(id),
        }
    }
}

fn running_attempt(job: &Job) -> Option<RunningAttempt> {
    match job.state() {
        JobState::Running { worker, incarnation, started_at } => Some(RunningAttempt {
            worker: worker.clone(),
            incarnation: *incarnation,
            attempt: job.attempt(),
            started_at: *started_at,
        }),
        JobState::Waiting { .. } | JobState::Ended(_) => None,
    }
}

fn queue_entry(job: &Job) -> QueueEntry<'_> {
    QueueEntry { job: job.id, priority: job.priority, tenant: &job.tenant, kind: &job.kind }
}

fn token_of(job: &Job) -> Option<&TokenId> {
    job.extras.as_ref()?.token.as_ref()
}

fn key_of(job: &Job) -> Option<&IdempotencyKey> {
    job.extras.as_ref()?.key.as_ref()
}
