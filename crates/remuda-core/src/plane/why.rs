//! Explains a job's state: every worker and why it cannot take the job, every attempt, and one sentence for people.
//! Read-only.

use serde::Serialize;

use super::{PassedOver, Plane, waiting};
use crate::id::{JobId, Shape, WorkerId};
use crate::job::{Job, JobState, retry_reason};
use crate::machine::Presence;
use crate::need::Mismatch;
use crate::quarantine;
use crate::record::{JobStatus, PastAttempt};
use crate::time::{Timestamp, humanize};

#[derive(Clone, Debug, Serialize)]
pub struct JobExplanation {
    pub job: JobId,
    pub state: &'static str,
    /// One sentence for people.
    pub reason: String,
    pub attempts: Vec<PastAttempt>,
    pub failures: u8,
    pub infra_failures: u8,
    /// Every worker, with the reason why it cannot take the job; no reason if it could take it now.
    pub candidates: Vec<Candidate>,
    /// Workers that are blocked for its workflow or its shape, on trial with it, or have failed with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockedWorker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_job_id: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    pub worker: WorkerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct BlockedWorker {
    pub worker: WorkerId,
    /// Whether it is blocked for the workflow, for the tenant's jobs of the shape, or for the shape.
    pub scope: &'static str,
    pub shape: Shape,
    pub is_blocked: bool,
    pub until: String,
    pub failures: u32,
    pub reason: String,
}

/// At most this many candidates are listed.
const CANDIDATES_MAX: usize = 1000;

impl Plane {
    pub fn explain(&self, now: Timestamp, id: JobId) -> Option<JobExplanation> {
        let job = self.jobs.get(id)?;
        let candidates = match job.state() {
            JobState::Waiting { .. } => self.candidates(now, job),
            JobState::Running { .. } | JobState::Ended(_) => Vec::new(),
        };
        let (failures, infra_failures) = job.failures();
        let blocks = match job.state() {
            JobState::Waiting { .. } => self.blocks_of(job),
            JobState::Running { .. } | JobState::Ended(_) => Vec::new(),
        };
        let status = job.status(now);
        Some(JobExplanation {
            job: id,
            state: status.state.name(),
            reason: self.reason(now, job),
            service_job_id: (job.attempt().0 > 0).then(|| id.service_job_id(job.attempt())),
            attempts: status.attempts,
            failures,
            infra_failures,
            blocks,
            candidates: candidates
                .into_iter()
                .take(CANDIDATES_MAX)
                .map(|(worker, reason)| Candidate {
                    worker,
                    passed_over: reason.map(|reason| reason.to_string()),
                })
                .collect(),
        })
    }

