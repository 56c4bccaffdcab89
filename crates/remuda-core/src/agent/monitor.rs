//! How an attempt is watched while a service has it. Messages are hints; what the service says when it is asked is the
//! truth, and no answer is no evidence.
//!
//! ```text
//!               accepted            pending, running              succeeded
//!  submitting ───────────▶ accepted ────────────────▶ (go on) ───────────────▶ collecting ──▶ ended
//!      │ answer lost          │ unknown: look again after 5 s, and
//!      ▼                      └─ still unknown, or a new life of the service, or gone: lost ──▶ ended
//!   unsure ── unknown twice: hand the same id in again
//! ```
//!
//! It is asked right after submission, when a message says it is done, when the socket closes or opens, when the agent
//! starts, and after every `inactivity` without a sign.

use std::time::Duration;

use super::work::{Order, Question, Stage, Work};
use super::{Agent, AgentEffect};
use crate::id::{Attempt, JobId};
use crate::service::{
    ProbeResult, ProbeTrigger, ServiceFailure, ServiceFault, ServiceIncarnation, SubmitOutcome,
};
use crate::time::{Timestamp, humanize};
use crate::watch::WatchVerdict;

/// A question that got no answer at all by then is asked again; each request behind it ends after 5 s by itself.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long one waits after a question that got no answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// "Done" is said a moment before it is written down: so soon it is looked for, again and again, before it counts.
const EARLY_LOOK: Duration = Duration::from_millis(40);
const EARLY_LOOKS: u8 = 6;
/// How often one attempt is handed in before it is given up.
const HANDED_IN_MAX: u8 = 3;
/// How long after an order to stop one looks whether it did, and how often it is told again.
const STOPPED_LOOK: Duration = Duration::from_millis(250);
const STOP_AGAIN: Duration = Duration::from_secs(5);
/// So long ours may wait while nothing runs there at all: between two runs there is a moment, not a minute.
const NOTHING_RUNS_MAX: Duration = Duration::from_secs(60);

impl Agent {
    /// Gives it to the service, the first time or again, always under the same id.
    pub(super) fn hand_in(&mut self, job: JobId) {
        let Some(work) = self.held.get_mut(&job) else { return };
        let Some(Order { service, service_job_id, include_outputs, workflow }) = work.order.clone() else {
            return;
        };
        (work.stage, work.question) = (Stage::Submitting, Question::default());
        work.handed_in += 1;
        let attempt = work.attempt;
        self.effects.push(AgentEffect::Run {
            job,
            attempt,
            service,
            service_job_id,
            include_outputs,
            workflow,
        });
    }

    pub(super) fn submitted(
        &mut self,
        now: Timestamp,
        job: JobId,
        attempt: Attempt,
        incarnation: ServiceIncarnation,
        answer: SubmitOutcome,
    ) {
        let Some(work) = self.current(job, attempt).filter(|work| work.stage == Stage::Submitting) else {
            return;
        };
        (work.incarnation, work.submitted_at) = (incarnation, Some(now));
        work.watch.signal(now);
        (work.stage, work.status) = match answer {
            SubmitOutcome::Refused(failure) => return self.failed(now, job, attempt, failure),
            SubmitOutcome::Accepted => (Stage::Accepted, "submitted"),
            SubmitOutcome::Unconfirmed(_) => (Stage::Unsure, "unsure whether submitted"),
        };
        if work.cancelled_at.is_some() {
            // The order to stop may have come before there was anything to stop.
            self.stop_again(now, job);
        }
        self.ask(now, job, ProbeTrigger::Submitted);
    }

    pub(super) fn completion_hint(&mut self, now: Timestamp, job: JobId, attempt: Attempt) {
        if let Some(work) = self.current(job, attempt) {
            work.is_there(now);
            self.ask(now, job, ProbeTrigger::CompletionHint);
        }
    }

    /// One question at a time; what comes up meanwhile is asked next.
    pub(super) fn ask(&mut self, now: Timestamp, job: JobId, trigger: ProbeTrigger) {
        let is_asked_about = |work: &&mut Work| !matches!(work.stage, Stage::Adopted | Stage::Collecting);
        let Some(work) = self.held.get_mut(&job).filter(is_asked_about) else {
            return;
        };
        // Before the service has said whether it takes it, anything seen of it may be half of it, on its way out again.
        let is_on_its_way = work.stage == Stage::Submitting;
        if is_on_its_way || work.question.asked.is_some_and(|(at, _)| now.since(at) < ANSWER_MAX) {
            work.question.next = Some(trigger);
            return;
        }
        (work.question.asked, work.question.look_at) = (Some((now, trigger)), None);
        let attempt = work.attempt;
        self.effects.push(AgentEffect::Probe { job, attempt, trigger });
    }

