//! Input and output files of jobs, named by their content: `blake3:<64 hex>` is stored in `FOLDER/ab/cdef…`.
//!
//! ```text
//!  begin_upload ──▶ FOLDER/tmp/x ──write and hash──▶ sync ──▶ rename to FOLDER/ab/cdef… ──▶ sync FOLDER/ab
//!                      └── dropped, too large, wrong hash, no space: removed; after kill -9: removed by the next `open`
//! ```
//!
//! A named file is complete and synced. Equal content is stored once, so a client that did not receive the answer can repeat
//! the upload.
//!
//! Content is not verified on reading. The reader can verify it by the name, as the workers do, which also covers the
//! transfer and detects a corrupted disk.
//!
//! The modification time of a file is the time of its last use: written, read, or named by a job. `delete_unused` deletes
//! files that were not used for long. All times come from the caller, so a jump of the wall clock deletes nothing. Only one
//! process may open the folder, because only that process knows which jobs still need which blobs.

mod chunks;
mod hash;
mod owners;
mod retention;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use remuda_core::time::Timestamp;

pub use self::chunks::read_chunks;
pub use self::hash::{BlobHash, InvalidBlobHash, find_blob_hashes};
pub use self::retention::DeletedBlobs;
pub use self::upload::{BlobUpload, StoredBlob};

/// The time of last use is updated only if it is older than this, so that most reads write nothing.
const TOUCH_EVERY: Duration = Duration::from_secs(60 * 60);

/// A handle to the folder; clones share it.
#[derive(Clone, Debug)]
pub struct BlobStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    bytes_max: u64,
    /// One lock per subfolder. It makes check-then-act sequences atomic: a blob that was seen or touched is not deleted
    /// in between, and a name that is not synced yet is not visible.
    shard_locks: [Mutex<()>; 256],
    owners: owners::Owners,
    /// Held while a handle exists; the kernel releases it when the process dies.
    _lock: File,
}

/// A blob opened for reading; it stays readable even if it is deleted meanwhile.
#[derive(Debug)]
pub struct OpenBlob {
    pub file: File,
    pub size_bytes: u64,
}

/// Errors of the blob store, by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Send less, or raise the limit.
    #[error("the blob is larger than {bytes_max} bytes (blobs.bytes_max)")]
    TooLarge { bytes_max: u64 },

    /// Nothing was stored; the tenant deletes something, or its quota is raised.
    #[error(
        "the upload is larger than the {room_bytes} bytes that its tenant may still store (quota.stored_bytes_max)"
    )]
    OverQuota { room_bytes: u64 },

    /// Nothing was stored; correct the content or the hash.
    #[error("the content has the hash {actual} instead of {expected}; nothing was stored")]
    Mismatch { expected: BlobHash, actual: BlobHash },

    /// Nothing was stored; retry when there is space.
    #[error("no disk space left in {}; nothing was stored", folder.display())]
    Full { folder: PathBuf },

    /// Another process uses the folder.
    #[error("{} is in use by process {pid}: stop that process first", folder.display())]
    InUse { folder: PathBuf, pid: String },

    /// Nothing was stored; retry after fixing the cause.
    #[error("{}: {cause}", folder.display())]
    Unreachable { folder: PathBuf, cause: io::Error },
}

impl BlobStore {
    /// Locks the folder, creates it if necessary, and deletes partial uploads of a killed process.
    pub async fn open(folder: PathBuf, bytes_max: u64) -> Result<BlobStore, BlobError> {
        blocking(folder.clone(), move || Shared::open(folder, bytes_max))
            .await
            .map(|shared| BlobStore(shared.into()))
    }

    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    /// The size of a blob, if it exists.
    pub async fn size(&self, hash: BlobHash) -> Result<Option<u64>, BlobError> {
        let found =
            self.run(move |shared| shared.metadata(hash).map_err(|error| shared.failed(error))).await?;
        Ok(found.map(|meta| meta.len()))
    }

    /// Updates the time of last use, which protects the blob from deletion, and returns its size, if it exists.
    pub async fn touch(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        self.run(move |shared| shared.touch(hash, now)).await
    }

    /// As `touch`, for several blobs. Missing ones are skipped.
    pub async fn touch_all(&self, hashes: BTreeSet<BlobHash>, now: Timestamp) -> Result<(), BlobError> {
        if hashes.is_empty() {
            return Ok(());
        }
        self.run(move |shared| hashes.into_iter().try_for_each(|hash| shared.touch(hash, now).map(drop)))
            .await
    }

