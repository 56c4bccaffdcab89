//! Laws about what is stored: looked at when a batch is written, record by record, in the order it was decided.

use std::collections::BTreeSet;

use remuda_core::cause::Cause;
use remuda_core::id::{JobId, Term, WorkerId};
use remuda_core::record::{Life, Record, StateRow, Try};
use remuda_core::time::Timestamp;

use super::{Apart, Law, Laws, Order};
use crate::scene::Scene;
use crate::service::FAILED;
use crate::store::Store;

impl Laws {
    pub(crate) fn committed(
        &mut self,
        at: u64,
        term: Term,
        records: &[Record],
        store: &Store,
        scene: &Scene,
    ) {
        if term < store.term {
            self.broken(Law::S9, at, format!("term {term} wrote while {} leads", store.term));
        }
        if let Some(conflict) = store.conflict(records) {
            self.broken(Law::S2, at, conflict);
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
                    self.changed(at, *job, before.or_else(|| store.life(*job)), life, scene);
                }
                Record::Happened(event) => {
                    self.numbered(at, event.seq.0);
                    let is_end = matches!(&*event.name, "job:completed" | "job:failed" | "job:cancelled");
                    if let Some(job) = event.job.filter(|_| is_end)
                        && !self.told.insert(job)
                    {
                        self.broken(Law::S2, at, format!("the end of job {job} is told twice"));
                    }
                }
                Record::Suspicion(row) if row.trial_at.is_some() => {
                    // From here on it is the shape that is kept away, and not the worker.
                    self.failed.retain(|(_, shape), _| *shape != row.shape);
                    self.quarantined.insert(row.shape);
                }
                Record::SuspicionLifted { shape } => {
                    self.quarantined.remove(shape);
                }
                Record::Accepted { .. }
                | Record::Result { .. }
                | Record::Worker(_)
                | Record::WorkerForgotten { .. }
                | Record::Block(_)
                | Record::BlockLifted { .. }
                | Record::Suspicion(_)
                | Record::Cycle { .. } => {}
            }
        }
    }

    fn numbered(&mut self, at: u64, seq: u64) {
        if seq != self.sequence + 1 {
            self.broken(Law::Events, at, format!("event {seq} follows event {}", self.sequence));
        }
        self.sequence = self.sequence.max(seq);
    }

    fn changed(&mut self, at: u64, job: JobId, before: Option<&Life>, life: &Life, scene: &Scene) {
        let Some(before) = before else {
            return self.broken(Law::S1, at, format!("job {job} lives and was never accepted"));
        };
        if !before.state.is_open() && before.state != life.state {
            let (was, is) = (before.state.name(), life.state.name());
            self.broken(Law::S2, at, format!("job {job} was {was} and became {is}"));
        }
        if life.attempt < before.attempt {
            self.broken(Law::S4, at, format!("job {job} went back to attempt {}", life.attempt));
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
                    self.broken(Law::S4, at, what);
                }
                self.given.insert(job, given);
                if is_new {
                    self.kept_apart(at, job, life, scene);
                    self.no_third(at, job, life);
                }
            }
            StateRow::Completed { worker } => {
                if !self.completed.contains(&((job, life.attempt), worker.clone())) {
                    let what = format!("job {job} attempt {} never completed on {worker}", life.attempt);
                    self.broken(Law::S3, at, what);
                }
                let shape = scene.shape_of(job);
                self.failed.remove(&(worker.clone(), shape));
            }
            StateRow::Queued { .. } | StateRow::Failed { .. } | StateRow::Cancelled { .. } => {}
        }
        if let Some(last) = life.tries.last().filter(|last| last.ended_at.is_some() && last.cause.is_some())
            && before.tries.iter().all(|one| one.attempt != last.attempt || one.ended_at.is_none())
        {
            self.remember_failure(job, last, scene);
        }
    }

    /// S7: caps, causes, and poison that is none.
    fn bounded(&mut self, at: u64, job: JobId, life: &Life) {
        let (attempts_max, mishaps_max) = (self.rules.attempts_max, self.rules.mishaps_max);
        let starts_max = u32::from(attempts_max) + u32::from(mishaps_max);
        if life.failures > attempts_max || life.mishaps > mishaps_max || life.attempt.0 > starts_max {
            let (attempt, failures, mishaps) = (life.attempt, life.failures, life.mishaps);
            let what = format!("job {job}: attempt {attempt}, {failures} failures and {mishaps} mishaps");
            self.broken(Law::S7, at, what);
        }
        let is_failed = matches!(life.state, StateRow::Queued { .. } | StateRow::Failed { .. });
        let without_cause = |one: &&Try| one.ended_at.is_some() && one.cause.is_none();
        if let Some(one) = life.tries.iter().find(without_cause).filter(|_| is_failed) {
            self.broken(Law::S7, at, format!("job {job} attempt {} failed without a cause", one.attempt));
        }
        for worker in &life.took_down {
            // What a plane before this one began may have been taken on, for all this one knows.
            let is_known = life.tries.iter().filter(|one| one.worker == *worker).any(|one| {
                let was_told = matches!(self.orders.get(&(job, one.attempt)), Some(Order::Received { .. }));
                was_told || one.started_at <= self.restored_at
            });
            if !is_known {
                let what = format!("job {job} is said to have taken down {worker}, which never heard of it");
                self.broken(Law::S7, at, what);
            }
        }
    }

    /// S7: poison takes two workers and never a third, as far as anyone can know: a worker that died before it named the
    /// job may as well have died of something else.
    fn no_third(&mut self, at: u64, job: JobId, life: &Life) {
        let taken = life.tries.iter().filter(|one| {
            let key = (job, one.attempt);
            let is_lost = one.verdict.contains("started anew") || one.verdict.contains("fell silent");
            is_lost && self.took_down.contains(&key) && self.named.contains(&key)
        });
        let taken: BTreeSet<_> = taken.map(|one| &one.worker).collect();
        if taken.len() >= usize::from(self.rules.poison_after) {
            self.broken(Law::S7, at, format!("job {job} took down {taken:?} and goes on"));
        }
    }

    /// S12: who failed with a shape does not get it again before the wait is over, and then once at a time.
    fn kept_apart(&mut self, at: u64, job: JobId, life: &Life, scene: &Scene) {
        let StateRow::Running { worker, started_at, .. } = &life.state else { return };
        let shape = scene.shape_of(job);
        let Some(Apart::Since(failed_at)) = self.failed.get(&(worker.clone(), shape)).copied() else { return };
        let waited = started_at.since(failed_at);
        if *started_at >= failed_at && waited < self.rules.block_cooldown {
            let what = format!("{worker} gets job {job} {waited:?} after it failed with that shape");
            self.broken(Law::S12, at, what);
        }
        let is_trial = |(other, (on, since)): (&JobId, &(WorkerId, Timestamp))| {
            *other != job && on == worker && *since > failed_at && scene.shape_of(*other) == shape
        };
        if self.running.iter().any(is_trial) {
            self.broken(Law::S12, at, format!("{worker} has more than one trial of the shape of job {job}"));
        }
    }

    /// A failure that the job or the service reported keeps the pair apart; what was under way when the wait began says
    /// nothing new. After a loss nobody here can tell whether the pair is kept apart: only a success makes it clear.
    fn remember_failure(&mut self, job: JobId, last: &Try, scene: &Scene) {
        let is_reported = matches!(last.cause, Some(Cause::Job | Cause::Service)) && last.verdict == FAILED;
        let shape = scene.shape_of(job);
        let is_quarantined = self.quarantined.contains(&shape);
        let Some(ended_at) = last.ended_at.filter(|_| self.knows_pairs && !is_quarantined) else { return };
        let pair = self.failed.entry((last.worker.clone(), shape)).or_insert(Apart::Since(ended_at));
        *pair = match *pair {
            Apart::Unclear => Apart::Unclear,
            Apart::Since(_) if !is_reported => Apart::Unclear,
            Apart::Since(since) if last.started_at > since => Apart::Since(ended_at),
            since @ Apart::Since(_) => since,
        };
    }

    /// A person lifted a block: from here on nobody can tell who should be kept apart.
    pub(crate) fn blocks_lifted(&mut self) {
        self.failed.clear();
        self.knows_pairs = false;
    }
}
