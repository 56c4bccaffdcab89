//! What the drill knows to be true, from outside the plane: which jobs were acknowledged, which faults it caused and when,
//! and every event the plane told. At the end they are held against each other.
//!
//! - *lost*: acknowledged, and not ended although everything has been calm for long
//! - *refused*: a submission that was still not taken although everything has been calm for long
//! - *doubled*: two outcomes, or two jobs for one idempotency key
//! - *run twice without need*: an attempt was given up although nothing had happened to its worker
//! - *false verdict*: a good workflow failed or was quarantined; a bad one completed; a worker was called
//!   offline or unreliable although nothing had happened to it
//!
//! Times count from the beginning of the drill and are those of arrival here: the plane's clock is one of the things that
//! are tampered with.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::event_kind::EventKind;
use serde_json::Value;

use crate::schedule::PlannedFault;

/// What a job's workflow is made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkflowKind {
    Good,
    /// A node of it raises an error, on every server.
    Bad,
}

#[derive(Debug)]
struct DrilledJob {
    kind: WorkflowKind,
    acknowledged_at: Duration,
    was_cancelled: bool,
    /// Every outcome that the plane told: one.
    outcomes: Vec<EventKind>,
    running: Option<RunningAttempt>,
    /// When the fault began that ended the attempt before, until the next one starts.
    interrupted_at: Option<Duration>,
    failure: Option<String>,
}

#[derive(Clone, Debug)]
struct RunningAttempt {
    worker: String,
    started_at: Duration,
}

/// One event of the plane, as it is needed here.
#[derive(Debug)]
pub(crate) struct ToldEvent {
    pub(crate) kind: EventKind,
    pub(crate) job: Option<String>,
    pub(crate) worker: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) detail: Value,
}

/// An event that overtook the acknowledgement of its job.
#[derive(Debug)]
struct EarlyEvent {
    at: Duration,
    lease: Duration,
    event: ToldEvent,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    jobs: BTreeMap<String, DrilledJob>,
    keys: BTreeMap<String, String>,
    /// Events of jobs whose acknowledgement was not yet received.
    early: BTreeMap<String, Vec<EarlyEvent>>,
    faults: Vec<(PlannedFault, Option<Duration>)>,
    ended: usize,
    retries_needed: u64,
    recoveries: Vec<Duration>,
    recovered_completions: u64,
    complaints: Complaints,
}

/// What went wrong, in words; empty lists are a success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Complaints {
    pub(crate) lost: Vec<String>,
    pub(crate) refused: Vec<String>,
    pub(crate) doubled: Vec<String>,
    pub(crate) needless_retries: Vec<String>,
    pub(crate) false_verdicts: Vec<String>,
}

/// The figures of a drill that is over.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) accepted: usize,
    pub(crate) completed: usize,
    pub(crate) failed_as_expected: usize,
    pub(crate) cancelled: usize,
    pub(crate) retries_needed: u64,
    pub(crate) recovered_completions: u64,
    /// From the fault that ended an attempt to the start of the next one; sorted.
    pub(crate) recoveries: Vec<Duration>,
    pub(crate) complaints: Complaints,
}

/// How long after its end a fault can still explain what the plane decides: the longest deadline of a worker, in leases.
const AFTERMATH_IN_LEASES: u32 = 3;

impl Ledger {
    /// A submission was answered, for the first time or again.
    pub(crate) fn acknowledge(&mut self, now: Duration, key: &str, id: &str, kind: WorkflowKind) {
        if let Some(known) = self.keys.insert(key.to_owned(), id.to_owned()) {
            if known != id {
                self.complaints.doubled.push(format!("key {key} became job {known} and job {id}"));
            }
            return;
        }
        let job = DrilledJob {
            kind,
            acknowledged_at: now,
            was_cancelled: false,
            outcomes: Vec::new(),
            running: None,
            interrupted_at: None,
            failure: None,
        };
        self.jobs.insert(id.to_owned(), job);
        for EarlyEvent { at, lease, event } in self.early.remove(id).unwrap_or_default() {
            self.tell(at, lease, event);
        }
    }

