//! Stores the outputs of a run: every file becomes a blob on the plane before the attempt counts as completed.
//!
//! The result is `{"outputs": [{"node", "key", "name", "subfolder"?, "type", "media", "hash", "size_bytes"}, ..],
//! "values": [{"node", "key", "value"}, ..], "node_seconds": {"3": 1.25, ..}}`. Names, folders and the prompt inside a PNG are as the user chose them, without
//! the folder of the attempt.

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use remuda_comfyui::outputs::{self, Outputs};
use remuda_comfyui::{ComfyuiError, OutputFile, PromptRestorer};
use remuda_core::cause::Cause;
use remuda_core::service::AttemptEnd;
use remuda_core::service::outputs::{MissingOutputs, RunOutputs, missing_outputs};
use remuda_store::blobs::BlobHash;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tracing::{debug, warn};

use super::ComfyuiContext;
use super::ws_listener::SentImage;
use crate::attempt::OutputFilter;
use crate::blob_link::BlobLinkError;

/// A listed file that is missing may still be written to a slow disk; after this many fetches it is lost.
const FETCHES_MAX: u32 = 4;
const FETCH_RETRY_DELAY: Duration = Duration::from_millis(250);
/// While the plane cannot store blobs, the worker keeps the result and retries this often.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A larger file goes over the disk. An image of two megapixels fits; each operation on a file costs a change of threads, and
/// a small image needs a dozen of them.
const IN_MEMORY_MAX: usize = 4 << 20;

/// A file of the server, as it was before its attempt.
enum FetchedFile {
    Bytes(Bytes),
    /// Removed by its owner.
    Path(PathBuf),
}

/// Why an attempt that ran cannot be completed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CollectError {
    #[error("output {name} cannot be fetched from ComfyUI: {error}")]
    Fetch { name: String, error: ComfyuiError },
    #[error("output {name} cannot be written to the scratch folder: {error}")]
    Local { name: String, error: std::io::Error },
    #[error("output {name} cannot be stored on the plane: {error}")]
    Store { name: String, error: BlobLinkError },
    #[error("output {name} is truncated: the image has no end marker")]
    Truncated { name: String },
    #[error("ComfyUI reports success and lists no outputs")]
    Empty,
    #[error("images that a node sent over the socket were lost")]
    ImagesLost,
}

impl CollectError {
    /// Whether the server would give the same answer again from its cache.
    fn is_cached(&self) -> bool {
        matches!(
            self,
            CollectError::Fetch { error: ComfyuiError::NotFound(_), .. }
                | CollectError::Truncated { .. }
                | CollectError::Empty
        )
    }
}

impl ComfyuiContext {
    pub(super) async fn collect(&self, id: &str, listed: &RawValue, filter: &OutputFilter) -> AttemptEnd {
        match self.store_outputs(id, listed, filter).await {
            Ok(result) => {
                self.incarnations.lock().set_anchor(id);
                self.update_run(id, |run| run.is_collected = true);
                AttemptEnd::Completed { result }
            }
            Err(error) => {
                if error.is_cached()
                    && let Err(error) = self.client.free_memory().await
                {
                    debug!(prompt = id, %error, "could not empty ComfyUI's cache");
                }
                AttemptEnd::Failed { cause: Cause::Service, message: error.to_string() }
            }
        }
    }

