//! The lifecycle of a job. Its attempts are numbered, and the number is the fence: only the newest attempt, on the
//! worker and incarnation it was assigned to, may report an end.
//!
//! ```text
//!            ┌──────── failed, lost: wait, then another attempt ────────┐
//!            ▼                                                          │
//!  ──▶ waiting ──start──▶ running ──complete──▶ completed               │
//!         │                  ├──fail──▶ (attempts left?) ───────────────┘
//!         │                  └──────────────────▶ failed
//!         └── cancel, deadline ─────────────────▶ cancelled, failed
//! ```
//!
//! A job is held here in its short form; a million of these must fit into a small machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cause::Cause;
use crate::id::{Attempt, Fence, Incarnation, JobId, Tenant, TokenId, WorkerId, WorkflowHash};
use crate::money::Money;
use crate::options::JobOptions;
use crate::queue::JobKind;
use crate::record::{IdempotencyKey, JobStatus, PastAttempt, ServiceRow, StateRow};
use crate::refusal::Refusal;
use crate::retry;
use crate::settings::Settings;
use crate::time::{Timestamp, humanize};
use crate::verdict::{AttemptFailure, AttemptVerdict};
use crate::wire::ServiceStatus;

#[derive(Clone, Debug)]
pub struct Job {
    pub id: JobId,
    pub accepted_at: Timestamp,
    pub tenant: Tenant,
    pub kind: JobKind,
    /// SHA-256 of the canonical workflow. `kind` has the shape hash.
    pub workflow_hash: WorkflowHash,
    pub priority: i8,
    pub attempts_max: Option<u8>,
    pub deadline: Option<Timestamp>,
    state: JobState,
    attempt: Attempt,
    failures: u8,
    infra_failures: u8,
    /// None for a job that has never run.
    history: Option<Box<History>>,
    /// None for most jobs.
    pub extras: Option<Box<JobExtras>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JobState {
    Waiting { not_before: Timestamp },
    Running { worker: WorkerId, incarnation: Incarnation, started_at: Timestamp },
    Ended(Box<StateRow>),
}

#[derive(Clone, Debug, Default)]
struct History {
    crashed_workers: BTreeSet<WorkerId>,
    attempts: Vec<PastAttempt>,
    /// The service's report on the running attempt, and its hourly price.
    service: Option<Box<ServiceRow>>,
    price: Option<Money>,
}

/// Fields that few submissions set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobExtras {
    pub key: Option<IdempotencyKey>,
    pub labels: BTreeMap<String, String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub options: JobOptions,
    pub token: Option<TokenId>,
}

/// What can happen to a job.
#[derive(Clone, Debug)]
pub enum JobEvent {
    /// `price`: hourly price of the slot, if the machine is rented.
    Start {
        worker: WorkerId,
        incarnation: Incarnation,
        price: Option<Money>,
    },
    /// The worker joined again in a new incarnation and still holds the attempt.
    Adopt {
        attempt: Attempt,
        worker: WorkerId,
        incarnation: Incarnation,
    },
    Complete {
        fence: Fence,
        /// How the end was found, if the service's message about it was lost.
        recovery: Option<String>,
    },
    Fail {
        fence: Fence,
        failure: AttemptFailure,
        retry_class: RetryClass,
    },
    Cancel {
        message: String,
    },
    Expire,
}

/// What a failure says about a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryClass {
    #[default]
    Retry,
    /// On another worker that can take it now.
    Elsewhere,
    /// It would fail the same way on any worker, or no other worker could try.
    Never,
    /// A worker with this many bytes ran out of memory.
    NeedsMoreMemory(u64),
}

/// How long a retry avoids free workers on which it failed and waits for another one: as long as a first block. A
/// worker busy for an hour must not delay a job that a free one could run.
const AVOID_FAILED_WORKER_FOR: Duration = Duration::from_secs(60);

/// No job has this many attempts; a larger jump in the number is nonsense.
const ATTEMPT_JUMP_MAX: u32 = 10_000;

/// Longest stored message of an attempt.
const MESSAGE_BYTES_MAX: usize = 2000;

impl Job {
    pub fn new(id: JobId, accepted_at: Timestamp, tenant: Tenant, priority: i8, kind: JobKind) -> Self {
        Job {
            id,
            accepted_at,
            tenant,
            workflow_hash: *kind.shape,
            kind,
            priority,
            attempts_max: None,
            deadline: None,
            state: JobState::Waiting { not_before: Timestamp::ZERO },
            attempt: Attempt(0),
            failures: 0,
            infra_failures: 0,
            history: None,
            extras: None,
        }
    }