    /// Explains a job that has ended, from its stored status.
    pub fn explain_ended(job: JobId, status: &JobStatus) -> JobExplanation {
        use crate::record::StateRow;
        let reason = match &status.state {
            StateRow::Completed { worker } => format!("completed by {worker} in attempt {}", status.attempt),
            StateRow::Failed { cause, message, was_stopped: true } => {
                format!("stopped by the plane ({cause}): {message}")
            }
            StateRow::Failed { cause, message, was_stopped: false } => format!("failed ({cause}): {message}"),
            StateRow::Expired { .. } => {
                let (cause, message) = status.state.failure().expect("it has expired");
                format!("failed ({cause}): {message}")
            }
            StateRow::Cancelled { message } => format!("cancelled: {message}"),
            StateRow::Queued { .. } | StateRow::Running { .. } => "under way".to_owned(),
        };
        JobExplanation {
            job,
            state: status.state.name(),
            reason,
            service_job_id: (status.attempt.0 > 0).then(|| job.service_job_id(status.attempt)),
            attempts: status.attempts.clone(),
            failures: status.failures,
            infra_failures: status.infra_failures,
            candidates: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// One sentence: why the job waits, or how it runs.
    pub fn reason(&self, now: Timestamp, job: &Job) -> String {
        match job.state() {
            JobState::Waiting { not_before } if now < *not_before => retry_reason(now, *not_before),
            JobState::Waiting { .. } => {
                let mut reason = self.waiting_reason(now, job);
                if let Some(brake) = self.workers.mass_loss().reason(now) {
                    reason = format!("{reason}; {brake}");
                }
                // Machines on their way matter most to a waiting client.
                self.pending_machines(now, job)
                    .map_or(reason.clone(), |coming| format!("{coming} ({reason})"))
            }
            JobState::Running { worker, started_at, .. } => {
                let hold = self.workers.get(worker).and_then(|worker| worker.assignments.get(&job.id));
                let progress = hold.map_or(0.0, |hold| hold.progress * 100.0);
                let quiet = hold.map_or(now, |hold| hold.progressed_at);
                let running = format!(
                    "running on {worker} for {}, {progress:.0} % done, last progress {} ago",
                    humanize(now.since(*started_at)),
                    humanize(now.since(quiet))
                );
                self.silence_reason(now, worker)
                    .map_or(running.clone(), |silent| format!("{running}; {silent}"))
            }
            JobState::Ended(row) => row.name().to_owned(),
        }
    }

    /// What is known and held back about a worker that is not heard.
    fn silence_reason(&self, now: Timestamp, worker: &WorkerId) -> Option<String> {
        let worker = self.workers.get(worker).filter(|worker| worker.presence() != Presence::Online)?;
        let silent = humanize(now.since(worker.watch.seen_at()));
        let brake = self.workers.mass_loss().reason(now).map(|brake| format!("; {brake}"));
        Some(format!(
            "its worker is {} (no beat for {silent}){}",
            worker.presence(),
            brake.unwrap_or_default()
        ))
    }

    fn blocks_of(&self, job: &Job) -> Vec<BlockedWorker> {
        let scopes = job.scopes();
        let blocks = self.trust.blocks().iter().filter(|(_, scope, _)| scopes.contains(scope));
        let blocks = blocks.map(|(worker, scope, block)| BlockedWorker {
            worker: worker.clone(),
            scope: scope.name(),
            shape: block.shape,
            is_blocked: block.is_blocked(),
            until: block.until().to_string(),
            failures: block.failures(),
            reason: block.reason.clone(),
        });
        blocks.take(CANDIDATES_MAX).collect()
    }

    fn candidates(&self, now: Timestamp, job: &Job) -> Vec<(WorkerId, Option<PassedOver>)> {
        let matching = self.matching(now);
        self.workers.iter().map(|worker| (worker.id.clone(), matching.passed_over(job, worker))).collect()
    }

    fn waiting_reason(&self, now: Timestamp, job: &Job) -> String {
        if self.workers.is_empty() {
            return "unschedulable: no worker has joined".to_owned();
        }
        match self.trust.quarantine().state(now, &job.tenant_shape()) {
            quarantine::QuarantineState::Free => {}
            quarantine::QuarantineState::Quarantined { trial_at } => {
                return format!(
                    "its shape failed on several workers and is quarantined: next trial at {trial_at}"
                );
            }
            quarantine::QuarantineState::TrialUnderWay { job } => {
                return format!(
                    "its shape failed on several workers and is quarantined: job {job} is the trial"
                );
            }
        }
        let candidates = self.candidates(now, job);
        let mut fit = candidates
            .iter()
            .filter(|(_, reason)| !reason.as_ref().is_some_and(PassedOver::is_permanent))
            .peekable();
        if fit.peek().is_none() {
            return format!("unschedulable: {}", missing_everywhere(&candidates));
        }
        if fit.clone().any(|(_, reason)| reason.is_none()) {
            return "it will be assigned in the next step".to_owned();
        }
        let fit: Vec<_> = fit.filter_map(|(_, reason)| reason.as_ref()).collect();
        let is_blocked = |reason: &&PassedOver| {
            matches!(reason, PassedOver::Blocked { .. } | PassedOver::BlockTrial { .. })
        };
        if fit.iter().all(is_blocked) {
            let until = fit.iter().filter_map(|reason| match reason {
                PassedOver::Blocked { until } => Some(*until),
                _ => None,
            });
            return match until.min() {
                Some(until) => format!("all matching workers are blocked, the first until {until}"),
                None => "all matching workers are on trial for its shape".to_owned(),
            };
        }
        if fit.iter().all(|reason| matches!(reason, PassedOver::Busy { .. })) {
            let ahead = self.jobs.queue().len().saturating_sub(1);
            return format!(
                "all {} matching workers are busy; {ahead} other jobs wait too (fair share)",
                fit.len()
            );
        }
        waiting::summary(&fit)
    }
}

/// What all workers lack, if it is one thing.
fn missing_everywhere(candidates: &[(WorkerId, Option<PassedOver>)]) -> String {
    let unfits: Vec<_> = candidates
        .iter()
        .filter_map(|(_, reason)| match reason {
            Some(PassedOver::Mismatch(unfit)) => Some(unfit),
            Some(_) | None => None,
        })
        .collect();
    let is_excluded = candidates.iter().any(|(_, reason)| *reason == Some(PassedOver::Excluded));
    if is_excluded {
        return "an affinity excludes every matching worker for its shape".to_owned();
    }
    match unfits.first() {
        Some(Mismatch::NoService(service))
            if unfits.iter().all(|it| matches!(it, Mismatch::NoService(_))) =>
        {
            format!("no worker offers service {service}")
        }
        Some(Mismatch::NoModel(model)) if unfits.iter().all(|it| matches!(it, Mismatch::NoModel(_))) => {
            format!("no worker has model {model}")
        }
        Some(Mismatch::NoClass(class)) if unfits.iter().all(|it| matches!(it, Mismatch::NoClass(_))) => {
            format!("no worker has node class {class}")
        }
        Some(first) => format!("no worker fits; the first one {first}"),
        None => "no worker fits".to_owned(),
    }
}
