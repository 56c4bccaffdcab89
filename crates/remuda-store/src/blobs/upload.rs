//! Uploads: chunks are hashed and written to a temporary file, which is renamed once it is complete and synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use remuda_core::id::Tenant;
use remuda_core::time::Timestamp;

use super::{BlobError, BlobHash, BlobStore, Shared, set_last_used, sync_folder};

/// Next to the blobs and so in the same file system, which a rename requires.
pub(super) const FOLDER: &str = "tmp";
/// Write buffer, and thus the memory per upload.
const BUFFER_BYTES: usize = 256 << 10;

/// An upload in progress; dropping it before `finish` deletes the temporary file.
#[derive(Debug)]
pub struct BlobUpload {
    blobs: BlobStore,
    partial: PartialBlob,
    buffer: Vec<u8>,
    size_bytes: u64,
    owner: Option<BlobOwner>,
}

/// The tenant that is counted for a blob, and how much it may still store.
#[derive(Clone, Debug)]
struct BlobOwner {
    tenant: Tenant,
    room_bytes: u64,
}

#[derive(Debug)]
struct PartialBlob {
    file: File,
    temporary: TempFile,
    hasher: blake3::Hasher,
}

/// Deletes the temporary file on drop.
#[derive(Debug)]
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        // After the rename there is nothing to delete.
        fs::remove_file(&self.0).ok();
    }
}

/// A stored blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    pub hash: BlobHash,
    pub size_bytes: u64,
    /// Whether it did not exist before.
    pub created: bool,
}

impl BlobStore {
    pub async fn begin_upload(&self) -> Result<BlobUpload, BlobError> {
        let partial = self.run(|shared| {
            let path = shared.folder.join(FOLDER).join(uuid::Uuid::new_v4().simple().to_string());
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create_new(true).mode(0o600);
            let file = options.open(&path).map_err(|error| shared.failed(error))?;
            Ok(PartialBlob { file, temporary: TempFile(path), hasher: blake3::Hasher::new() })
        });
        let partial = partial.await?;
        Ok(BlobUpload { blobs: self.clone(), partial, buffer: Vec::new(), size_bytes: 0, owner: None })
    }
}

impl BlobUpload {
    /// The blob counts for this tenant if it is new, and may not be larger than what the tenant may still store.
    #[must_use]
    pub fn owned_by(mut self, tenant: Tenant, room_bytes: u64) -> BlobUpload {
        self.owner = Some(BlobOwner { tenant, room_bytes });
        self
    }

    /// Appends a chunk; returns the upload, unless it failed.
    pub async fn write(mut self, mut chunk: &[u8]) -> Result<BlobUpload, BlobError> {
        self.size_bytes += chunk.len() as u64;
        let bytes_max = self.blobs.bytes_max();
        if self.size_bytes > bytes_max {
            return Err(BlobError::TooLarge { bytes_max });
        }
        if let Some(BlobOwner { room_bytes, .. }) =
            self.owner.as_ref().filter(|it| self.size_bytes > it.room_bytes)
        {
            return Err(BlobError::OverQuota { room_bytes: *room_bytes });
        }
        while !chunk.is_empty() {
            let (fits, rest) = chunk.split_at(chunk.len().min(BUFFER_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(fits);
            chunk = rest;
            if self.buffer.len() == BUFFER_BYTES {
                self = self.flush().await?;
            }
        }
        Ok(self)
    }

    /// Checks the hash, if one is expected, and renames the file. Once this returns, the blob survives a power failure.
    pub async fn finish(self, expected: Option<BlobHash>, now: Timestamp) -> Result<StoredBlob, BlobError> {
        let BlobUpload { blobs, mut partial, buffer, size_bytes, owner } = self;
        let finish = move |shared: &Shared| {
            partial.write(&buffer).map_err(|error| shared.failed(error))?;
            partial.finish(shared, size_bytes, expected, now, owner)
        };
        blobs.run(finish).await
    }

    async fn flush(mut self) -> Result<BlobUpload, BlobError> {
        let blobs = self.blobs.clone();
        blobs
            .run(move |shared| {
                self.partial.write(&self.buffer).map_err(|error| shared.failed(error))?;
                self.buffer.clear();
                Ok(self)
            })
            .await
    }
}

impl PartialBlob {
    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.hasher.update(content);
        self.file.write_all(content)
    }

    fn finish(
        self,
        shared: &Shared,
        size_bytes: u64,
        expected: Option<BlobHash>,
        now: Timestamp,
        owner: Option<BlobOwner>,
    ) -> Result<StoredBlob, BlobError> {
        let hash = BlobHash::from(self.hasher.finalize());
        if let Some(expected) = expected.filter(|expected| *expected != hash) {
            return Err(BlobError::Mismatch { expected, actual: hash });
        }
        let failed = |error| shared.failed(error);
        set_last_used(&self.file, now).and_then(|()| self.file.sync_all()).map_err(failed)?;
        let (folder, path) = (shared.shard(hash.shard()), shared.path(hash));
        let _guard = shared.lock_for(hash);
        if fs::DirBuilder::new().mode(0o700).create(&folder).is_ok() {
            sync_folder(&shared.folder).map_err(failed)?;
        }
        let created = shared.metadata(hash).map_err(failed)?.is_none();
        // Replaces an existing file: the new one was just hashed, while the old one may be corrupted.
        fs::rename(&self.temporary.0, &path).map_err(failed)?;
        if let Err(error) = sync_folder(&folder) {
            // A repeated upload must not find it and report it as durable. An existing blob is durable either way.
            if created {
                fs::remove_file(&path).ok();
            }
            return Err(failed(error));
        }
        if let Some(BlobOwner { tenant, .. }) = owner {
            shared.claim_locked(hash, size_bytes, &tenant).map_err(failed)?;
        }
        Ok(StoredBlob { hash, size_bytes, created })
    }
}
