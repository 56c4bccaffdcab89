//! A store in memory, for demos and tests. It gives every guarantee except durability.

mod view;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, JobId, Sequence, Tenant, Term, WorkerId};
use remuda_core::record::{
    AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StoredEvent, StoredState, WorkerRow,
};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;

use super::tenant_bytes::{TenantBytes, signed};
use super::{JobFilter, RecordBatch, StatusView, StoreError, ViewRow};

#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    term: Term,
    sequence: Sequence,
    latest: Timestamp,
    jobs: BTreeMap<JobId, Job>,
    keys: BTreeMap<(Tenant, String), JobId>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    blocks: BTreeMap<(WorkerId, BlockScope), BlockRow>,
    quarantine: BTreeMap<TenantShape, QuarantineRow>,
    events: BTreeMap<Sequence, Arc<StoredEvent>>,
    cycles: BTreeMap<Timestamp, Arc<RawValue>>,
    documents: BTreeMap<(Collection, String), Arc<Document>>,
    bytes: TenantBytes,
}

#[derive(Debug)]
struct Job {
    accepted: Arc<AcceptedJob>,
    status: JobStatus,
    workflow: Arc<RawValue>,
    result: Option<Arc<RawValue>>,
}

impl Job {
    fn bytes(&self) -> i64 {
        let result = self.result.as_ref().map_or(0, |result| result.get().len());
        signed(self.workflow.get().len() + result)
    }

    fn header(&self) -> (AcceptedJob, JobStatus) {
        (AcceptedJob::clone(&self.accepted), self.status.clone())
    }
}

impl MemoryStore {
    /// A poisoned lock is usable: a batch is checked completely before it is applied.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_leadership(&self) -> Term {
        let mut tables = self.tables();
        tables.term = tables.term.next();
        tables.term
    }

    pub(super) fn open_jobs(&self, after: Option<JobId>, limit: usize) -> Vec<(AcceptedJob, JobStatus)> {
        let tables = self.tables();
        let is_next = |job: &JobId| after.is_none_or(|after| *job > after);
        let open = tables.jobs.iter().filter(|(id, job)| is_next(id) && job.status.state.is_open());
        open.take(limit).map(|(_, job)| job.header()).collect()
    }

    pub(super) fn restore(&self) -> StoredState {
        let tables = self.tables();
        StoredState {
            jobs: tables.jobs.values().filter(|job| job.status.state.is_open()).map(Job::header).collect(),
            workers: tables.workers.values().cloned().collect(),
            blocks: tables.blocks.values().cloned().collect(),
            quarantine: tables.quarantine.values().cloned().collect(),
            documents: tables
                .documents
                .values()
                .filter(|it| it.collection.is_plane_state())
                .cloned()
                .collect(),
            sequence: tables.sequence,
            latest: tables.latest,
        }
    }

    pub(super) fn commit(&self, term: Term, batch: RecordBatch) -> Result<(), StoreError> {
        let mut tables = self.tables();
        if term < tables.term {
            return Err(StoreError::Superseded { ours: term, theirs: tables.term });
        }
        tables.check_keys(&batch)?;
        batch.records.into_iter().for_each(|record| tables.apply(record));
        Ok(())
    }

    pub(super) fn workflow(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.tables().jobs.get(&job).map(|job| job.workflow.clone())
    }

    pub(super) fn workflows_from(
        &self,
        job: JobId,
        limit: usize,
        bytes_max: usize,
    ) -> Vec<(JobId, Arc<RawValue>)> {
        let mut bytes = 0;
        let tables = self.tables();
        let following = tables.jobs.range(job..).map(|(id, job)| (*id, job.workflow.clone()));
        let fitting = following.take_while(|(_, workflow)| {
            let is_first = bytes == 0;
            bytes += workflow.get().len();
            is_first || bytes <= bytes_max
        });
        fitting.take(limit).collect()
    }

    pub(super) fn result(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.tables().jobs.get(&job).and_then(|job| job.result.clone())
    }

    pub(super) fn job(&self, job: JobId) -> Option<(AcceptedJob, JobStatus)> {
        self.tables().jobs.get(&job).map(Job::header)
    }

    pub(super) fn job_by_key(&self, tenant: &Tenant, key: &str) -> Option<(JobId, Hash)> {
        let tables = self.tables();
        let job = tables.keys.get(&(tenant.clone(), key.to_owned()))?;
        let key = tables.jobs.get(job)?.accepted.key.as_ref()?;
        Some((*job, key.fingerprint))
    }

    pub(super) fn jobs(
        &self,
        filter: &JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Vec<(AcceptedJob, JobStatus)> {
        let tables = self.tables();
        let older =
            tables.jobs.iter().rev().skip_while(|(id, _)| before.is_some_and(|before| **id >= before));
        let met = older.filter(|(_, job)| filter.is_met(&job.accepted, &job.status));
        met.take(limit).map(|(_, job)| job.header()).collect()
    }

    pub(super) fn sequence(&self) -> Sequence {
        self.tables().sequence
    }

    pub(super) fn events(&self, after: Sequence, limit: usize) -> Vec<StoredEvent> {
        let tables = self.tables();
        tables
            .events
            .range((Excluded(after), Unbounded))
            .take(limit)
            .map(|(_, event)| StoredEvent::clone(event))
            .collect()
    }

    pub(super) fn cycles(&self, limit: usize) -> Vec<(Timestamp, Arc<RawValue>)> {
        self.tables().cycles.iter().rev().take(limit).map(|(at, report)| (*at, report.clone())).collect()
    }

    pub(super) fn document(&self, collection: Collection, id: &str) -> Option<Arc<Document>> {
        self.tables().documents.get(&(collection, id.to_owned())).cloned()
    }

    pub(super) fn documents(&self, collection: Collection, after: &str, limit: usize) -> Vec<Arc<Document>> {
        let tables = self.tables();
        let behind = tables.documents.range((Excluded((collection, after.to_owned())), Unbounded));
        behind.take_while(|((at, _), _)| *at == collection).take(limit).map(|(_, it)| it.clone()).collect()
    }

    pub(super) fn find_by_index_key(&self, collection: Collection, index_key: &str) -> Vec<Arc<Document>> {
        let tables = self.tables();
        tables
            .documents
            .values()
            .filter(|it| it.collection == collection && it.index_key == index_key)
            .cloned()
            .collect()
    }

    pub(super) fn delete_expired(&self, now: Timestamp, limit: usize) -> usize {
        let mut tables = self.tables();
        let over = tables.documents.iter().filter(|(_, it)| !it.is_live(now)).map(|(key, _)| key.clone());
        let over: Vec<_> = over.take(limit).collect();
        over.iter().for_each(|key| drop(tables.documents.remove(key)));
        over.len()
    }

    pub(super) fn view(&self, view: StatusView) -> Vec<ViewRow> {
        view::rows(&self.tables(), view)
    }

    pub(super) fn bytes_of(&self, tenant: &Tenant) -> u64 {
        self.tables().bytes.get(tenant)
    }

    pub(super) fn delete_ended_before(&self, before: Timestamp, limit: usize) -> usize {
        self.tables().delete_ended_before(before, limit)
    }
}

