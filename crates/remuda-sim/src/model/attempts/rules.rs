//! The rules, checked at every transition. They compare what is stored with what is true in this small world (which messages
//! arrived, what each service has), and know nothing of how the core decides.
//!
//! | law | what must hold |
//! |---|---|
//! | S1 | a restarted plane knows the job as long as it is open |
//! | S2 | an outcome never changes; a cancel request gets a definite answer |
//! | S3 | a call of an older process or an older beat changes nothing; an attempt ends by a report only if its own worker reported this attempt, and completed only if its service completed it |
//! | S4 | attempt numbers rise, one after the other, on one worker each; a drained worker gets none; a service gets none twice |
//! | S5 | what a service gets is stored, for this worker and under this id |
//! | S6 | an attempt is lost only by silence for a lease, or by a message of its worker that omits it while its service does not have it; a probe never misses what the service has |
//! | S12 | every index of the plane is correct |
//! | L2 | every report gets a definite answer, and a confirmed one is stored |

use remuda_core::machine::WorkerState;
use remuda_core::record::{JobStatus, PastAttempt, Record, StateRow};
use remuda_core::refusal::Refusal;
use remuda_core::service::ProbeResult;
use remuda_core::verdict::AttemptVerdict;
use remuda_core::wire::{AttemptOutcome, Beat, HeldAttempt};

use super::plane::Occasion;
use super::{AttemptState, Attempts, PromptPhase};
use crate::law::Law;
use crate::model::search::BrokenRule;
use crate::net::{AgentResponse, PlaneRequest};
use crate::service::Key;

type Judged = Result<(), BrokenRule>;

fn broken(law: Law, what: impl Into<String>) -> Judged {
    Err(BrokenRule::new(law, what))
}

fn require(is_kept: bool, law: Law, what: impl FnOnce() -> String) -> Judged {
    if is_kept { Ok(()) } else { broken(law, what()) }
}

impl Attempts {
    /// Whether a call is newer than every other that the plane has seen of this worker, and meant for this plane.
    pub(super) fn is_fresh(
        state: &AttemptState,
        (host, process, call): (usize, u32, u64),
        request: &PlaneRequest,
    ) -> bool {
        let is_newer = (process, call) > state.newest_calls[host];
        match request {
            PlaneRequest::Beat { beat, .. } => is_newer && beat.term == state.plane.term(),
            PlaneRequest::Join { .. } => is_newer,
            // Sent by a process as its last word.
            PlaneRequest::Leave { .. } => process >= state.newest_calls[host].0,
            _ => false,
        }
    }

    /// S5 and S4: a prompt is submitted.
    pub(super) fn check_submission(
        &self,
        state: &AttemptState,
        host: usize,
        (job, attempt): Key,
        id: &str,
    ) -> Judged {
        let worker = &self.workers[host];
        let is_stored = state.store.status(job).is_some_and(|status| {
            let is_running = status.attempt == attempt
                && matches!(&status.state, StateRow::Running { worker: by, .. } if by == worker);
            let past = status.attempts.iter().find(|past| past.attempt == attempt);
            is_running || past.is_some_and(|past| past.worker == *worker)
        });
        require(is_stored && id == job.service_job_id(attempt), Law::S5, || {
            format!("{worker} submits attempt {attempt}, which is not stored as its own")
        })?;
        require(!state.hosts[host].prompts.contains_key(&(job, attempt)), Law::S4, || {
            format!("{worker} submits attempt {attempt} a second time")
        })
    }

    /// S6: the service has the prompt all the time, so no probe may miss it.
    pub(super) fn check_probe(
        &self,
        state: &AttemptState,
        host: usize,
        key: Key,
        seen: &ProbeResult,
    ) -> Judged {
        let is_missed = matches!(seen, ProbeResult::Unknown) && state.hosts[host].prompts.contains_key(&key);
        require(!is_missed, Law::S6, || {
            format!("a probe of {} missed attempt {}, which its service has", self.workers[host], key.1)
        })
    }

