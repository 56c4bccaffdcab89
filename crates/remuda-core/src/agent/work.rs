//! The attempts an agent holds: how they begin, what is heard of them, how they end.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::{Agent, AgentEffect, AttemptEnd, AttemptOutcome, FinishedAttempt, FoundAttempt, StartOrder};
use crate::id::{Attempt, JobId, Service};
use crate::service::{ProbeTrigger, ServiceFailure, ServiceFault, ServiceIncarnation};
use crate::time::Timestamp;
use crate::watch::{Watch, WatchLimits};
use crate::wire::ServiceStatus;

#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) attempt: Attempt,
    pub(super) step: u64,
    pub(super) progress: f32,
    pub(super) phase: String,
    pub(super) watch: Watch,
    pub(super) stage: Stage,
    /// What to hand in again if the first time got lost; nothing for what was found.
    pub(super) order: Option<Order>,
    pub(super) handed_in: u8,
    /// The life of the service in which it was handed in.
    pub(super) incarnation: ServiceIncarnation,
    pub(super) cancelled_at: Option<Timestamp>,
    /// We restart the service it is at: if it is lost there, that is our doing.
    pub(super) is_bystander: bool,
    pub(super) question: Question,
    pub(super) status: &'static str,
    pub(super) submitted_at: Option<Timestamp>,
    pub(super) checked_at: Option<Timestamp>,
}

/// How far it is with the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Found with the service; whether anyone still wants it is not known yet.
    Adopted,
    /// On its way; the answer is awaited.
    Submitting,
    /// The answer was lost: it may be there, or not.
    Unsure,
    /// The service has it.
    Accepted,
    /// The service is done with it; what it made is being brought home.
    Collecting,
}

#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) service: Service,
    pub(super) service_job_id: String,
    pub(super) include_outputs: BTreeSet<String>,
    pub(super) workflow: Arc<RawValue>,
}

/// What the service is being asked about it, and what it said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    /// The one under way.
    pub(super) asked: Option<(Timestamp, ProbeTrigger)>,
    /// Came up meanwhile.
    pub(super) next: Option<ProbeTrigger>,
    /// When to ask again, come what may.
    pub(super) look_at: Option<Timestamp>,
    /// Looks that were perhaps just too early.
    pub(super) early: u8,
    /// Since when it is not known, or nothing listens there.
    pub(super) missing_since: Option<Timestamp>,
    pub(super) silences: u32,
    /// What runs there while it waits in the service's queue, if anything does, and since when that is so.
    pub(super) behind: Option<(Option<u64>, Timestamp)>,
}

impl Agent {
    /// Nothing can be done yet; a former incarnation's work is not looked for before the service is there.
    pub(super) fn prepare(&mut self, what: String) {
        self.has_begun = true;
        self.has_news |= self.health.prepare(what);
    }

    pub(super) fn began(
        &mut self,
        now: Timestamp,
        found: Vec<FoundAttempt>,
        incarnation: ServiceIncarnation,
    ) {
        self.has_begun = true;
        self.health.began();
        self.found(now, found, incarnation);
    }

    /// Left over from a former incarnation: named when joining, so that the plane can say what it still wants.
    fn found(&mut self, now: Timestamp, found: Vec<FoundAttempt>, incarnation: ServiceIncarnation) {
        self.health.saw_incarnation(incarnation);
        for FoundAttempt { job, attempt } in found {
            if let Some(other) = self.held.get(&job).map(|work| work.attempt) {
                // Of several attempts at one job only the newest can still count, whatever order they come in.
                let older = attempt.min(other);
                if older < attempt.max(other) {
                    let reason = "a newer attempt began".to_owned();
                    self.effects.push(AgentEffect::Cancel { job, attempt: older, reason });
                }
                if attempt <= other {
                    continue;
                }
            }
            let work = Work { incarnation, stage: Stage::Adopted, ..Work::new(now, attempt, None) };
            self.held.insert(job, work);
        }
    }

    /// The plane has heard of what was found, and said what of it is not wanted: the rest is asked about.
    pub(super) fn ask_about_found(&mut self, now: Timestamp) {
        let is_found = |work: &Work| work.stage == Stage::Adopted;
        let found: Vec<_> =
            self.held.iter().filter(|(_, work)| is_found(work)).map(|(job, _)| *job).collect();
        for job in found {
            if let Some(work) = self.held.get_mut(&job) {
                work.stage = Stage::Accepted;
            }
            self.ask(now, job, ProbeTrigger::AgentStarted);
        }
    }

    /// An order that comes again is the same order.
    pub(super) fn start(&mut self, now: Timestamp, start: StartOrder) {
        let StartOrder { job, attempt, service, service_job_id, include_outputs, workflow } = start;
        let key = (job, attempt);
        let is_known = self.held.get(&job).is_some_and(|work| work.attempt >= attempt)
            || self.finished.contains_key(&key)
            || self.settled.contains(&key);
        if is_known {
            return;
        }
        if let Some(older) = self.held.get(&job) {
            // The plane gave up on the older attempt; its end will be refused, so it is not waited for.
            let older = older.attempt;
            self.effects.push(AgentEffect::Cancel {
                job,
                attempt: older,
                reason: "a newer attempt began".to_owned(),
            });
            self.held.remove(&job);
        }
        let problem = match workflow {
            _ if self.held.len() >= self.settings.slots as usize => "all slots are taken",
            _ if !self.health.takes_work() => "its service is sick",
            None => "the order came without a workflow",
            Some(_) if !self.settings.services.contains(&service) => "this worker does not offer the service",
            Some(workflow) => {
                let order = Order { service, service_job_id, include_outputs, workflow };
                self.held.insert(job, Work::new(now, attempt, Some(order)));
                self.has_progress = true;
                return self.hand_in(job);
            }
        };
        self.report(job, attempt, AttemptOutcome::Rejected, problem.to_owned());
    }

