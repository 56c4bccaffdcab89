//! Laws about single decisions: whether a stale report counted, and whether an attempt was given up without evidence.
//! Evidence is what is true in the world: what the worker sent, what reached the plane while it ran, which messages the
//! network lost.

use std::time::Duration;

use remuda_core::cause::Cause;
use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::job::{Job, JobState};
use remuda_core::plane::{Plane, PlaneAnswer, Step};
use remuda_core::record::{JobStatus, PastAttempt, Record, StateRow};
use remuda_core::time::Timestamp;
use remuda_core::verdict::AttemptVerdict;
use remuda_core::wire::{Beat, FinishedAttempt};

use super::{Laws, MARGIN, Order};
use crate::host::Host;
use crate::law::Law;
use crate::net::PlaneRequest;
use crate::scenario::client_of;

/// The failure counts of jobs that a stale report names, and whether the whole beat is stale.
#[derive(Debug, Default)]
pub(crate) struct Before {
    stale: Vec<(JobId, (u8, u8))>,
    is_old_beat: bool,
}

impl Laws {
    pub(crate) fn before_step(
        &mut self,
        now: Timestamp,
        plane: &Plane,
        request: Option<&PlaneRequest>,
    ) -> Before {
        let away = now.since(self.stepped_at);
        if away >= self.rules.plane_stall_max {
            let later = |then: &mut Timestamp| *then = then.plus(away).min(now);
            self.last_heard.values_mut().for_each(later);
            self.progress.values_mut().for_each(|(then, _)| later(then));
            later(&mut self.began_at);
            self.listens_since = now;
        }
        self.stepped_at = now;
        if plane.mass_loss().is_on() && self.braked_since.is_none() {
            self.braked_since = Some(now);
        }
        let Some(PlaneRequest::Beat { worker, beat, .. }) = request else { return Before::default() };
        let is_old_beat = plane.worker(worker).is_none_or(|it| {
            beat.incarnation != it.incarnation || beat.term != plane.term() || beat.seq <= it.beat_seq
        });
        let is_current = |finished: &FinishedAttempt| {
            plane.job(finished.job).is_some_and(|job| {
                let is_here = matches!(job.state(), JobState::Running { worker: of, incarnation, .. }
                    if of == worker && *incarnation == beat.incarnation);
                is_here && job.attempt() == finished.attempt
            })
        };
        // Of two reports about one job the other may count.
        let counts = |job: JobId| beat.finished.iter().any(|it| it.job == job && is_current(it));
        let stale = beat.finished.iter().filter(|it| !is_current(it) && !counts(it.job));
        let stale = stale.filter_map(|it| Some((it.job, plane.job(it.job)?.failures())));
        Before { stale: stale.collect(), is_old_beat }
    }

    #[expect(clippy::too_many_arguments, reason = "a step with all there is to know about it")]
    pub(crate) fn after_step(
        &mut self,
        now: Timestamp,
        at: u64,
        plane: &Plane,
        request: Option<&PlaneRequest>,
        step: &Step,
        before: Before,
        hosts: &[Host],
    ) {
        for (job, failures) in before.stale {
            self.check_stale_report(at, job, failures, step);
        }
        if before.is_old_beat {
            self.check_stale_beat(now, at, step);
        }
        for record in &step.records {
            let Record::JobStatus { job, status } = record else { continue };
            if let StateRow::Running { started_at, .. } = status.state
                && started_at == now
            {
                self.progress.insert((*job, status.attempt), (now, 0));
            }
            let last = status.attempts.last().filter(|last| last.ended_at == Some(now));
            if let Some(last) =
                last.filter(|last| last.cause.is_some() && self.judged.insert((*job, last.attempt, now)))
            {
                self.check_evidence(now, at, *job, status, last, request, hosts);
            }
        }
        self.note_explanations(at, request, step, hosts);
        self.record_heard(now, request, step, plane);
        self.check_assigned_workers_heard(now, at, step);
        self.check_suspicions(now, at, plane, step);
        self.check_ready(now, at, plane, step, hosts);
        match request {
            Some(PlaneRequest::Join { join, .. }) => self.check_join(at, plane, join, step),
            Some(PlaneRequest::DrainMachine { machine, .. }) => self.note_drain(machine, step),
            _ => {}
        }
        self.check_preferred(now, at, plane, request, step);
        self.check_fairness(at, step);
        self.check_state(now, at, plane);
    }