    /// S12 and S4, after every step.
    pub(super) fn check_plane(&self, state: &AttemptState) -> Judged {
        let plane = &state.plane;
        if let Err(what) = plane.check_indexes() {
            return broken(Law::S12, what);
        }
        let holders = plane.workers().filter(|worker| worker.assignments.contains_key(&self.job)).count();
        require(holders <= 1, Law::S4, || format!("{holders} workers have the job"))
    }

    pub(super) fn check_restored(&self, state: &AttemptState) -> Judged {
        let is_open = state.store.status(self.job).is_some_and(|status| status.state.is_open());
        let is_known = state.plane.job(self.job).is_some();
        require(is_known || !is_open, Law::S1, || "the restarted plane does not know the job".to_owned())
    }

    /// S2: the answer to a cancel request.
    pub(super) fn check_cancelled(&self, state: &AttemptState, refusal: Option<&Refusal>) -> Judged {
        let status = state.store.status(self.job);
        let is_cancelled = status.is_some_and(|it| matches!(it.state, StateRow::Cancelled { .. }));
        let has_ended = status.is_some_and(|it| !it.state.is_open());
        let is_definite = if refusal.is_some() { has_ended } else { is_cancelled };
        require(is_definite, Law::S2, || {
            format!("a cancel request was answered with {refusal:?} and the job is {status:?}")
        })
    }

    /// L2: the answer to a beat.
    pub(super) fn check_settled(
        &self,
        state: &AttemptState,
        request: &PlaneRequest,
        is_fresh: bool,
        answer: &AgentResponse,
    ) -> Judged {
        let (PlaneRequest::Beat { beat, .. }, AgentResponse::Reply(reply)) = (request, answer) else {
            return Ok(());
        };
        if !is_fresh {
            return Ok(());
        }
        for finished in &beat.finished {
            let settled =
                reply.settled.iter().find(|it| (it.job, it.attempt) == (finished.job, finished.attempt));
            let Some(settled) = settled else {
                return broken(Law::L2, format!("a report on attempt {} got no answer", finished.attempt));
            };
            let is_stored = state.store.status(self.job).is_some_and(|status| {
                status.attempts.iter().any(|it| it.attempt == finished.attempt && it.ended_at.is_some())
            });
            require(settled.refused.is_some() || is_stored, Law::L2, || {
                format!("attempt {} was confirmed as recorded and is not", finished.attempt)
            })?;
        }
        Ok(())
    }

    /// What is about to be stored.
    pub(super) fn check_commit(
        &self,
        state: &AttemptState,
        records: &[Record],
        occasion: Occasion<'_>,
    ) -> Judged {
        let mut before = state.store.status(self.job).cloned();
        for record in records {
            if let (Record::Result { .. }, Some(before)) = (record, &before) {
                require(before.state.is_open() || self.is_completion(records), Law::S2, || {
                    "a second result is stored".to_owned()
                })?;
            }
            let Record::JobStatus { status: after, .. } = record else { continue };
            if let Some(before) = &before {
                self.check_change(state, before, after, occasion)?;
            }
            before = Some(after.clone());
        }
        Ok(())
    }

    fn is_completion(&self, records: &[Record]) -> bool {
        records.iter().any(|record| {
            matches!(record, Record::JobStatus { status, .. }
                if matches!(status.state, StateRow::Completed { .. }))
        })
    }

    fn check_change(
        &self,
        state: &AttemptState,
        before: &JobStatus,
        after: &JobStatus,
        occasion: Occasion<'_>,
    ) -> Judged {
        require(before.state.is_open() || before.state == after.state, Law::S2, || {
            format!("the outcome {:?} becomes {:?}", before.state, after.state)
        })?;
        if let Occasion::Call { host, is_fresh: false, .. } = occasion {
            let worker = &self.workers[host];
            return broken(Law::S3, format!("a stale call of {worker} changes the job to {:?}", after.state));
        }
        require(after.attempt >= before.attempt, Law::S4, || {
            format!("attempt {} is followed by {}", before.attempt, after.attempt)
        })?;
        self.check_start(state, before, after)?;
        for past in after.attempts.iter().filter(|past| past.ended_at.is_some()) {
            let was_over =
                before.attempts.iter().any(|it| it.attempt == past.attempt && it.ended_at.is_some());
            if !was_over {
                self.check_end(state, past, occasion)?;
            }
        }
        Ok(())
    }

