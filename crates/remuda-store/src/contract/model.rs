//! A reference model of a store, and random batches to compare a real store with it.

use std::collections::BTreeMap;

use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Sequence, WorkerId};
use remuda_core::machine::WorkerState;
use remuda_core::record::{AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StoredEvent, WorkerRow};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::time::Timestamp;

use super::sample;
use crate::{JobFilter, Store};

#[derive(Default)]
pub(super) struct Model {
    pub(super) jobs: BTreeMap<JobId, (AcceptedJob, JobStatus)>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    blocks: BTreeMap<(WorkerId, BlockScope), BlockRow>,
    quarantine: BTreeMap<TenantShape, QuarantineRow>,
    events: Vec<StoredEvent>,
    now: u64,
}

/// Pseudo-random numbers from a seed (`splitmix64`).
pub(crate) struct TestRng(u64);

impl TestRng {
    pub(crate) fn new(seed: u64) -> TestRng {
        TestRng(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Model {
    /// A random batch that a plane might commit.
    pub(super) fn random_batch(&mut self, rng: &mut TestRng) -> Vec<Record> {
        let mut open: Vec<JobId> =
            self.jobs.iter().filter(|(_, (_, status))| status.state.is_open()).map(|(id, _)| *id).collect();
        let mut sequence = self.events.last().map_or(0, |event| event.seq.0);
        let mut records = Vec::new();
        for _ in 0..rng.below(30) {
            self.now += rng.below(5);
            let record = match rng.below(10) {
                0..3 => {
                    // Not always in order, because clients may choose ids.
                    let job = sample::job(u128::from(rng.below(u64::MAX)));
                    open.push(job.id);
                    sample::accepted(job, sample::queued(self.now))
                }
                3..6 if !open.is_empty() => {
                    let at = rng.below(open.len() as u64);
                    let at = usize::try_from(at).unwrap();
                    let status = match rng.below(5) {
                        0 => sample::queued(self.now),
                        1 | 2 => sample::running(self.now, u32::try_from(rng.below(9)).unwrap()),
                        3 => sample::completed(self.now, 1),
                        _ => sample::failed(self.now),
                    };
                    let job = if status.state.is_open() { open[at] } else { open.swap_remove(at) };
                    Record::JobStatus { job, status }
                }
                3..7 => {
                    sequence += 1 + rng.below(2);
                    sample::event(sequence, self.now, EventKind::JobQueued, None)
                }
                7 => {
                    let mut row = sample::worker_row(&format!("gpu-{}", rng.below(5)), WorkerState::Active);
                    row.changed_at = sample::at(self.now);
                    Record::Worker(Box::new(row))
                }
                8 => match (rng.below(3), rng.below(4)) {
                    (n, 0) => {
                        let scope = sample::block("gpu-1", u8::try_from(n).unwrap(), 0).scope;
                        Record::BlockLifted { worker: sample::worker("gpu-1"), scope }
                    }
                    (n, failures) => {
                        let (n, failures) = (u8::try_from(n).unwrap(), u32::try_from(failures).unwrap());
                        Record::Block(sample::block("gpu-1", n, failures))
                    }
                },
                _ => match (rng.below(3), rng.below(4)) {
                    (n, 0) => {
                        Record::QuarantineLifted(sample::quarantine_row(u8::try_from(n).unwrap(), 0).jobs)
                    }
                    (n, trials) => {
                        let (n, trials) = (u8::try_from(n).unwrap(), u32::try_from(trials).unwrap());
                        Record::Quarantine(sample::quarantine_row(n, trials))
                    }
                },
            };
            records.push(record);
        }
        records
    }

    pub(super) fn apply(&mut self, records: &[Record]) {
        for record in records.iter().cloned() {
            match record {
                Record::JobAccepted { job, status, .. } => {
                    drop(self.jobs.insert(job.id, (AcceptedJob::clone(&job), status)));
                }
                Record::JobStatus { job, status } => self.jobs.get_mut(&job).unwrap().1 = status,
                Record::Worker(row) => drop(self.workers.insert(row.id.clone(), *row)),
                Record::WorkerForgotten { worker } => drop(self.workers.remove(&worker)),
                Record::Block(row) => drop(self.blocks.insert((row.worker.clone(), row.scope.clone()), row)),
                Record::BlockLifted { worker, scope } => drop(self.blocks.remove(&(worker, scope))),
                Record::Quarantine(row) => drop(self.quarantine.insert(row.jobs.clone(), row)),
                Record::QuarantineLifted(jobs) => drop(self.quarantine.remove(&jobs)),
                Record::Event(event) => self.events.push(StoredEvent::clone(&event)),
                Record::Result { .. }
                | Record::Cycle { .. }
                | Record::Document(_)
                | Record::DocumentDeleted { .. } => unreachable!("not generated"),
            }
        }
    }

    pub(super) async fn check(&self, store: &Store) {
        let stored = store.restore().await.unwrap();
        let open: Vec<_> = self.jobs.values().filter(|(_, status)| status.state.is_open()).cloned().collect();
        assert_eq!(stored.jobs, open);
        assert_eq!(stored.workers, self.workers.values().cloned().collect::<Vec<_>>());
        assert_eq!(stored.blocks, self.blocks.values().cloned().collect::<Vec<_>>());
        assert_eq!(stored.quarantine, self.quarantine.values().cloned().collect::<Vec<_>>());
        assert_eq!(stored.sequence, self.events.last().map_or(Sequence(0), |event| event.seq));
        assert!(stored.latest <= Timestamp::from_millis(self.now));
        let jobs = store.jobs(JobFilter::default(), None, usize::MAX).await.unwrap();
        assert_eq!(jobs, self.jobs.values().rev().cloned().collect::<Vec<_>>());
        assert_eq!(store.events(Sequence(0), usize::MAX).await.unwrap(), self.events);
    }
}
