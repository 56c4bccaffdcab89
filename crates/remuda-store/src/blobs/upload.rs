//! A blob on its way in: piece by piece into a temporary file, hashed as it comes, named when it is whole and synced.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use remuda_core::time::Timestamp;

use super::{BlobError, BlobHash, Blobs, Shared, set_wanted_at, sync_folder};

/// Beside the blobs, and so in the same file system: a rename is all it takes.
pub(super) const FOLDER: &str = "tmp";
/// Gathered before the disk is troubled: also what an upload takes of memory.
const GATHER_BYTES: usize = 256 << 10;

/// A blob that is being written; dropped before `finish`, it leaves nothing.
#[derive(Debug)]
pub struct Upload {
    blobs: Blobs,
    partial: Partial,
    gathered: Vec<u8>,
    size_bytes: u64,
}

#[derive(Debug)]
struct Partial {
    file: File,
    temporary: Temporary,
    hasher: blake3::Hasher,
}

/// Removed when nobody needs it any more.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Once it has its name, there is nothing left to remove.
        fs::remove_file(&self.0).ok();
    }
}

/// What was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub hash: BlobHash,
    pub size_bytes: u64,
    /// It was not there before.
    pub created: bool,
}

impl Blobs {
    pub async fn begin(&self) -> Result<Upload, BlobError> {
        let partial = self.run(|shared| {
            let path = shared.folder.join(FOLDER).join(uuid::Uuid::new_v4().simple().to_string());
            let file = File::create_new(&path).map_err(|error| shared.failed(error))?;
            Ok(Partial { file, temporary: Temporary(path), hasher: blake3::Hasher::new() })
        });
        let partial = partial.await?;
        Ok(Upload { blobs: self.clone(), partial, gathered: Vec::new(), size_bytes: 0 })
    }
}

impl Upload {
    /// Takes the next piece; gives itself back, unless it cannot go on.
    pub async fn write(mut self, mut piece: &[u8]) -> Result<Upload, BlobError> {
        self.size_bytes += piece.len() as u64;
        let bytes_max = self.blobs.bytes_max();
        if self.size_bytes > bytes_max {
            return Err(BlobError::TooLarge { bytes_max });
        }
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(GATHER_BYTES - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            piece = later;
            if self.gathered.len() == GATHER_BYTES {
                self = self.flush().await?;
            }
        }
        Ok(self)
    }

    /// Names it by its content, or by what it must be. Once this returns, no loss of power takes it back.
    pub async fn finish(self, expected: Option<BlobHash>, now: Timestamp) -> Result<Stored, BlobError> {
        let Upload { blobs, partial, size_bytes, .. } = self.flush().await?;
        blobs.run(move |shared| partial.finish(shared, size_bytes, expected, now)).await
    }

    async fn flush(mut self) -> Result<Upload, BlobError> {
        let blobs = self.blobs.clone();
        blobs
            .run(move |shared| {
                self.partial.hasher.update(&self.gathered);
                self.partial.file.write_all(&self.gathered).map_err(|error| shared.failed(error))?;
                self.gathered.clear();
                Ok(self)
            })
            .await
    }
}

impl Partial {
    fn finish(
        self,
        shared: &Shared,
        size_bytes: u64,
        expected: Option<BlobHash>,
        now: Timestamp,
    ) -> Result<Stored, BlobError> {
        let hash = BlobHash::from(self.hasher.finalize());
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            return Err(BlobError::Mismatch { expected, actual: hash });
        }
        let failed = |error| shared.failed(error);
        set_wanted_at(&self.file, now).and_then(|()| self.file.sync_all()).map_err(failed)?;
        let (folder, path) = (shared.shard(hash.shard()), shared.path(hash));
        let _turn = shared.turn(hash);
        if fs::create_dir(&folder).is_ok() {
            sync_folder(&shared.folder).map_err(failed)?;
        }
        let created = shared.look(hash).map_err(failed)?.is_none();
        // Over one that is there already: the new one has just been read and hashed, which is more than we know of the
        // old one.
        fs::rename(&self.temporary.0, &path).map_err(failed)?;
        if let Err(error) = sync_folder(&folder) {
            // Whoever sends it again must not be told that it is safe. One that was there before is, either way.
            if created {
                fs::remove_file(&path).ok();
            }
            return Err(failed(error));
        }
        Ok(Stored { hash, size_bytes, created })
    }
}
