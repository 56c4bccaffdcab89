//! Bringing the write-ahead log home into the file, so that it does not grow without bound.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::{Connection, Error};

use super::schema;
use crate::store::StoreError;

/// 16 MiB of log.
const LOG_PAGES: i32 = 4096;

#[derive(Debug)]
pub(super) struct Checkpoints {
    path: PathBuf,
    /// Pages in the log after the last commit.
    pages: Arc<AtomicI32>,
}

impl Checkpoints {
    pub(super) fn of(conn: &mut Connection, path: &Path) -> Result<Checkpoints, StoreError> {
        let pages = Arc::new(AtomicI32::new(0));
        let noted = pages.clone();
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: i32| -> Result<(), Error> {
            noted.store(pages, Ordering::Relaxed);
            Ok(())
        }))
        .map_err(|error| schema::sort(path, error))?;
        Ok(Checkpoints { path: path.to_owned(), pages })
    }

    pub(super) fn after_write(&mut self, conn: &Connection) {
        if self.pages.load(Ordering::Relaxed) >= LOG_PAGES {
            self.now(conn);
        }
    }

    pub(super) fn now(&mut self, conn: &Connection) {
        self.run(conn, "PRAGMA wal_checkpoint(PASSIVE)");
        self.pages.store(0, Ordering::Relaxed);
    }

    /// Whether everything is in the one file.
    pub(super) fn finish(&mut self, conn: &Connection) -> bool {
        self.run(conn, "PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// A checkpoint that fails costs nothing but room: the log still has it all.
    fn run(&self, conn: &Connection, pragma: &str) -> bool {
        match conn.query_row(pragma, [], |row| row.get::<_, i32>(0)) {
            Ok(busy) => busy == 0,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the write-ahead log was not brought home");
                false
            }
        }
    }
}
