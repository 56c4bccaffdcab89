//! Clearing away what nobody wanted for long, one folder at a time. Who wants what is for the caller to know: it
//! touches what is still wanted, and then says how old is old.

use std::fs;
use std::io;

use remuda_core::time::Timestamp;

use super::{BlobError, BlobHash, Blobs, Shared, wanted_at};

/// What was cleared away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    pub blobs: u64,
    pub bytes: u64,
}

impl Blobs {
    /// Removes every blob that was last wanted before `before`. A name in the folder that is no blob's is left alone.
    pub async fn retain(&self, before: Timestamp) -> Result<Cleared, BlobError> {
        let mut cleared = Cleared::default();
        for shard in 0..=u8::MAX {
            let step =
                self.run(move |shared| shared.clear(shard, before).map_err(|error| shared.failed(error)));
            let step = step.await?;
            cleared.blobs += step.blobs;
            cleared.bytes += step.bytes;
        }
        Ok(cleared)
    }
}

impl Shared {
    fn clear(&self, shard: u8, before: Timestamp) -> io::Result<Cleared> {
        let mut cleared = Cleared::default();
        let entries = match fs::read_dir(self.shard(shard)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cleared),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(hash) = name.to_str().and_then(|name| BlobHash::of_file_name(shard, name)) else {
                continue;
            };
            // A turn for each: nobody waits for a whole folder to be gone through.
            let _turn = self.turn_of(shard);
            let Some(meta) = self.look(hash)? else { continue };
            if wanted_at(&meta)? < before {
                fs::remove_file(self.path(hash))?;
                cleared.blobs += 1;
                cleared.bytes += meta.len();
            }
        }
        Ok(cleared)
    }
}