    async fn store_outputs(
        &self,
        id: &str,
        listed: &RawValue,
        filter: &OutputFilter,
    ) -> Result<Arc<RawValue>, CollectError> {
        let Outputs { mut files, mut values } = outputs::parse(listed);
        let (images, missing, node_seconds) = {
            let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            let run = runs.get(id);
            let images = run.map(|run| run.sent_images.clone()).unwrap_or_default();
            let classes = run.into_iter().flat_map(|run| run.classes.values().map(String::as_str));
            let produced =
                RunOutputs { files: files.len(), values: values.len(), socket_images: images.len() };
            let was_blocked = run.and_then(|run| run.progress.as_ref()).is_some_and(|it| it.was_blocked());
            let times = run.into_iter().flat_map(|run| run.node_times.ended());
            let node_seconds: Map<String, Value> =
                times.map(|(node, time)| (node.clone(), rounded_seconds(*time).into())).collect();
            (images, missing_outputs(classes, produced, was_blocked), node_seconds)
        };
        match missing {
            Some(MissingOutputs::SocketImages) => return Err(CollectError::ImagesLost),
            Some(MissingOutputs::Listed) => return Err(CollectError::Empty),
            None => {}
        }
        files.retain(|file| filter.includes(&file.node));
        values.retain(|value| filter.includes(&value.node));
        let mut entries = Vec::new();
        for file in &files {
            let (hash, size) = match self.find_early(id, file).await {
                Some(stored) => stored,
                None => self.store_file(id, file).await?,
            };
            entries.push(result_entry(file, hash, size));
        }
        let images = images.into_iter().filter(|image| filter.includes(&image.node));
        for (at, image) in images.enumerate() {
            entries.push(self.store_image(at, image).await?);
        }
        let values: Vec<_> = values
            .iter()
            .map(|value| json!({ "node": value.node, "key": value.key, "value": value.json }))
            .collect();
        let mut result = json!({ "outputs": entries, "values": values });
        if !node_seconds.is_empty() {
            result["node_seconds"] = node_seconds.into();
        }
        let result = to_raw_value(&result);
        Ok(Arc::from(result.expect("texts, numbers and JSON values can be serialised")))
    }

