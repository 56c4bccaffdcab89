//! Merges all batches of a transaction: of several records about the same object only the last is written, and a job that is
//! accepted and changed in one transaction is written once.

use std::collections::{BTreeMap, HashMap};

use remuda_core::document::{Collection, Document};
use remuda_core::id::{JobId, WorkerId};
use remuda_core::record::{AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StoredEvent, WorkerRow};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;

#[derive(Debug, Default)]
pub(super) struct MergedRecords<'a> {
    /// In the order of their first record, which for new jobs is the order of their ids.
    pub jobs: Vec<(JobId, Job<'a>)>,
    index: HashMap<JobId, usize>,
    pub results: Vec<(JobId, &'a RawValue)>,
    pub workers: BTreeMap<&'a WorkerId, Option<&'a WorkerRow>>,
    /// `None` if the block was lifted.
    pub blocks: BTreeMap<(&'a WorkerId, &'a BlockScope), Option<&'a BlockRow>>,
    pub quarantine: BTreeMap<&'a TenantShape, Option<&'a QuarantineRow>>,
    pub events: Vec<&'a StoredEvent>,
    pub cycles: BTreeMap<Timestamp, &'a RawValue>,
    /// `None` if the document was deleted.
    pub documents: BTreeMap<(Collection, &'a str), Option<&'a Document>>,
    pub latest: Timestamp,
}

#[derive(Debug)]
pub(super) enum Job<'a> {
    New { accepted: &'a AcceptedJob, status: &'a JobStatus, workflow: &'a RawValue },
    Changed(&'a JobStatus),
}

impl<'a> MergedRecords<'a> {
    pub(super) fn add(&mut self, records: &'a [Record]) {
        for record in records {
            self.latest = self.latest.max(record.moment());
            match record {
                Record::JobAccepted { job, status, workflow } => {
                    self.add_job(job.id, Job::New { accepted: job, status, workflow });
                }
                Record::JobStatus { job, status } => self.add_job(*job, Job::Changed(status)),
                Record::Result { job, result } => self.results.push((*job, result)),
                Record::Worker(row) => drop(self.workers.insert(&row.id, Some(row.as_ref()))),
                Record::WorkerForgotten { worker } => drop(self.workers.insert(worker, None)),
                Record::Block(row) => drop(self.blocks.insert((&row.worker, &row.scope), Some(row))),
                Record::BlockLifted { worker, scope } => drop(self.blocks.insert((worker, scope), None)),
                Record::Quarantine(row) => drop(self.quarantine.insert(&row.jobs, Some(row))),
                Record::QuarantineLifted(jobs) => drop(self.quarantine.insert(jobs, None)),
                Record::Event(event) => self.events.push(event),
                Record::Cycle { at, report } => drop(self.cycles.insert(*at, report)),
                Record::Document(it) => drop(self.documents.insert((it.collection, &it.id), Some(it))),
                Record::DocumentDeleted { collection, id } => {
                    self.documents.insert((*collection, id), None);
                }
            }
        }
    }

    fn add_job(&mut self, id: JobId, job: Job<'a>) {
        let at = *self.index.entry(id).or_insert(self.jobs.len());
        match (self.jobs.get_mut(at), job) {
            (None, job) => self.jobs.push((id, job)),
            (Some((_, Job::New { status, .. })), Job::Changed(newer)) => *status = newer,
            (Some((_, before)), job) => *before = job,
        }
    }
}
