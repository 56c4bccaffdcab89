//! Deletes unused blobs, one subfolder at a time. The caller knows which blobs are needed: it touches them first, and then
//! passes the age limit.

use std::fs;
use std::io;

use remuda_core::time::Timestamp;

use super::{BlobError, BlobHash, BlobStore, Shared, last_used};

/// Number and size of the deleted blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedBlobs {
    pub blobs: u64,
    pub bytes: u64,
}

impl BlobStore {
    /// Deletes every blob that was last used before `before`. Other files in the folder are not touched.
    pub async fn delete_unused(&self, before: Timestamp) -> Result<DeletedBlobs, BlobError> {
        let mut deleted = DeletedBlobs::default();
        for shard in 0..=u8::MAX {
            let step = self
                .run(move |shared| shared.delete_unused(shard, before).map_err(|error| shared.failed(error)));
            let step = step.await?;
            deleted.blobs += step.blobs;
            deleted.bytes += step.bytes;
        }
        Ok(deleted)
    }
}

impl Shared {
    fn delete_unused(&self, shard: u8, before: Timestamp) -> io::Result<DeletedBlobs> {
        let mut deleted = DeletedBlobs::default();
        let entries = match fs::read_dir(self.shard(shard)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(deleted),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(hash) = name.to_str().and_then(|name| BlobHash::from_file_name(shard, name)) else {
                continue;
            };
            // Locked per file, so that no request waits for a whole subfolder.
            let _guard = self.lock_shard(shard);
            let Some(meta) = self.metadata(hash)? else { continue };
            if last_used(&meta)? < before {
                fs::remove_file(self.path(hash))?;
                self.disown_locked(hash, meta.len());
                deleted.blobs += 1;
                deleted.bytes += meta.len();
            }
        }
        Ok(deleted)
    }
}
