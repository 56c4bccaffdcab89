//! A model of the store with the guarantees of every real one: a batch is committed whole or not at all, and only under
//! a term that is not older than the leader's.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, JobId, Sequence, Tenant, Term, WorkerId};
use remuda_core::record::{
    AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StateRow, StoredState, WorkerRow,
};
use remuda_core::rental::Rental;
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::time::Timestamp;
use remuda_core::verdict::AttemptVerdict;

use crate::scenario::Scenario;

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) term: Term,
    pub(crate) sequence: Sequence,
    pub(crate) latest: Timestamp,
    pub(crate) jobs: BTreeMap<JobId, (Arc<AcceptedJob>, JobStatus)>,
    pub(crate) keys: BTreeMap<(Tenant, String), (JobId, Hash)>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    blocks: BTreeMap<(WorkerId, BlockScope), BlockRow>,
    quarantine: BTreeMap<TenantShape, QuarantineRow>,
    documents: BTreeMap<(Collection, String), Arc<Document>>,
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

    pub(crate) fn restore(&self) -> StoredState {
        let open = self.jobs.values().filter(|(_, status)| status.state.is_open());
        StoredState {
            jobs: open.map(|(accepted, status)| (AcceptedJob::clone(accepted), status.clone())).collect(),
            workers: self.workers.values().cloned().collect(),
            blocks: self.blocks.values().cloned().collect(),
            quarantine: self.quarantine.values().cloned().collect(),
            documents: self.held_documents(),
            sequence: self.sequence,
            latest: self.latest,
        }
    }

    /// How many attempts ended with this verdict.
    pub(crate) fn ended_by(&self, verdict: AttemptVerdict) -> u64 {
        let attempts = self.jobs.values().flat_map(|(_, status)| &status.attempts);
        attempts.filter(|attempt| attempt.verdict == Some(verdict)).count() as u64
    }

    fn held_documents(&self) -> Vec<Arc<Document>> {
        self.documents.values().filter(|document| document.collection.is_plane_state()).cloned().collect()
    }

    /// The record of a machine.
    pub(crate) fn machine(&self, machine: &str) -> Option<Rental> {
        let document = self.documents.get(&(Collection::Machine, machine.to_owned()))?;
        serde_json::from_str(document.body.get()).ok()
    }

    /// The names of all recorded machines.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &str> {
        let machines = self.documents.values().filter(|document| document.collection == Collection::Machine);
        machines.map(|document| document.id.as_str())
    }

    /// Forgets a machine and its worker, as a restored backup would. Refuses while a job runs there.
    pub(crate) fn roll_back(&mut self, machine: &str) -> bool {
        let is_busy = self.jobs.values().any(
            |(_, status)| matches!(&status.state, StateRow::Running { worker, .. } if worker.as_str() == machine),
        );
        if is_busy || self.documents.remove(&(Collection::Machine, machine.to_owned())).is_none() {
            return false;
        }
        self.workers.retain(|_, row| row.machine.as_str() != machine);
        true
    }

    pub(crate) fn status(&self, job: JobId) -> Option<&JobStatus> {
        self.jobs.get(&job).map(|(_, status)| status)
    }

    /// Why a batch contradicts the store: two jobs with one key.
    pub(crate) fn conflict(&self, records: &[Record]) -> Option<String> {
        records.iter().find_map(|record| {
            let Record::JobAccepted { job, .. } = record else { return None };
            let key = job.key.as_ref()?;
            let (holder, _) = self.keys.get(&(job.tenant.clone(), key.key.clone()))?;
            (*holder != job.id).then(|| format!("jobs {holder} and {} have the same key", job.id))
        })
    }

    pub(crate) fn apply(&mut self, record: Record) {
        self.latest = self.latest.max(record.moment());
        match record {
            Record::JobAccepted { job, status, .. } => {
                if let Some(key) = &job.key {
                    self.keys.insert((job.tenant.clone(), key.key.clone()), (job.id, key.fingerprint));
                }
                self.open += usize::from(status.state.is_open());
                self.jobs.insert(job.id, (job, status));
            }
            Record::JobStatus { job, status } => {
                if let Some((_, known)) = self.jobs.get_mut(&job) {
                    self.open -= usize::from(known.state.is_open() && !status.state.is_open());
                    *known = status;
                }
            }
            Record::Worker(row) => drop(self.workers.insert(row.id.clone(), *row)),
            Record::WorkerForgotten { worker } => drop(self.workers.remove(&worker)),
            Record::Block(row) => drop(self.blocks.insert((row.worker.clone(), row.scope.clone()), row)),
            Record::BlockLifted { worker, scope } => drop(self.blocks.remove(&(worker, scope))),
            Record::Quarantine(row) => drop(self.quarantine.insert(row.jobs.clone(), row)),
            Record::QuarantineLifted(jobs) => drop(self.quarantine.remove(&jobs)),
            Record::Event(event) => self.sequence = self.sequence.max(event.seq),
            Record::Document(document) => {
                drop(self.documents.insert((document.collection, document.id.clone()), document));
            }
            Record::DocumentDeleted { collection, id } => drop(self.documents.remove(&(collection, id))),
            Record::Result { .. } | Record::Cycle { .. } => {}
        }
    }
}
