//! Brings home what the server made: every file goes to the plane as a blob before the attempt counts as completed.
//!
//! The result is `{"outputs": [{"node", "key", "name", "type", "media", "hash", "size_bytes"}, ..],
//! "values": [{"node", "key", "value"}, ..]}`.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use remuda_comfyui::outputs::{self, Outputs};
use remuda_comfyui::{Error, File};
use remuda_core::agent::AttemptEnd;
use remuda_core::cause::Cause;
use remuda_store::blobs::BlobHash;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tracing::{debug, warn};

use super::Shared;
use super::ears::SentImage;
use crate::blobs::LinkError;
use crate::hands::Wanted;

/// A file that is listed and not there may be on its way to a slow disk; after so many looks it is gone.
const FETCHES_MAX: u32 = 4;
const FETCH_AGAIN: Duration = Duration::from_millis(250);
/// While the plane's blobs are out of reach the result is kept here, and offered again and again.
const STORE_AGAIN: Duration = Duration::from_secs(5);
/// Nodes named like this give files; if they ran and gave none, the server lost them.
const GIVES_FILES: [&str; 2] = ["SaveImage", "PreviewImage"];

/// Why an attempt that ran cannot be completed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    #[error("output {name} cannot be fetched from ComfyUI: {error}")]
    Fetch { name: String, error: Error },
    #[error("output {name} cannot be kept here on its way: {error}")]
    Local { name: String, error: std::io::Error },
    #[error("output {name} is not taken by the plane: {error}")]
    Store { name: String, error: LinkError },
    #[error("output {name} is not whole: the picture ends before its end")]
    Cut { name: String },
    #[error("ComfyUI says it succeeded and lists no outputs")]
    Empty,
    #[error("the pictures a node sent over the socket were not all heard")]
    NotHeard,
}

impl Gone {
    /// Whether the server would answer the next time with the same, from its cache.
    fn is_cached(&self) -> bool {
        matches!(self, Gone::Fetch { error: Error::NotFound(_), .. } | Gone::Cut { .. } | Gone::Empty)
    }
}

impl Shared {
    pub(super) async fn collect(&self, id: &str, listed: &RawValue, wanted: &Wanted) -> AttemptEnd {
        match self.bring_home(id, listed, wanted).await {
            Ok(result) => {
                self.lives.anchor(id);
                AttemptEnd::Completed { result }
            }
            Err(gone) => {
                if gone.is_cached()
                    && let Err(error) = self.client.free().await
                {
                    debug!(prompt = id, %error, "could not empty ComfyUI's cache");
                }
                AttemptEnd::Failed { cause: Cause::Service, message: gone.to_string() }
            }
        }
    }

    async fn bring_home(&self, id: &str, listed: &RawValue, wanted: &Wanted) -> Result<Arc<RawValue>, Gone> {
        let Outputs { mut files, mut values } = outputs::read(listed);
        let (sent, is_sending, gives_files) = {
            let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            let run = runs.get(id);
            let gives_files = |class: &String| GIVES_FILES.contains(&class.as_str());
            (
                run.map(|run| run.sent.clone()).unwrap_or_default(),
                run.is_some_and(super::Run::sends_images),
                run.is_some_and(|run| run.classes.values().any(gives_files)),
            )
        };
        if is_sending && sent.is_empty() {
            return Err(Gone::NotHeard);
        }
        if gives_files && files.is_empty() && values.is_empty() {
            return Err(Gone::Empty);
        }
        files.retain(|file| wanted.has(&file.node));
        values.retain(|value| wanted.has(&value.node));
        let mut given = Vec::new();
        for file in &files {
            let (hash, size) = match self.brought_early(id, file).await {
                Some(brought) => brought,
                None => self.bring_file(file).await?,
            };
            given.push(output(file, hash, size));
        }
        let sent = sent.into_iter().filter(|image| wanted.has(&image.node));
        for (at, image) in sent.enumerate() {
            given.push(self.bring_image(at, image).await?);
        }
        let values: Vec<_> = values
            .iter()
            .map(|value| json!({ "node": value.node, "key": value.key, "value": value.json }))
            .collect();
        let result = to_raw_value(&json!({ "outputs": given, "values": values }));
        Ok(Arc::from(result.expect("texts, numbers and JSON values can be written")))
    }

    async fn bring_file(&self, file: &File) -> Result<(BlobHash, u64), Gone> {
        let path = self.scratch.join(uuid::Uuid::new_v4().to_string());
        let brought = self.bring_through(file, &path).await;
        // Nothing to remove if nothing was fetched.
        tokio::fs::remove_file(&path).await.ok();
        brought
    }

