//! Files that jobs take and give, named by their content: `blake3:<64 hex>` lies in `FOLDER/ab/cdef…`.
//!
//! ```text
//!  begin ──▶ FOLDER/tmp/x ──write, hashed on the way──▶ sync ──▶ rename to FOLDER/ab/cdef… ──▶ sync FOLDER/ab
//!                 └── dropped, too large, another hash, no space: removed; after kill -9: removed by the next `open`
//! ```
//!
//! What has a name here is whole and synced. The same content is one file, however often it comes, so whoever does
//! not hear the answer sends it again and does no harm.
//!
//! Content is not checked again when it is read: the name is the check, and whoever fetches by name can make it (the
//! workers do), which also covers the way there. A disk that changes what it holds is thus noticed by the reader.
//!
//! A blob remembers when it was last wanted, as the time of its file: written, read, or named by a job. `retain` clears
//! away what nobody wanted for long. All times are the caller's, so a jump of the wall clock clears nothing. One
//! process has the folder at a time, because only it knows which jobs still want what.

mod hash;
mod read;
mod retention;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use remuda_core::time::Timestamp;

pub use self::hash::{BadHash, BlobHash, named_in};
pub use self::read::pieces;
pub use self::retention::Cleared;
pub use self::upload::{Stored, Upload};

/// The time of a file is brought up to date when it is this old: most reads cost no write.
const TOUCH_EVERY: Duration = Duration::from_secs(60 * 60);

/// A handle on the folder; clones are the same.
#[derive(Clone, Debug)]
pub struct Blobs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    bytes_max: u64,
    /// One for each folder of blobs. Whoever holds it looks and then acts: what was seen or touched is not cleared
    /// away, and nobody sees a name that is not synced yet.
    turns: [Mutex<()>; 256],
    /// Held while anyone has a handle; the kernel lets go of it when the process dies.
    _lock: File,
}

/// A blob that is open for reading: it can be read to its end, even if it is cleared away meanwhile.
#[derive(Debug)]
pub struct Blob {
    pub file: File,
    pub size_bytes: u64,
}

/// Why blobs cannot be written or read, sorted by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Send less, or have the limit raised.
    #[error("the blob is larger than {bytes_max} bytes (blobs.bytes_max)")]
    TooLarge { bytes_max: u64 },

    /// Nothing was stored; send what was named, or name what was sent.
    #[error("the content is {actual} and not {expected}: nothing was stored")]
    Mismatch { expected: BlobHash, actual: BlobHash },

    /// Nothing was stored; worth trying again when there is space.
    #[error("no space left in {}: nothing was stored", folder.display())]
    Full { folder: PathBuf },

    /// Another process has the folder.
    #[error("{} is in use by process {pid}: stop that one first", folder.display())]
    InUse { folder: PathBuf, pid: String },

    /// Nothing was stored; worth trying again once that is put right.
    #[error("{}: {cause}", folder.display())]
    Unreachable { folder: PathBuf, cause: io::Error },
}

impl Blobs {
    /// Takes the folder, makes it where there is none, and clears away what a killed process left half written.
    pub async fn open(folder: PathBuf, bytes_max: u64) -> Result<Blobs, BlobError> {
        blocking(folder.clone(), move || Shared::open(folder, bytes_max))
            .await
            .map(|shared| Blobs(shared.into()))
    }

    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    /// How large it is, if it is there.
    pub async fn size(&self, hash: BlobHash) -> Result<Option<u64>, BlobError> {
        let found = self.run(move |shared| shared.look(hash).map_err(|error| shared.failed(error))).await?;
        Ok(found.map(|meta| meta.len()))
    }

    /// Says that it is wanted; how large it is, if it is there. From now on it is not cleared away for a while.
    pub async fn touch(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        self.run(move |shared| shared.touch(hash, now)).await
    }

