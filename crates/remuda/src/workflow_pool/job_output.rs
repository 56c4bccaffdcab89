//! An output file of a job.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_store::blobs::{BlobHash, OpenBlob, read_chunks};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;

use super::Inner;

/// An output file, stored by the pool. It can be read while the pool runs and until the job's retention ends: by default
/// seven days after the job ended.
#[derive(Clone, Debug)]
pub struct JobOutput {
    /// The node that produced it.
    pub node: String,
    /// The node's output: `images`, `gifs`, `audio`, …
    pub key: String,
    /// A file name without folders or unusual characters.
    pub name: String,
    /// `output`, `temp`, or `socket` if the node sent it over the socket.
    pub kind: String,
    /// `image/png`, …
    pub media: String,
    pub size_bytes: u64,
    /// Hash of the content.
    pub hash: BlobHash,
    inner: Arc<Inner>,
}

/// Why an output cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JobOutputError {
    /// Read outputs before the pool is shut down.
    #[error("the pool is shut down; its files can no longer be read")]
    Stopped,
    /// Run the job again.
    #[error("{name} was deleted after its retention time")]
    Gone { name: String },
    /// Check the local disk.
    #[error("{}: {cause}", path.display())]
    Local { path: PathBuf, cause: std::io::Error },
    #[error("{name} cannot be read: {why}")]
    Unreadable { name: String, why: String },
}

#[derive(Deserialize)]
struct ResultEntry {
    node: String,
    key: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    media: String,
    size_bytes: u64,
    hash: String,
}

impl JobOutput {
    /// None for an entry that is not a file.
    pub(super) fn read(raw: &RawValue, inner: &Arc<Inner>) -> Option<JobOutput> {
        let ResultEntry { node, key, name, kind, media, size_bytes, hash } =
            serde_json::from_str(raw.get()).ok()?;
        let hash = hash.parse().ok()?;
        Some(JobOutput { node, key, name, kind, media, size_bytes, hash, inner: inner.clone() })
    }

    /// The whole file in memory; use `save_to` for large files.
    pub async fn bytes(&self) -> Result<Bytes, JobOutputError> {
        let OpenBlob { file, size_bytes } = self.open().await?;
        let mut whole = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or_default());
        let mut read_chunks = std::pin::pin!(read_chunks(file, 0, size_bytes));
        while let Some(piece) = read_chunks.next().await {
            whole.extend_from_slice(&piece.map_err(|error| self.unreadable(&error))?);
        }
        Ok(whole.into())
    }

    /// Writes the output to a file, replacing an existing one, and returns its size.
    pub async fn save_to(&self, path: impl AsRef<Path>) -> Result<u64, JobOutputError> {
        let path = path.as_ref();
        let local = |cause| JobOutputError::Local { path: path.to_owned(), cause };
        let OpenBlob { file, size_bytes } = self.open().await?;
        let mut read_chunks = std::pin::pin!(read_chunks(file, 0, size_bytes));
        let mut saved = tokio::fs::File::create(path).await.map_err(local)?;
        while let Some(piece) = read_chunks.next().await {
            let piece = piece.map_err(|error| self.unreadable(&error))?;
            saved.write_all(&piece).await.map_err(local)?;
        }
        saved.flush().await.map_err(local)?;
        Ok(size_bytes)
    }

    async fn open(&self) -> Result<OpenBlob, JobOutputError> {
        let context = self.inner.context().ok_or(JobOutputError::Stopped)?;
        let blob = context.blobs.read(self.hash, context.plane.clock.now()).await;
        let blob = blob.map_err(|error| self.unreadable(&error))?;
        blob.ok_or_else(|| JobOutputError::Gone { name: self.name.clone() })
    }

    fn unreadable(&self, why: &dyn std::error::Error) -> JobOutputError {
        JobOutputError::Unreadable { name: self.name.clone(), why: why.to_string() }
    }
}