    /// S3: a report with a wrong fence changes nothing.
    fn check_stale_report(&mut self, at: u64, job: JobId, before: (u8, u8), step: &Step) {
        for record in &step.records {
            let Record::JobStatus { job: of, status } = record else { continue };
            let is_omission = status.attempts.last().is_some_and(is_omission);
            let is_moved = (status.failures, status.infra_failures) != before && !is_omission
                || matches!(status.state, StateRow::Completed { .. });
            if *of == job && is_moved {
                let what = format!("a stale report changed job {job} to {}", status.state.name());
                return self.violated(Law::S3, at, what);
            }
        }
    }

    /// S3: a stale beat ends nothing.
    fn check_stale_beat(&mut self, now: Timestamp, at: u64, step: &Step) {
        for record in &step.records {
            let Record::JobStatus { job, status } = record else { continue };
            if status.attempts.last().is_some_and(|last| last.ended_at == Some(now)) {
                let what = format!("a stale beat ended attempt {} of job {job}", status.attempt);
                return self.violated(Law::S3, at, what);
            }
        }
    }

    /// S6: compares the reason for which an attempt was given up with what is true.
    #[expect(clippy::too_many_arguments, reason = "a verdict with all that speaks for or against it")]
    fn check_evidence(
        &mut self,
        now: Timestamp,
        at: u64,
        job: JobId,
        status: &JobStatus,
        last: &PastAttempt,
        request: Option<&PlaneRequest>,
        hosts: &[Host],
    ) {
        let key = (job, last.attempt);
        let Some(verdict) = last.verdict else {
            let what = format!("job {job} attempt {} ended without a verdict", last.attempt);
            return self.violated(Law::S6, at, what);
        };
        let (silence, stalled) = (self.silence(now, &last.worker), self.stalled(now, key));
        let true_beat = match request {
            Some(PlaneRequest::Beat { worker, beat, .. }) if *worker == last.worker => Some(&**beat),
            _ => None,
        };
        let is_reported = true_beat.is_some_and(|beat| reports(beat, key));
        let problem = match verdict {
            AttemptVerdict::WorkerSilent => {
                self.check_proof(now, at, &last.worker, hosts);
                self.check_brake_release(now, at, &last.worker, hosts);
                self.check_absence(at, &last.worker, silence);
                (silence + MARGIN < self.rules.lease).then(|| format!("it was last heard {silence:?} ago"))
            }
            AttemptVerdict::NoLongerHeld | AttemptVerdict::NeverReceived => {
                self.check_not_held(key, true_beat)
            }
            AttemptVerdict::WorkerRestarted => {
                let is_named = match request {
                    Some(PlaneRequest::Join { join, .. }) => {
                        join.held.iter().any(|held| held.job == job && held.attempt == last.attempt)
                    }
                    _ => true,
                };
                is_named.then(|| "it did not restart without it".to_owned())
            }
            AttemptVerdict::StartLimit | AttemptVerdict::NodeLimit => {
                self.check_job_limit(now, job, last, stalled, hosts)
            }
            AttemptVerdict::Stuck => {
                self.services.stuck.push((last.worker.clone(), key));
                let mut its_hosts =
                    hosts.iter().filter(|host| *host.name() == last.worker && host.is_pristine);
                match its_hosts.any(|host| host.service.is_queued_behind_progress(key)) {
                    true => Some("it is queued behind a running prompt".to_owned()),
                    false => (stalled + MARGIN < self.rules.stuck_after)
                        .then(|| format!("it advanced {stalled:?} ago")),
                }
            }
            AttemptVerdict::WorkerFailed => {
                let is_silent = silence + MARGIN >= self.rules.scaling.idle_timeout;
                let is_stuck = stalled + MARGIN >= self.rules.stuck_after;
                (!is_silent && !is_stuck)
                    .then(|| format!("it was heard {silence:?} ago and advanced {stalled:?} ago"))
            }
            AttemptVerdict::MachineLost => check_machine_lost(&last.worker, hosts),
            AttemptVerdict::MachineRefused
            | AttemptVerdict::WorkerLeft
            | AttemptVerdict::DrainOverdue
            | AttemptVerdict::Expired => None,
            AttemptVerdict::Completed
            | AttemptVerdict::Failed
            | AttemptVerdict::Stopped
            | AttemptVerdict::Rejected
            | AttemptVerdict::Cancelled => {
                (!is_reported).then(|| "the worker did not report that".to_owned())
            }
        };
        if let Some(problem) = problem {
            let what =
                format!("job {job} attempt {} was lost ({}), but {problem}", last.attempt, last.message);
            self.violated(Law::S6, at, what);
        }
        if !is_reported {
            self.check_healthy_worker(at, job, status, last, hosts);
        }
    }