    /// The only place where a job changes.
    pub fn apply(&mut self, now: Timestamp, event: JobEvent, settings: &Settings) -> Result<(), Refusal> {
        let state = std::mem::replace(&mut self.state, JobState::Waiting { not_before: Timestamp::NEVER });
        match self.next(now, state, event, settings) {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err((state, refusal)) => {
                self.state = state;
                Err(refusal)
            }
        }
    }

    fn next(
        &mut self,
        now: Timestamp,
        state: JobState,
        event: JobEvent,
        settings: &Settings,
    ) -> Result<JobState, (JobState, Refusal)> {
        let running = self.attempt;
        Ok(match (state, event) {
            (state @ JobState::Waiting { not_before }, JobEvent::Start { .. }) if now < not_before => {
                return Err((state, Refusal::TooEarly));
            }
            (JobState::Waiting { .. }, JobEvent::Start { worker, incarnation, price }) => {
                // Counted before the order is sent: a crash in between must not reuse the number.
                self.attempt = self.attempt.next();
                if price.is_some() {
                    self.history_mut().price = price;
                }
                JobState::Running { worker, incarnation, started_at: now }
            }
            (
                JobState::Running { worker, started_at, .. },
                JobEvent::Adopt { attempt, worker: by, incarnation },
            ) if attempt == running && worker == by => JobState::Running { worker, incarnation, started_at },
            (
                JobState::Running { worker, incarnation, started_at },
                JobEvent::Complete { fence, recovery },
            ) if fence == self.fence(incarnation) => {
                let message = completion_message(recovery);
                self.remember(worker.clone(), started_at, now, AttemptVerdict::Completed, &message);
                JobState::Ended(Box::new(StateRow::Completed { worker }))
            }
            (
                JobState::Running { worker, incarnation, started_at },
                JobEvent::Fail { fence, failure, retry_class },
            ) if fence == self.fence(incarnation) => {
                let (cause, message) = self.remember_failure(now, worker, started_at, failure, retry_class);
                let state = self.after_failure(now, cause, message, settings);
                self.apply_retry_class(now, retry_class, state)
            }
            (JobState::Running { worker, started_at, .. }, JobEvent::Cancel { message }) => {
                self.remember(worker, started_at, now, AttemptVerdict::Cancelled, &message);
                JobState::Ended(Box::new(StateRow::Cancelled { message }))
            }
            (JobState::Waiting { .. }, JobEvent::Cancel { message }) => {
                JobState::Ended(Box::new(StateRow::Cancelled { message }))
            }
            (JobState::Running { worker, started_at, .. }, JobEvent::Expire) => {
                self.remember(worker, started_at, now, AttemptVerdict::Expired, "the deadline passed");
                JobState::Ended(Box::new(StateRow::Expired { was_running: true }))
            }
            (JobState::Waiting { .. }, JobEvent::Expire) => {
                JobState::Ended(Box::new(StateRow::Expired { was_running: false }))
            }
            (
                state @ JobState::Running { .. },
                JobEvent::Start { .. }
                | JobEvent::Adopt { .. }
                | JobEvent::Complete { .. }
                | JobEvent::Fail { .. },
            ) => {
                return Err((state, Refusal::StaleAttempt));
            }
            (
                state @ JobState::Waiting { .. },
                JobEvent::Adopt { .. } | JobEvent::Complete { .. } | JobEvent::Fail { .. },
            ) => {
                let refusal = if running.0 == 0 { Refusal::NotRunning } else { Refusal::StaleAttempt };
                return Err((state, refusal));
            }
            (JobState::Ended(row), _) => {
                let state = row.name();
                return Err((JobState::Ended(row), Refusal::Ended { state }));
            }
        })
    }

    /// Adds the failed attempt to the job's history; returns its cause and its message.
    fn remember_failure(
        &mut self,
        now: Timestamp,
        worker: WorkerId,
        started_at: Timestamp,
        failure: AttemptFailure,
        retry_class: RetryClass,
    ) -> (Cause, String) {
        let AttemptFailure { verdict, cause, message, fault, node, shortage, took_down } = failure;
        let message = truncated(message);
        if took_down.is_some() {
            self.history_mut().crashed_workers.insert(worker.clone());
        }
        let past = self.remember(worker, started_at, now, verdict, &message);
        (past.cause, past.fault, past.node, past.took_down) = (Some(cause), fault, node, took_down);
        past.requested_memory = shortage.map(|it| it.requested_bytes);
        past.out_of_memory = match retry_class {
            RetryClass::NeedsMoreMemory(size) => Some(size),
            _ => shortage.map(|it| it.limit_bytes.unwrap_or(0)),
        };
        (cause, message)
    }

