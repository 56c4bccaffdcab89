//! The plane's store: take the leadership, restore the state, commit batches of records under a term, and read them back.
//!
//! ```text
//!  take_leadership ──▶ Term ──▶ restore ──▶ commit(term, batch), commit(term, batch), …
//!                                             │
//!                                             └── Superseded: another plane leads; stop and restore
//! ```
//!
//! Guarantees of every store, tested by `contract`: a batch is written completely or not at all; it is durable once
//! `commit` returns `Ok`; a term below the stored one writes nothing. Sequence numbers of events rise from commit to commit;
//! an event with a sequence number that is already stored is a repetition and changes nothing.
//!
//! The store does not check the meaning of records. The plane is the only writer and is responsible for it.

pub mod blobs;
#[cfg(test)]
mod contract;
mod loss;
mod memory;
mod sqlite;
mod store_error;
mod tenant_bytes;

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, JobId, Sequence, Tenant, Term};
use remuda_core::record::{AcceptedJob, JobStatus, Record, StateRow, StoredEvent, StoredState};
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

pub use loss::{CommitMark, StoreLoss};
pub use sqlite::{
    Generation, GenerationCause, Recovery, StoreHistory, StoreReport, check_store, measure_inserts,
    measure_job_cycles, recover_store,
};

pub use store_error::{SharedError, StoreError};

use memory::MemoryStore;
use sqlite::SqliteStore;

/// A handle to a store; clones share it. Dropping the last one closes the store after writing all enqueued batches.
#[derive(Clone, Debug)]
pub enum Store {
    Memory(MemoryStore),
    Sqlite(SqliteStore),
}

/// Records that are written in one transaction.
#[derive(Clone, Debug, Default)]
pub struct RecordBatch {
    pub records: Vec<Record>,
}

impl From<Vec<Record>> for RecordBatch {
    fn from(records: Vec<Record>) -> Self {
        RecordBatch { records }
    }
}

/// An enqueued batch; resolves once it is durable or has failed.
#[derive(Debug)]
#[must_use]
pub struct PendingCommit(oneshot::Receiver<Result<(), StoreError>>);

impl Future for PendingCommit {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(StoreError::Closed)))
    }
}

/// Selects jobs for a page.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub state: Option<JobStateFilter>,
    pub tenant: Option<Tenant>,
}

impl JobFilter {
    fn is_met(&self, job: &AcceptedJob, status: &JobStatus) -> bool {
        self.state.is_none_or(|state| state.as_str() == status.state.name())
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
    }
}

/// A row of a status view, by column.
pub type ViewRow = serde_json::Map<String, serde_json::Value>;

