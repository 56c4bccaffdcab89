//! The life of a job. Its attempts are numbered, and the number is the fence: only the newest one, on the worker and
//! in the incarnation it was given to, may say how it ended.
//!
//! ```text
//!            ┌──────── failed, lost: wait, then another attempt ────────┐
//!            ▼                                                          │
//!  ──▶ waiting ──start──▶ running ──complete──▶ completed               │
//!         │                  ├──fail──▶ (attempts left?) ───────────────┘
//!         │                  └──────────────────▶ failed
//!         └─── cancel, deadline, condemned ─────▶ cancelled, failed
//! ```
//!
//! What a job asks for is kept here in its short form; a million of these must fit into a small machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cause::Cause;
use crate::id::{Attempt, Fence, Incarnation, JobId, Tenant, WorkerId, WorkflowHash};
use crate::money::Money;
use crate::options::JobOptions;
use crate::queue::Kind;
use crate::record::{IdempotencyKey, Life, ServiceRow, StateRow, Try};
use crate::refusal::Refusal;
use crate::retry;
use crate::settings::Settings;
use crate::time::{Timestamp, humanize};
use crate::wire::ServiceStatus;
use crate::worker::Worker;

#[derive(Clone, Debug)]
pub struct Job {
    pub id: JobId,
    pub accepted_at: Timestamp,
    pub tenant: Tenant,
    pub kind: Kind,
    /// What it is to the letter; the kind has what it is like.
    pub workflow_hash: WorkflowHash,
    pub priority: i8,
    pub attempts_max: Option<u8>,
    pub deadline: Option<Timestamp>,
    state: State,
    attempt: Attempt,
    failures: u8,
    mishaps: u8,
    /// Most jobs have no troubled past.
    story: Option<Box<Story>>,
    /// Most jobs carry nothing extra.
    pub extra: Option<Box<Extra>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Waiting { not_before: Timestamp },
    Running { worker: WorkerId, incarnation: Incarnation, started_at: Timestamp },
    Ended(Box<StateRow>),
}

#[derive(Clone, Debug, Default)]
struct Story {
    took_down: BTreeSet<WorkerId>,
    tries: Vec<Try>,
    /// What the service said of the attempt under way, and what an hour of it costs.
    service: Option<Box<ServiceRow>>,
    price: Option<Money>,
}

/// What only some submissions have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extra {
    pub key: Option<IdempotencyKey>,
    pub labels: BTreeMap<String, String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub options: JobOptions,
}

/// What can happen to a job.
#[derive(Clone, Debug)]
pub enum Turn {
    /// `price`: what an hour there costs, if anybody bills for it.
    Start {
        worker: WorkerId,
        incarnation: Incarnation,
        price: Option<Money>,
    },
    /// The worker came back in a new incarnation and still holds the attempt.
    Adopt {
        attempt: Attempt,
        worker: WorkerId,
        incarnation: Incarnation,
    },
    Complete(Fence),
    Fail {
        fence: Fence,
        cause: Cause,
        message: String,
        took_down: bool,
        ruin: Ruin,
    },
    Cancel {
        message: String,
    },
    Expire,
    /// Its shape fails everywhere: there is no point in trying on.
    Condemn {
        message: String,
    },
}

/// What a failure says about trying again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ruin {
    #[default]
    Ordinary,
    /// It would fail the same way anywhere.
    Final,
    /// The worker, with so much of it, ran out of memory.
    OutOfMemory(u64),
}

/// How long a retry leaves a free worker alone because an attempt failed there, and waits for another: as long as a
/// first block. An hour of someone else's work must not hold up a job that somebody could run.
const ELSEWHERE_MAX: Duration = Duration::from_secs(60);

/// How the end of a job begins that its deadline ended.
pub(crate) const DEADLINE_PASSED: &str = "the deadline passed";

/// No job is tried so often; a number beyond it is nonsense.
const AHEAD_MAX: u32 = 10_000;

/// A verdict on an attempt is kept with the job; this much of what a worker said is enough to understand it.
const MESSAGE_BYTES_MAX: usize = 2000;

