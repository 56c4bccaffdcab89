//! Where the plane keeps what it decided: take the lead, restore, commit batches under a term, read back.
//!
//! ```text
//!  lead ──▶ Term ──▶ restore ──▶ commit(term, batch), commit(term, batch), …
//!                                  │
//!                                  └── Superseded: someone else took the lead; stop and restore
//! ```
//!
//! What every store promises, and `contract` proves of each: a batch is written whole or not at all; it is durable
//! once `commit` returns `Ok`; a term that is lower than the stored one writes nothing. Sequence numbers of events
//! rise from commit to commit: one that was passed already is a repeat and changes nothing.
//!
//! Nothing in here judges a record. The plane is the only writer, and it knows what it is doing.

pub mod blobs;
#[cfg(test)]
mod contract;
mod memory;
mod sqlite;

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
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

pub use sqlite::{measure_inserts, measure_lives};

use memory::Memory;
use sqlite::Sqlite;

/// A handle on a store; clones are the same store. The last one to go closes it, and waits for what was sent.
#[derive(Clone, Debug)]
pub enum Store {
    Memory(Memory),
    Sqlite(Sqlite),
}

/// Records that are written together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub records: Vec<Record>,
}

impl From<Vec<Record>> for Batch {
    fn from(records: Vec<Record>) -> Self {
        Batch { records }
    }
}

/// A batch on its way to the disk; it answers once it is there.
#[derive(Debug)]
#[must_use]
pub struct Written(oneshot::Receiver<Result<(), StoreError>>);

impl Future for Written {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(StoreError::Closed)))
    }
}

/// Which jobs to page through.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub state: Option<JobState>,
    pub tenant: Option<Tenant>,
}

impl Filter {
    fn is_met(&self, job: &AcceptedJob, status: &JobStatus) -> bool {
        self.state.is_none_or(|state| state.as_str() == status.state.name())
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
    }
}

/// A row as a view shows it.
pub type Row = serde_json::Map<String, serde_json::Value>;

impl Store {
    /// Opens `sqlite:PATH` or `memory:`, and makes it where there is nothing yet.
    pub async fn open(url: &str) -> Result<Store, StoreError> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Store::Memory(Memory::default())),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Store::Sqlite(Sqlite::open(path.into()).await?)),
            Some(_) | None => Err(StoreError::BadUrl { url: url.to_owned() }),
        }
    }

    /// Takes the lead: from now on, lower terms are refused.
    pub async fn lead(&self) -> Result<Term, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.lead()),
            Store::Sqlite(store) => store.lead().await,
        }
    }

    /// Everything a plane needs to go on: open jobs in the order of their ids, workers, blocks, quarantine.
    pub async fn restore(&self) -> Result<StoredState, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.restore()),
            Store::Sqlite(store) => store.restore().await,
        }
    }

    /// As `restore`, without the jobs: there may be a million of them, and `open_jobs` gives them page by page.
    pub async fn restore_fleet(&self) -> Result<StoredState, StoreError> {
        match self {
            Store::Memory(store) => Ok(StoredState { jobs: Vec::new(), ..store.restore() }),
            Store::Sqlite(store) => store.restore_fleet().await,
        }
    }

    /// A page of open jobs in the order of their ids, beginning after one.
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

    /// Writes a batch, whole and durably.
    pub async fn commit(&self, term: Term, batch: Batch) -> Result<(), StoreError> {
        self.send(term, batch).await?.await
    }

    /// Hands a batch over to be written behind those handed over before; waits for a place in the queue, not for the
    /// disk. It is written even if nobody waits for the answer. Batches are judged one by one: if this one is
    /// refused, those sent behind it may still be written.
    pub async fn send(&self, term: Term, batch: Batch) -> Result<Written, StoreError> {
        let (reply, answer) = oneshot::channel();
        match self {
            Store::Memory(store) => drop(reply.send(store.commit(term, batch))),
            Store::Sqlite(store) => store.send(term, batch, reply).await?,
        }
        Ok(Written(answer))
    }

    pub async fn workflow(&self, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.workflow(job)),
            Store::Sqlite(store) => store.workflow(job).await,
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

    /// The job a tenant submitted under a key, and the fingerprint of what it asked for.
    pub async fn by_key(&self, tenant: &Tenant, key: &str) -> Result<Option<(JobId, Hash)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.by_key(tenant, key)),
            Store::Sqlite(store) => store.by_key(tenant, key).await,
        }
    }

    /// A page of jobs, newest first; the next page goes on `before` the last id of this one.
    pub async fn jobs(
        &self,
        filter: Filter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<(AcceptedJob, JobStatus)>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.jobs(&filter, before, limit)),
            Store::Sqlite(store) => store.jobs(filter, before, limit).await,
        }
    }

    /// What happened after a place in the one order of events.
    pub async fn events(&self, after: Sequence, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.events(after, limit)),
            Store::Sqlite(store) => store.events(after, limit).await,
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

    /// A page of a shelf in the order of the ids, beginning after one.
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

    /// All with this mark, in the order of their ids, whoever they belong to.
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

    /// Forgets documents whose time is over, at most `limit` of them, and says how many.
    pub async fn expire(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.expire(now, limit)),
            Store::Sqlite(store) => store.expire(now, limit).await,
        }
    }

    pub async fn view(&self, view: View) -> Result<Vec<Row>, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.view(view)),
            Store::Sqlite(store) => store.view(view).await,
        }
    }

    /// Forgets ended jobs, events and cycle reports older than `before`, at most `limit` of them, and says how many.
    /// Commits go in between: it is done in small steps. Open jobs stay whatever their age.
    pub async fn retain(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        match self {
            Store::Memory(store) => Ok(store.retain(before, limit)),
            Store::Sqlite(store) => store.retain(before, limit).await,
        }
    }

    /// Whether there is room set aside for the ends of jobs already accepted. Without it, batches that accept a job
    /// are answered with `Full`; it comes back by itself when space does.
    pub fn has_reserve(&self) -> bool {
        match self {
            Store::Memory(_) => true,
            Store::Sqlite(store) => store.has_reserve(),
        }
    }

    /// Writes what was sent, then lets go of the store, whoever else holds a handle.
    pub async fn close(self) -> Result<(), StoreError> {
        match self {
            Store::Memory(_) => Ok(()),
            Store::Sqlite(store) => store.close().await,
        }
    }
}

