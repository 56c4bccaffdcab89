//! How an attempt is watched while the service has it. Messages are hints, a probe result is evidence, and a missing
//! answer is neither.
//!
//! ```text
//!               accepted            pending, running              succeeded
//!  submitting ───────────▶ accepted ────────────────▶ (keep on) ──────────────▶ collecting ──▶ ended
//!      │ reply lost           │ unknown: probe again after `unknown_recheck`, and
//!      ▼                      └─ still unknown, or gone: lost ──▶ ended
//!  unconfirmed ── unknown twice: submit the same id again
//! ```
//!
//! A completion message can be lost, and so can the answer to a submission: what decides is the probe, by the attempt's own
//! id. Probes are sent right after submission, on a completion message, when the socket closes or reopens, when the agent
//! starts (`work`, `repair`), and after every `inactivity` without a signal. So a lost completion is looked for by
//! `probe_silent` and found by `probed`, in its arm for a run that has succeeded.

use std::time::Duration;

use super::work::{Order, ProbeState, Stage, Work};
use super::{Agent, AgentEffect};
use crate::id::{Attempt, JobId};
use crate::service::{
    ProbeResult, ProbeTrigger, ServiceFailure, ServiceFault, ServiceIncarnation, ServiceState, SubmitOutcome,
};
use crate::supervise::{Backoff, WatchVerdict};
use crate::time::{Timestamp, humanize};

/// A probe without any result by then is sent again; each of its HTTP requests times out after 5 s by itself.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay after a probe that got no answer.
const PROBE_RETRY: Duration = Duration::from_secs(5);
/// ComfyUI sends its completion message a moment before it writes its history. So an unknown attempt is probed again,
/// soon at first, before it counts as unknown.
/// What an operator can do about a service that forgot an attempt without having restarted.
const SHARED_HINT: &str = "; it did not restart: another client probably cleared its queue or history";
const EARLY_PROBE: Backoff = Backoff::new(EARLY_PROBE_MIN, Duration::from_millis(1280));
const EARLY_PROBE_MIN: Duration = Duration::from_millis(40);
const EARLY_PROBES_MAX: u8 = 6;
/// How often one attempt is submitted before it is given up.
const SUBMISSIONS_MAX: u8 = 3;
/// How long after a cancellation the service is probed for it, and how often the cancellation is repeated.
const CANCEL_RECHECK: Duration = Duration::from_millis(250);
const CANCEL_REPEAT: Duration = Duration::from_secs(5);
/// When to open a new socket again if nothing is heard of a running attempt: of two sockets with one client id ComfyUI
/// mutes the newer when it notices the end of the older, as happens when a killed agent is restarted at once.
const HEAR_WITHIN: Duration = Duration::from_secs(5);
/// How long an attempt may wait in a service queue that runs nothing: between two runs there is a moment, not a minute.
const NOTHING_RUNS_MAX: Duration = Duration::from_secs(60);

