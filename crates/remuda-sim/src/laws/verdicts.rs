//! Laws about single decisions: whether a report counted that should not have, and whether an attempt that was given up
//! was given up on evidence. What is evidence is what is true in the world: what the worker said, what the plane heard
//! while it listened, which messages the network lost.

use std::time::Duration;

use remuda_core::cause::Cause;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::job::{Job, State};
use remuda_core::plane::{Answer, Plane, Step};
use remuda_core::record::{Life, Record, StateRow, Try};
use remuda_core::time::Timestamp;
use remuda_core::wire::{Beat, FinishedAttempt};

use super::{Laws, Order};
use crate::host::Host;
use crate::law::Law;
use crate::net::PlaneRequest;
use crate::scenario::client_of;

/// What was believed about jobs that a stale report speaks of, and whether the whole beat is stale.
#[derive(Debug, Default)]
pub(crate) struct Before {
    stale: Vec<(JobId, (u8, u8))>,
    is_old_beat: bool,
}

/// A fleet that is really gone is given up after this.
const HOLD_MAX: Duration = Duration::from_secs(15 * 60);
/// Deadlines are noticed by ticks of a second, and a beat may be on its way.
const MARGIN: Duration = Duration::from_millis(1500);

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
            self.heard.values_mut().for_each(later);
            self.progress.values_mut().for_each(|(then, _)| later(then));
            later(&mut self.began_at);
            self.listens_since = now;
        }
        self.stepped_at = now;
        if plane.mass_loss().is_on(now) && self.braked_since.is_none() {
            (self.braked_since, self.returned_at) = (Some(now), None);
        }
        let Some(PlaneRequest::Beat { worker, beat, .. }) = request else { return Before::default() };
        let is_old_beat = plane.worker(worker).is_none_or(|it| {
            beat.incarnation != it.incarnation || beat.term != plane.term() || beat.seq <= it.beat_seq
        });
        let is_current = |finished: &FinishedAttempt| {
            plane.job(finished.job).is_some_and(|job| {
                let is_here = matches!(job.state(), State::Running { worker: of, incarnation, .. }
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
            self.unmoved(at, job, failures, step);
        }
        if before.is_old_beat {
            self.without_effect(now, at, step);
        }
        for record in &step.records {
            let Record::Life { job, life } = record else { continue };
            if let StateRow::Running { started_at, .. } = life.state
                && started_at == now
            {
                self.progress.insert((*job, life.attempt), (now, 0));
            }
            let last = life.tries.last().filter(|last| last.ended_at == Some(now));
            if let Some(last) =
                last.filter(|last| last.cause.is_some() && self.judged.insert((*job, last.attempt, now)))
            {
                self.on_evidence(now, at, *job, life, last, plane, request, hosts);
            }
        }
        self.listen(now, request, step, plane);
        self.no_work_for_the_silent(now, at, step);
        self.no_early_work(now, at, plane, step, hosts);
        match request {
            Some(PlaneRequest::Join { join, .. }) => self.no_late_comers(at, plane, join, step),
            Some(PlaneRequest::DrainMachine { machine, .. }) => self.note_drain(machine, step),
            _ => {}
        }
        self.preferred_first(now, at, plane, request, step);
        self.check_fairness(at, step);
        self.check_state(now, at, plane);
    }

    /// S3: a report with a wrong fence changed nothing.
    fn unmoved(&mut self, at: u64, job: JobId, before: (u8, u8), step: &Step) {
        for record in &step.records {
            let Record::Life { job: of, life } = record else { continue };
            let is_omission = life.tries.last().is_some_and(|last| is_omission(&last.verdict));
            let is_moved = (life.failures, life.mishaps) != before && !is_omission
                || matches!(life.state, StateRow::Completed { .. });
            if *of == job && is_moved {
                let what = format!("a stale report moved job {job} to {}", life.state.name());
                return self.violated(Law::S3, at, what);
            }
        }
    }

    /// S3: an old beat ended nothing.
    fn without_effect(&mut self, now: Timestamp, at: u64, step: &Step) {
        for record in &step.records {
            let Record::Life { job, life } = record else { continue };
            if life.tries.last().is_some_and(|last| last.ended_at == Some(now)) {
                let what = format!("an old beat ended attempt {} of job {job}", life.attempt);
                return self.violated(Law::S3, at, what);
            }
        }
    }

    /// S6: why an attempt was given up, held against what is true.
    #[expect(clippy::too_many_arguments, reason = "a verdict with all that speaks for or against it")]
    fn on_evidence(
        &mut self,
        now: Timestamp,
        at: u64,
        job: JobId,
        life: &Life,
        last: &Try,
        plane: &Plane,
        request: Option<&PlaneRequest>,
        hosts: &[Host],
    ) {
        let key = (job, last.attempt);
        let verdict = last.verdict.as_str();
        let (silence, stalled) = (self.silence(now, &last.worker), self.stalled(now, key));
        let true_beat = match request {
            Some(PlaneRequest::Beat { worker, beat, .. }) if *worker == last.worker => Some(&**beat),
            _ => None,
        };
        let is_reported = true_beat.is_some_and(|beat| reports(beat, key));
        let problem = if verdict.contains("fell silent") {
            self.brake_law(now, at, &last.worker, plane);
            self.return_law(now, at, &last.worker);
            (silence + MARGIN < self.rules.lease).then(|| format!("it was heard {silence:?} ago"))
        } else if is_omission(verdict) {
            let is_named = true_beat.is_none_or(|beat| names(beat, key));
            let was_told =
                matches!(self.orders.get(&key), Some(Order::Received { .. } | Order::Lost | Order::Missed));
            match (is_named, was_told) {
                (true, _) => Some("no beat of it said so".to_owned()),
                (false, false) => Some("the order was still on its way".to_owned()),
                (false, true) => None,
            }
        } else if verdict.contains("started anew") {
            let is_named = match request {
                Some(PlaneRequest::Join { join, .. }) => {
                    join.held.iter().any(|held| held.job == job && held.attempt == last.attempt)
                }
                _ => true,
            };
            is_named.then(|| "it did not start anew without it".to_owned())
        } else if verdict.contains("its start limit") || verdict.contains("its node limit") {
            self.within_its_limit(now, job, last, stalled, hosts)
        } else if verdict.contains("stuck") {
            self.services.stuck.push((last.worker.clone(), key));
            let mut its_hosts = hosts.iter().filter(|host| *host.name() == last.worker && host.is_pristine);
            match its_hosts.any(|host| host.service.is_queued_behind_progress(key)) {
                true => Some("it waits for its turn".to_owned()),
                false => (stalled + MARGIN < self.rules.stuck_after)
                    .then(|| format!("it advanced {stalled:?} ago")),
            }
        } else if verdict.contains("has failed") {
            let is_silent = silence + MARGIN >= self.rules.scaling.idle_timeout;
            let is_stuck = stalled + MARGIN >= self.rules.stuck_after;
            (!is_silent && !is_stuck)
                .then(|| format!("it was heard {silence:?} ago and advanced {stalled:?} ago"))
        } else if verdict.contains("was given up") {
            given_up_for_nothing(verdict, &last.worker, hosts)
        } else if is_our_doing(verdict) {
            None
        } else {
            (!is_reported).then(|| "nobody reported that".to_owned())
        };
        if let Some(problem) = problem {
            let what = format!("job {job} attempt {} was lost ({verdict}), but {problem}", last.attempt);
            self.violated(Law::S6, at, what);
        }
        // Without an order nothing was lost but a number.
        let is_lost = !is_reported && !is_our_doing(verdict) && !verdict.contains("stuck");
        let is_lost = is_lost && (self.orders.contains_key(&key) || !verdict.contains("started anew"));
        let mut its_hosts = hosts.iter().filter(|host| *host.name() == last.worker);
        if is_lost && last.cause == Some(Cause::Worker) && its_hosts.all(|host| host.is_pristine) {
            let what = format!(
                "{} is well and lost job {job} attempt {} ({verdict}; {} now)",
                last.worker,
                last.attempt,
                life.state.name()
            );
            self.violated(Law::S6, at, what);
        }
    }

    /// S6: a limit of the job's own, held against what it allows; the cause is whose measure it is.
    fn within_its_limit(
        &self,
        now: Timestamp,
        job: JobId,
        last: &Try,
        stalled: Duration,
        hosts: &[Host],
    ) -> Option<String> {
        let options = &self.plans[client_of(job)].options;
        let key = (job, last.attempt);
        if last.verdict.contains("its start limit") {
            let (limit, waited) = (options.start_limit.unwrap_or_default(), now.since(last.started_at));
            let is_early = waited + MARGIN < limit || last.cause != Some(Cause::Service);
            return is_early.then(|| format!("it was handed out {waited:?} ago"));
        }
        let mut its_hosts = hosts.iter().filter(|host| *host.name() == last.worker && host.is_pristine);
        if its_hosts.any(|host| host.service.is_queued_behind_progress(key)) {
            return Some("it waits for its turn".to_owned());
        }
        let is_early =
            stalled + MARGIN < options.node_limit.unwrap_or_default() || last.cause != Some(Cause::Job);
        is_early.then(|| format!("it advanced {stalled:?} ago"))
    }

    /// N5: when most of those who work fell silent together, it is our own link, and nothing is given up for it.
    fn brake_law(&mut self, now: Timestamp, at: u64, worker: &WorkerId, plane: &Plane) {
        let lease = self.rules.lease;
        let together = Duration::from_secs(5);
        let its_last = self.heard_at(worker);
        let fleet =
            plane.workers().filter(|it| it.presence != remuda_core::machine::Presence::Offline).count();
        let silent = plane.workers().filter(|it| {
            let heard_at = self.heard_at(&it.id);
            let apart = its_last.since(heard_at).max(heard_at.since(its_last));
            // Who was given something only now is asked to beat faster only from now on.
            let watched_from =
                it.holds.values().map(|hold| hold.assigned_at).min().unwrap_or(now).max(heard_at);
            apart <= together && now.since(watched_from) >= self.rules.suspect_after + together
        });
        let silent = silent.count() + usize::from(plane.worker(worker).is_some_and(|it| it.holds.is_empty()));
        let is_mass = silent >= 4 && silent * 100 > (fleet + 1) * 60;
        if is_mass && now.since(its_last) < lease * 2 {
            let what = format!("{silent} of {fleet} workers fell silent together, and {worker} was given up");
            self.violated(Law::S6, at, what);
        }
    }

    /// N5 and N6: when the first is heard again the others are on their way, and have a lease to arrive.
    fn return_law(&mut self, now: Timestamp, at: u64, worker: &WorkerId) {
        let (Some(since), Some(returned_at)) = (self.braked_since, self.returned_at) else { return };
        let is_early = now.since(returned_at) + MARGIN < self.rules.lease;
        if is_early && now.since(since) + MARGIN < HOLD_MAX {
            let ago = now.since(returned_at);
            self.violated(
                Law::S6,
                at,
                format!("{worker} was given up {ago:?} after the first of many returned"),
            );
        }
    }

    /// S12: an attempt is given to someone who can be told of it.
    fn no_work_for_the_silent(&mut self, now: Timestamp, at: u64, step: &Step) {
        for record in &step.records {
            let Record::Life { job, life } = record else { continue };
            let StateRow::Running { worker, started_at, .. } = &life.state else { continue };
            let heard_at = self.heard.get(worker).copied();
            let is_silent = heard_at.is_none_or(|then| now.since(then) > self.rules.beat_idle * 2);
            if *started_at == now && is_silent {
                self.violated(Law::S12, at, format!("{worker} gets job {job} and was heard {heard_at:?}"));
            }
        }
    }

    /// What the plane may know from this step.
    fn listen(&mut self, now: Timestamp, request: Option<&PlaneRequest>, step: &Step, plane: &Plane) {
        let is_released =
            |record: &Record| matches!(record, Record::Happened(it) if it.name == "fleet:brake_released");
        if step.records.iter().any(is_released) {
            (self.braked_since, self.returned_at) = (None, None);
        }
        match (request, &step.answer) {
            (Some(PlaneRequest::Join { join, .. }), Ok(_)) => self.is_heard(now, &join.worker),
            (Some(PlaneRequest::Beat { .. }), Ok(Answer::Reply(reply))) if reply.beat_again => {}
            (Some(PlaneRequest::Beat { worker, beat, .. }), Ok(_)) => {
                self.is_heard(now, worker);
                for held in &beat.held {
                    // What it names after it was given up is no news of the attempt that was given up.
                    let is_current = |job: &Job| {
                        job.attempt() == held.attempt && matches!(job.state(), State::Running { .. })
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

    fn is_heard(&mut self, now: Timestamp, worker: &WorkerId) {
        self.heard.insert(worker.clone(), now);
        if self.braked_since.is_some() {
            self.returned_at.get_or_insert(now);
        }
    }

    fn heard_at(&self, worker: &WorkerId) -> Timestamp {
        self.heard.get(worker).copied().unwrap_or(self.began_at)
    }

    fn silence(&self, now: Timestamp, worker: &WorkerId) -> Duration {
        now.since(self.heard_at(worker))
    }

    fn stalled(&self, now: Timestamp, key: crate::service::Key) -> Duration {
        self.progress.get(&key).map_or(Duration::ZERO, |(then, _)| now.since(*then))
    }
}

fn is_omission(verdict: &str) -> bool {
    verdict.contains("no longer holds it") || verdict.contains("never took it on")
}

/// A machine is given up with all that runs there when its provider does not have it any more, or when it is not what
/// was ordered.
fn given_up_for_nothing(verdict: &str, worker: &WorkerId, hosts: &[Host]) -> Option<String> {
    let is_other = verdict.contains("in place of") || verdict.contains("were agreed");
    let is_there = hosts.iter().any(|host| host.name() == worker && !host.is_removed && host.is_pristine);
    (is_there && !is_other).then(|| "its machine is well".to_owned())
}

/// Ends that need no evidence about the worker: it left, it was drained, time was up.
fn is_our_doing(verdict: &str) -> bool {
    ["left:", "was not done", "the deadline passed", "was given up"].iter().any(|ours| verdict.contains(ours))
}

fn names(beat: &Beat, (job, attempt): crate::service::Key) -> bool {
    beat.held.iter().any(|held| held.job == job && held.attempt == attempt)
}

fn reports(beat: &Beat, (job, attempt): crate::service::Key) -> bool {
    beat.finished.iter().any(|finished| finished.job == job && finished.attempt == attempt)
}