    /// As `touch`, for many. What is not there is passed over.
    pub async fn touch_all(&self, hashes: BTreeSet<BlobHash>, now: Timestamp) -> Result<(), BlobError> {
        if hashes.is_empty() {
            return Ok(());
        }
        self.run(move |shared| hashes.into_iter().try_for_each(|hash| shared.touch(hash, now).map(drop)))
            .await
    }

    /// Opens it for reading, if it is there; that counts as wanting it.
    pub async fn read(&self, hash: BlobHash, now: Timestamp) -> Result<Option<Blob>, BlobError> {
        let open = move |shared: &Shared| {
            let _turn = shared.turn(hash);
            let Some(size_bytes) = shared.touch_in_turn(hash, now)? else { return Ok(None) };
            let file = File::open(shared.path(hash)).map_err(|error| shared.failed(error))?;
            Ok(Some(Blob { file, size_bytes }))
        };
        self.run(open).await
    }

    /// Does it where waiting for the disk holds up nobody.
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
        fs::create_dir_all(folder.join(upload::FOLDER)).map_err(failed)?;
        let lock = lock(&folder)?;
        for entry in fs::read_dir(folder.join(upload::FOLDER)).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        // What was renamed and not yet synced when the process before this one died.
        for shard in 0..=u8::MAX {
            match sync_folder(&folder.join(format!("{shard:02x}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                Ok(()) | Err(_) => {}
            }
        }
        sync_folder(&folder).and_then(|()| sync_folder(&folder.join(".."))).map_err(failed)?;
        let turns = std::array::from_fn(|_| Mutex::new(()));
        Ok(Shared { folder, bytes_max, turns, _lock: lock })
    }

    fn path(&self, hash: BlobHash) -> PathBuf {
        self.shard(hash.shard()).join(hash.file_name())
    }

    fn shard(&self, shard: u8) -> PathBuf {
        self.folder.join(format!("{shard:02x}"))
    }

    fn turn(&self, hash: BlobHash) -> MutexGuard<'_, ()> {
        self.turn_of(hash.shard())
    }

    fn turn_of(&self, shard: u8) -> MutexGuard<'_, ()> {
        // It guards files and no memory: whoever panicked with it left nothing half changed.
        self.turns[usize::from(shard)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: io::Error) -> BlobError {
        failed(&self.folder, error)
    }

    fn look(&self, hash: BlobHash) -> io::Result<Option<Metadata>> {
        match fs::symlink_metadata(self.path(hash)) {
            // A link that someone put there is none of ours.
            Ok(meta) => Ok(Some(meta).filter(Metadata::is_file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn touch(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        let _turn = self.turn(hash);
        self.touch_in_turn(hash, now)
    }

    fn touch_in_turn(&self, hash: BlobHash, now: Timestamp) -> Result<Option<u64>, BlobError> {
        let touched = self.look(hash).and_then(|meta| {
            let Some(meta) = meta else { return Ok(None) };
            if now.since(wanted_at(&meta)?) >= TOUCH_EVERY {
                set_wanted_at(&File::open(self.path(hash))?, now)?;
            }
            Ok(Some(meta.len()))
        });
        touched.map_err(|error| self.failed(error))
    }
}

/// When it was last wanted: the time of its file, which is the plane's and nobody else's.
fn wanted_at(meta: &Metadata) -> io::Result<Timestamp> {
    Ok(Timestamp::ZERO.plus(meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn set_wanted_at(file: &File, now: Timestamp) -> io::Result<()> {
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

/// Makes names in a folder survive a loss of power.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn lock(folder: &Path) -> Result<File, BlobError> {
    let failed = |error| failed(folder, error);
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let mut file = options.open(folder.join("lock")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // What cannot be read says nothing; that it is taken is what counts.
            file.read_to_string(&mut pid).ok();
            let pid = if pid.trim().is_empty() { "?".to_owned() } else { pid.trim().to_owned() };
            return Err(BlobError::InUse { folder: folder.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // One short write, so that it is the old number or the new one; on a full disk it goes on without.
    file.rewind().and_then(|()| file.write_all(format!("{:<10}\n", std::process::id()).as_bytes())).ok();
    Ok(file)
}
