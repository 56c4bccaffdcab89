//! A file that a job gave.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_store::blobs::{Blob, BlobHash, pieces};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;

use super::Inner;

/// A file that a node put out, kept by the pool. It can be read as long as the pool is up and keeps the job: seven days
/// after its end, unless the pool is set up otherwise.
#[derive(Clone, Debug)]
pub struct JobOutput {
    /// The node that put it out.
    pub node: String,
    /// Under which word the node did: `images`, `gifs`, `audio`, …
    pub key: String,
    /// A name that is safe to save it under: no folder, nothing odd.
    pub name: String,
    /// `output`, `temp`, or `socket` if it was sent over the socket.
    pub kind: String,
    /// `image/png`, …
    pub media: String,
    pub size_bytes: u64,
    /// By its content: the same is the same file.
    pub hash: BlobHash,
    inner: Arc<Inner>,
}

/// Why a file is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum JobOutputError {
    /// Read outputs before the pool is shut down.
    #[error("the pool is shut down, and its files with it")]
    Stopped,
    /// Run the job again.
    #[error("{name} is not kept any more")]
    Gone { name: String },
    /// See to the disk that is named.
    #[error("{}: {cause}", path.display())]
    Local { path: PathBuf, cause: std::io::Error },
    #[error("{name} cannot be read: {why}")]
    Unreadable { name: String, why: String },
}

#[derive(Deserialize)]
struct Listed {
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
    /// What is no file is passed over.
    pub(super) fn read(raw: &RawValue, inner: &Arc<Inner>) -> Option<JobOutput> {
        let Listed { node, key, name, kind, media, size_bytes, hash } =
            serde_json::from_str(raw.get()).ok()?;
        let hash = hash.parse().ok()?;
        Some(JobOutput { node, key, name, kind, media, size_bytes, hash, inner: inner.clone() })
    }

    /// All of it; `save_to` is for what is large.
    pub async fn bytes(&self) -> Result<Bytes, JobOutputError> {
        let Blob { file, size_bytes } = self.open().await?;
        let mut whole = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or_default());
        let mut pieces = std::pin::pin!(pieces(file, 0, size_bytes));
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece.map_err(|error| self.unreadable(&error))?);
        }
        Ok(whole.into())
    }

    /// Writes it to a file, in place of what is there. How many bytes it has.
    pub async fn save_to(&self, path: impl AsRef<Path>) -> Result<u64, JobOutputError> {
        let path = path.as_ref();
        let local = |cause| JobOutputError::Local { path: path.to_owned(), cause };
        let Blob { file, size_bytes } = self.open().await?;
        let mut pieces = std::pin::pin!(pieces(file, 0, size_bytes));
        let mut saved = tokio::fs::File::create(path).await.map_err(local)?;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| self.unreadable(&error))?;
            saved.write_all(&piece).await.map_err(local)?;
        }
        saved.flush().await.map_err(local)?;
        Ok(size_bytes)
    }

    async fn open(&self) -> Result<Blob, JobOutputError> {
        let context = self.inner.context().ok_or(JobOutputError::Stopped)?;
        let blob = context.blobs.read(self.hash, context.plane.clock.now()).await;
        let blob = blob.map_err(|error| self.unreadable(&error))?;
        blob.ok_or_else(|| JobOutputError::Gone { name: self.name.clone() })
    }

    fn unreadable(&self, why: &dyn std::error::Error) -> JobOutputError {
        JobOutputError::Unreadable { name: self.name.clone(), why: why.to_string() }
    }
}