    /// S6: an attempt that a worker does not have was left out of a beat, after its order had arrived or was lost.
    fn check_not_held(&self, key: crate::service::Key, true_beat: Option<&Beat>) -> Option<String> {
        let is_named = true_beat.is_none_or(|beat| names(beat, key));
        let order = self.orders.get(&key);
        let was_told = matches!(order, Some(Order::Received { .. } | Order::Lost | Order::Missed));
        match (is_named, was_told) {
            (true, _) => Some("no beat of the worker said so".to_owned()),
            (false, false) => Some("the order was still in transit".to_owned()),
            (false, true) => None,
        }
    }

    /// S6: a healthy worker loses nothing by a fault of its own.
    fn check_healthy_worker(
        &mut self,
        at: u64,
        job: JobId,
        status: &JobStatus,
        last: &PastAttempt,
        hosts: &[Host],
    ) {
        let key = (job, last.attempt);
        let Some(verdict) = last.verdict else { return };
        // Without an order only an attempt number was lost.
        let is_lost = !needs_no_evidence(verdict) && verdict != AttemptVerdict::Stuck;
        let is_lost =
            is_lost && (self.orders.contains_key(&key) || verdict != AttemptVerdict::WorkerRestarted);
        let mut its_hosts = hosts.iter().filter(|host| *host.name() == last.worker);
        if is_lost && last.cause == Some(Cause::Worker) && its_hosts.all(|host| host.is_pristine) {
            let what = format!(
                "{} is healthy and lost job {job} attempt {} ({}; {} now)",
                last.worker,
                last.attempt,
                last.message,
                status.state.name()
            );
            self.violated(Law::S6, at, what);
        }
    }

    /// S6: checks one of the job's own limits, and that the cause fits the limit.
    fn check_job_limit(
        &self,
        now: Timestamp,
        job: JobId,
        last: &PastAttempt,
        stalled: Duration,
        hosts: &[Host],
    ) -> Option<String> {
        let options = &self.plans[client_of(job)].options;
        let key = (job, last.attempt);
        if last.verdict == Some(AttemptVerdict::StartLimit) {
            let (limit, waited) = (options.start_limit.unwrap_or_default(), now.since(last.started_at));
            let is_early = waited + MARGIN < limit || last.cause != Some(Cause::Service);
            return is_early.then(|| format!("it was assigned {waited:?} ago"));
        }
        let mut its_hosts = hosts.iter().filter(|host| *host.name() == last.worker && host.is_pristine);
        if its_hosts.any(|host| host.service.is_queued_behind_progress(key)) {
            return Some("it is queued behind a running prompt".to_owned());
        }
        let is_early =
            stalled + MARGIN < options.node_limit.unwrap_or_default() || last.cause != Some(Cause::Job);
        is_early.then(|| format!("it advanced {stalled:?} ago"))
    }

    /// N5 and N6: when the first worker returns, the others have one lease to return as well.
    fn check_brake_release(&mut self, now: Timestamp, at: u64, worker: &WorkerId, hosts: &[Host]) {
        let mut its_hosts = hosts.iter().filter(|host| host.name() == worker);
        if its_hosts.all(|host| host.agent.is_none()) || self.closed.contains(worker) {
            return;
        }
        let Some(rereversed_at) = self.rereversed_at else { return };
        let is_early = now.since(rereversed_at) + MARGIN < self.rules.lease;
        if is_early && !self.is_held_out(now, self.heard_at(worker)) {
            let ago = now.since(rereversed_at);
            self.violated(
                Law::S6,
                at,
                format!("{worker} was given up {ago:?} after the first of many returned"),
            );
        }
    }

