//! The two files of our own beside the database: the lock and the reserve.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::checkpoint::LOG_BYTES;
use crate::StoreError;

/// `PATH` with something appended, as SQLite names its own companions.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn unreachable(path: &Path, error: io::Error) -> StoreError {
    StoreError::Unreachable { path: path.to_owned(), source: Arc::new(error) }
}

/// Held while the store is open; the kernel lets go of it when the process dies, however it dies.
///
/// It says who holds it and whether the store was put away in order. One that was not must have its write-ahead log
/// beside it: without the log SQLite would open it happily and be silent about what is missing.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    was_left_open: bool,
}

const OPEN: &str = "open";
const CLOSED: &str = "closed";

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Lock, StoreError> {
        let lock_path = beside(path, ".lock");
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(&lock_path).map_err(|error| unreachable(&lock_path, error))?;
        let is_taken = match file.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(unreachable(&lock_path, error)),
        };
        let mut note = String::new();
        // What cannot be read says nothing, and nothing is what a new lock says.
        file.read_to_string(&mut note).ok();
        let mut words = note.split_whitespace();
        let (pid, state) = (words.next().and_then(|pid| pid.parse().ok()), words.next());
        if is_taken {
            return Err(StoreError::InUse { path: path.to_owned(), pid });
        }
        let mut lock = Lock { file, was_left_open: state == Some(OPEN) };
        // The old state stays until the store was found to be in order.
        let state = if lock.was_left_open { OPEN } else { CLOSED };
        lock.note(state).map_err(|error| unreachable(&lock_path, error))?;
        Ok(lock)
    }

    pub(super) fn was_left_open(&self) -> bool {
        self.was_left_open
    }

    /// From here on the write-ahead log is part of the store.
    pub(super) fn mark_open(&mut self) -> io::Result<()> {
        self.note(OPEN)
    }

    /// Everything is in the one file.
    pub(super) fn mark_closed(&mut self) -> io::Result<()> {
        self.note(CLOSED)
    }

    fn note(&mut self, state: &str) -> io::Result<()> {
        // One short write, so that it is the old note or the new one.
        let note = format!("{:<10} {state:<6}\n", std::process::id());
        self.file.rewind()?;
        self.file.write_all(note.as_bytes())?;
        self.file.sync_all()
    }
}

/// Room set aside for the ends of accepted jobs: deleted when the disk is full, set aside anew when it is not.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    is_there: AtomicBool,
}

/// The log as it is under load, which needs as much again in the file before it can begin anew, and some to grow in.
const RESERVE_BYTES: usize = 4 * LOG_BYTES as usize;
/// What must be free beside it: the last free bytes are no recovery.
const RECOVERY_BYTES: usize = 4 << 20;

impl Reserve {
    pub(super) fn set_aside(store: &Path) -> Reserve {
        let reserve = Reserve { path: beside(store, ".reserve"), is_there: AtomicBool::new(false) };
        reserve.renew();
        reserve
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Before the store is open: without some room it cannot be opened at all.
    pub(super) fn give_up(store: &Path) {
        fs::remove_file(beside(store, ".reserve")).ok();
    }

    /// Gives the room to whoever writes next.
    pub(super) fn release(&self) {
        if self.is_there.swap(false, Ordering::AcqRel) {
            tracing::error!(path = %self.path.display(), "no space left: no new jobs until there is");
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the reserve could not be released");
        }
    }

    /// Sets the room aside again, if there is a little more than that.
    pub(super) fn renew(&self) {
        let has_size = |meta: fs::Metadata| meta.len() == RESERVE_BYTES as u64;
        let is_there = fs::metadata(&self.path).is_ok_and(has_size) || self.fill().is_ok();
        if !is_there {
            fs::remove_file(&self.path).ok();
        }
        self.is_there.store(is_there, Ordering::Release);
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = File::create(&self.path)?;
        // Written rather than declared: a hole reserves nothing.
        file.write_all(&vec![0xa5; RESERVE_BYTES + RECOVERY_BYTES])?;
        file.set_len(RESERVE_BYTES as u64)
    }
}
