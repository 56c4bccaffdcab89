//! The attempts an agent holds: how they start, signal and end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::{Agent, AgentEffect, AttemptOutcome, FinishedAttempt, FoundAttempt, StartOrder};
use crate::id::{Attempt, JobId, Service};
use crate::service::{
    AttemptEnd, ProbeTrigger, ServiceExit, ServiceFailure, ServiceFault, ServiceIncarnation, ServiceState,
};
use crate::supervise::{Watch, WatchLimits};
use crate::time::Timestamp;
use crate::wire::ServiceStatus;
use crate::workflow::JobKeys;

#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) attempt: Attempt,
    pub(super) step: u64,
    pub(super) progress: f32,
    pub(super) phase: String,
    pub(super) watch: Watch,
    pub(super) stage: Stage,
    /// For submitting again if the first submission got lost; `None` for an adopted attempt.
    pub(super) order: Option<Order>,
    pub(super) submissions: u8,
    /// The service incarnation that accepted it.
    pub(super) incarnation: ServiceIncarnation,
    pub(super) cancelled_at: Option<Timestamp>,
    /// Since when the service answers and still has it although it was cancelled. A cancellation that a silent service
    /// may never have received is not ignored.
    pub(super) ignored_since: Option<Timestamp>,
    /// Set when the agent restarts the service under it: its loss is not its own fault.
    pub(super) lost_to_restart: bool,
    /// How the service's process ended under it, and whether it was alone there.
    pub(super) exit: Option<(ServiceExit, bool)>,
    pub(super) probe: ProbeState,
    pub(super) status: Option<ServiceState>,
    pub(super) submitted_at: Option<Timestamp>,
    pub(super) checked_at: Option<Timestamp>,
    /// When the service was last heard of it, by a message or by its answer to the submission.
    pub(super) heard_at: Timestamp,
    /// A message said that it is over.
    pub(super) end_heard: bool,
    /// How its end was found, if that message was lost.
    pub(super) recovery: Option<String>,
}

/// How far the attempt is with the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Found at the service; the plane has not said yet whether it wants it.
    Adopted,
    /// Submitted, not answered yet.
    Submitting,
    /// The reply was lost: the service may have it or not.
    Unconfirmed,
    /// The service has it.
    Accepted,
    /// The service has completed it; its outputs are being fetched.
    Collecting,
}

#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) service: Service,
    pub(super) service_job_id: String,
    pub(super) include_outputs: BTreeSet<String>,
    pub(super) workflow: Arc<RawValue>,
    pub(super) keys: JobKeys,
}

/// The probe in flight and the evidence so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbeState {
    /// The probe in flight.
    pub(super) sent: Option<(Timestamp, ProbeTrigger)>,
    /// A trigger that came meanwhile.
    pub(super) next: Option<ProbeTrigger>,
    /// When to probe again in any case.
    pub(super) recheck_at: Option<Timestamp>,
    /// Unknown results that may only have been too early.
    pub(super) early_misses: u8,
    /// Since when the service does not know it, or nothing listens there.
    pub(super) missing_since: Option<Timestamp>,
    pub(super) silences: u32,
    /// A message is expected by then; without one the socket may be open and silent, and is opened again.
    pub(super) hear_by: Option<Timestamp>,
    /// Since when it runs while there is no socket on which to hear of it.
    pub(super) unheard_since: Option<Timestamp>,
    /// What runs ahead of it in the service's queue, if anything, and since when.
    pub(super) behind: Option<(Option<u64>, Timestamp)>,
}

impl Agent {
    /// The service is not ready; attempts of an earlier process are looked for once it is.
    pub(super) fn prepare(&mut self, what: String) {
        self.has_started = true;
        self.beat_due |= self.health.prepare(what);
    }

    pub(super) fn started(
        &mut self,
        now: Timestamp,
        found: Vec<FoundAttempt>,
        incarnation: ServiceIncarnation,
    ) {
        self.has_started = true;
        self.health.ready();
        self.adopt(now, found, incarnation);
    }