    /// What the kind of failure changes about a job that would be retried.
    fn apply_retry_class(&self, now: Timestamp, retry_class: RetryClass, state: JobState) -> JobState {
        let JobState::Waiting { not_before } = state else { return state };
        let last = self.attempts().last();
        let asked_delay = self.options().and_then(|options| options.retry_delay);
        match (retry_class, last) {
            (RetryClass::Never, Some(last)) => {
                failed(last.cause.unwrap_or(Cause::Job), last.message.clone(), false)
            }
            // A worker is free for it now, and may not be in a second.
            (RetryClass::Elsewhere, _) if asked_delay.is_none() => JobState::Waiting { not_before: now },
            _ => JobState::Waiting { not_before },
        }
    }

    fn after_failure(
        &mut self,
        now: Timestamp,
        cause: Cause,
        message: String,
        settings: &Settings,
    ) -> JobState {
        let counter = if cause.is_job_fault() { &mut self.failures } else { &mut self.infra_failures };
        *counter = counter.saturating_add(1);
        if self.is_poison(settings) {
            let names: Vec<_> = self.crashed_workers().iter().map(WorkerId::as_str).collect();
            let evidence = format!("poison: it crashed {} ({message})", names.join(" and "));
            return failed(cause, evidence, true);
        }
        if self.failures >= self.attempts_max.unwrap_or(settings.attempts_max) {
            return failed(cause, message, false);
        }
        if self.infra_failures >= settings.infra_failures_max {
            let evidence = format!(
                "{} attempts failed for reasons outside the job, the last: {message}",
                self.infra_failures
            );
            return failed(cause, evidence, true);
        }
        let failures = u32::from(self.failures) + u32::from(self.infra_failures);
        let delay = self.options().and_then(|options| options.retry_delay);
        let delay = delay.unwrap_or_else(|| retry::delay(settings, failures, self.id, self.attempt));
        JobState::Waiting { not_before: now.plus(delay) }
    }

    fn remember(
        &mut self,
        worker: WorkerId,
        started_at: Timestamp,
        now: Timestamp,
        verdict: AttemptVerdict,
        message: &str,
    ) -> &mut PastAttempt {
        let attempt = self.attempt;
        let history = self.history.get_or_insert_default();
        let mut past = PastAttempt::new(attempt, worker, started_at);
        (past.ended_at, past.cause) = (Some(now), verdict.lost_cause());
        (past.verdict, past.message) = (Some(verdict), message.to_owned());
        (past.service, past.price) = (history.service.take(), history.price.take());
        if let Some(service) = &mut past.service {
            service.close(now, verdict);
        }
        history.attempts.push(past);
        history.attempts.last_mut().expect("it was pushed")
    }

