//! Laws about what is stored: looked at when a batch is written, record by record, in the order it was decided.

use std::collections::BTreeSet;

use remuda_core::id::{JobId, Shape, Term, WorkerId};
use remuda_core::record::{Life, Record, StateRow, Try};

use super::{Laws, Order};
use crate::law::Law;
use crate::scenario::Scenario;
use crate::store::Store;

impl Laws {
    pub(crate) fn committed(
        &mut self,
        at: u64,
        term: Term,
        records: &[Record],
        store: &Store,
        scenario: &Scenario,
    ) {
        if term < store.term {
            self.violated(Law::S9, at, format!("term {term} wrote while {} leads", store.term));
        }
        if let Some(conflict) = store.conflict(records) {
            self.violated(Law::S2, at, conflict);
        }
        for (place, record) in records.iter().enumerate() {
            match record {
                Record::Life { job, life } => {
                    // Within the batch, the last word before this one.
                    let before = records[..place].iter().rev().find_map(|record| match record {
                        Record::Life { job: of, life } if of == job => Some(life),
                        Record::Accepted { job: of, life, .. } if of.id == *job => Some(life),
                        _ => None,
                    });
                    self.changed(at, *job, before.or_else(|| store.life(*job)), life, scenario);
                }
                Record::Happened(event) => {
                    self.numbered(at, event.seq.0);
                    let is_end = matches!(&*event.name, "job:completed" | "job:failed" | "job:cancelled");
                    if let Some(job) = event.job.filter(|_| is_end)
                        && !self.told.insert(job)
                    {
                        self.violated(Law::S2, at, format!("the end of job {job} is told twice"));
                    }
                }
                Record::Block(row) => {
                    if !scenario.has_shape(row.shape) {
                        let what = format!("{} is kept from {:?}, which is no shape", row.worker, row.shape);
                        self.violated(Law::S12, at, what);
                    }
                    self.blocks.insert((row.worker.clone(), row.shape), row.until);
                }
                Record::BlockLifted { worker, shape } => {
                    self.blocks.remove(&(worker.clone(), *shape));
                    if self.knows_pairs && !is_reason_to_lift(records, worker, *shape, scenario) {
                        self.violated(
                            Law::S12,
                            at,
                            format!("the block of {worker} is forgotten, and nobody said so"),
                        );
                    }
                }
                Record::Accepted { .. }
                | Record::Result { .. }
                | Record::Worker(_)
                | Record::WorkerForgotten { .. }
                | Record::Suspicion(_)
                | Record::SuspicionLifted { .. }
                | Record::Cycle { .. }
                | Record::Document(_)
                | Record::DocumentGone { .. } => {}
            }
        }
        if !self.blocks.is_empty() {
            self.one_trial(at, scenario);
        }
    }

    fn numbered(&mut self, at: u64, seq: u64) {
        if seq != self.sequence + 1 {
            self.violated(Law::Events, at, format!("event {seq} follows event {}", self.sequence));
        }
        self.sequence = self.sequence.max(seq);
    }

    fn changed(&mut self, at: u64, job: JobId, before: Option<&Life>, life: &Life, scenario: &Scenario) {
        let Some(before) = before else {
            return self.violated(Law::S1, at, format!("job {job} lives and was never accepted"));
        };
        if !before.state.is_open() && before.state != life.state {
            let (was, is) = (before.state.name(), life.state.name());
            self.violated(Law::S2, at, format!("job {job} was {was} and became {is}"));
        }
        if life.attempt < before.attempt {
            self.violated(Law::S4, at, format!("job {job} went back to attempt {}", life.attempt));
        }
        self.bounded(at, job, life);
        self.running.remove(&job);
        match &life.state {
            StateRow::Running { worker, started_at, .. } => {
                self.running.insert(job, (worker.clone(), *started_at));
                let given = (life.attempt, worker.clone());
                let is_new = self.given.get(&job) != Some(&given);
                let is_reused = self.given.get(&job).is_some_and(|(last, _)| life.attempt <= *last);
                if is_new && is_reused {
                    let what = format!("job {job} attempt {} was given out before", life.attempt);
                    self.violated(Law::S4, at, what);
                }
                self.given.insert(job, given);
                if is_new {
                    self.check_placement(at, job, worker, scenario);
                    self.kept_apart(at, job, life, scenario);
                    self.no_third(at, job, life);
                }
            }
            StateRow::Completed { worker } => {
                if !self.completed.contains(&((job, life.attempt), worker.clone())) {
                    let what = format!("job {job} attempt {} never completed on {worker}", life.attempt);
                    self.violated(Law::S3, at, what);
                }
            }
            StateRow::Queued { .. } | StateRow::Failed { .. } | StateRow::Cancelled { .. } => {}
        }
    }

