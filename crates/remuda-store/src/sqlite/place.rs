//! Whether the files that are open are still those at their paths. A folder that is deleted, moved or replaced under a
//! running process goes unnoticed otherwise: writes to deleted files succeed, and are gone at the next start.
//!
//! The writer looks after each commit, before it answers, so that nothing is acknowledged that only a deleted file holds.
//! A background task looks as well, to notice it while nothing is written (`Store::check_place`).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Access, access};

use super::files::sibling;
use crate::StoreError;

/// Recreated never while a store is open, unlike the reserve.
const WATCHED: [&str; 4] = ["", "-wal", ".lock", ".proof"];
/// The first of them hold what is committed.
const COMMITTED: usize = 2;

#[derive(Debug)]
pub(super) struct Place {
    store: PathBuf,
    files: Vec<WatchedPath>,
    /// Folders that belong to the store for its users.
    folders: Mutex<Vec<WatchedPath>>,
    is_lost: AtomicBool,
    reason: Mutex<Option<String>>,
}

#[derive(Debug)]
struct WatchedPath {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl WatchedPath {
    fn new(path: PathBuf) -> io::Result<WatchedPath> {
        let found = fs::metadata(&path)?;
        Ok(WatchedPath { path, id: (found.dev(), found.ino()) })
    }

    fn check(&self) -> Result<(), String> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.id => Ok(()),
            Ok(_) => Err(format!("{} was replaced", self.path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("{} was deleted or moved", self.path.display()))
            }
            Err(error) => Err(format!("{} cannot be reached: {error}", self.path.display())),
        }
    }

    /// Not by opening it: closing a file of SQLite would release SQLite's locks.
    fn check_access(&self) -> Result<(), String> {
        access(&self.path, Access::READ_OK | Access::WRITE_OK)
            .map_err(|error| format!("{} may not be read or written: {error}", self.path.display()))
    }
}

impl Place {
    /// Remembers the files of a store that was just opened.
    pub(super) fn new(store: &Path) -> io::Result<Place> {
        let files = WATCHED.iter().map(|suffix| WatchedPath::new(sibling(store, suffix)));
        Ok(Place {
            store: store.to_owned(),
            files: files.collect::<io::Result<_>>()?,
            folders: Mutex::default(),
            is_lost: AtomicBool::new(false),
            reason: Mutex::default(),
        })
    }

    pub(super) fn watch(&self, folder: &Path) -> io::Result<()> {
        lock(&self.folders).push(WatchedPath::new(folder.to_owned())?);
        Ok(())
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// The error of a store that is not in its place.
    pub(super) fn lost(&self) -> Option<StoreError> {
        let what = lock(&self.reason).clone()?;
        Some(StoreError::Misplaced { path: self.store.clone(), what })
    }

    /// After each commit: the database and its log alone, in about two microseconds.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        self.note(self.files.iter().take(COMMITTED).try_for_each(WatchedPath::check))
    }

    /// Everything, and whether it may be used.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let check = || {
            self.files.iter().try_for_each(WatchedPath::check)?;
            self.files.iter().try_for_each(WatchedPath::check_access)?;
            let folders = lock(&self.folders);
            folders.iter().try_for_each(WatchedPath::check)?;
            folders.iter().try_for_each(WatchedPath::check_access)
        };
        self.note(check())
    }

    fn note(&self, checked: Result<(), String>) -> Result<(), StoreError> {
        if checked.is_ok() && !self.is_lost() {
            return Ok(());
        }
        let mut reason = lock(&self.reason);
        match (checked, reason.take()) {
            (Ok(()), before) => {
                self.is_lost.store(false, Ordering::Release);
                if before.is_some() {
                    tracing::warn!(path = %self.store.display(), "store is back in its place");
                }
                Ok(())
            }
            (Err(what), before) => {
                if before.is_none() {
                    tracing::error!(path = %self.store.display(), what, "store is not in its place; nothing is accepted");
                }
                *reason = Some(what.clone());
                self.is_lost.store(true, Ordering::Release);
                Err(StoreError::Misplaced { path: self.store.clone(), what })
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