/// The cause of an error that several callers share: one transaction carries many batches.
pub type Source = Arc<dyn Error + Send + Sync>;

/// Why a store did not do it, sorted by what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop, and restore if asked to lead again.
    #[error("term {ours} is over: someone else leads in term {theirs}")]
    Superseded { ours: Term, theirs: Term },

    /// Nothing was written; worth trying again soon.
    #[error("the store is busy")]
    Busy(#[source] Source),

    /// It cannot be got at; worth trying again once that is put right.
    #[error("{} cannot be opened", path.display())]
    Unreachable {
        path: PathBuf,
        #[source]
        source: Source,
    },

    /// Nothing was written; accept no more until `has_reserve`.
    #[error("no space left for {}: free some, and it goes on by itself", path.display())]
    Full { path: PathBuf },

    /// It may or may not be written, and this handle will not say: stop, and open it again.
    #[error("{} can no longer be written to; what it holds must be read afresh from disk", path.display())]
    Broken {
        path: PathBuf,
        #[source]
        source: Source,
    },

    /// Nothing was written, and it never will be: it contradicts what is stored.
    #[error("the batch contradicts what is stored: {what}")]
    Conflict { what: String },

    /// A person has to look.
    #[error(
        "{} cannot be read as a Remuda store: {what}. Nothing was changed. Put back a copy of it (all of PATH, \
         PATH-wal and PATH.lock, or a single file made with sqlite3's .backup and neither of the others), or move it \
         away to start empty",
        path.display()
    )]
    Unreadable { path: PathBuf, what: String },

    /// Another process has it open.
    #[error("{} is in use by process {}: stop that one first", path.display(), pid.map_or("?".to_owned(), |pid| pid.to_string()))]
    InUse { path: PathBuf, pid: Option<u32> },

    /// A newer Remuda wrote it.
    #[error("{} has schema {theirs}, and this Remuda knows up to {ours}: use the newer Remuda", path.display())]
    NewerSchema { path: PathBuf, ours: u32, theirs: u32 },

    #[error("{url:?} names no store: expected sqlite:PATH or memory:")]
    BadUrl { url: String },

    /// What was sent last may or may not be written: opening it again tells.
    #[error("the store was closed")]
    Closed,
}

/// The states of a job as a filter names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Queued,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl JobState {
    pub const ALL: [JobState; 5] =
        [JobState::Queued, JobState::Running, JobState::Completed, JobState::Failed, JobState::Cancelled];

    pub fn as_str(self) -> &'static str {
        StateRow::NAMES[self as usize]
    }
}

/// What people look at to see how the fleet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// One row: queue depth, workers by state, signs of trouble.
    OrchestratorStatus,
    /// A row for each worker that has not ended: presence, running attempts, memory of its GPU.
    ActiveWorkersHealth,
    /// A row for each worker there ever was: success rate, processing time, uptime.
    WorkerPerformance,
}

impl View {
    pub const ALL: [View; 3] = [View::OrchestratorStatus, View::ActiveWorkersHealth, View::WorkerPerformance];

    pub fn as_str(self) -> &'static str {
        match self {
            View::OrchestratorStatus => "orchestrator_status",
            View::ActiveWorkersHealth => "active_workers_health",
            View::WorkerPerformance => "worker_performance",
        }
    }
}

/// A word that is not one of a few.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a {what}: expected one of {expected}")]
pub struct BadWord {
    pub what: &'static str,
    pub word: String,
    pub expected: String,
}

macro_rules! words {
    ($type:ident, $what:literal) => {
        impl FromStr for $type {
            type Err = BadWord;

            fn from_str(word: &str) -> Result<Self, BadWord> {
                $type::ALL.into_iter().find(|it| it.as_str() == word).ok_or_else(|| BadWord {
                    what: $what,
                    word: word.chars().take(64).collect(),
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

words!(JobState, "job state");
words!(View, "view");