    /// S4: an attempt starts when no other is under way, and stays on its worker.
    fn check_start(&self, state: &AttemptState, before: &JobStatus, after: &JobStatus) -> Judged {
        let StateRow::Running { worker, .. } = &after.state else { return Ok(()) };
        match &before.state {
            StateRow::Running { worker: former, .. } => {
                let is_same = (former, before.attempt) == (worker, after.attempt);
                require(is_same, Law::S4, || {
                    format!("attempt {} starts while {} runs on {former}", after.attempt, before.attempt)
                })
            }
            _ => {
                require(after.attempt > before.attempt, Law::S4, || {
                    format!("attempt number {} is used twice", after.attempt)
                })?;
                let known = state.plane.worker(worker);
                let is_active = known.is_some_and(|worker| worker.state() == WorkerState::Active);
                let is_drained = state.drained[self.host_of(worker)];
                require(is_active && !is_drained, Law::S4, || {
                    format!("attempt {} starts on {worker}, which is drained", after.attempt)
                })
            }
        }
    }

    /// S3 and S6: an attempt ends.
    fn check_end(&self, state: &AttemptState, past: &PastAttempt, occasion: Occasion<'_>) -> Judged {
        let (host, key) = (self.host_of(&past.worker), (self.job, past.attempt));
        let prompt = state.hosts[host].prompts.get(&key).copied();
        let is_gone = matches!(prompt, None | Some(PromptPhase::Interrupted));
        let request = match occasion {
            Occasion::Call { host: from, request, .. } if from == host => Some(request),
            _ => None,
        };
        let (beat, join) = match request {
            Some(PlaneRequest::Beat { beat, .. }) => (Some(beat.as_ref()), None),
            Some(PlaneRequest::Join { join, .. }) => (None, Some(join.as_ref())),
            _ => (None, None),
        };
        let omits = |held: &[HeldAttempt]| held.iter().all(|held| (held.job, held.attempt) != key);
        let Some(verdict) = past.verdict else {
            return broken(Law::S6, format!("attempt {} ended without a verdict", past.attempt));
        };
        let (is_proved, law) = match verdict {
            AttemptVerdict::Completed => {
                let is_true = prompt == Some(PromptPhase::Succeeded);
                (is_true && reports(beat, key, |outcome| outcome == AttemptOutcome::Completed), Law::S3)
            }
            AttemptVerdict::Failed | AttemptVerdict::Stopped | AttemptVerdict::Rejected => {
                (reports(beat, key, |outcome| outcome != AttemptOutcome::Completed), Law::S3)
            }
            AttemptVerdict::Cancelled => (matches!(occasion, Occasion::Client), Law::S6),
            AttemptVerdict::WorkerSilent => {
                let silence = state.now - state.heard_at[host];
                (u128::from(silence) >= self.settings.lease.as_millis(), Law::S6)
            }
            AttemptVerdict::NoLongerHeld | AttemptVerdict::NeverReceived => {
                (beat.is_some_and(|beat| omits(&beat.held)) && is_gone, Law::S6)
            }
            AttemptVerdict::WorkerRestarted => {
                (join.is_some_and(|join| omits(&join.held)) && is_gone, Law::S6)
            }
            AttemptVerdict::WorkerLeft => (matches!(request, Some(PlaneRequest::Leave { .. })), Law::S6),
            _ => (false, Law::S6),
        };
        require(is_proved, law, || {
            let (attempt, worker) = (past.attempt, &past.worker);
            format!(
                "attempt {attempt} on {worker} ended as {verdict:?} without evidence; its service has {prompt:?}"
            )
        })
    }
}

/// Whether a beat reports such an end of this attempt.
fn reports(beat: Option<&Beat>, key: Key, is_such: impl Fn(AttemptOutcome) -> bool) -> bool {
    let mut finished = beat.into_iter().flat_map(|beat| &beat.finished);
    finished.any(|finished| (finished.job, finished.attempt) == key && is_such(finished.outcome))
}