    /// Opens a blob for reading, if it exists, and updates its time of last use.
    pub async fn read(&self, hash: BlobHash, now: Timestamp) -> Result<Option<OpenBlob>, BlobError> {
        let open = move |shared: &Shared| {
            let _guard = shared.lock_for(hash);
            let Some(size_bytes) = shared.touch_locked(hash, now)? else { return Ok(None) };
            let file = File::open(shared.path(hash)).map_err(|error| shared.failed(error))?;
            Ok(Some(OpenBlob { file, size_bytes }))
        };
        self.run(open).await
    }

    /// Runs blocking file operations on tokio's blocking threads.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<T, BlobError> {
        let shared = self.0.clone();
        blocking(shared.folder.clone(), move || work(&shared)).await
    }
}

async fn blocking<T: Send + 'static>(
    folder: PathBuf,
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(BlobError::Unreachable { folder, cause: io::Error::other(error) }))
}

impl Shared {
    fn open(folder: PathBuf, bytes_max: u64) -> Result<Shared, BlobError> {
        let failed = |error| failed(&folder, error);
        // Closed to other users, as prompts and pictures are in there.
        DirBuilder::new().recursive(true).mode(0o700).create(folder.join(upload::FOLDER)).map_err(failed)?;
        let lock = lock(&folder)?;
        for entry in fs::read_dir(folder.join(upload::FOLDER)).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        // Syncs names that a killed process had renamed but not synced.
        for shard in 0..=u8::MAX {
            match sync_folder(&folder.join(format!("{shard:02x}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                Ok(()) | Err(_) => {}
            }
        }
        sync_folder(&folder).and_then(|()| sync_folder(&folder.join(".."))).map_err(failed)?;
        let shard_locks = std::array::from_fn(|_| Mutex::new(()));
        Ok(Shared { folder, bytes_max, shard_locks, owners: owners::Owners::default(), _lock: lock })
    }

    fn path(&self, hash: BlobHash) -> PathBuf {
        self.shard(hash.shard()).join(hash.file_name())
    }

    fn shard(&self, shard: u8) -> PathBuf {
        self.folder.join(format!("{shard:02x}"))
    }

    fn lock_for(&self, hash: BlobHash) -> MutexGuard<'_, ()> {
        self.lock_shard(hash.shard())
    }

    fn lock_shard(&self, shard: u8) -> MutexGuard<'_, ()> {
        // It guards files and no memory, so a panic while it was held leaves nothing inconsistent.
        self.shard_locks[usize::from(shard)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: io::Error) -> BlobError {
        failed(&self.folder, error)
    }

    fn metadata(&self, hash: BlobHash) -> io::Result<Option<Metadata>> {
        match fs::symlink_metadata(self.path(hash)) {
            // A symbolic link is not one of our files.
            Ok(meta) => Ok(Some(meta).filter(Metadata::is_file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn touch(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        let _guard = self.lock_for(hash);
        self.touch_locked(hash, now)
    }

    fn touch_locked(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        let touched = self.metadata(hash).and_then(|meta| {
            let Some(meta) = meta else { return Ok(None) };
            if now.since(last_used(&meta)?) >= TOUCH_EVERY {
                set_last_used(&File::open(self.path(hash))?, now)?;
            }
            Ok(Some(meta.len()))
        });
        touched.map_err(|error| self.failed(error))
    }
}

/// The time of last use, stored as the modification time of the file.
fn last_used(meta: &Metadata) -> io::Result<Timestamp> {
    Ok(Timestamp::ZERO.plus(meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn set_last_used(file: &File, now: Timestamp) -> io::Result<()> {
    file.set_modified(UNIX_EPOCH + now.since(Timestamp::ZERO))
}

fn failed(folder: &Path, error: io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            BlobError::Full { folder: folder.to_owned() }
        }
        _ => BlobError::Unreachable { folder: folder.to_owned(), cause: error },
    }
}

/// Makes file names in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn lock(folder: &Path) -> Result<File, BlobError> {
    let failed = |error| failed(folder, error);
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let mut file = options.open(folder.join("lock")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // The process id is only informative.
            file.read_to_string(&mut pid).ok();
            let pid = if pid.trim().is_empty() { "?".to_owned() } else { pid.trim().to_owned() };
            return Err(BlobError::InUse { folder: folder.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // One short write, so that a reader sees the old or the new id; on a full disk the id is skipped.
    file.rewind().and_then(|()| file.write_all(format!("{:<10}\n", std::process::id()).as_bytes())).ok();
    Ok(file)
}
