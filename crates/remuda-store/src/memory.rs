//! A store that forgets: for trying things out and for tests. It keeps every promise but durability.

mod view;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, JobId, Sequence, Shape, Tenant, Term, WorkerId};
use remuda_core::record::{
    AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StoredEvent, StoredState, WorkerRow,
};
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;

use super::{Batch, Filter, Row, StoreError, View};

#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    term: Term,
    sequence: Sequence,
    latest: Timestamp,
    jobs: BTreeMap<JobId, Job>,
    keys: BTreeMap<(Tenant, String), JobId>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    blocks: BTreeMap<(WorkerId, Shape), BlockRow>,
    quarantine: BTreeMap<Shape, QuarantineRow>,
    events: BTreeMap<Sequence, Arc<StoredEvent>>,
    cycles: BTreeMap<Timestamp, Arc<RawValue>>,
    documents: BTreeMap<(Collection, String), Arc<Document>>,
}

#[derive(Debug)]
struct Job {
    accepted: Arc<AcceptedJob>,
    status: JobStatus,
    workflow: Arc<RawValue>,
    result: Option<Arc<RawValue>>,
}

impl Job {
    fn header(&self) -> (AcceptedJob, JobStatus) {
        (AcceptedJob::clone(&self.accepted), self.status.clone())
    }
}

impl Memory {
    /// A batch is checked before anything of it is applied, so a panic leaves nothing half-done behind.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lead(&self) -> Term {
        let mut kept = self.kept();
        kept.term = kept.term.next();
        kept.term
    }

    pub(super) fn open_jobs(&self, after: Option<JobId>, limit: usize) -> Vec<(AcceptedJob, JobStatus)> {
        let kept = self.kept();
        let is_next = |job: &JobId| after.is_none_or(|after| *job > after);
        let open = kept.jobs.iter().filter(|(id, job)| is_next(id) && job.status.state.is_open());
        open.take(limit).map(|(_, job)| job.header()).collect()
    }

    pub(super) fn restore(&self) -> StoredState {
        let kept = self.kept();
        StoredState {
            jobs: kept.jobs.values().filter(|job| job.status.state.is_open()).map(Job::header).collect(),
            workers: kept.workers.values().cloned().collect(),
            blocks: kept.blocks.values().cloned().collect(),
            quarantine: kept.quarantine.values().cloned().collect(),
            documents: kept.documents.values().filter(|it| it.collection.is_plane_state()).cloned().collect(),
            sequence: kept.sequence,
            latest: kept.latest,
        }
    }

    pub(super) fn commit(&self, term: Term, batch: Batch) -> Result<(), StoreError> {
        let mut kept = self.kept();
        if term < kept.term {
            return Err(StoreError::Superseded { ours: term, theirs: kept.term });
        }
        kept.check_keys(&batch)?;
        batch.records.into_iter().for_each(|record| kept.apply(record));
        Ok(())
    }

    pub(super) fn workflow(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.kept().jobs.get(&job).map(|job| job.workflow.clone())
    }

    pub(super) fn result(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.kept().jobs.get(&job).and_then(|job| job.result.clone())
    }

    pub(super) fn job(&self, job: JobId) -> Option<(AcceptedJob, JobStatus)> {
        self.kept().jobs.get(&job).map(Job::header)
    }

    pub(super) fn by_key(&self, tenant: &Tenant, key: &str) -> Option<(JobId, Hash)> {
        let kept = self.kept();
        let job = kept.keys.get(&(tenant.clone(), key.to_owned()))?;
        let key = kept.jobs.get(job)?.accepted.key.as_ref()?;
        Some((*job, key.fingerprint))
    }

    pub(super) fn jobs(
        &self,
        filter: &Filter,
        before: Option<JobId>,
        limit: usize,
    ) -> Vec<(AcceptedJob, JobStatus)> {
        let kept = self.kept();
        let older = kept.jobs.iter().rev().skip_while(|(id, _)| before.is_some_and(|before| **id >= before));
        let met = older.filter(|(_, job)| filter.is_met(&job.accepted, &job.status));
        met.take(limit).map(|(_, job)| job.header()).collect()
    }

    pub(super) fn events(&self, after: Sequence, limit: usize) -> Vec<StoredEvent> {
        let kept = self.kept();
        kept.events
            .range((Excluded(after), Unbounded))
            .take(limit)
            .map(|(_, event)| StoredEvent::clone(event))
            .collect()
    }

    pub(super) fn cycles(&self, limit: usize) -> Vec<(Timestamp, Arc<RawValue>)> {
        self.kept().cycles.iter().rev().take(limit).map(|(at, report)| (*at, report.clone())).collect()
    }

    pub(super) fn document(&self, collection: Collection, id: &str) -> Option<Arc<Document>> {
        self.kept().documents.get(&(collection, id.to_owned())).cloned()
    }

    pub(super) fn documents(&self, collection: Collection, after: &str, limit: usize) -> Vec<Arc<Document>> {
        let kept = self.kept();
        let behind = kept.documents.range((Excluded((collection, after.to_owned())), Unbounded));
        behind.take_while(|((at, _), _)| *at == collection).take(limit).map(|(_, it)| it.clone()).collect()
    }

    pub(super) fn find_by_index_key(&self, collection: Collection, index_key: &str) -> Vec<Arc<Document>> {
        let kept = self.kept();
        kept.documents
            .values()
            .filter(|it| it.collection == collection && it.index_key == index_key)
            .cloned()
            .collect()
    }

    pub(super) fn expire(&self, now: Timestamp, limit: usize) -> usize {
        let mut kept = self.kept();
        let over = kept.documents.iter().filter(|(_, it)| !it.is_live(now)).map(|(place, _)| place.clone());
        let over: Vec<_> = over.take(limit).collect();
        over.iter().for_each(|place| drop(kept.documents.remove(place)));
        over.len()
    }

    pub(super) fn view(&self, view: View) -> Vec<Row> {
        view::rows(&self.kept(), view)
    }

    pub(super) fn retain(&self, before: Timestamp, limit: usize) -> usize {
        self.kept().retain(before, limit)
    }
}