    /// As `bring_file`, for what is tried again at the end anyway.
    pub(super) async fn bring_once(&self, file: &File) -> Result<(BlobHash, u64), Gone> {
        let path = self.scratch.join(uuid::Uuid::new_v4().to_string());
        let brought = async {
            self.fetch(file, &path).await?;
            self.blobs.store(&path).await.map_err(|error| Gone::Store { name: file.name(), error })
        };
        let brought = brought.await;
        // Nothing to remove if nothing was fetched.
        tokio::fs::remove_file(&path).await.ok();
        brought
    }

    async fn bring_through(&self, file: &File, path: &Path) -> Result<(BlobHash, u64), Gone> {
        let mut fetches = 1;
        while let Err(gone) = self.fetch(file, path).await {
            if fetches == FETCHES_MAX {
                return Err(gone);
            }
            tokio::time::sleep(FETCH_AGAIN * fetches).await;
            fetches += 1;
        }
        loop {
            match self.blobs.store(path).await {
                Ok(stored) => return Ok(stored),
                Err(error @ LinkError::Unreachable { .. }) => {
                    warn!(name = file.name(), %error, "the plane does not take an output now; trying on");
                    tokio::time::sleep(STORE_AGAIN).await;
                }
                Err(error) => return Err(Gone::Store { name: file.name(), error }),
            }
        }
    }

    async fn fetch(&self, file: &File, path: &Path) -> Result<(), Gone> {
        let remote = |error| Gone::Fetch { name: file.name(), error };
        let local = |error| Gone::Local { name: file.name(), error };
        let mut download = self.client.view(file).await.map_err(remote)?;
        let mut kept = tokio::fs::File::create(path).await.map_err(local)?;
        while let Some(chunk) = download.chunk().await.map_err(remote)? {
            kept.write_all(&chunk).await.map_err(local)?;
        }
        kept.flush().await.map_err(local)?;
        let (path, name) = (path.to_owned(), file.name());
        let is_cut = tokio::task::spawn_blocking(move || is_cut(&path)).await.map_err(std::io::Error::other);
        match is_cut.and_then(|is_cut| is_cut).map_err(local)? {
            true => Err(Gone::Cut { name }),
            false => Ok(()),
        }
    }

    async fn bring_image(&self, at: usize, image: SentImage) -> Result<Value, Gone> {
        let name = format!("{}_{:05}.{}", image.node, at + 1, image.mime.rsplit('/').next().unwrap_or("bin"));
        let bytes = bytes::Bytes::from(image.bytes);
        let (hash, size) =
            self.blobs.store_bytes(bytes).await.map_err(|error| Gone::Store { name: name.clone(), error })?;
        Ok(json!({
            "node": image.node, "key": "images", "name": name, "type": "socket", "media": image.mime,
            "hash": hash.to_string(), "size_bytes": size,
        }))
    }
}

/// An output as it stands in the result.
pub(super) fn output(file: &File, hash: BlobHash, size: u64) -> Value {
    json!({
        "node": file.node, "key": file.key, "name": file.name(), "type": file.kind, "media": file.media,
        "hash": hash.to_string(), "size_bytes": size,
    })
}

/// What a picture of the usual kind begins with, and its last piece, behind which some programs put notes of their own.
const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n";
const PNG_END: &[u8] = b"IEND\xaeB`\x82";
const NOTES_BYTES_MAX: u64 = 64 << 10;

/// Whether it is a picture of which the end is missing: a disk that filled up, a server that died while it wrote. The
/// server itself says of no file how long it should be.
fn is_cut(path: &Path) -> std::io::Result<bool> {
    let mut file = std::fs::File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(PNG_HEAD.len() as u64).read_to_end(&mut head)?;
    if head != PNG_HEAD {
        return Ok(false);
    }
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(NOTES_BYTES_MAX)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    Ok(!tail.windows(PNG_END.len()).any(|piece| piece == PNG_END))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_without_its_end_is_cut_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let picture = [PNG_HEAD, &[7; 100_000], b"\0\0\0\0", PNG_END].concat();
        let noted = [&picture, &b"a note"[..]].concat();
        for (content, expected) in [
            (&picture[..], false),
            (&noted, false),
            (&picture[..50_000], true),
            (&picture[..picture.len() - 1], true),
            (PNG_HEAD, true),
            (b"\x89PN", false),
            (b"", false),
            (b"some text", false),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(is_cut(&path).unwrap(), expected, "{} bytes", content.len());
        }
    }
}