impl Store {
    /// Opens `sqlite:PATH` or `memory:`, and creates the store if it does not exist.
    pub async fn open(url: &str) -> Result<Store, StoreError> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Store::Memory(MemoryStore::default())),
            Some(("sqlite", path)) if !path.is_empty() => {
                Ok(Store::Sqlite(SqliteStore::open(path.into()).await?))
            }
            Some(_) | None => Err(StoreError::BadUrl { url: url.to_owned() }),
        }
    }

    /// Starts a new term: from now on commits under lower terms are refused.
    pub async fn take_leadership(&self) -> Result<Term, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.take_leadership()),
            Store::Sqlite(store) => store.take_leadership().await,
        }
    }

    /// The state that a plane starts with: open jobs in the order of their ids, workers, blocks, quarantine, documents.
    pub async fn restore(&self) -> Result<StoredState, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.restore()),
            Store::Sqlite(store) => store.restore().await,
        }
    }

    /// As `restore`, without the jobs: there may be a million of them, and `open_jobs` returns them in pages.
    pub async fn restore_fleet(&self) -> Result<StoredState, StoreError> {
        match self {
            Store::Memory(store) => Ok(StoredState { jobs: Vec::new(), ..store.restore() }),
            Store::Sqlite(store) => store.restore_fleet().await,
        }
    }

    /// A page of open jobs in the order of their ids, starting after `after`.
    pub async fn open_jobs(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<(AcceptedJob, JobStatus)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.open_jobs(after, limit)),
            Store::Sqlite(store) => store.open_jobs(after, limit).await,
        }
    }

    /// Writes a batch and waits until it is durable.
    pub async fn commit(&self, term: Term, batch: RecordBatch) -> Result<(), StoreError> {
        self.enqueue(term, batch).await?.await
    }

    /// Enqueues a batch behind earlier ones; waits for space in the queue, not for the disk. The batch is written even if the
    /// returned future is dropped. Batches are independent: if this one is refused, later ones may still be written.
    pub async fn enqueue(&self, term: Term, batch: RecordBatch) -> Result<PendingCommit, StoreError> {
        let (reply, answer) = oneshot::channel();
        match self {
            Store::Memory(store) => drop(reply.send(store.commit(term, batch))),
            Store::Sqlite(store) => store.enqueue(term, batch, reply).await?,
        }
        Ok(PendingCommit(answer))
    }

    pub async fn workflow(&self, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.workflow(job)),
            Store::Sqlite(store) => store.workflow(job).await,
        }
    }

    /// The workflows of this job and of those accepted after it, in the order of their ids; at least one if there is one, then
    /// as many as both limits allow.
    pub async fn workflows_from(
        &self,
        job: JobId,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<(JobId, Arc<RawValue>)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.workflows_from(job, limit, bytes_max)),
            Store::Sqlite(store) => store.workflows_from(job, limit, bytes_max).await,
        }
    }

    pub async fn result(&self, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.result(job)),
            Store::Sqlite(store) => store.result(job).await,
        }
    }

    pub async fn job(&self, job: JobId) -> Result<Option<(AcceptedJob, JobStatus)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.job(job)),
            Store::Sqlite(store) => store.job(job).await,
        }
    }

    /// The job that a tenant submitted under an idempotency key, and the fingerprint of its request.
    pub async fn job_by_key(&self, tenant: &Tenant, key: &str) -> Result<Option<(JobId, Hash)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.job_by_key(tenant, key)),
            Store::Sqlite(store) => store.job_by_key(tenant, key).await,
        }
    }

    /// A page of jobs, newest first; for the next page pass the last id as `before`.
    pub async fn jobs(
        &self,
        filter: JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<(AcceptedJob, JobStatus)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.jobs(&filter, before, limit)),
            Store::Sqlite(store) => store.jobs(filter, before, limit).await,
        }
    }

    /// Events after a sequence number.
    pub async fn events(&self, after: Sequence, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.events(after, limit)),
            Store::Sqlite(store) => store.events(after, limit).await,
        }
    }

    /// The newest event's number, and where generations began: readers of events are told what was lost there.
    pub async fn history(&self) -> Result<StoreHistory, StoreError> {
        match self {
            Store::Memory(store) => Ok(StoreHistory { sequence: store.sequence(), generations: Vec::new() }),
            Store::Sqlite(store) => store.history().await,
        }
    }

    /// The newest cycle reports, newest first.
    pub async fn cycles(&self, limit: usize) -> Result<Vec<(Timestamp, Arc<RawValue>)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.cycles(limit)),
            Store::Sqlite(store) => store.cycles(limit).await,
        }
    }

    pub async fn document(
        &self,
        collection: Collection,
        id: &str,
    ) -> Result<Option<Arc<Document>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.document(collection, id)),
            Store::Sqlite(store) => store.document(collection, id).await,
        }
    }

    /// A page of a collection in the order of the ids, starting after `after`.
    pub async fn documents(
        &self,
        collection: Collection,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Arc<Document>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.documents(collection, after, limit)),
            Store::Sqlite(store) => store.documents(collection, after, limit).await,
        }
    }

    /// All documents with this index key, of all tenants, in the order of their ids.
    pub async fn find_by_index_key(
        &self,
        collection: Collection,
        index_key: &str,
    ) -> Result<Vec<Arc<Document>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.find_by_index_key(collection, index_key)),
            Store::Sqlite(store) => store.find_by_index_key(collection, index_key).await,
        }
    }

    /// Deletes up to `limit` expired documents and returns their number.
    pub async fn delete_expired(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.delete_expired(now, limit)),
            Store::Sqlite(store) => store.delete_expired(now, limit).await,
        }
    }

    pub async fn view(&self, view: StatusView) -> Result<Vec<ViewRow>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.view(view)),
            Store::Sqlite(store) => store.view(view).await,
        }
    }

    /// Deletes up to `limit` ended jobs, events and cycle reports older than `before` and returns their number. It works in
    /// small steps, so that commits run in between. Open jobs are never deleted.
    pub async fn delete_ended_before(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.delete_ended_before(before, limit)),
            Store::Sqlite(store) => store.delete_ended_before(before, limit).await,
        }
    }

    /// Bytes of the workflows and results that are stored for a tenant.
    pub fn bytes_of(&self, tenant: &Tenant) -> u64 {
        match self {
            Store::Memory(store) => store.bytes_of(tenant),
            Store::Sqlite(store) => store.bytes_of(tenant),
        }
    }

    /// Whether disk space is reserved for the completion of accepted jobs. Without the reserve, batches that accept a job fail
    /// with `Full`. The store recreates the reserve as soon as there is space.
    pub fn has_reserve(&self) -> bool {
        match self {
            Store::Memory(_) => true,
            Store::Sqlite(store) => store.has_reserve(),
        }
    }

    /// Whether the store's files were where they belong when that was last checked. If not, nothing is acknowledged.
    pub fn is_in_place(&self) -> bool {
        match self {
            Store::Memory(_) => true,
            Store::Sqlite(store) => store.is_in_place(),
        }
    }

    /// Why it is not in its place, as far as that was noticed.
    pub fn misplaced(&self) -> Option<StoreError> {
        match self {
            Store::Memory(_) => None,
            Store::Sqlite(store) => store.misplaced(),
        }
    }

    /// Checks whether the store's files, and the folders given to `watch`, are still those that were opened.
    pub fn check_place(&self) -> Result<(), StoreError> {
        match self {
            Store::Memory(_) => Ok(()),
            Store::Sqlite(store) => store.check_place(),
        }
    }

    /// Counts a folder as part of the store: if it is replaced, the store is not in its place.
    pub fn watch(&self, folder: &Path) -> std::io::Result<()> {
        match self {
            Store::Memory(_) => Ok(()),
            Store::Sqlite(store) => store.watch(folder),
        }
    }

    /// Writes all enqueued batches and closes the store, even if other handles exist.
    pub async fn close(self) -> Result<(), StoreError> {
        match self {
            Store::Memory(_) => Ok(()),
            Store::Sqlite(store) => store.close().await,
        }
    }
}

