//! Carrying the write-ahead log home into the file, so that it neither grows without bound nor holds up a commit.
//!
//! ```text
//!  log ≥ 8 MiB ───▶ a helper carries it home while commits go on
//!                     └─▶ the writer carries what came in meanwhile, and the log begins anew
//!  log ≥ 256 MiB ─▶ the writer does it itself and waits for readers: it is too fast, or one of them too slow
//! ```
//!
//! The log can only begin anew when all of it is home, which a helper alone never sees while the writer writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, Error};

use super::files::unreachable;
use super::schema::{self, PAGE_BYTES};
use crate::StoreError;

/// Long enough that pages written often are carried home seldom; short, because on a full disk what is not home yet
/// must fit into the reserve.
pub(super) const LOG_BYTES: i32 = 8 << 20;
const LOG_PAGES: i32 = LOG_BYTES / PAGE_BYTES;
const LOG_PAGES_MAX: i32 = 32 * LOG_PAGES;

#[derive(Debug)]
pub(super) struct Checkpoints {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicI32>,
    helper: Option<Helper>,
}

#[derive(Debug)]
struct Helper {
    asked: Sender<()>,
    done: Receiver<Result<(), Error>>,
    is_busy: bool,
    thread: JoinHandle<()>,
}

impl Checkpoints {
    pub(super) fn of(conn: &mut Connection, path: &Path) -> Result<Checkpoints, StoreError> {
        let pages = Arc::new(AtomicI32::new(0));
        let noted = pages.clone();
        let note = move |_: &mut rusqlite::hooks::Wal, pages: i32| -> Result<(), Error> {
            noted.store(pages, Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(note)).map_err(|error| schema::sort(path, error))?;
        Ok(Checkpoints { pages, helper: Some(Helper::start(path)?) })
    }

    pub(super) fn after_write(&mut self, conn: &Connection) -> Result<(), Error> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages >= LOG_PAGES_MAX {
            carry(conn, "RESTART")?;
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
                helper.is_busy = helper.asked.send(()).is_ok();
                Ok(())
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Ok(()),
        }
    }

    /// What is left, which is little if the helper was there before.
    pub(super) fn now(&mut self, conn: &Connection) -> Result<(), Error> {
        carry(conn, "PASSIVE").map(drop)
    }

    /// Whether everything is in the one file.
    pub(super) fn finish(&mut self, conn: &Connection) -> Result<bool, Error> {
        self.stop();
        carry(conn, "TRUNCATE")
    }

    fn stop(&mut self) {
        if let Some(Helper { asked, thread, .. }) = self.helper.take() {
            drop(asked);
            // Its panic, if it had one, was logged as any other; the log is whole all the same.
            thread.join().ok();
        }
    }
}

/// The file is let go of only when nobody writes to it any more.
impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Helper {
    fn start(path: &Path) -> Result<Helper, StoreError> {
        let (asked, asks) = mpsc::channel();
        let (finished, done) = mpsc::channel();
        let conn = schema::open_helper(path)?;
        let help = move || {
            for () in asks {
                if finished.send(carry(&conn, "PASSIVE").map(drop)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("store-helper".to_owned()).spawn(help);
        let thread = thread.map_err(|error| unreachable(path, error))?;
        Ok(Helper { asked, done, is_busy: false, thread })
    }
}

/// Whether all of it is home; a reader may still need some of it.
fn carry(conn: &Connection, how: &str) -> Result<bool, Error> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |row| row.get::<_, i32>(0))
        .map(|busy| busy == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_carried_home_and_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remuda.db");
        let mut conn = schema::open(&path, false).unwrap();
        let mut checkpoints = Checkpoints::of(&mut conn, &path).unwrap();
        let write = |bytes: i32| {
            conn.execute("INSERT OR REPLACE INTO cycles VALUES (1, CAST(zeroblob(?1) AS TEXT))", [bytes])
                .unwrap();
        };
        write(2 * LOG_BYTES);
        assert!(checkpoints.pages.load(Ordering::Relaxed) >= LOG_PAGES);
        // However long the helper takes, the log begins anew before it is at its bound.
        while checkpoints.pages.load(Ordering::Relaxed) >= LOG_PAGES {
            checkpoints.after_write(&conn).unwrap();
            write(1);
        }
        assert!(checkpoints.finish(&conn).unwrap());
        assert_eq!(std::fs::metadata(folder.path().join("remuda.db-wal")).unwrap().len(), 0);
    }
}