impl Job {
    pub fn new(id: JobId, accepted_at: Timestamp, tenant: Tenant, priority: i8, kind: Kind) -> Self {
        Job {
            id,
            accepted_at,
            tenant,
            workflow_hash: *kind.shape,
            kind,
            priority,
            attempts_max: None,
            deadline: None,
            state: State::Waiting { not_before: Timestamp::ZERO },
            attempt: Attempt(0),
            failures: 0,
            mishaps: 0,
            story: None,
            extra: None,
        }
    }

    /// The one place where a job changes.
    pub fn turn(&mut self, now: Timestamp, turn: Turn, settings: &Settings) -> Result<(), Refusal> {
        let state = std::mem::replace(&mut self.state, State::Waiting { not_before: Timestamp::NEVER });
        match self.next(now, state, turn, settings) {
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
        state: State,
        turn: Turn,
        settings: &Settings,
    ) -> Result<State, (State, Refusal)> {
        let running = self.attempt;
        Ok(match (state, turn) {
            (state @ State::Waiting { not_before }, Turn::Start { .. }) if now < not_before => {
                return Err((state, Refusal::TooEarly));
            }
            (State::Waiting { .. }, Turn::Start { worker, incarnation, price }) => {
                // Counted before the worker hears of it: a crash in between must not give the number out twice.
                self.attempt = self.attempt.next();
                if price.is_some() {
                    self.story_mut().price = price;
                }
                State::Running { worker, incarnation, started_at: now }
            }
            (State::Running { worker, started_at, .. }, Turn::Adopt { attempt, worker: by, incarnation })
                if attempt == running && worker == by =>
            {
                State::Running { worker, incarnation, started_at }
            }
            (State::Running { worker, incarnation, started_at }, Turn::Complete(fence))
                if fence == self.fence(incarnation) =>
            {
                self.remember(worker.clone(), started_at, now, None, "completed", Ruin::Ordinary);
                State::Ended(Box::new(StateRow::Completed { worker }))
            }
            (
                State::Running { worker, incarnation, started_at },
                Turn::Fail { fence, cause, message, took_down, ruin },
            ) if fence == self.fence(incarnation) => {
                let message = shortened(message);
                self.remember(worker.clone(), started_at, now, Some(cause), &message, ruin);
                if ruin == Ruin::Final {
                    self.failures = self.failures.saturating_add(1);
                    return Ok(failed(cause, message, false));
                }
                self.after_failure(now, worker, cause, message, took_down, settings)
            }
            (State::Running { worker, started_at, .. }, Turn::Cancel { message }) => {
                self.remember(worker, started_at, now, None, &message, Ruin::Ordinary);
                State::Ended(Box::new(StateRow::Cancelled { message }))
            }
            (State::Waiting { .. }, Turn::Cancel { message }) => {
                State::Ended(Box::new(StateRow::Cancelled { message }))
            }
            (State::Running { worker, started_at, .. }, Turn::Expire) => {
                self.remember(worker, started_at, now, Some(Cause::Job), DEADLINE_PASSED, Ruin::Ordinary);
                failed(Cause::Job, format!("{DEADLINE_PASSED} while it ran"), false)
            }
            (State::Waiting { .. }, Turn::Expire) => {
                failed(Cause::Job, format!("{DEADLINE_PASSED} while it waited"), false)
            }
            (State::Waiting { .. }, Turn::Condemn { message }) => failed(Cause::Job, message, true),
            (state @ State::Running { .. }, Turn::Start { .. } | Turn::Condemn { .. })
            | (state @ State::Running { .. }, Turn::Adopt { .. } | Turn::Complete(_) | Turn::Fail { .. }) => {
                return Err((state, Refusal::StaleAttempt));
            }
            (state @ State::Waiting { .. }, Turn::Adopt { .. } | Turn::Complete(_) | Turn::Fail { .. }) => {
                return Err((
                    state,
                    if running.0 == 0 { Refusal::NotRunning } else { Refusal::StaleAttempt },
                ));
            }
            (State::Ended(row), _) => {
                let state = row.name();
                return Err((State::Ended(row), Refusal::Ended { state }));
            }
        })
    }

    fn after_failure(
        &mut self,
        now: Timestamp,
        worker: WorkerId,
        cause: Cause,
        message: String,
        took_down: bool,
        settings: &Settings,
    ) -> State {
        let counter = if cause.is_jobs_own() { &mut self.failures } else { &mut self.mishaps };
        *counter = counter.saturating_add(1);
        if took_down {
            self.story_mut().took_down.insert(worker);
        }
        let lost = self.took_down().len();
        if lost >= usize::from(settings.poison_after.max(1)) {
            let names: Vec<_> = self.took_down().iter().map(WorkerId::as_str).collect();
            let evidence = format!("poison: it took down {} ({message})", names.join(" and "));
            return failed(cause, evidence, true);
        }
        if self.failures >= self.attempts_max.unwrap_or(settings.attempts_max) {
            return failed(cause, message, false);
        }
        if self.mishaps >= settings.infra_failures_max {
            let evidence =
                format!("{} attempts ended through no fault of its own, the last: {message}", self.mishaps);
            return failed(cause, evidence, true);
        }
        let failures = u32::from(self.failures) + u32::from(self.mishaps);
        let delay = self.options().and_then(|options| options.retry_delay);
        let delay = delay.unwrap_or_else(|| retry::delay(settings, failures, self.id, self.attempt));
        State::Waiting { not_before: now.plus(delay) }
    }

    fn remember(
        &mut self,
        worker: WorkerId,
        started_at: Timestamp,
        now: Timestamp,
        cause: Option<Cause>,
        verdict: &str,
        ruin: Ruin,
    ) {
        let attempt = self.attempt;
        let verdict = verdict.to_owned();
        let out_of_memory = match ruin {
            Ruin::OutOfMemory(size) => Some(size),
            Ruin::Ordinary | Ruin::Final => None,
        };
        let (story, ended_at) = (self.story_mut(), Some(now));
        let (service, price) = (story.service.take(), story.price.take());
        story.tries.push(Try {
            attempt,
            worker,
            started_at,
            ended_at,
            cause,
            verdict,
            out_of_memory,
            price,
            service,
        });
    }

    fn story_mut(&mut self) -> &mut Story {
        self.story.get_or_insert_default()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Somebody has an attempt with a number we never gave out: it is not given out again. Whether that changed anything.
    pub fn raise(&mut self, attempt: Attempt) -> bool {
        let is_ahead = attempt > self.attempt && attempt.0 - self.attempt.0 <= AHEAD_MAX;
        let is_waiting = matches!(self.state, State::Waiting { .. });
        if is_ahead && is_waiting {
            self.attempt = attempt;
        }
        is_ahead && is_waiting
    }

    pub fn fence(&self, incarnation: Incarnation) -> Fence {
        Fence { job: self.id, attempt: self.attempt, incarnation }
    }

    pub fn took_down(&self) -> &BTreeSet<WorkerId> {
        static NOBODY: BTreeSet<WorkerId> = BTreeSet::new();
        self.story.as_ref().map_or(&NOBODY, |story| &story.took_down)
    }

    pub fn tries(&self) -> &[Try] {
        self.story.as_ref().map_or(&[], |story| &story.tries)
    }

    /// Whether an attempt on this worker failed before, through whoever's fault.
    pub fn has_failed_on(&self, worker: &WorkerId) -> bool {
        self.tries().iter().any(|one| one.worker == *worker && one.cause.is_some())
    }

    /// Whether another worker would be better, if there is one.
    pub fn would_rather_not(&self, worker: &Worker) -> bool {
        let too_small = self.tries().iter().filter_map(|one| one.out_of_memory).max();
        self.has_failed_on(&worker.id)
            || too_small.is_some_and(|size| worker.offer.vram_bytes.is_some_and(|has| has <= size))
    }

    /// Keeps what the service said of the attempt under way; whether that is news worth storing.
    pub fn note_service(&mut self, now: Timestamp, note: &ServiceStatus) -> bool {
        let ago = |millis: Option<u64>| millis.map(|millis| now.minus(Duration::from_millis(millis)));
        let service_job_id = self.id.service_job_id(self.attempt);
        let service = &mut self.story_mut().service;
        let is_news = service.as_ref().is_none_or(|known| known.service_status != note.status);
        // The moment it was handed in does not move because two clocks drift.
        let submitted_at = service.as_ref().and_then(|known| known.service_submitted_at);
        *service = Some(Box::new(ServiceRow {
            service_job_id,
            service_submitted_at: submitted_at.or_else(|| ago(note.submitted_millis_ago)),
            last_service_check: ago(note.checked_millis_ago),
            service_status: shortened(note.status.clone()),
        }));
        is_news
    }

    /// Whether it would still rather wait for a worker on which it has not failed.
    pub fn is_choosy(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Waiting { not_before } if now < not_before.plus(ELSEWHERE_MAX))
    }

    pub fn failures(&self) -> (u8, u8) {
        (self.failures, self.mishaps)
    }

    pub fn metadata(&self) -> serde_json::Map<String, serde_json::Value> {
        self.extra.as_ref().map(|extra| extra.metadata.clone()).unwrap_or_default()
    }

    /// What was asked for beyond the usual; nothing for most jobs.
    pub fn options(&self) -> Option<&JobOptions> {
        self.extra.as_ref().map(|extra| &extra.options)
    }

    /// The next moment at which time alone changes something.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let retry = match self.state {
            State::Waiting { not_before } if now < not_before => Some(not_before),
            State::Waiting { not_before } if self.is_choosy(now) && !self.tries().is_empty() => {
                Some(not_before.plus(ELSEWHERE_MAX))
            }
            State::Waiting { .. } | State::Running { .. } => None,
            State::Ended(_) => return None,
        };
        [retry, self.deadline].into_iter().flatten().min()
    }

    /// How it stands, for the store and for people.
    pub fn life(&self, now: Timestamp) -> Life {
        let mut tries = self.tries().to_vec();
        let state = match &self.state {
            State::Waiting { not_before } => StateRow::Queued { not_before: *not_before },
            State::Running { worker, incarnation, started_at } => {
                let (attempt, worker, started_at) = (self.attempt, worker.clone(), *started_at);
                let under_way = Try {
                    attempt,
                    worker: worker.clone(),
                    started_at,
                    ended_at: None,
                    cause: None,
                    verdict: String::new(),
                    out_of_memory: None,
                    price: self.story.as_ref().and_then(|story| story.price),
                    service: self.story.as_ref().and_then(|story| story.service.clone()),
                };
                tries.push(under_way);
                StateRow::Running { worker, incarnation: *incarnation, started_at }
            }
            State::Ended(row) => (**row).clone(),
        };
        Life {
            state,
            attempt: self.attempt,
            failures: self.failures,
            mishaps: self.mishaps,
            took_down: self.took_down().clone(),
            tries,
            changed_at: now,
        }
    }

    /// Goes on from a stored life.
    pub fn resume(&mut self, life: Life) {
        self.state = match life.state {
            StateRow::Queued { not_before } => State::Waiting { not_before },
            StateRow::Running { worker, incarnation, started_at } => {
                State::Running { worker, incarnation, started_at }
            }
            ended @ (StateRow::Completed { .. } | StateRow::Failed { .. } | StateRow::Cancelled { .. }) => {
                State::Ended(Box::new(ended))
            }
        };
        (self.attempt, self.failures, self.mishaps) = (life.attempt, life.failures, life.mishaps);
        let (tries, under_way): (Vec<_>, Vec<_>) =
            life.tries.into_iter().partition(|one| one.ended_at.is_some());
        let (service, price) =
            under_way.into_iter().next().map_or((None, None), |one| (one.service, one.price));
        if service.is_some() || price.is_some() || !tries.is_empty() || !life.took_down.is_empty() {
            self.story = Some(Box::new(Story { took_down: life.took_down, tries, service, price }));
        }
    }

    /// How long it has been waiting for someone to take it.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.accepted_at)
    }
}

fn failed(cause: Cause, message: String, quarantined: bool) -> State {
    State::Ended(Box::new(StateRow::Failed { cause, message, quarantined }))
}

/// As much of what somebody said as is kept.
pub fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let cut = (0..=MESSAGE_BYTES_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(cut);
        message.push('…');
    }
    message
}

/// What a person is told about a job that waits for its retry.
pub fn retry_reason(now: Timestamp, not_before: Timestamp) -> String {
    format!("retry at {not_before} (in {})", humanize(not_before.since(now)))
}

#[cfg(test)]
pub(crate) mod tests;
