//! The SQLite store: one file, one writer thread, several readers.
//!
//! ```text
//!  commit ─┐                          ┌ all waiting batches, merged   ┐
//!  commit ─┼─▶ bounded queue ─▶ writer│ BEGIN IMMEDIATE … COMMIT      │─▶ an answer to each
//!  delete ─┘                          └ fsync of the WAL              ┘
//!  restore, jobs, events … ─▶ a separate connection per reader with its own snapshot; never blocks the writer
//! ```
//!
//! Next to `PATH` are `PATH-wal` and `PATH-shm` (SQLite's), `PATH.lock` (the process that has it open, see `files`),
//! `PATH.proof` (the last acknowledged commit, see `proof`) and `PATH.reserve` (space for completions when the disk is full).

mod benchmark;
mod checkpoint;
mod documents;
mod files;
mod generation;
mod loss;
mod merge;
mod place;
mod proof;
mod read;
mod recover;
mod retention;
mod schema;
mod tenant_bytes;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use remuda_core::id::{Tenant, Term};
use remuda_core::time::Timestamp;
use tokio::sync::{Semaphore, oneshot};

use super::{RecordBatch, StoreError};
pub use benchmark::{measure_inserts, measure_job_cycles};
pub use generation::{Generation, GenerationCause, StoreHistory};
pub use recover::{Recovery, StoreReport, check_store, recover_store};

use crate::loss::CommitMark;
use crate::tenant_bytes::TenantBytes;
use files::{Lock, Reserve};
use place::Place;
use proof::{Proof, StoredProof};
use read::Readers;
use write::{QueuedRequest, Reply, Request, Writer};

/// Requests that may wait for the writer; further callers wait for a permit.
const WAITING_MAX: usize = 1024;
/// No other process writes; this is for an operator with the `sqlite3` shell.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct SqliteStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inbox: mpsc::Sender<QueuedRequest>,
    permits: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Readers,
    reserve: Arc<Reserve>,
    place: Arc<Place>,
    bytes: TenantBytes,
}

impl SqliteStore {
    pub(super) async fn open(path: PathBuf) -> Result<SqliteStore, StoreError> {
        blocking(move || SqliteStore::open_now(path)).await
    }

    fn open_now(path: PathBuf) -> Result<SqliteStore, StoreError> {
        let mut lock = Lock::take(&path)?;
        let mut conn = match schema::open(&path, lock.was_left_open()) {
            Err(StoreError::Full { .. }) => {
                Reserve::delete(&path);
                schema::open(&path, lock.was_left_open())?
            }
            opened => opened?,
        };
        let proof = open_proof(&mut conn, &path)?;
        lock.mark_open().map_err(|error| files::unreachable_error(&path, error))?;
        let reserve = Arc::new(Reserve::create(&path));
        let place = Place::new(&path).map_err(|error| files::unreachable_error(&path, error))?;
        let place = Arc::new(place);
        let (inbox, requests) = mpsc::channel();
        let bytes = tenant_bytes::load(&conn).map_err(|error| schema::classify(&path, error))?;
        let bytes = TenantBytes::new(bytes);
        let writer =
            Writer::new(path.clone(), conn, lock, proof, reserve.clone(), place.clone(), bytes.clone())?;
        let writer = writer.spawn(requests)?;
        Ok(SqliteStore(Arc::new(Shared {
            inbox,
            permits: Arc::new(Semaphore::new(WAITING_MAX)),
            writer: Mutex::new(Some(writer)),
            readers: Readers::new(path, place.clone()),
            reserve,
            place,
            bytes,
        })))
    }

    pub(super) async fn take_leadership(&self) -> Result<Term, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::TakeLeadership { reply }).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    pub(super) async fn enqueue(
        &self,
        term: Term,
        batch: RecordBatch,
        reply: Reply<()>,
    ) -> Result<(), StoreError> {
        self.request(Request::Commit { term, batch, reply }).await
    }

    /// Deletes in steps, each a separate request, so that commits run in between.
    pub(super) async fn delete_ended_before(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let mut deleted = 0;
        while deleted < limit {
            let limit = (limit - deleted).min(retention::STEP_ROWS_MAX);
            let (reply, answer) = oneshot::channel();
            self.request(Request::DeleteEnded { before, limit, reply }).await?;
            let step = answer.await.map_err(|_| StoreError::Closed)??;
            if step == 0 {
                break;
            }
            deleted += step;
        }
        Ok(deleted)
    }

    pub(super) fn bytes_of(&self, tenant: &Tenant) -> u64 {
        self.0.bytes.get(tenant)
    }

    pub(super) fn has_reserve(&self) -> bool {
        self.0.reserve.has_space()
    }

    pub(super) fn is_in_place(&self) -> bool {
        !self.0.place.is_lost()
    }

    pub(super) fn misplaced(&self) -> Option<StoreError> {
        self.0.place.lost()
    }

    pub(super) fn check_place(&self) -> Result<(), StoreError> {
        self.0.place.check()
    }

    pub(super) fn watch(&self, folder: &std::path::Path) -> std::io::Result<()> {
        self.0.place.watch(folder)
    }

    pub(super) async fn close(self) -> Result<(), StoreError> {
        blocking(move || self.0.close()).await;
        Ok(())
    }

    async fn request(&self, request: Request) -> Result<(), StoreError> {
        let permit = self.0.permits.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        self.0.inbox.send(QueuedRequest { request, _permit: Some(permit) }).map_err(|_| StoreError::Closed)
    }
}

impl Shared {
    fn close(&self) {
        self.readers.close();
        // An error means that the writer has already exited.
        self.inbox.send(QueuedRequest { request: Request::Close, _permit: None }).ok();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("store writer panicked; acknowledged commits are on disk");
        }
    }
}

/// Waits for the writer, so that the file is complete and unlocked when it is opened next.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// The proof of a store that passed all checks. A store that has commits and no proof is a copy, made with `.backup`.
fn open_proof(conn: &mut rusqlite::Connection, path: &std::path::Path) -> Result<Proof, StoreError> {
    let is_unproved = StoredProof::read(path).map_err(|error| files::unreachable_error(path, error))?
        == StoredProof::Missing;
    let read = |conn: &mut rusqlite::Connection| -> Result<CommitMark, rusqlite::Error> {
        let mark = CommitMark::read(conn)?;
        if !is_unproved || mark.commit == 0 {
            return Ok(mark);
        }
        let generation = generation::begin(conn, GenerationCause::RestoredCopy, None)?;
        tracing::warn!(
            path = %path.display(), generation = generation.number, kept_until = %generation.kept_until,
            "store is a restored copy; later jobs and events are not in it"
        );
        CommitMark::read(conn)
    };
    let mark = read(conn).map_err(|error| schema::classify(path, error))?;
    Proof::open(path, mark).map_err(|error| files::unreachable_error(path, error))
}

/// Runs blocking work on tokio's blocking threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
