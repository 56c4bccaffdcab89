//! A store in twenty lines: what was committed, and the promises every store relies on.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Plane;
use crate::document::{Collection, Document};
use crate::id::{JobId, Sequence, WorkerId};
use crate::record::{
    AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StateRow, StoredEvent, StoredState, WorkerRow,
};
use crate::scope::{BlockScope, TenantShape};
use crate::time::Timestamp;

#[derive(Clone, Default)]
pub(crate) struct Kept {
    pub(super) jobs: BTreeMap<JobId, (AcceptedJob, JobStatus)>,
    pub(super) results: BTreeMap<JobId, Arc<RawValue>>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerRow>,
    pub(super) blocks: BTreeMap<(WorkerId, BlockScope), BlockRow>,
    pub(super) quarantine: BTreeMap<TenantShape, QuarantineRow>,
    pub(super) events: Vec<Arc<StoredEvent>>,
    pub(super) reports: Vec<Arc<RawValue>>,
    pub(super) documents: BTreeMap<(Collection, String), Arc<Document>>,
}

impl Kept {
    pub(super) fn commit(&mut self, records: Vec<Record>) {
        for record in records {
            match record {
                Record::JobAccepted { job, status, .. } => {
                    let before = self.jobs.insert(job.id, ((*job).clone(), status));
                    assert!(before.is_none(), "job {} was accepted twice", job.id);
                }
                Record::JobStatus { job, status } => self.go_on(job, status),
                Record::Result { job, result } => {
                    assert!(self.results.insert(job, result).is_none(), "job {job} has two results");
                }
                Record::Worker(row) => drop(self.workers.insert(row.id.clone(), *row)),
                Record::WorkerForgotten { worker } => drop(self.workers.remove(&worker)),
                Record::Block(row) => drop(self.blocks.insert((row.worker.clone(), row.scope.clone()), row)),
                Record::BlockLifted { worker, scope } => drop(self.blocks.remove(&(worker, scope))),
                Record::Quarantine(row) => drop(self.quarantine.insert(row.jobs.clone(), row)),
                Record::QuarantineLifted(jobs) => drop(self.quarantine.remove(&jobs)),
                Record::Event(happened) => {
                    let expected = self.events.last().map_or(Sequence(1), |last| last.seq.next());
                    assert_eq!(happened.seq, expected, "no gap in the order of events");
                    let is_later = self.events.last().is_none_or(|last| last.at <= happened.at);
                    assert!(is_later, "time went back: {happened:?}");
                    self.events.push(happened);
                }
                Record::Cycle { report, .. } => self.reports.push(report),
                Record::Document(it) => drop(self.documents.insert((it.collection, it.id.clone()), it)),
                Record::DocumentDeleted { collection, id } => drop(self.documents.remove(&(collection, id))),
            }
        }
    }

    fn go_on(&mut self, job: JobId, status: JobStatus) {
        let (_, before) = self.jobs.get_mut(&job).expect("a status follows an acceptance");
        assert!(before.state.is_open(), "the outcome of job {job} changed");
        assert!(status.attempt >= before.attempt, "the attempts of job {job} went down");
        *before = status;
    }

    /// Everything the plane believes about jobs, blocks and shapes is what a plane after it would read.
    pub(super) fn agrees_with(&self, plane: &Plane) -> Result<(), String> {
        let open = self.jobs.values().filter(|(_, status)| status.state.is_open()).count();
        if open != plane.open_jobs() {
            return Err(format!("{open} open jobs are committed, {} are believed", plane.open_jobs()));
        }
        for job in plane.jobs() {
            let committed = &self.jobs[&job.id].1;
            let believed = JobStatus { changed_at: committed.changed_at, ..job.status(Timestamp::ZERO) };
            if *committed != believed {
                return Err(format!("job {} is committed as {committed:?}, not {believed:?}", job.id));
            }
        }
        let blocks = plane.blocks().iter().map(|(worker, scope, block)| block.row(worker, scope));
        if !blocks.eq(self.blocks.values().cloned()) {
            return Err("the committed blocks are not the believed ones".to_owned());
        }
        let quarantine = plane.quarantine().iter().map(|(jobs, entry)| entry.row(&jobs));
        if !quarantine.eq(self.quarantine.values().cloned()) {
            return Err("the committed quarantine are not the believed ones".to_owned());
        }
        Ok(())
    }

    /// As a store would give it back: through JSON.
    pub(super) fn stored(&self) -> StoredState {
        let open = self.jobs.values().filter(|(_, status)| status.state.is_open());
        StoredState {
            jobs: open.map(read_back).collect(),
            workers: self.workers.values().map(read_back).collect(),
            blocks: self.blocks.values().map(read_back).collect(),
            quarantine: self.quarantine.values().map(read_back).collect(),
            documents: self.documents.values().filter(|it| it.collection.is_plane_state()).cloned().collect(),
            sequence: self.events.last().map_or(Sequence(0), |last| last.seq),
            latest: self.events.last().map_or(Timestamp::ZERO, |last| last.at),
            newest_job: self.jobs.keys().last().copied(),
        }
    }

    pub(super) fn state(&self, job: JobId) -> String {
        let status = &self.jobs[&job].1;
        match &status.state {
            StateRow::Queued { .. } => "queued".to_owned(),
            StateRow::Running { worker, .. } => format!("running on {worker}, attempt {}", status.attempt),
            StateRow::Completed { worker } => format!("completed by {worker}"),
            StateRow::Failed { message, was_stopped: true, .. } => format!("stopped: {message}"),
            StateRow::Failed { message, was_stopped: false, .. } => format!("failed: {message}"),
            StateRow::Expired { .. } => {
                let (_, message) = status.state.failure().expect("it has expired");
                format!("expired: {message}")
            }
            StateRow::Cancelled { message } => format!("cancelled: {message}"),
        }
    }

    pub(super) fn on(&self, collection: Collection) -> impl Iterator<Item = &Arc<Document>> {
        self.documents.values().filter(move |it| it.collection == collection)
    }

    pub(super) fn status(&self, job: JobId) -> &JobStatus {
        &self.jobs[&job].1
    }
}

fn read_back<T: Serialize + DeserializeOwned>(row: &T) -> T {
    serde_json::from_str(&serde_json::to_string(row).unwrap()).unwrap()
}
