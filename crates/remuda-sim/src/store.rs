//! A model of the store with the guarantees of every real one: a batch is committed whole or not at all, and only under
//! a term that is not older than the leader's.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::document::{Document, Shelf};
use remuda_core::id::{Hash, JobId, Sequence, Shape, Tenant, Term, WorkerId};
use remuda_core::record::{Accepted, BlockRow, Life, Record, StateRow, Stored, SuspicionRow, WorkerRow};
use remuda_core::rental::Rental;
use remuda_core::time::Timestamp;

use crate::scenario::Scenario;

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) term: Term,
    pub(crate) sequence: Sequence,
    pub(crate) latest: Timestamp,
    pub(crate) jobs: BTreeMap<JobId, (Arc<Accepted>, Life)>,
    pub(crate) keys: BTreeMap<(Tenant, String), (JobId, Hash)>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    blocks: BTreeMap<(WorkerId, Shape), BlockRow>,
    suspicions: BTreeMap<Shape, SuspicionRow>,
    documents: BTreeMap<(Shelf, String), Arc<Document>>,
    pub(crate) open: usize,
}

impl Store {
    /// A store with the affinities that operators set before the world starts.
    pub(crate) fn with_affinities(scenario: &Scenario) -> Store {
        let mut store = Store::default();
        for (shape, affinity) in &scenario.affinities {
            store.apply(Record::Document(affinity.document(&scenario.shape(*shape))));
        }
        store
    }

    pub(crate) fn lead(&mut self) -> Term {
        self.term = self.term.next();
        self.term
    }

    pub(crate) fn restore(&self) -> Stored {
        let open = self.jobs.values().filter(|(_, life)| life.state.is_open());
        Stored {
            jobs: open.map(|(accepted, life)| (Accepted::clone(accepted), life.clone())).collect(),
            workers: self.workers.values().cloned().collect(),
            blocks: self.blocks.values().cloned().collect(),
            suspicions: self.suspicions.values().cloned().collect(),
            documents: self.held_documents(),
            sequence: self.sequence,
            latest: self.latest,
        }
    }

    fn held_documents(&self) -> Vec<Arc<Document>> {
        self.documents.values().filter(|document| document.shelf.is_held()).cloned().collect()
    }

    /// The record of a machine.
    pub(crate) fn machine(&self, machine: &str) -> Option<Rental> {
        let document = self.documents.get(&(Shelf::Machine, machine.to_owned()))?;
        serde_json::from_str(document.body.get()).ok()
    }

    /// The names of all recorded machines.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &str> {
        let machines = self.documents.values().filter(|document| document.shelf == Shelf::Machine);
        machines.map(|document| document.id.as_str())
    }

    /// Forgets a machine and its worker, as a restored backup would. Refuses while a job runs there.
    pub(crate) fn roll_back(&mut self, machine: &str) -> bool {
        let is_busy = self.jobs.values().any(
            |(_, life)| matches!(&life.state, StateRow::Running { worker, .. } if worker.as_str() == machine),
        );
        if is_busy || self.documents.remove(&(Shelf::Machine, machine.to_owned())).is_none() {
            return false;
        }
        self.workers.retain(|_, row| row.machine.as_str() != machine);
        true
    }

    pub(crate) fn life(&self, job: JobId) -> Option<&Life> {
        self.jobs.get(&job).map(|(_, life)| life)
    }

    /// Why a batch contradicts the store: two jobs with one key.
    pub(crate) fn conflict(&self, records: &[Record]) -> Option<String> {
        records.iter().find_map(|record| {
            let Record::Accepted { job, .. } = record else { return None };
            let key = job.key.as_ref()?;
            let (holder, _) = self.keys.get(&(job.tenant.clone(), key.key.clone()))?;
            (*holder != job.id).then(|| format!("jobs {holder} and {} have the same key", job.id))
        })
    }

    pub(crate) fn apply(&mut self, record: Record) {
        self.latest = self.latest.max(record.moment());
        match record {
            Record::Accepted { job, life, .. } => {
                if let Some(key) = &job.key {
                    self.keys.insert((job.tenant.clone(), key.key.clone()), (job.id, key.fingerprint));
                }
                self.open += usize::from(life.state.is_open());
                self.jobs.insert(job.id, (job, life));
            }
            Record::Life { job, life } => {
                if let Some((_, known)) = self.jobs.get_mut(&job) {
                    self.open -= usize::from(known.state.is_open() && !life.state.is_open());
                    *known = life;
                }
            }
            Record::Worker(row) => drop(self.workers.insert(row.id.clone(), *row)),
            Record::WorkerForgotten { worker } => drop(self.workers.remove(&worker)),
            Record::Block(row) => drop(self.blocks.insert((row.worker.clone(), row.shape), row)),
            Record::BlockLifted { worker, shape } => drop(self.blocks.remove(&(worker, shape))),
            Record::Suspicion(row) => drop(self.suspicions.insert(row.shape, row)),
            Record::SuspicionLifted { shape } => drop(self.suspicions.remove(&shape)),
            Record::Happened(event) => self.sequence = self.sequence.max(event.seq),
            Record::Document(document) => {
                drop(self.documents.insert((document.shelf, document.id.clone()), document));
            }
            Record::DocumentGone { shelf, id } => drop(self.documents.remove(&(shelf, id))),
            Record::Result { .. } | Record::Cycle { .. } => {}
        }
    }
}