impl Kept {
    /// One job for a key, whoever came first.
    fn check_keys(&self, batch: &Batch) -> Result<(), StoreError> {
        let mut new = BTreeMap::new();
        for record in &batch.records {
            let Record::JobAccepted { job, .. } = record else { continue };
            let Some(key) = &job.key else { continue };
            let place = (job.tenant.clone(), key.key.clone());
            let holder = self.keys.get(&place).or_else(|| new.get(&place)).copied();
            if holder.is_some_and(|holder| holder != job.id) {
                return Err(StoreError::Conflict {
                    what: format!("job {} has the key of another one", job.id),
                });
            }
            new.insert(place, job.id);
        }
        Ok(())
    }

    fn apply(&mut self, record: Record) {
        self.latest = self.latest.max(record.moment());
        match record {
            Record::JobAccepted { job, status, workflow } => self.accept(job, status, workflow),
            Record::JobStatus { job, status } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.status = status;
                }
            }
            Record::Result { job, result } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.result = Some(result);
                }
            }
            Record::Worker(row) => {
                self.workers.insert(row.id.clone(), *row);
            }
            Record::WorkerForgotten { worker } => {
                self.workers.remove(&worker);
            }
            Record::Block(row) => {
                self.blocks.insert((row.worker.clone(), row.shape), row);
            }
            Record::BlockLifted { worker, shape } => {
                self.blocks.remove(&(worker, shape));
            }
            Record::Quarantine(row) => {
                self.quarantine.insert(row.shape, row);
            }
            Record::QuarantineLifted { shape } => {
                self.quarantine.remove(&shape);
            }
            Record::Event(event) if event.seq <= self.sequence => {}
            Record::Event(event) => {
                self.sequence = event.seq;
                self.events.insert(event.seq, event);
            }
            Record::Cycle { at, report } => {
                self.cycles.insert(at, report);
            }
            Record::Document(document) => {
                self.documents.insert((document.collection, document.id.clone()), document);
            }
            Record::DocumentDeleted { collection, id } => {
                self.documents.remove(&(collection, id));
            }
        }
    }

    fn accept(&mut self, accepted: Arc<AcceptedJob>, status: JobStatus, workflow: Arc<RawValue>) {
        if let Some(key) = &accepted.key {
            self.keys.insert((accepted.tenant.clone(), key.key.clone()), accepted.id);
        }
        let result = self.jobs.remove(&accepted.id).and_then(|job| job.result);
        self.jobs.insert(accepted.id, Job { accepted, status, workflow, result });
    }

    fn retain(&mut self, before: Timestamp, limit: usize) -> usize {
        let is_over = |job: &Job| !job.status.state.is_open() && job.status.changed_at < before;
        let jobs: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| is_over(job)).map(|(id, _)| *id).take(limit).collect();
        for id in &jobs {
            let key = self.jobs.remove(id).and_then(|job| {
                job.accepted.key.as_ref().map(|key| (job.accepted.tenant.clone(), key.key.clone()))
            });
            key.and_then(|key| self.keys.remove(&key));
        }
        let events = self.events.values().take_while(|event| event.at < before).map(|event| event.seq);
        let events: Vec<Sequence> = events.take(limit - jobs.len()).collect();
        events.iter().for_each(|seq| drop(self.events.remove(seq)));
        let cycles = self.cycles.range(..before).map(|(at, _)| *at);
        let cycles: Vec<Timestamp> = cycles.take(limit - jobs.len() - events.len()).collect();
        cycles.iter().for_each(|at| drop(self.cycles.remove(at)));
        jobs.len() + events.len() + cycles.len()
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;
    use crate::contract::{Place, passes_the_contract};

    struct Here(Store);

    impl Place for Here {
        async fn open(&self) -> Store {
            self.0.clone()
        }
    }

    fn here() -> Here {
        Here(Store::Memory(super::Memory::default()))
    }

    passes_the_contract!(here);
}