    async fn store_file(&self, id: &str, file: &OutputFile) -> Result<(BlobHash, u64), CollectError> {
        let scratch = ScratchFile(self.scratch.join(uuid::Uuid::new_v4().to_string()));
        let mut fetches = 1;
        let fetched = loop {
            match self.fetch(id, file, &scratch.0).await {
                Ok(fetched) => break fetched,
                Err(error) if fetches == FETCHES_MAX => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(FETCH_RETRY_DELAY * fetches).await;
            fetches += 1;
        };
        loop {
            match self.store_fetched(&fetched).await {
                Ok(stored) => return Ok(stored),
                Err(error @ BlobLinkError::Unreachable { .. }) => {
                    warn!(name = file.display_name(), %error, "plane cannot store an output; retrying");
                    tokio::time::sleep(STORE_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(CollectError::Store { name: file.display_name(), error }),
            }
        }
    }

    /// As `store_file` without retries, for a file that `collect` would store later anyway.
    pub(super) async fn store_once(
        &self,
        id: &str,
        file: &OutputFile,
    ) -> Result<(BlobHash, u64), CollectError> {
        let scratch = ScratchFile(self.scratch.join(uuid::Uuid::new_v4().to_string()));
        let fetched = self.fetch(id, file, &scratch.0).await?;
        let stored = self.store_fetched(&fetched).await;
        stored.map_err(|error| CollectError::Store { name: file.display_name(), error })
    }

    async fn store_fetched(&self, fetched: &FetchedFile) -> Result<(BlobHash, u64), BlobLinkError> {
        match fetched {
            FetchedFile::Bytes(bytes) => self.blobs.store_bytes(bytes.clone()).await,
            FetchedFile::Path(path) => self.blobs.store(path).await,
        }
    }

    /// Fetches a file into memory, or to `path` if it is large, and takes out of it what was put into it for the attempt.
    async fn fetch(&self, id: &str, file: &OutputFile, path: &Path) -> Result<FetchedFile, CollectError> {
        let remote = |error| CollectError::Fetch { name: file.display_name(), error };
        let local = |error| CollectError::Local { name: file.display_name(), error };
        let mut download = self.client.download(file).await.map_err(remote)?;
        let mut content = Vec::new();
        let mut is_whole = false;
        while !is_whole && content.len() <= IN_MEMORY_MAX {
            match download.chunk().await.map_err(remote)? {
                Some(chunk) => content.extend_from_slice(&chunk),
                None => is_whole = true,
            }
        }
        if !is_whole {
            let mut copy = tokio::fs::File::create(path).await.map_err(local)?;
            copy.write_all(&content).await.map_err(local)?;
            content = Vec::new();
            while let Some(chunk) = download.chunk().await.map_err(remote)? {
                copy.write_all(&chunk).await.map_err(local)?;
            }
            copy.flush().await.map_err(local)?;
        }
        let (path, name) = (path.to_owned(), file.display_name());
        let restorer = self.update_run(id, |run| run.restorer());
        let restore = move || restored(is_whole.then_some(content), path, restorer);
        match tokio::task::spawn_blocking(restore).await.map_err(std::io::Error::other).flatten() {
            Ok(Some(fetched)) => Ok(fetched),
            Ok(None) => Err(CollectError::Truncated { name }),
            Err(error) => Err(local(error)),
        }
    }

    async fn store_image(&self, at: usize, image: SentImage) -> Result<Value, CollectError> {
        let name = format!("{}_{:05}.{}", image.node, at + 1, image.mime.rsplit('/').next().unwrap_or("bin"));
        let bytes = Bytes::from(image.bytes);
        let (hash, size) = self
            .blobs
            .store_bytes(bytes)
            .await
            .map_err(|error| CollectError::Store { name: name.clone(), error })?;
        Ok(json!({
            "node": image.node, "key": "images", "name": name, "type": "socket", "media": image.mime,
            "hash": hash.to_string(), "size_bytes": size,
        }))
    }
}

/// A file in the scratch folder, or none: it is removed with this.
struct ScratchFile(PathBuf);

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // There is none if the content was small or was not fetched.
        std::fs::remove_file(&self.0).ok();
    }
}

/// The content, or the file if there is none, as it was before its attempt; `None` if it is a truncated image.
fn restored(
    content: Option<Vec<u8>>,
    path: PathBuf,
    restorer: Option<PromptRestorer>,
) -> std::io::Result<Option<FetchedFile>> {
    let Some(content) = content else {
        let is_truncated = is_truncated_png(&mut std::fs::File::open(&path)?)?;
        if let Some(restorer) = restorer.filter(|_| !is_truncated) {
            restorer.restore_file(&path)?;
        }
        return Ok((!is_truncated).then_some(FetchedFile::Path(path)));
    };
    if is_truncated_png(&mut Cursor::new(&content))? {
        return Ok(None);
    }
    let content = match restorer {
        Some(restorer) => restorer.restore_bytes(content),
        None => content,
    };
    Ok(Some(FetchedFile::Bytes(content.into())))
}

/// Milliseconds: messages are not more exact, and every job stores these.
fn rounded_seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// An output file as an entry of the result.
pub(super) fn result_entry(file: &OutputFile, hash: BlobHash, size: u64) -> Value {
    let mut entry = json!({
        "node": file.node, "key": file.key, "name": file.display_name(), "type": file.kind, "media": file.media,
        "hash": hash.to_string(), "size_bytes": size,
    });
    let folder = file.display_folder();
    if !folder.is_empty() {
        entry["subfolder"] = folder.into();
    }
    entry
}

/// The first bytes of a PNG, and its last chunk. Some programs append notes after that chunk.
const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n";
const PNG_END: &[u8] = b"IEND\xaeB`\x82";
const NOTES_BYTES_MAX: u64 = 64 << 10;

/// Whether the file is a PNG without its end: the disk was full, or the server died while writing it. The server does not
/// report how long a file should be.
fn is_truncated_png(file: &mut (impl Read + Seek)) -> std::io::Result<bool> {
    let mut head = Vec::new();
    file.take(PNG_HEAD.len() as u64).read_to_end(&mut head)?;
    if head != PNG_HEAD {
        return Ok(false);
    }
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(NOTES_BYTES_MAX)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    Ok(!tail.windows(PNG_END.len()).any(|piece| piece == PNG_END))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_png_without_its_end_is_truncated() {
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
            let is_truncated = is_truncated_png(&mut Cursor::new(content)).unwrap();
            assert_eq!(is_truncated, expected, "{} bytes", content.len());
        }
    }
}