/// A job state as a filter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStateFilter {
    Queued,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl JobStateFilter {
    pub const ALL: [JobStateFilter; 5] = [
        JobStateFilter::Queued,
        JobStateFilter::Running,
        JobStateFilter::Completed,
        JobStateFilter::Failed,
        JobStateFilter::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        StateRow::NAMES[self as usize]
    }
}

/// Views that summarize the fleet; the names come from the predecessor programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusView {
    /// One row: queue depth, workers by state, stale workers.
    OrchestratorStatus,
    /// A row per active worker: presence, running attempts, GPU memory.
    ActiveWorkersHealth,
    /// A row per stored worker: success rate, processing time, uptime.
    WorkerPerformance,
}

impl StatusView {
    pub const ALL: [StatusView; 3] =
        [StatusView::OrchestratorStatus, StatusView::ActiveWorkersHealth, StatusView::WorkerPerformance];

    pub fn as_str(self) -> &'static str {
        match self {
            StatusView::OrchestratorStatus => "orchestrator_status",
            StatusView::ActiveWorkersHealth => "active_workers_health",
            StatusView::WorkerPerformance => "worker_performance",
        }
    }
}

/// A name that is not one of a fixed set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a {what}: expected one of {expected}")]
pub struct UnknownName {
    pub what: &'static str,
    pub name: String,
    pub expected: String,
}

macro_rules! names {
    ($type:ident, $what:literal) => {
        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                $type::ALL.into_iter().find(|it| it.as_str() == name).ok_or_else(|| UnknownName {
                    what: $what,
                    name: name.chars().take(64).collect(),
                    expected: $type::ALL.map($type::as_str).join(", "),
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names!(JobStateFilter, "job state");
names!(StatusView, "view");