    /// S12: an attempt goes only to a worker that the plane has heard from.
    fn check_assigned_workers_heard(&mut self, now: Timestamp, at: u64, step: &Step) {
        for record in &step.records {
            let Record::JobStatus { job, status } = record else { continue };
            let StateRow::Running { worker, started_at, .. } = &status.state else { continue };
            let heard_at = self.last_heard.get(worker).copied();
            let is_silent = heard_at.is_none_or(|then| now.since(then) > self.rules.beat_idle * 2);
            if *started_at == now && is_silent {
                self.violated(
                    Law::S12,
                    at,
                    format!("{worker} got job {job} and was last heard {heard_at:?}"),
                );
            }
        }
    }

    /// Records what the plane learned in this step.
    fn record_heard(&mut self, now: Timestamp, request: Option<&PlaneRequest>, step: &Step, plane: &Plane) {
        let is_released =
            |record: &Record| matches!(record, Record::Event(it) if it.kind == EventKind::FleetBrakeReleased);
        if step.records.iter().any(is_released) {
            self.braked_since = None;
        }
        match (request, &step.answer) {
            (Some(PlaneRequest::Join { join, .. }), Ok(_)) => self.worker_heard(now, &join.worker),
            (Some(PlaneRequest::Beat { .. }), Ok(PlaneAnswer::Reply(reply))) if reply.beat_again => {}
            (Some(PlaneRequest::Beat { worker, beat, .. }), Ok(_)) => {
                self.worker_heard(now, worker);
                for held in &beat.held {
                    // A beat that lists an attempt after it was given up says nothing about that attempt.
                    let is_current = |job: &Job| {
                        job.attempt() == held.attempt && matches!(job.state(), JobState::Running { .. })
                    };
                    if plane.job(held.job).is_some_and(is_current) {
                        self.named.insert((held.job, held.attempt));
                    }
                    let progress = self.progress.entry((held.job, held.attempt)).or_insert((now, 0));
                    if held.step > progress.1 {
                        *progress = (now, held.step);
                    }
                }
            }
            _ => {}
        }
    }

    fn worker_heard(&mut self, now: Timestamp, worker: &WorkerId) {
        let heard_at = self.last_heard.values().max().copied().unwrap_or(self.began_at);
        // One that was heard all the time is no sign that the others are on their way.
        if self.suspects.contains(worker) && now.since(heard_at) >= self.rules.suspect_after {
            self.rereversed_at = Some(now);
        }
        self.last_heard.insert(worker.clone(), now);
        self.closed.remove(worker);
    }

    pub(super) fn heard_at(&self, worker: &WorkerId) -> Timestamp {
        self.last_heard.get(worker).copied().unwrap_or(self.began_at)
    }

    pub(super) fn silence(&self, now: Timestamp, worker: &WorkerId) -> Duration {
        now.since(self.heard_at(worker))
    }

    fn stalled(&self, now: Timestamp, key: crate::service::Key) -> Duration {
        self.progress.get(&key).map_or(Duration::ZERO, |(then, _)| now.since(*then))
    }
}

fn is_omission(last: &PastAttempt) -> bool {
    matches!(last.verdict, Some(AttemptVerdict::NoLongerHeld | AttemptVerdict::NeverReceived))
}

/// A machine may be given up with all that runs there if the provider no longer has it.
fn check_machine_lost(worker: &WorkerId, hosts: &[Host]) -> Option<String> {
    let is_there = hosts.iter().any(|host| host.name() == worker && !host.is_removed && host.is_pristine);
    is_there.then(|| "its machine is healthy".to_owned())
}

/// Ends that need no evidence about the worker: it left, it was drained, its machine was given up, or a deadline passed.
fn needs_no_evidence(verdict: AttemptVerdict) -> bool {
    matches!(
        verdict,
        AttemptVerdict::WorkerLeft
            | AttemptVerdict::DrainOverdue
            | AttemptVerdict::Expired
            | AttemptVerdict::MachineLost
            | AttemptVerdict::MachineRefused
    )
}

fn names(beat: &Beat, (job, attempt): crate::service::Key) -> bool {
    beat.held.iter().any(|held| held.job == job && held.attempt == attempt)
}

fn reports(beat: &Beat, (job, attempt): crate::service::Key) -> bool {
    beat.finished.iter().any(|finished| finished.job == job && finished.attempt == attempt)
}