    /// Something happened that may concern everything the service has.
    pub(super) fn ask_about_all(&mut self, now: Timestamp, trigger: ProbeTrigger) {
        let jobs: Vec<_> = self
            .held
            .iter()
            .filter(|(_, work)| matches!(work.stage, Stage::Unsure | Stage::Accepted))
            .map(|(job, _)| *job)
            .collect();
        for job in jobs {
            self.ask(now, job, trigger);
        }
    }

    pub(super) fn probed(
        &mut self,
        now: Timestamp,
        job: JobId,
        attempt: Attempt,
        incarnation: ServiceIncarnation,
        result: ProbeResult,
    ) {
        let Some(work) = self.current(job, attempt).filter(|work| work.stage != Stage::Collecting) else {
            return;
        };
        let (asked_at, trigger) =
            work.question.asked.take().unwrap_or((Timestamp::ZERO, ProbeTrigger::Recheck));
        let next = work.question.next.take();
        (work.status, work.checked_at) = (result.as_str(), Some(now));
        match result {
            ProbeResult::NoAnswer(why) => {
                work.question.look_at = Some(now.plus(ASK_AGAIN));
                let told_for = work.cancelled_at.map_or(Duration::ZERO, |at| now.since(at));
                self.health.unanswered(now, &why);
                if told_for >= self.settings.patience.cancel_timeout {
                    self.mark_sick(now, format!("it does not answer, nor stop what it was told to: {why}"));
                }
            }
            ProbeResult::Gone(why) => {
                self.health.unanswered(now, &why);
                self.missed(now, job, (asked_at, trigger), ServiceFailure::new(ServiceFault::Died, why));
            }
            ProbeResult::Unknown => {
                self.health.answered();
                self.unknown(now, job, (asked_at, trigger), incarnation);
            }
            ProbeResult::Pending { .. } | ProbeResult::Running => {
                // Perhaps it is seen before the answer to its submission is.
                work.incarnation = incarnation;
                self.goes_on(now, job, trigger, &result);
            }
            ProbeResult::Interrupted => {
                let message = format!("someone interrupted it (seen {trigger})");
                self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, message));
            }
            ProbeResult::Failed(failure) => self.failed(now, job, attempt, failure),
            ProbeResult::Succeeded { .. } if work.cancelled_at.is_some() => {
                let message = "it was done before it could be stopped";
                self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, message));
            }
            ProbeResult::Succeeded { outputs } => {
                work.stage = Stage::Collecting;
                // Nothing is known of what was asked for by whoever handed it in before us: then all is brought home.
                let wanted = work.order.as_ref().map(|order| order.include_outputs.clone());
                self.health.answered();
                let include_outputs = wanted.unwrap_or_default();
                self.effects.push(AgentEffect::FetchOutputs { job, attempt, outputs, include_outputs });
            }
        }
        if let Some(trigger) = next.filter(|_| self.current(job, attempt).is_some()) {
            self.ask(now, job, trigger);
        }
    }

    /// The service has it: the clock of silence starts anew. Progress it is not, unless it waits for somebody else's.
    fn goes_on(&mut self, now: Timestamp, job: JobId, trigger: ProbeTrigger, result: &ProbeResult) {
        self.health.answered();
        let Some(work) = self.held.get_mut(&job) else { return };
        work.stage = Stage::Accepted;
        work.watch.signal(now);
        (work.question.missing_since, work.question.early) = (None, 0);
        let behind = match result {
            ProbeResult::Pending { ahead } => {
                let known = work.question.behind.filter(|(before, _)| before == ahead);
                Some(known.unwrap_or((*ahead, now)))
            }
            _ => None,
        };
        work.question.behind = behind;
        if let Some((ahead, since)) = behind {
            self.waits(now, job, ahead, now.since(since));
        }
        let Some(work) = self.held.get_mut(&job) else { return };
        if trigger == ProbeTrigger::Silence && matches!(result, ProbeResult::Running) {
            // It runs and says nothing: perhaps it is quiet work, perhaps the socket is deaf.
            work.question.silences += 1;
            if work.question.silences.is_power_of_two() {
                self.effects.push(AgentEffect::ReopenSocket);
            }
        }
        if self.held.get(&job).is_some_and(|work| work.cancelled_at.is_some()) {
            self.not_stopped(now, job);
        }
    }

    /// It waits in the service's own queue: for somebody else's work, or because nothing runs there any more.
    fn waits(&mut self, now: Timestamp, job: JobId, ahead: Option<u64>, waited: Duration) {
        let queue_stall_max = self.settings.patience.queue_stall_max;
        let longest = if ahead.is_some() { queue_stall_max } else { NOTHING_RUNS_MAX.min(queue_stall_max) };
        if waited >= longest {
            let what = if ahead.is_some() { "one thing runs" } else { "nothing runs" };
            self.mark_sick(now, format!("work waits there, and {what} for {}", humanize(waited)));
        } else if let Some(work) = self.held.get_mut(&job).filter(|_| ahead.is_some()) {
            work.step += 1;
            self.has_progress = true;
        }
    }

    fn unknown(
        &mut self,
        now: Timestamp,
        job: JobId,
        asked: (Timestamp, ProbeTrigger),
        incarnation: ServiceIncarnation,
    ) {
        let trigger = asked.1;
        let Some(work) = self.held.get_mut(&job) else { return };
        let attempt = work.attempt;
        if work.stage == Stage::Submitting {
            // It is still on its way: nothing follows.
        } else if work.cancelled_at.is_some() && work.stage != Stage::Unsure {
            // What may still be on its way is looked for twice, or it would begin after it was said to be stopped.
            self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, "it was stopped"));
        } else if incarnation > work.incarnation {
            let message = format!("the service restarted and lost it (seen {trigger})");
            self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Died, message));
        } else if trigger == ProbeTrigger::CompletionHint && work.question.early < EARLY_LOOKS {
            let delay = EARLY_LOOK * (1 << work.question.early);
            work.question.early += 1;
            (work.question.look_at, work.question.next) = (Some(now.plus(delay)), None);
        } else {
            self.missed(
                now,
                job,
                asked,
                ServiceFailure::new(ServiceFault::Lost, "the service does not know it"),
            );
        }
    }

    /// Not there. The second time counts, if it was asked for long enough after the first: an answer that took its time
    /// tells of the moment of the question.
    fn missed(
        &mut self,
        now: Timestamp,
        job: JobId,
        (asked_at, trigger): (Timestamp, ProbeTrigger),
        mut failure: ServiceFailure,
    ) {
        let unknown_recheck = self.settings.patience.unknown_recheck;
        let Some(work) = self.held.get_mut(&job) else { return };
        let since = *work.question.missing_since.get_or_insert(now);
        let missing_for = now.since(since);
        if work.stage == Stage::Submitting || asked_at.since(since) < unknown_recheck {
            work.question.look_at = Some(since.plus(unknown_recheck).max(now.plus(EARLY_LOOK)));
        } else if work.stage == Stage::Unsure && work.handed_in < HANDED_IN_MAX && work.cancelled_at.is_none()
        {
            self.hand_in(job);
        } else {
            let attempt = work.attempt;
            let message =
                format!("{}; asked twice within {} ({trigger})", failure.message, humanize(missing_for));
            failure.message = message;
            self.failed(now, job, attempt, failure);
        }
    }

    /// Whoever has been silent for too long is asked about.
    pub(super) fn watch(&mut self, now: Timestamp) {
        let limits = self.limits();
        let mut due = Vec::new();
        for (job, work) in &mut self.held {
            if matches!(work.stage, Stage::Adopted | Stage::Submitting | Stage::Collecting) {
                continue;
            }
            let is_unanswered = work.question.asked.is_some_and(|(at, _)| now.since(at) >= ANSWER_MAX);
            if work.question.look_at.is_some_and(|at| at <= now) || is_unanswered {
                let was_early = work.question.early > 0 && work.question.missing_since.is_none();
                due.push((
                    *job,
                    if was_early { ProbeTrigger::CompletionHint } else { ProbeTrigger::Recheck },
                ));
            } else if work.watch.check(now, limits) == WatchVerdict::Probe {
                due.push((*job, ProbeTrigger::Silence));
            }
        }
        for (job, trigger) in due {
            self.ask(now, job, trigger);
        }
    }

    pub(super) fn look_whether_stopped(&mut self, now: Timestamp, job: JobId) {
        if let Some(work) = self.held.get_mut(&job).filter(|work| work.stage != Stage::Submitting) {
            work.question.look_at = Some(now.plus(STOPPED_LOOK));
        }
    }

    /// It was told to stop and goes on: told again, and past the limit the service itself is at fault.
    fn not_stopped(&mut self, now: Timestamp, job: JobId) {
        let cancel_timeout = self.settings.patience.cancel_timeout;
        let Some(work) = self.held.get_mut(&job) else { return };
        let told_for = work.cancelled_at.map_or(Duration::ZERO, |at| now.since(at));
        if told_for < STOP_AGAIN.min(cancel_timeout) {
            work.question.look_at = Some(now.plus(STOPPED_LOOK.max(told_for)));
            return;
        }
        if told_for >= cancel_timeout {
            self.mark_sick(
                now,
                format!("it does not stop what it runs, {} after it was told", humanize(told_for)),
            );
        }
        self.stop_again(now, job);
    }

    fn stop_again(&mut self, now: Timestamp, job: JobId) {
        let again = STOP_AGAIN.min(self.settings.patience.cancel_timeout).max(STOPPED_LOOK);
        let Some(work) = self.held.get_mut(&job) else { return };
        work.question.look_at = Some(now.plus(again));
        let (attempt, reason) = (work.attempt, "it was told to stop before".to_owned());
        self.effects.push(AgentEffect::Cancel { job, attempt, reason });
    }

    fn current(&mut self, job: JobId, attempt: Attempt) -> Option<&mut Work> {
        self.held.get_mut(&job).filter(|work| work.attempt == attempt)
    }
}
