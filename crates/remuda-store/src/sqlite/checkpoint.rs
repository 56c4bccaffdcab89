//! Checkpoints of the write-ahead log (WAL) into the database file, so that the WAL is bounded and commits are not delayed.
//!
//! ```text
//!  WAL ≥ 8 MiB ───▶ a helper thread checkpoints it while commits continue
//!                     └─▶ the writer checkpoints the rest, and the WAL restarts from its beginning
//!  WAL ≥ 256 MiB ─▶ the writer checkpoints all of it and waits for readers: writes are too fast or a reader is too slow
//! ```
//!
//! The WAL restarts only when all of it is in the database file, which the helper alone never achieves while the writer
//! commits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, Error};

use super::files::unreachable_error;
use super::schema::{self, PAGE_BYTES};
use crate::StoreError;

/// Long enough that frequently written pages are copied seldom; short enough that the WAL fits into the reserve on a full
/// disk.
pub(super) const LOG_BYTES: i32 = 8 << 20;
const LOG_PAGES: i32 = LOG_BYTES / PAGE_BYTES;
const LOG_PAGES_MAX: i32 = 32 * LOG_PAGES;

#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicI32>,
    helper: Option<Helper>,
}

#[derive(Debug)]
struct Helper {
    requests: Sender<()>,
    done: Receiver<Result<(), Error>>,
    is_busy: bool,
    thread: JoinHandle<()>,
}

impl Checkpoints {
    pub(super) fn new(conn: &mut Connection, path: &Path) -> Result<Checkpoints, StoreError> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        let count = move |_: &mut rusqlite::hooks::Wal, pages: i32| -> Result<(), Error> {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(count)).map_err(|error| schema::classify(path, error))?;
        Ok(Checkpoints { pages, helper: Some(Helper::start(path)?) })
    }

    pub(super) fn after_write(&mut self, conn: &Connection) -> Result<(), Error> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages >= LOG_PAGES_MAX {
            checkpoint(conn, "RESTART")?;
            self.pages.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let Some(helper) = &mut self.helper else { return Ok(()) };
        match helper.done.try_recv() {
            Ok(done) => {
                helper.is_busy = false;
                done?;
                self.now(conn)
            }
            Err(TryRecvError::Empty) if pages >= LOG_PAGES && !helper.is_busy => {
                helper.is_busy = helper.requests.send(()).is_ok();
                Ok(())
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Ok(()),
        }
    }

    /// Checkpoints the rest, which is little after the helper.
    pub(super) fn now(&mut self, conn: &Connection) -> Result<(), Error> {
        checkpoint(conn, "PASSIVE").map(drop)
    }

    /// Checkpoints and truncates the WAL; whether all of it is in the database file.
    pub(super) fn finish(&mut self, conn: &Connection) -> Result<bool, Error> {
        self.stop();
        checkpoint(conn, "TRUNCATE")
    }

    fn stop(&mut self) {
        if let Some(Helper { requests, thread, .. }) = self.helper.take() {
            drop(requests);
            // A panic of the helper is logged like any other, and the WAL stays intact.
            thread.join().ok();
        }
    }
}

/// The helper must have stopped before the file is closed.
impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Helper {
    fn start(path: &Path) -> Result<Helper, StoreError> {
        let (requests, incoming) = mpsc::channel();
        let (finished, done) = mpsc::channel();
        let conn = schema::open_helper(path)?;
        let help = move || {
            for () in incoming {
                if finished.send(checkpoint(&conn, "PASSIVE").map(drop)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("store-helper".to_owned()).spawn(help);
        let thread = thread.map_err(|error| unreachable_error(path, error))?;
        Ok(Helper { requests, done, is_busy: false, thread })
    }
}

/// Whether the checkpoint was complete; a reader may still need some pages of the WAL.
pub(super) fn checkpoint(conn: &Connection, mode: &str) -> Result<bool, Error> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| row.get::<_, i32>(0))
        .map(|busy| busy == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_wal_is_checkpointed_and_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remuda.db");
        let mut conn = schema::open(&path, false).unwrap();
        let mut checkpoints = Checkpoints::new(&mut conn, &path).unwrap();
        let write = |bytes: i32| {
            conn.execute("INSERT OR REPLACE INTO cycles VALUES (1, CAST(zeroblob(?1) AS TEXT))", [bytes])
                .unwrap();
        };
        write(2 * LOG_BYTES);
        assert!(checkpoints.pages.load(Ordering::Relaxed) >= LOG_PAGES);
        // However long the helper takes, the WAL restarts before it reaches its limit.
        while checkpoints.pages.load(Ordering::Relaxed) >= LOG_PAGES {
            checkpoints.after_write(&conn).unwrap();
            write(1);
        }
        assert!(checkpoints.finish(&conn).unwrap());
        assert_eq!(std::fs::metadata(folder.path().join("remuda.db-wal")).unwrap().len(), 0);
    }
}