    /// A client gave up a submission, long after the last fault.
    pub(crate) fn refuse(&mut self, now: Duration, reason: &str) {
        self.complaints
            .refused
            .push(format!("at {:.1} s the plane still took no job: {reason}", now.as_secs_f64()));
    }

    pub(crate) fn mark_cancelled(&mut self, id: &str) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.was_cancelled = true;
        }
    }

    /// The fault goes on until `end_fault`.
    pub(crate) fn begin_fault(&mut self, fault: PlannedFault) -> usize {
        self.faults.push((fault, None));
        self.faults.len() - 1
    }

    pub(crate) fn end_fault(&mut self, index: usize, now: Duration) {
        if let Some((_, end)) = self.faults.get_mut(index) {
            *end = Some(now);
        }
    }

    pub(crate) fn open_jobs(&self) -> usize {
        self.jobs.len() - self.ended
    }

    pub(crate) fn accepted(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &PlannedFault> {
        self.faults.iter().map(|(fault, _)| fault)
    }

    /// Takes one event of the plane.
    pub(crate) fn tell(&mut self, now: Duration, lease: Duration, event: ToldEvent) {
        match &event.job {
            Some(id) if !self.jobs.contains_key(id) => {
                self.early.entry(id.clone()).or_default().push(EarlyEvent { at: now, lease, event });
            }
            Some(_) => self.tell_job(now, lease, &event),
            None => self.tell_fleet(now, lease, &event),
        }
    }

    fn tell_job(&mut self, now: Duration, lease: Duration, event: &ToldEvent) {
        let worker = event.worker.clone().unwrap_or_default();
        let id = event.job.clone().unwrap_or_default();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match event.kind {
            EventKind::JobStarted => {
                job.running = Some(RunningAttempt { worker, started_at: now });
                if let Some(since) = job.interrupted_at.take() {
                    self.recoveries.push(now.saturating_sub(since));
                }
            }
            EventKind::JobRetrying => {
                let attempt = job.running.take();
                let kind = job.kind;
                self.judge_retry(now, lease, &id, attempt, kind, &event.detail);
            }
            EventKind::JobRecovered => self.recovered_completions += 1,
            EventKind::JobFailed => job.failure = Some(event.detail.to_string()),
            _ => {}
        }
        if event.kind.is_job_end() {
            let job = self.jobs.get_mut(&id);
            let Some(job) = job else { return };
            self.ended += usize::from(job.outcomes.is_empty());
            job.outcomes.push(event.kind);
        }
    }

    fn judge_retry(
        &mut self,
        now: Duration,
        lease: Duration,
        id: &str,
        attempt: Option<RunningAttempt>,
        kind: WorkflowKind,
        detail: &Value,
    ) {
        // A node that raises is tried once more on another worker: that is the rule.
        if kind == WorkflowKind::Bad {
            return;
        }
        let Some(attempt) = attempt else { return };
        let from = attempt.started_at.saturating_sub(lease);
        let fault = self.fault_of(&attempt.worker, from, now, lease);
        match fault {
            Some(began_at) => {
                self.retries_needed += 1;
                if let Some(job) = self.jobs.get_mut(id) {
                    job.interrupted_at = Some(began_at.max(attempt.started_at));
                }
            }
            None => self.complaints.needless_retries.push(format!(
                "at {:.1} s job {id} was taken from {}, to which nothing had happened: {detail}",
                now.as_secs_f64(),
                attempt.worker
            )),
        }
    }

    fn tell_fleet(&mut self, now: Duration, lease: Duration, event: &ToldEvent) {
        let is_hostile = event.worker.as_deref().is_some_and(|worker| !worker.starts_with(WORKER_PREFIX));
        let tenant = event.tenant.as_deref().or_else(|| event.detail["tenant"].as_str());
        if is_hostile || tenant == Some(BAD_TENANT) {
            return;
        }
        let worker = event.worker.clone().unwrap_or_default();
        match event.kind {
            EventKind::WorkerOffline | EventKind::WorkerUnreliable => {
                let from = now.saturating_sub(lease * AFTERMATH_IN_LEASES);
                if self.fault_of(&worker, from, now, lease).is_none() {
                    let what = format!(
                        "at {:.1} s {worker}: {}, although nothing had happened to it: {}",
                        now.as_secs_f64(),
                        event.kind,
                        event.detail
                    );
                    self.complaints.false_verdicts.push(what);
                }
            }
            EventKind::WorkflowQuarantined => {
                let what = format!("at {:.1} s {}: {}", now.as_secs_f64(), event.kind, event.detail);
                self.complaints.false_verdicts.push(what);
            }
            _ => {}
        }
    }

    /// When the last fault began that explains a verdict about this worker between `from` and `to`.
    fn fault_of(&self, worker: &str, from: Duration, to: Duration, lease: Duration) -> Option<Duration> {
        let explains = |(fault, end): &&(PlannedFault, Option<Duration>)| {
            let aftermath = end.map_or(Duration::MAX, |end| end + lease * AFTERMATH_IN_LEASES);
            fault.kind.excuses_retry()
                && worker_name(fault.worker) == worker
                && fault.at <= to
                && aftermath >= from
        };
        self.faults.iter().rev().find(explains).map(|(fault, _)| fault.at)
    }

    /// The jobs that have not ended.
    pub(crate) fn unended(&self) -> Vec<String> {
        let unended = self.jobs.iter().filter(|(_, job)| job.outcomes.is_empty());
        unended.map(|(id, _)| id.clone()).collect()
    }

    /// Judges everything at the end. `error_of_bad` is what the error of a bad workflow must contain.
    pub(crate) fn conclude(mut self, error_of_bad: &str) -> Findings {
        let (mut completed, mut failed_as_expected, mut cancelled) = (0, 0, 0);
        let mut complaints = std::mem::take(&mut self.complaints);
        for (id, job) in &self.jobs {
            match job.outcomes.as_slice() {
                [] => complaints.lost.push(format!(
                    "job {id}, acknowledged at {:.1} s, has not ended",
                    job.acknowledged_at.as_secs_f64()
                )),
                [EventKind::JobCancelled] if job.was_cancelled => cancelled += 1,
                [EventKind::JobCancelled] => {
                    complaints.false_verdicts.push(format!("job {id} was cancelled by no client"));
                }
                [EventKind::JobCompleted] if job.kind == WorkflowKind::Good => completed += 1,
                [EventKind::JobCompleted] => {
                    complaints.false_verdicts.push(format!("job {id} completed, and cannot"));
                }
                [_] if job.kind == WorkflowKind::Bad => {
                    let failure = job.failure.as_deref().unwrap_or_default();
                    if failure.contains(error_of_bad) {
                        failed_as_expected += 1;
                    } else {
                        let what = format!("bad job {id} failed for another reason: {failure}");
                        complaints.false_verdicts.push(what);
                    }
                }
                [_] => {
                    let failure = job.failure.as_deref().unwrap_or_default();
                    complaints.false_verdicts.push(format!("good job {id} failed: {failure}"));
                }
                several => complaints.doubled.push(format!("job {id} has outcomes {several:?}")),
            }
        }
        // A submission that was given up may have become a job all the same.
        let given_up = complaints.refused.len();
        let unknown: BTreeSet<_> = self.early.keys().skip(given_up).collect();
        complaints.doubled.extend(unknown.iter().map(|id| format!("job {id} exists, and no client has it")));
        self.recoveries.sort_unstable();
        Findings {
            accepted: self.jobs.len(),
            completed,
            failed_as_expected,
            cancelled,
            retries_needed: self.retries_needed,
            recovered_completions: self.recovered_completions,
            recoveries: self.recoveries,
            complaints,
        }
    }
}

/// The tenant whose workflows fail.
pub(crate) const BAD_TENANT: &str = "careless";
const WORKER_PREFIX: &str = "drill-";

pub(crate) fn worker_name(index: usize) -> String {
    format!("{WORKER_PREFIX}{index}")
}

#[cfg(test)]
mod tests;