    /// S7: caps, causes, and poison that is none.
    fn bounded(&mut self, at: u64, job: JobId, life: &Life) {
        let (attempts_max, infra_failures_max) = (self.rules.attempts_max, self.rules.infra_failures_max);
        let starts_max = u32::from(attempts_max) + u32::from(infra_failures_max);
        if life.failures > attempts_max || life.mishaps > infra_failures_max || life.attempt.0 > starts_max {
            let (attempt, failures, mishaps) = (life.attempt, life.failures, life.mishaps);
            let what = format!("job {job}: attempt {attempt}, {failures} failures and {mishaps} mishaps");
            self.violated(Law::S7, at, what);
        }
        let is_failed = matches!(life.state, StateRow::Queued { .. } | StateRow::Failed { .. });
        let without_cause = |one: &&Try| one.ended_at.is_some() && one.cause.is_none();
        if let Some(one) = life.tries.iter().find(without_cause).filter(|_| is_failed) {
            self.violated(Law::S7, at, format!("job {job} attempt {} failed without a cause", one.attempt));
        }
        for worker in &life.took_down {
            // What a plane before this one began may have been taken on, for all this one knows.
            let is_known = life.tries.iter().filter(|one| one.worker == *worker).any(|one| {
                let key = (job, one.attempt);
                let was_told = matches!(self.orders.get(&key), Some(Order::Received { .. }));
                // What an agent did to its service itself is nobody's fault.
                let is_our_doing =
                    one.verdict.contains("service") && self.services.ended_by_us.contains(&key);
                (was_told || one.started_at <= self.restored_at) && !is_our_doing
            });
            if !is_known {
                let what = format!("job {job} is said to have taken down {worker}, and did not");
                self.violated(Law::S7, at, what);
            }
        }
    }

    /// S7: poison duration two workers and never a third, as far as anyone can know: a worker that died before it named the
    /// job may as well have died of something else.
    fn no_third(&mut self, at: u64, job: JobId, life: &Life) {
        let taken = life.tries.iter().filter(|one| {
            let key = (job, one.attempt);
            let is_lost = one.verdict.contains("started anew") || one.verdict.contains("fell silent");
            is_lost && self.took_down.contains(&key) && self.named.contains(&key)
        });
        let taken: BTreeSet<_> = taken.map(|one| &one.worker).collect();
        if taken.len() >= usize::from(self.rules.poison_after) {
            self.violated(Law::S7, at, format!("job {job} took down {taken:?} and goes on"));
        }
    }

    /// S12: who is kept from a shape does not get it before the wait is over, and then once at a time.
    fn kept_apart(&mut self, at: u64, job: JobId, life: &Life, scenario: &Scenario) {
        let StateRow::Running { worker, started_at, .. } = &life.state else { return };
        let shape = scenario.shape_of(job);
        let Some(until) = self.blocks.get(&(worker.clone(), shape)).copied() else { return };
        if *started_at < until {
            let early = until.since(*started_at);
            self.violated(Law::S12, at, format!("{worker} gets job {job} {early:?} before its block ends"));
        }
    }

    /// Looked at when the whole batch is known: within it, one may begin before the other is said to have ended.
    fn one_trial(&mut self, at: u64, scenario: &Scenario) {
        let mut trials = BTreeSet::new();
        let mut found = None;
        for (job, (worker, since)) in &self.running {
            let pair = (worker.clone(), scenario.shape_of(*job));
            let is_trial = self.blocks.get(&pair).is_some_and(|until| since >= until);
            if is_trial && !trials.insert(pair) {
                found = Some(format!("{worker} has more than one trial of the shape of job {job}"));
            }
        }
        if let Some(what) = found {
            self.violated(Law::S12, at, what);
        }
    }

    /// A person lifts blocks: from here on nobody can tell why one is gone.
    pub(crate) fn blocks_lifted(&mut self) {
        self.knows_pairs = false;
    }
}

/// A success, a quarantine of the shape, or the end of the worker.
fn is_reason_to_lift(records: &[Record], worker: &WorkerId, shape: Shape, scenario: &Scenario) -> bool {
    records.iter().any(|record| match record {
        Record::Life { job, life } => {
            matches!(&life.state, StateRow::Completed { worker: by } if by == worker)
                && scenario.shape_of(*job) == shape
        }
        Record::Suspicion(row) => row.shape == shape && row.trial_at.is_some(),
        Record::WorkerForgotten { worker: forgotten } => forgotten == worker,
        _ => false,
    })
}