    pub(super) fn cancel(&mut self, now: Timestamp, job: JobId, attempt: Attempt, reason: String) {
        match self.held.get_mut(&job) {
            Some(work) if work.attempt == attempt && work.cancelled_at.is_none() => {
                work.cancelled_at = Some(now);
                self.effects.push(AgentEffect::Cancel { job, attempt, reason });
                self.look_whether_stopped(now, job);
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn signal(
        &mut self,
        now: Timestamp,
        job: JobId,
        attempt: Attempt,
        progress: f32,
        phase: String,
    ) {
        let Some(work) = self.held.get_mut(&job).filter(|work| work.attempt == attempt) else { return };
        work.is_there(now);
        work.question.silences = 0;
        if progress.is_finite() {
            work.progress = work.progress.max(progress.clamp(0.0, 1.0));
        }
        work.phase = phase;
        self.has_progress = true;
    }

    pub(super) fn ended(&mut self, job: JobId, attempt: Attempt, ending: AttemptEnd) {
        let finished = match ending {
            AttemptEnd::Failed { cause, message } => FinishedAttempt {
                cause: Some(cause),
                ..finished(job, attempt, AttemptOutcome::Failed, message)
            },
            AttemptEnd::Completed { result } => {
                self.health.worked();
                FinishedAttempt {
                    result: Some(result),
                    ..finished(job, attempt, AttemptOutcome::Completed, String::new())
                }
            }
        };
        self.finish(finished);
    }

    /// The service says why it failed, which says something about the service, too.
    pub(super) fn failed(&mut self, now: Timestamp, job: JobId, attempt: Attempt, failure: ServiceFailure) {
        let ServiceFailure { mut fault, message } = failure;
        if fault == ServiceFault::Died && self.held.get(&job).is_some_and(|work| work.is_bystander) {
            // The service went down by our hand, and nothing that was there is to blame for it.
            fault = ServiceFault::Lost;
        }
        self.diagnose(now, fault, &message);
        let (cause, fault) = (Some(fault.cause()), Some(fault));
        self.finish(FinishedAttempt {
            cause,
            fault,
            ..finished(job, attempt, AttemptOutcome::Failed, message)
        });
    }

    /// It is over here; what was told to stop has stopped, however it ended.
    fn finish(&mut self, mut finished: FinishedAttempt) {
        let (job, attempt) = (finished.job, finished.attempt);
        let Some(work) = self.held.get(&job).filter(|work| work.attempt == attempt) else { return };
        if work.cancelled_at.is_some() && finished.outcome == AttemptOutcome::Failed {
            (finished.outcome, finished.cause, finished.fault) = (AttemptOutcome::Cancelled, None, None);
        }
        self.held.remove(&job);
        self.finished.insert((job, attempt), finished);
        self.has_news = true;
    }

    fn report(&mut self, job: JobId, attempt: Attempt, outcome: AttemptOutcome, message: String) {
        self.finished.insert((job, attempt), finished(job, attempt, outcome, message));
        self.has_news = true;
    }
}

impl Work {
    pub(super) fn new(now: Timestamp, attempt: Attempt, order: Option<Order>) -> Self {
        Work {
            attempt,
            step: 0,
            progress: 0.0,
            phase: String::new(),
            watch: Watch::new(now),
            stage: Stage::Submitting,
            order,
            handed_in: 0,
            incarnation: ServiceIncarnation::default(),
            cancelled_at: None,
            is_bystander: false,
            question: Question::default(),
            status: "",
            submitted_at: None,
            checked_at: None,
        }
    }

    /// The service speaks of it: so it has it, or had it a moment ago, and what was missed before counts for nothing.
    pub(super) fn is_there(&mut self, now: Timestamp) {
        self.watch.signal(now);
        self.step += 1;
        self.question.missing_since = None;
        if self.stage == Stage::Unsure {
            self.stage = Stage::Accepted;
        }
    }

    /// The next moment at which time alone makes it worth a question.
    pub(super) fn wake_at(&self, limits: WatchLimits) -> Timestamp {
        match self.stage {
            Stage::Adopted | Stage::Submitting | Stage::Collecting => Timestamp::NEVER,
            Stage::Unsure | Stage::Accepted => {
                let unanswered = self.question.asked.map(|(at, _)| at.plus(super::monitor::ANSWER_MAX));
                let silence = self.watch.wake_at(limits);
                [Some(silence), self.question.look_at, unanswered]
                    .into_iter()
                    .flatten()
                    .min()
                    .unwrap_or(Timestamp::NEVER)
            }
        }
    }

    /// What the plane is told of the service's side of it.
    pub(super) fn note(&self, now: Timestamp) -> Option<ServiceStatus> {
        let ago = |at: Timestamp| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        (!self.status.is_empty()).then(|| ServiceStatus {
            status: self.status.to_owned(),
            submitted_millis_ago: self.submitted_at.map(ago),
            checked_millis_ago: self.checked_at.map(ago),
        })
    }
}

fn finished(job: JobId, attempt: Attempt, outcome: AttemptOutcome, message: String) -> FinishedAttempt {
    FinishedAttempt { job, attempt, outcome, result: None, cause: None, fault: None, message }
}