impl Tables {
    /// An idempotency key belongs to the first job that used it.
    fn check_keys(&self, batch: &RecordBatch) -> Result<(), StoreError> {
        let mut new = BTreeMap::new();
        for record in &batch.records {
            let Record::JobAccepted { job, .. } = record else { continue };
            let Some(key) = &job.key else { continue };
            let scoped = (job.tenant.clone(), key.key.clone());
            let holder = self.keys.get(&scoped).or_else(|| new.get(&scoped)).copied();
            if holder.is_some_and(|holder| holder != job.id) {
                return Err(StoreError::Conflict {
                    what: format!("job {} has the idempotency key of another job", job.id),
                });
            }
            new.insert(scoped, job.id);
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
                    let before = job.bytes();
                    job.result = Some(result);
                    let change = job.bytes() - before;
                    self.bytes.apply(&[(job.accepted.tenant.clone(), change)].into());
                }
            }
            Record::Worker(row) => {
                self.workers.insert(row.id.clone(), *row);
            }
            Record::WorkerForgotten { worker } => {
                self.workers.remove(&worker);
            }
            Record::Block(row) => {
                self.blocks.insert((row.worker.clone(), row.scope.clone()), row);
            }
            Record::BlockLifted { worker, scope } => {
                self.blocks.remove(&(worker, scope));
            }
            Record::Quarantine(row) => {
                self.quarantine.insert(row.jobs.clone(), row);
            }
            Record::QuarantineLifted(jobs) => {
                self.quarantine.remove(&jobs);
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
        let before = self.jobs.remove(&accepted.id);
        let before_bytes = before.as_ref().map_or(0, Job::bytes);
        let result = before.and_then(|job| job.result);
        let (id, tenant) = (accepted.id, accepted.tenant.clone());
        let job = Job { accepted, status, workflow, result };
        self.bytes.apply(&[(tenant, job.bytes() - before_bytes)].into());
        self.jobs.insert(id, job);
    }

    fn delete_ended_before(&mut self, before: Timestamp, limit: usize) -> usize {
        let is_over = |job: &Job| !job.status.state.is_open() && job.status.changed_at < before;
        let jobs: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| is_over(job)).map(|(id, _)| *id).take(limit).collect();
        for id in &jobs {
            let key = self.jobs.remove(id).and_then(|job| {
                self.bytes.apply(&[(job.accepted.tenant.clone(), -job.bytes())].into());
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
    use crate::contract::{StoreFixture, store_contract_tests};

    struct InMemory(Store);

    impl StoreFixture for InMemory {
        async fn open(&self) -> Store {
            self.0.clone()
        }
    }

    fn in_memory() -> InMemory {
        InMemory(Store::Memory(super::MemoryStore::default()))
    }

    store_contract_tests!(in_memory);
}
