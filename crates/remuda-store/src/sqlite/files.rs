//! Two of our files next to the database: the lock and the reserve. The third is the proof.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::checkpoint::LOG_BYTES;
use crate::StoreError;

/// Readable by the owner only: workflows and results are in these files.
pub(super) const PRIVATE_FILE: u32 = 0o600;
/// What group and others may do.
const FOREIGN_BITS: u32 = 0o077;

/// `PATH` with a suffix, as SQLite names its own files.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates the database file closed to other users; SQLite gives its other files the same mode.
pub(super) fn create_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Closes the files of a store to other users, as those of an older version are not. Refusing to start was rejected: it
/// would keep a plane down after an update, and nothing is taken from the owner.
pub(super) fn close_to_others(path: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm", ".lock", ".proof", ".reserve"] {
        let file = sibling(path, suffix);
        match fs::metadata(&file) {
            Ok(found) if found.mode() & FOREIGN_BITS != 0 => {
                fs::set_permissions(&file, fs::Permissions::from_mode(PRIVATE_FILE))?;
                tracing::warn!(path = %file.display(), "file closed to other users");
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

pub(super) fn unreachable_error(path: &Path, error: io::Error) -> StoreError {
    StoreError::Unreachable { path: path.to_owned(), source: Arc::new(error) }
}

/// Held while the store is open; the kernel releases it when the process dies.
///
/// The file contains the process id and whether the store was closed cleanly. A store that was not closed cleanly must have
/// its WAL next to it: without the WAL, SQLite would open the file and silently lose the newest commits.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    was_left_open: bool,
}

const OPEN: &str = "open";
const CLOSED: &str = "closed";

/// What a lock says to a process that does not take it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockState {
    pub is_in_use: bool,
    pub was_left_open: bool,
}

impl Lock {
    /// Looks without taking it or creating it.
    pub(super) fn peek(path: &Path) -> Result<LockState, StoreError> {
        let lock_path = sibling(path, ".lock");
        let mut file = match File::open(&lock_path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockState::default()),
            Err(error) => return Err(unreachable_error(&lock_path, error)),
        };
        let is_in_use = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        let (_, was_left_open) = read_note(&mut file);
        Ok(LockState { is_in_use, was_left_open })
    }

    pub(super) fn take(path: &Path) -> Result<Lock, StoreError> {
        let lock_path = sibling(path, ".lock");
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE).clone();
        let mut file = options.open(&lock_path).map_err(|error| unreachable_error(&lock_path, error))?;
        let is_taken = match file.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(unreachable_error(&lock_path, error)),
        };
        let (pid, was_left_open) = read_note(&mut file);
        if is_taken {
            return Err(StoreError::InUse { path: path.to_owned(), pid });
        }
        let mut lock = Lock { file, was_left_open };
        // The old state is preserved until the store has been checked.
        let state = if lock.was_left_open { OPEN } else { CLOSED };
        lock.note(state).map_err(|error| unreachable_error(&lock_path, error))?;
        Ok(lock)
    }

    pub(super) fn was_left_open(&self) -> bool {
        self.was_left_open
    }

    /// From now on the WAL is part of the store.
    pub(super) fn mark_open(&mut self) -> io::Result<()> {
        self.note(OPEN)
    }

    /// All data is in the database file.
    pub(super) fn mark_closed(&mut self) -> io::Result<()> {
        self.note(CLOSED)
    }

    fn note(&mut self, state: &str) -> io::Result<()> {
        // One short write, so that a crash leaves the old or the new note.
        let note = format!("{:<10} {state:<6}\n", std::process::id());
        self.file.rewind()?;
        self.file.write_all(note.as_bytes())?;
        // The note has a fixed length, so its metadata needs no sync.
        self.file.sync_data()
    }
}

/// The process of the note, and whether it left the store open. An unreadable note counts as empty, like that of a new lock.
fn read_note(file: &mut File) -> (Option<u32>, bool) {
    let mut note = String::new();
    file.read_to_string(&mut note).ok();
    let mut words = note.split_whitespace();
    (words.next().and_then(|pid| pid.parse().ok()), words.next() == Some(OPEN))
}

/// Disk space for the completion of accepted jobs: a file that is deleted when the disk is full and recreated later.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    has_space: AtomicBool,
}

/// The size of the WAL under load, the same again for its checkpoint, and room to grow.
const RESERVE_BYTES: usize = 4 * LOG_BYTES as usize;
/// Space that must be free in addition before the reserve is recreated.
const RECOVERY_BYTES: usize = 4 << 20;

impl Reserve {
    pub(super) fn create(store: &Path) -> Reserve {
        let reserve = Reserve { path: sibling(store, ".reserve"), has_space: AtomicBool::new(false) };
        reserve.renew();
        reserve
    }

    pub(super) fn has_space(&self) -> bool {
        self.has_space.load(Ordering::Acquire)
    }

    /// Deletes the reserve before the store is opened, which needs some space itself.
    pub(super) fn delete(store: &Path) {
        fs::remove_file(sibling(store, ".reserve")).ok();
    }

    /// Releases the space for the next write.
    pub(super) fn release(&self) {
        if self.has_space.swap(false, Ordering::AcqRel) {
            tracing::error!(path = %self.path.display(), "disk full; new jobs are refused until there is space");
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "releasing the disk reserve failed");
        }
    }

    /// Recreates the reserve, if there is enough space.
    pub(super) fn renew(&self) {
        let has_size = |meta: fs::Metadata| meta.len() == RESERVE_BYTES as u64;
        let has_space = fs::metadata(&self.path).is_ok_and(has_size) || self.fill().is_ok();
        if !has_space {
            fs::remove_file(&self.path).ok();
        }
        self.has_space.store(has_space, Ordering::Release);
    }

    fn fill(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&self.path)?;
        // Written byte by byte, because a sparse file reserves nothing.
        file.write_all(&vec![0xa5; RESERVE_BYTES + RECOVERY_BYTES])?;
        file.set_len(RESERVE_BYTES as u64)
    }
}