    /// Attempts left by an earlier process: named when joining, so that the plane can cancel those it gave up.
    fn adopt(&mut self, now: Timestamp, found: Vec<FoundAttempt>, incarnation: ServiceIncarnation) {
        self.health.saw_incarnation(incarnation);
        for FoundAttempt { job, attempt } in found {
            if let Some(other) = self.held.get(&job).map(|work| work.attempt) {
                // Of several attempts at one job only the newest can still count, in any order of discovery.
                let older = attempt.min(other);
                if older < attempt.max(other) {
                    let reason = "a newer attempt began".to_owned();
                    self.superseded.add(job, older, now, self.settings.timeouts.cancel_timeout);
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

    /// The plane has cancelled the adopted attempts it gave up; probe the rest.
    pub(super) fn probe_found(&mut self, now: Timestamp) {
        let is_found = |work: &Work| work.stage == Stage::Adopted;
        let found: Vec<_> =
            self.held.iter().filter(|(_, work)| is_found(work)).map(|(job, _)| *job).collect();
        for job in found {
            if let Some(work) = self.held.get_mut(&job) {
                work.stage = Stage::Accepted;
            }
            self.probe(now, job, ProbeTrigger::AgentStarted);
        }
    }

    /// Idempotent: a repeated order changes nothing.
    pub(super) fn start(&mut self, now: Timestamp, start: StartOrder) {
        let StartOrder { job, attempt, service, service_job_id, include_outputs, workflow, keys } = start;
        let key = (job, attempt);
        let is_known = self.held.get(&job).is_some_and(|work| work.attempt >= attempt)
            || self.finished.contains_key(&key)
            || self.settled.contains(&key);
        if is_known {
            return;
        }
        if let Some(older) = self.held.get(&job) {
            // The plane gave up the older attempt and would refuse its result, so it is not waited for.
            let (older, cancelled_at) = (older.attempt, older.cancelled_at.unwrap_or(now));
            self.superseded.add(job, older, cancelled_at, self.settings.timeouts.cancel_timeout);
            self.effects.push(AgentEffect::Cancel {
                job,
                attempt: older,
                reason: "a newer attempt began".to_owned(),
            });
            self.held.remove(&job);
        }
        let problem = match workflow {
            _ if self.held.len() >= self.settings.slots as usize => "all slots are in use",
            _ if !self.health.takes_work() => "its service is sick",
            None => "the order came without a workflow",
            Some(_) if !self.settings.services.contains(&service) => "this worker does not offer the service",
            Some(workflow) => {
                let order = Order { service, service_job_id, include_outputs, workflow, keys };
                self.held.insert(job, Work::new(now, attempt, Some(order)));
                self.progress_due = true;
                return self.submit(job);
            }
        };
        self.report(job, attempt, AttemptOutcome::Rejected, problem.to_owned());
    }

    pub(super) fn cancel(&mut self, now: Timestamp, job: JobId, attempt: Attempt, reason: String) {
        match self.held.get_mut(&job) {
            Some(work) if work.attempt == attempt && work.cancelled_at.is_none() => {
                (work.cancelled_at, work.ignored_since) = (Some(now), Some(now));
                self.effects.push(AgentEffect::Cancel { job, attempt, reason });
                self.recheck_cancelled(now, job);
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
        work.note_sighting(now);
        work.probe.silences = 0;
        if progress.is_finite() {
            work.progress = work.progress.max(progress.clamp(0.0, 1.0));
        }
        work.phase = phase;
        self.progress_due = true;
        // A cancelled attempt that goes on proves nothing good of the service.
        if work.cancelled_at.is_none() {
            self.progressed_at = now;
        }
    }

    pub(super) fn ended(&mut self, job: JobId, attempt: Attempt, ending: AttemptEnd) {
        let finished = match ending {
            AttemptEnd::Failed { cause, message } => FinishedAttempt {
                cause: Some(cause),
                ..finished(job, attempt, AttemptOutcome::Failed, message)
            },
            AttemptEnd::Completed { result } => {
                self.health.proved();
                let recovery = self.held.get(&job).and_then(|work| work.recovery.clone());
                FinishedAttempt {
                    result: Some(result),
                    recovered: recovery.is_some(),
                    ..finished(job, attempt, AttemptOutcome::Completed, recovery.unwrap_or_default())
                }
            }
        };
        self.finish(finished);
    }

    /// The service reports a failure, which is also evidence about the service itself.
    pub(super) fn failed(&mut self, now: Timestamp, job: JobId, attempt: Attempt, failure: ServiceFailure) {
        let ServiceFailure { mut fault, message, node, shortage } = failure;
        let work = self.held.get(&job);
        let was_restarted = work.is_some_and(|work| work.lost_to_restart);
        let exit = work.and_then(|work| work.exit);
        fault = match (fault, exit) {
            // We restarted the service: no attempt there is at fault.
            (ServiceFault::Died, _) if was_restarted => ServiceFault::Lost,
            // Another attempt broke the device, and it is being repaired.
            (ServiceFault::Device, _) if self.health.is_being_repaired() => ServiceFault::Lost,
            (ServiceFault::Died, Some((ServiceExit::Killed, _))) => ServiceFault::Killed,
            (ServiceFault::Died, Some((ServiceExit::Crashed, true))) => ServiceFault::Crashed,
            (fault, _) => fault,
        };
        self.diagnose(now, fault, &message);
        let (cause, fault) = (Some(fault.cause()), Some(fault));
        self.finish(FinishedAttempt {
            cause,
            fault,
            node,
            shortage,
            ..finished(job, attempt, AttemptOutcome::Failed, message)
        });
    }

    /// The attempt is over; a cancelled one that failed counts as cancelled.
    fn finish(&mut self, mut finished: FinishedAttempt) {
        let (job, attempt) = (finished.job, finished.attempt);
        let Some(work) = self.held.get(&job).filter(|work| work.attempt == attempt) else { return };
        if work.cancelled_at.is_some() && finished.outcome == AttemptOutcome::Failed {
            (finished.outcome, finished.cause, finished.fault) = (AttemptOutcome::Cancelled, None, None);
        }
        self.held.remove(&job);
        self.finished.insert((job, attempt), finished);
        self.beat_due = true;
    }

    fn report(&mut self, job: JobId, attempt: Attempt, outcome: AttemptOutcome, message: String) {
        self.finished.insert((job, attempt), finished(job, attempt, outcome, message));
        self.beat_due = true;
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
            submissions: 0,
            incarnation: ServiceIncarnation::default(),
            cancelled_at: None,
            ignored_since: None,
            lost_to_restart: false,
            exit: None,
            probe: ProbeState::default(),
            status: None,
            submitted_at: None,
            checked_at: None,
            heard_at: now,
            end_heard: false,
            recovery: None,
        }
    }

    /// The service mentioned it, so it has it or had it a moment ago: earlier misses do not count.
    pub(super) fn note_sighting(&mut self, now: Timestamp) {
        self.watch.signal(now);
        self.heard_at = now;
        self.step += 1;
        (self.probe.missing_since, self.probe.hear_by) = (None, None);
        if self.stage == Stage::Unconfirmed {
            self.stage = Stage::Accepted;
        }
    }

    /// How long the service has ignored its cancellation.
    pub(super) fn ignored_for(&self, now: Timestamp) -> Duration {
        self.ignored_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// When the next probe is due.
    pub(super) fn wake_at(&self, limits: WatchLimits) -> Timestamp {
        match self.stage {
            Stage::Adopted | Stage::Submitting | Stage::Collecting => Timestamp::NEVER,
            Stage::Unconfirmed | Stage::Accepted => {
                let unanswered = self.probe.sent.map(|(at, _)| at.plus(super::monitor::PROBE_TIMEOUT));
                let silence = self.watch.wake_at(limits);
                [Some(silence), self.probe.recheck_at, self.probe.hear_by, unanswered]
                    .into_iter()
                    .flatten()
                    .min()
                    .unwrap_or(Timestamp::NEVER)
            }
        }
    }

    /// What a beat reports of the service's side.
    pub(super) fn note(&self, now: Timestamp) -> Option<ServiceStatus> {
        let ago = |at: Timestamp| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        self.status.map(|status| ServiceStatus {
            status,
            submitted_millis_ago: self.submitted_at.map(ago),
            checked_millis_ago: self.checked_at.map(ago),
        })
    }
}

fn finished(job: JobId, attempt: Attempt, outcome: AttemptOutcome, message: String) -> FinishedAttempt {
    let (result, cause, fault, node, shortage) = (None, None, None, None, None);
    FinishedAttempt { job, attempt, outcome, result, cause, fault, node, shortage, recovered: false, message }
}