impl Agent {
    /// Submits the attempt, the first time or again, always under the same id.
    pub(super) fn submit(&mut self, job: JobId) {
        let Some(work) = self.held.get_mut(&job) else { return };
        let Some(Order { service, service_job_id, include_outputs, workflow, keys }) = work.order.clone()
        else {
            return;
        };
        (work.stage, work.probe) = (Stage::Submitting, ProbeState::default());
        work.submissions += 1;
        let attempt = work.attempt;
        self.effects.push(AgentEffect::Run {
            job,
            attempt,
            service,
            service_job_id,
            include_outputs,
            workflow,
            keys,
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
        (work.incarnation, work.submitted_at, work.heard_at) = (incarnation, Some(now), now);
        work.watch.signal(now);
        (work.stage, work.status) = match answer {
            SubmitOutcome::Refused(failure) => return self.failed(now, job, attempt, failure),
            SubmitOutcome::Accepted => (Stage::Accepted, Some(ServiceState::Submitted)),
            SubmitOutcome::Unconfirmed(_) => (Stage::Unconfirmed, Some(ServiceState::Unconfirmed)),
        };
        if work.cancelled_at.is_some() {
            // The cancellation may have come before there was anything to cancel.
            self.cancel_again(now, job);
        }
        self.probe(now, job, ProbeTrigger::Submitted);
    }

    pub(super) fn completion_hint(&mut self, now: Timestamp, job: JobId, attempt: Attempt) {
        if let Some(work) = self.current(job, attempt) {
            work.note_sighting(now);
            work.end_heard = true;
            self.probe(now, job, ProbeTrigger::CompletionHint);
        }
    }

    /// One probe per attempt at a time; a trigger that comes meanwhile is remembered.
    pub(super) fn probe(&mut self, now: Timestamp, job: JobId, trigger: ProbeTrigger) {
        let can_be_probed = |work: &&mut Work| !matches!(work.stage, Stage::Adopted | Stage::Collecting);
        let Some(work) = self.held.get_mut(&job).filter(can_be_probed) else {
            return;
        };
        // Before the submission is answered, a probe may see an entry that the service is about to refuse.
        let is_on_its_way = work.stage == Stage::Submitting;
        if is_on_its_way || work.probe.sent.is_some_and(|(at, _)| now.since(at) < PROBE_TIMEOUT) {
            work.probe.next = Some(trigger);
            return;
        }
        (work.probe.sent, work.probe.recheck_at) = (Some((now, trigger)), None);
        let attempt = work.attempt;
        self.effects.push(AgentEffect::Probe { job, attempt, trigger });
    }

    /// Probes every attempt that the service may have.
    pub(super) fn probe_all(&mut self, now: Timestamp, trigger: ProbeTrigger) {
        let jobs: Vec<_> = self
            .held
            .iter()
            .filter(|(_, work)| matches!(work.stage, Stage::Unconfirmed | Stage::Accepted))
            .map(|(job, _)| *job)
            .collect();
        for job in jobs {
            self.probe(now, job, trigger);
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
        if self.superseded.contains(job, attempt) {
            return self.superseded_probed(now, job, attempt, &result);
        }
        let Some(work) = self.current(job, attempt).filter(|work| work.stage != Stage::Collecting) else {
            return;
        };
        let (asked_at, trigger) = work.probe.sent.take().unwrap_or((Timestamp::ZERO, ProbeTrigger::Recheck));
        let next = work.probe.next.take();
        (work.status, work.checked_at) = (Some(result.state()), Some(now));
        match result {
            ProbeResult::NoAnswer(why) => {
                work.probe.recheck_at = Some(now.plus(PROBE_RETRY));
                let cancelled_for = work.cancelled_at.map_or(Duration::ZERO, |at| now.since(at));
                self.health.unanswered(now, &why);
                if cancelled_for >= self.settings.timeouts.cancel_timeout {
                    self.mark_sick(
                        now,
                        format!("it does not answer, and a cancelled attempt may still run there: {why}"),
                    );
                }
            }
            ProbeResult::Gone(why) => {
                self.health.unanswered(now, &why);
                self.not_found(now, job, (asked_at, trigger), ServiceFailure::new(ServiceFault::Died, why));
            }
            ProbeResult::Unknown => {
                self.health.answered();
                self.unknown(now, job, (asked_at, trigger), incarnation);
            }
            ProbeResult::Pending { .. } | ProbeResult::Running => {
                // The probe may have overtaken the reply to the submission.
                work.incarnation = incarnation;
                self.still_there(now, job, trigger, &result, next);
            }
            ProbeResult::Interrupted => {
                let message = format!("another client interrupted it (seen {trigger})");
                self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, message));
            }
            ProbeResult::Failed(failure) => self.failed(now, job, attempt, failure),
            ProbeResult::Succeeded { .. } if work.cancelled_at.is_some() => {
                let message = "it completed before it could be cancelled";
                self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, message));
            }
            ProbeResult::Succeeded { outputs } => {
                work.stage = Stage::Collecting;
                // A run from the cache ends before its submission is answered: nothing was lost then.
                if !work.end_heard && trigger != ProbeTrigger::Submitted {
                    let silence = humanize(now.since(work.heard_at));
                    work.recovery = Some(format!(
                        "the completion message was lost; a probe {trigger} found it in history, {silence} after the last message"
                    ));
                }
                // An adopted attempt has no order here, so its output filter is unknown: fetch everything.
                let wanted = work.order.as_ref().map(|order| order.include_outputs.clone());
                self.health.answered();
                let include_outputs = wanted.unwrap_or_default();
                self.effects.push(AgentEffect::FetchOutputs { job, attempt, outputs, include_outputs });
            }
        }
        if let Some(trigger) = next.filter(|_| self.current(job, attempt).is_some()) {
            self.probe(now, job, trigger);
        }
    }

    /// The service has the attempt. This is no progress, unless it waits for other work there.
    fn still_there(
        &mut self,
        now: Timestamp,
        job: JobId,
        trigger: ProbeTrigger,
        result: &ProbeResult,
        next: Option<ProbeTrigger>,
    ) {
        self.health.answered();
        let Some(work) = self.held.get_mut(&job) else { return };
        work.stage = Stage::Accepted;
        // An attempt that runs and was asked about for another reason is still silent: otherwise each such question would put
        // off the one after which a mute socket is opened again.
        let is_still_silent = matches!(result, ProbeResult::Running)
            && !matches!(trigger, ProbeTrigger::Submitted | ProbeTrigger::Silence);
        if !is_still_silent {
            work.watch.signal(now);
        } else if next != Some(ProbeTrigger::Silence) {
            work.watch.resume();
        }
        (work.probe.missing_since, work.probe.early_misses) = (None, 0);
        let behind = match result {
            ProbeResult::Pending { ahead } => {
                let known = work.probe.behind.filter(|(before, _)| before == ahead);
                Some(known.unwrap_or((*ahead, now)))
            }
            _ => None,
        };
        work.probe.behind = behind;
        if let Some((ahead, since)) = behind {
            self.waits_in_queue(now, job, ahead, now.since(since));
        }
        if matches!(result, ProbeResult::Running) {
            self.runs_on(now, job, trigger);
        }
        if self.held.get(&job).is_some_and(|work| work.cancelled_at.is_some()) {
            self.not_stopped(now, job);
        }
    }

    /// The service runs it. Without a message either the work is quiet, or nothing can be heard.
    fn runs_on(&mut self, now: Timestamp, job: JobId, trigger: ProbeTrigger) {
        let can_hear = self.health.can_hear();
        let queue_stall_max = self.settings.timeouts.queue_stall_max;
        let Some(work) = self.held.get_mut(&job) else { return };
        if can_hear {
            work.probe.unheard_since = None;
        } else if now.since(*work.probe.unheard_since.get_or_insert(now)) < queue_stall_max {
            // Progress that could not have been heard is not missing progress.
            work.step += 1;
            self.progress_due = true;
        }
        match trigger {
            ProbeTrigger::Silence => {
                work.probe.silences += 1;
                if work.probe.silences.is_power_of_two() {
                    self.effects.push(AgentEffect::ReopenSocket);
                }
            }
            ProbeTrigger::AgentStarted | ProbeTrigger::SocketOpened if work.probe.silences == 0 => {
                work.probe.hear_by = Some(now.plus(HEAR_WITHIN));
            }
            _ => {}
        }
    }

    /// Opens the socket again under attempts of which nothing is heard although they run.
    fn reopen_silent(&mut self, now: Timestamp) {
        let mut is_due = false;
        for work in self.held.values_mut() {
            if work.probe.hear_by.is_some_and(|by| by <= now) {
                (work.probe.hear_by, work.probe.silences) = (None, 1);
                is_due = true;
            }
        }
        if is_due {
            self.effects.push(AgentEffect::ReopenSocket);
        }
    }

    /// It waits in the service's own queue, behind another client's work or because the queue has stalled.
    fn waits_in_queue(&mut self, now: Timestamp, job: JobId, ahead: Option<u64>, waited: Duration) {
        let queue_stall_max = self.settings.timeouts.queue_stall_max;
        // What runs ahead may be an attempt of ours that takes hours: while it makes progress nothing has stalled.
        let waited = waited.min(now.since(self.progressed_at));
        let longest = if ahead.is_some() { queue_stall_max } else { NOTHING_RUNS_MAX.min(queue_stall_max) };
        if waited >= longest {
            let what = if ahead.is_some() { "one item has been running" } else { "nothing has been running" };
            self.mark_sick(now, format!("its queue has stalled: {what} for {}", humanize(waited)));
        } else if let Some(work) = self.held.get_mut(&job).filter(|_| ahead.is_some()) {
            work.step += 1;
            self.progress_due = true;
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
            // The submission is still in flight: no evidence.
        } else if work.cancelled_at.is_some() && work.stage != Stage::Unconfirmed {
            // An unconfirmed submission is looked for twice, or it could start after it was reported as cancelled.
            self.failed(now, job, attempt, ServiceFailure::new(ServiceFault::Lost, "it was cancelled"));
        } else if trigger == ProbeTrigger::CompletionHint && work.probe.early_misses < EARLY_PROBES_MAX {
            let delay = EARLY_PROBE.delay(work.probe.early_misses.into());
            work.probe.early_misses += 1;
            (work.probe.recheck_at, work.probe.next) = (Some(now.plus(delay)), None);
        } else {
            // Even a restart is only believed to have lost it when it is asked for twice: a history that someone cleared
            // looks like a restart, and a service writes its history a moment after the run.
            let failure = if incarnation > work.incarnation {
                ServiceFailure::new(ServiceFault::Died, "the service restarted and lost it")
            } else {
                ServiceFailure::new(ServiceFault::Lost, "the service does not know it")
            };
            self.not_found(now, job, asked, failure);
        }
    }

    /// The service does not have it. The second not-found answer counts if its probe was sent long enough after the
    /// first: a slow answer describes the moment of the question.
    fn not_found(
        &mut self,
        now: Timestamp,
        job: JobId,
        (asked_at, trigger): (Timestamp, ProbeTrigger),
        mut failure: ServiceFailure,
    ) {
        let unknown_recheck = self.settings.timeouts.unknown_recheck;
        let Some(work) = self.held.get_mut(&job) else { return };
        let since = *work.probe.missing_since.get_or_insert(now);
        let missing_for = now.since(since);
        if work.stage == Stage::Submitting || asked_at.since(since) < unknown_recheck {
            work.probe.recheck_at = Some(since.plus(unknown_recheck).max(now.plus(EARLY_PROBE_MIN)));
        } else if work.stage == Stage::Unconfirmed
            && work.submissions < SUBMISSIONS_MAX
            && work.cancelled_at.is_none()
        {
            self.submit(job);
        } else {
            let attempt = work.attempt;
            // Nothing of ours removes a prompt that is held, so the operator learns what else could have.
            let hint = if failure.fault == ServiceFault::Lost { SHARED_HINT } else { "" };
            let message =
                format!("{}, and again {} later ({trigger}){hint}", failure.message, humanize(missing_for));
            failure.message = message;
            self.failed(now, job, attempt, failure);
        }
    }

    /// Probes every attempt that has been silent for too long or is due for a recheck.
    pub(super) fn probe_silent(&mut self, now: Timestamp) {
        self.reopen_silent(now);
        let limits = self.limits();
        let mut due = Vec::new();
        for (job, work) in &mut self.held {
            if matches!(work.stage, Stage::Adopted | Stage::Submitting | Stage::Collecting) {
                continue;
            }
            let is_unanswered = work.probe.sent.is_some_and(|(at, _)| now.since(at) >= PROBE_TIMEOUT);
            if work.probe.recheck_at.is_some_and(|at| at <= now) || is_unanswered {
                let was_early = work.probe.early_misses > 0 && work.probe.missing_since.is_none();
                due.push((
                    *job,
                    if was_early { ProbeTrigger::CompletionHint } else { ProbeTrigger::Recheck },
                ));
            } else if work.watch.check(now, limits) == WatchVerdict::Probe {
                due.push((*job, ProbeTrigger::Silence));
            }
        }
        for (job, trigger) in due {
            self.probe(now, job, trigger);
        }
    }

    pub(super) fn recheck_cancelled(&mut self, now: Timestamp, job: JobId) {
        if let Some(work) = self.held.get_mut(&job).filter(|work| work.stage != Stage::Submitting) {
            work.probe.recheck_at = Some(now.plus(CANCEL_RECHECK));
        }
    }

    /// A cancelled attempt still runs: cancel again; past the limit the service itself is at fault.
    fn not_stopped(&mut self, now: Timestamp, job: JobId) {
        let cancel_timeout = self.settings.timeouts.cancel_timeout;
        let Some(work) = self.held.get_mut(&job) else { return };
        let cancelled_for = work.cancelled_at.map_or(Duration::ZERO, |at| now.since(at));
        if cancelled_for < CANCEL_REPEAT.min(cancel_timeout) {
            work.probe.recheck_at = Some(now.plus(CANCEL_RECHECK.max(cancelled_for)));
            return;
        }
        if cancelled_for >= cancel_timeout {
            self.mark_sick(
                now,
                format!("it still runs an attempt {} after its cancellation", humanize(cancelled_for)),
            );
        }
        self.cancel_again(now, job);
    }

    fn cancel_again(&mut self, now: Timestamp, job: JobId) {
        let again = CANCEL_REPEAT.min(self.settings.timeouts.cancel_timeout).max(CANCEL_RECHECK);
        let Some(work) = self.held.get_mut(&job) else { return };
        work.probe.recheck_at = Some(now.plus(again));
        let (attempt, reason) = (work.attempt, "repeated: the cancelled attempt still runs".to_owned());
        self.effects.push(AgentEffect::Cancel { job, attempt, reason });
    }

    fn current(&mut self, job: JobId, attempt: Attempt) -> Option<&mut Work> {
        self.held.get_mut(&job).filter(|work| work.attempt == attempt)
    }
}