    fn history_mut(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    pub fn state(&self) -> &JobState {
        &self.state
    }

    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// A worker holds an attempt number above ours (the store was restored from a backup): it is not used again.
    /// Returns whether that changed the job.
    pub fn raise_attempt(&mut self, attempt: Attempt) -> bool {
        let is_ahead = attempt > self.attempt && attempt.0 - self.attempt.0 <= ATTEMPT_JUMP_MAX;
        let is_waiting = matches!(self.state, JobState::Waiting { .. });
        if is_ahead && is_waiting {
            self.attempt = attempt;
        }
        is_ahead && is_waiting
    }

    pub fn fence(&self, incarnation: Incarnation) -> Fence {
        Fence { job: self.id, attempt: self.attempt, incarnation }
    }

    pub fn crashed_workers(&self) -> &BTreeSet<WorkerId> {
        static NO_WORKERS: BTreeSet<WorkerId> = BTreeSet::new();
        self.history.as_ref().map_or(&NO_WORKERS, |history| &history.crashed_workers)
    }

    pub fn attempts(&self) -> &[PastAttempt] {
        self.history.as_ref().map_or(&[], |history| &history.attempts)
    }

    /// Stores the service's report on the running attempt; returns whether it is worth a commit.
    pub fn note_service(&mut self, now: Timestamp, note: &ServiceStatus) -> bool {
        let ago = |millis: Option<u64>| millis.map(|millis| now.minus(Duration::from_millis(millis)));
        let service_job_id = self.id.service_job_id(self.attempt);
        let service = &mut self.history_mut().service;
        let is_news = service.as_ref().is_none_or(|known| known.service_status != note.status);
        // The submission time stays fixed although two clocks drift, and no probe came before it.
        let submitted_at = service.as_ref().and_then(|known| known.service_submitted_at);
        let submitted_at = submitted_at.or_else(|| ago(note.submitted_millis_ago));
        *service = Some(Box::new(ServiceRow {
            service_job_id,
            service_submitted_at: submitted_at,
            last_service_check: ago(note.checked_millis_ago).map(|at| at.max(submitted_at.unwrap_or(at))),
            service_status: note.status,
        }));
        is_news
    }

    /// Whether it still avoids workers on which it failed.
    pub fn is_avoiding(&self, now: Timestamp) -> bool {
        matches!(self.state, JobState::Waiting { not_before } if now < not_before.plus(AVOID_FAILED_WORKER_FOR))
    }

    pub fn failures(&self) -> (u8, u8) {
        (self.failures, self.infra_failures)
    }

    pub fn metadata(&self) -> serde_json::Map<String, serde_json::Value> {
        self.extras.as_ref().map(|extra| extra.metadata.clone()).unwrap_or_default()
    }

    /// Options beyond the defaults; None for most jobs.
    pub fn options(&self) -> Option<&JobOptions> {
        self.extras.as_ref().map(|extra| &extra.options)
    }

    /// When time alone changes something.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let retry = match self.state {
            JobState::Waiting { not_before } if now < not_before => Some(not_before),
            JobState::Waiting { not_before } if self.is_avoiding(now) && !self.attempts().is_empty() => {
                Some(not_before.plus(AVOID_FAILED_WORKER_FOR))
            }
            JobState::Waiting { .. } | JobState::Running { .. } => None,
            JobState::Ended(_) => return None,
        };
        [retry, self.deadline].into_iter().flatten().min()
    }

    /// Its status, for the store and for clients.
    pub fn status(&self, now: Timestamp) -> JobStatus {
        let mut attempts = self.attempts().to_vec();
        let state = match &self.state {
            JobState::Waiting { not_before } => StateRow::Queued { not_before: *not_before },
            JobState::Running { worker, incarnation, started_at } => {
                let (worker, started_at) = (worker.clone(), *started_at);
                let mut under_way = PastAttempt::new(self.attempt, worker.clone(), started_at);
                if let Some(history) = &self.history {
                    (under_way.price, under_way.service) = (history.price, history.service.clone());
                }
                attempts.push(under_way);
                StateRow::Running { worker, incarnation: *incarnation, started_at }
            }
            JobState::Ended(row) => (**row).clone(),
        };
        JobStatus {
            state,
            attempt: self.attempt,
            failures: self.failures,
            infra_failures: self.infra_failures,
            crashed_workers: self.crashed_workers().clone(),
            attempts,
            changed_at: now,
        }
    }

    /// Restores a stored status.
    pub fn restore_status(&mut self, status: JobStatus) {
        self.state = match status.state {
            StateRow::Queued { not_before } => JobState::Waiting { not_before },
            StateRow::Running { worker, incarnation, started_at } => {
                JobState::Running { worker, incarnation, started_at }
            }
            ended @ (StateRow::Completed { .. }
            | StateRow::Failed { .. }
            | StateRow::Expired { .. }
            | StateRow::Cancelled { .. }) => JobState::Ended(Box::new(ended)),
        };
        (self.attempt, self.failures, self.infra_failures) =
            (status.attempt, status.failures, status.infra_failures);
        let (attempts, under_way): (Vec<_>, Vec<_>) =
            status.attempts.into_iter().partition(|attempt| attempt.ended_at.is_some());
        let (service, price) =
            under_way.into_iter().next().map_or((None, None), |attempt| (attempt.service, attempt.price));
        if service.is_some() || price.is_some() || !attempts.is_empty() || !status.crashed_workers.is_empty()
        {
            self.history =
                Some(Box::new(History { crashed_workers: status.crashed_workers, attempts, service, price }));
        }
    }

    /// Time since acceptance.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.accepted_at)
    }
}

fn failed(cause: Cause, message: String, was_stopped: bool) -> JobState {
    JobState::Ended(Box::new(StateRow::Failed { cause, message, was_stopped }))
}

fn completion_message(recovery: Option<String>) -> String {
    recovery.map_or("completed".to_owned(), |how| truncated(format!("completed; {how}")))
}

/// Cuts a message to its stored length.
pub fn truncated(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let cut = (0..=MESSAGE_BYTES_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(cut);
        message.push('…');
    }
    message
}

/// Why a job that waits for its retry is waiting.
pub fn retry_reason(now: Timestamp, not_before: Timestamp) -> String {
    format!("retry at {not_before} (in {})", humanize(not_before.since(now)))
}

mod blame;
#[cfg(test)]
pub(crate) mod tests;
