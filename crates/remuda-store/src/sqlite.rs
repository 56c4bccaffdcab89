//! One file, one writer thread, many readers.
//!
//! ```text
//!  commit ─┐                          ┌ everything that waits, merged ┐
//!  commit ─┼─▶ bounded queue ─▶ writer│ BEGIN IMMEDIATE … COMMIT      │─▶ an answer to each
//!  retain ─┘                          └ fsync of the write-ahead log  ┘
//!  restore, jobs, events … ─▶ a reader's own connection, a snapshot of its own, never in the writer's way
//! ```
//!
//! Beside `PATH` lie `PATH-wal` and `PATH-shm` (SQLite's), `PATH.lock` (who has it open, see `files`) and
//! `PATH.reserve` (room for completions when the disk is full).

mod checkpoint;
mod documents;
mod files;
mod limit;
mod merge;
mod read;
mod retention;
mod schema;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use remuda_core::id::Term;
use remuda_core::time::Timestamp;
use tokio::sync::{Semaphore, oneshot};

use super::{Batch, StoreError};
pub use limit::{measure_inserts, measure_lives};

use files::{Lock, Reserve};
use read::Readers;
use write::{Reply, Request, Sent, Writer};

/// Batches that may wait for the writer; who comes after waits to be let in.
const WAITING_MAX: usize = 1024;
/// Nobody else writes; this is for a person with the `sqlite3` shell, who gets out of the way soon.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Sqlite(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inbox: mpsc::Sender<Sent>,
    places: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Readers,
    reserve: Arc<Reserve>,
}

impl Sqlite {
    pub(super) async fn open(path: PathBuf) -> Result<Sqlite, StoreError> {
        blocking(move || Sqlite::open_now(path)).await
    }

    fn open_now(path: PathBuf) -> Result<Sqlite, StoreError> {
        let mut lock = Lock::take(&path)?;
        let conn = match schema::open(&path, lock.was_left_open()) {
            Err(StoreError::Full { .. }) => {
                Reserve::give_up(&path);
                schema::open(&path, lock.was_left_open())?
            }
            opened => opened?,
        };
        lock.mark_open().map_err(|error| files::unreachable(&path, error))?;
        let reserve = Arc::new(Reserve::set_aside(&path));
        let (inbox, requests) = mpsc::channel();
        let writer = Writer::new(path.clone(), conn, lock, reserve.clone())?.spawn(requests)?;
        Ok(Sqlite(Arc::new(Shared {
            inbox,
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            writer: Mutex::new(Some(writer)),
            readers: Readers::new(path),
            reserve,
        })))
    }

    pub(super) async fn lead(&self) -> Result<Term, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Lead { reply }).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    pub(super) async fn send(&self, term: Term, batch: Batch, reply: Reply<()>) -> Result<(), StoreError> {
        self.ask(Request::Commit { term, batch, reply }).await
    }

    /// In steps, each a request of its own, so that commits go in between.
    pub(super) async fn retain(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        while forgotten < limit {
            let limit = (limit - forgotten).min(retention::STEP_ROWS_MAX);
            let (reply, answer) = oneshot::channel();
            self.ask(Request::Retain { before, limit, reply }).await?;
            let step = answer.await.map_err(|_| StoreError::Closed)??;
            if step == 0 {
                break;
            }
            forgotten += step;
        }
        Ok(forgotten)
    }

    pub(super) fn has_reserve(&self) -> bool {
        self.0.reserve.is_there()
    }

    pub(super) async fn close(self) -> Result<(), StoreError> {
        blocking(move || self.0.close()).await;
        Ok(())
    }

    async fn ask(&self, request: Request) -> Result<(), StoreError> {
        let place = self.0.places.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        self.0.inbox.send(Sent { request, _place: Some(place) }).map_err(|_| StoreError::Closed)
    }
}

impl Shared {
    fn close(&self) {
        self.readers.close();
        // An error only says that the writer has gone already.
        self.inbox.send(Sent { request: Request::Close, _place: None }).ok();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the store's writer panicked; what it acknowledged is on disk");
        }
    }
}

/// Waits for the writer, so that whoever opens the file next finds it whole and unlocked.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs what waits for a disk where waiting holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
