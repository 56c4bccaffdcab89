//! Outputs that are there before the run is over: brought home in the background and told to the plane, so that whoever
//! waits sees the first picture of a long run while it goes on. A run that ends in a moment is left to `collect`, and
//! so is whatever fails here: `collect` brings all that history lists, and only knows some of it already.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use remuda_comfyui::{File, outputs};
use remuda_store::blobs::BlobHash;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::debug;

use super::{Run, Shared};

/// What ends sooner than this after its first output gains nothing.
const HOLD: Duration = Duration::from_millis(300);
/// Nodes that have put something out and wait; what does not fit comes at the end.
const WAITING_MAX: usize = 1_000;

/// A node has put out files.
#[derive(Debug)]
pub(super) struct PutOut {
    prompt: String,
    files: Vec<File>,
    at: Instant,
}

/// What was brought before the end, and what is on its way right now.
#[derive(Debug, Default)]
pub(super) struct Brought {
    files: Vec<(File, BlobHash, u64)>,
    on_its_way: watch::Sender<Option<File>>,
    /// Nothing more is to be begun.
    is_over: bool,
}

impl Brought {
    fn find(&self, file: &File) -> Option<(BlobHash, u64)> {
        let is_it = |it: &File| {
            (&it.kind, &it.subfolder, &it.filename) == (&file.kind, &file.subfolder, &file.filename)
        };
        self.files.iter().find(|(it, ..)| is_it(it)).map(|(_, hash, size)| (*hash, *size))
    }

    /// Each as it will stand in the result.
    fn told(&self) -> Vec<Arc<RawValue>> {
        let told = self.files.iter().map(|(file, hash, size)| {
            let output = to_raw_value(&super::collect::output(file, *hash, *size));
            Arc::from(output.expect("texts and numbers can be written"))
        });
        told.collect()
    }
}

pub(super) fn channel() -> (mpsc::Sender<PutOut>, mpsc::Receiver<PutOut>) {
    mpsc::channel(WAITING_MAX)
}

impl Shared {
    /// Takes note of what a node put out; never waits.
    pub(super) fn put_out(&self, prompt: &str, node: &str, output: &RawValue) {
        let files = outputs::files_of(node, output);
        if !files.is_empty() {
            // If there is no room it comes at the end.
            drop(self.early.try_send(PutOut { prompt: prompt.to_owned(), files, at: Instant::now() }));
        }
    }

    /// Never ends by itself.
    pub(super) async fn bring_early(self: Arc<Self>, mut put_out: mpsc::Receiver<PutOut>) {
        while let Some(PutOut { prompt, files, at }) = put_out.recv().await {
            tokio::time::sleep_until(at + HOLD).await;
            for file in files {
                if self.begins_early(&prompt, &file) {
                    let brought = self.bring_once(&file).await;
                    self.ends_early(&prompt, file, brought.ok());
                }
            }
        }
    }

    fn begins_early(&self, prompt: &str, file: &File) -> bool {
        self.with_early(prompt, |run| {
            let is_new = !run.is_heard_out && !run.brought.is_over && run.brought.find(file).is_none();
            let is_wanted = is_new && run.wanted.has(&file.node);
            if is_wanted {
                run.brought.on_its_way.send_replace(Some(file.clone()));
            }
            is_wanted
        })
        .unwrap_or_default()
    }

    fn ends_early(&self, prompt: &str, file: File, stored: Option<(BlobHash, u64)>) {
        let told = self.with_early(prompt, |run| {
            if let Some((hash, size)) = stored {
                debug!(job = %run.job, name = file.name(), "an output is there before the end");
                run.brought.files.push((file, hash, size));
            }
            run.brought.on_its_way.send_replace(None);
            (run.job, run.attempt, run.brought.told())
        });
        if let Some((job, attempt, told)) = told.filter(|_| stored.is_some()) {
            self.reports.stored(job, attempt, told);
        }
    }

    /// What was brought of a file before the end, if the plane still has it. Waits if it is just being brought: doing it
    /// twice would take no less time.
    pub(super) async fn brought_early(&self, prompt: &str, file: &File) -> Option<(BlobHash, u64)> {
        let mut on_its_way = self.with_early(prompt, |run| {
            run.brought.is_over = true;
            run.brought.on_its_way.subscribe()
        })?;
        // An error means that the run is gone, and what was brought of it.
        on_its_way.wait_for(|it| it.as_ref() != Some(file)).await.ok()?;
        let (hash, size) = self.with_early(prompt, |run| run.brought.find(file))??;
        self.blobs.is_there(&hash).await.then_some((hash, size))
    }

    fn with_early<T>(&self, prompt: &str, act: impl FnOnce(&mut Run) -> T) -> Option<T> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get_mut(prompt).map(act)
    }
}
