//! Stores outputs before the run has ended, so that a client sees the first image of a long run while it continues.
//! Everything that fails here is left to `collect`, which stores all outputs that the server's history lists and skips
//! those already stored. Short runs are left to it entirely.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use remuda_comfyui::{OutputFile, outputs};
use remuda_store::blobs::BlobHash;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::debug;

use super::{ComfyuiContext, Run};

/// A run that ends within this time after an output gains nothing from storing it early.
const DELAY: Duration = Duration::from_millis(300);
/// Outputs waiting to be stored; those that do not fit are left to `collect`.
const QUEUED_MAX: usize = 1_000;

/// A node has produced files.
#[derive(Debug)]
pub(super) struct NodeOutput {
    prompt: String,
    files: Vec<OutputFile>,
    at: Instant,
}

/// The files of one run that were stored early, and the one being stored right now.
#[derive(Debug, Default)]
pub(super) struct EarlyOutputs {
    stored: Vec<(OutputFile, BlobHash, u64)>,
    in_flight: watch::Sender<Option<OutputFile>>,
    /// Set once `collect` has taken over: no further file is started here.
    is_closed: bool,
}

impl EarlyOutputs {
    fn find(&self, file: &OutputFile) -> Option<(BlobHash, u64)> {
        let is_same = |it: &OutputFile| {
            (&it.kind, &it.subfolder, &it.filename) == (&file.kind, &file.subfolder, &file.filename)
        };
        self.stored.iter().find(|(it, ..)| is_same(it)).map(|(_, hash, size)| (*hash, *size))
    }

    /// The stored files as entries of the result.
    fn result_entries(&self) -> Vec<Arc<RawValue>> {
        let entries = self.stored.iter().map(|(file, hash, size)| {
            let entry = to_raw_value(&super::collect::result_entry(file, *hash, *size));
            Arc::from(entry.expect("texts and numbers can be serialised"))
        });
        entries.collect()
    }
}

pub(super) fn channel() -> (mpsc::Sender<NodeOutput>, mpsc::Receiver<NodeOutput>) {
    mpsc::channel(QUEUED_MAX)
}

impl ComfyuiContext {
    /// Queues the files of a node's output; never blocks.
    pub(super) fn queue_early(&self, prompt: &str, node: &str, output: &RawValue) {
        let files = outputs::node_files(node, output);
        if !files.is_empty() {
            // If the queue is full, `collect` stores the files at the end.
            drop(self.early.try_send(NodeOutput { prompt: prompt.to_owned(), files, at: Instant::now() }));
        }
    }

    /// Stores queued files until the task is dropped.
    pub(super) async fn store_early(self: Arc<Self>, mut queue: mpsc::Receiver<NodeOutput>) {
        while let Some(NodeOutput { prompt, files, at }) = queue.recv().await {
            tokio::time::sleep_until(at + DELAY).await;
            for file in files {
                if self.begin_early(&prompt, &file) {
                    let stored = self.store_once(&prompt, &file).await;
                    self.finish_early(&prompt, file, stored.ok());
                }
            }
        }
    }

    fn begin_early(&self, prompt: &str, file: &OutputFile) -> bool {
        self.update_run(prompt, |run| {
            let early = &run.early;
            let is_open = !*run.has_final_message.borrow() && !early.is_closed && early.find(file).is_none();
            let is_included = is_open && run.filter.includes(&file.node);
            if is_included {
                early.in_flight.send_replace(Some(file.clone()));
            }
            is_included
        })
        .unwrap_or_default()
    }

    fn finish_early(&self, prompt: &str, file: OutputFile, stored: Option<(BlobHash, u64)>) {
        let updated = self.update_run(prompt, |run| {
            if let Some((hash, size)) = stored {
                debug!(job = %run.job, name = file.display_name(), "stored an output before the end of its run");
                run.early.stored.push((file, hash, size));
            }
            run.early.in_flight.send_replace(None);
            (run.job, run.attempt, run.early.result_entries())
        });
        if let Some((job, attempt, entries)) = updated.filter(|_| stored.is_some()) {
            self.reports.set_outputs(job, attempt, entries);
        }
    }

    /// The blob of a file that was stored early, if the plane still has it. Waits for a file that is just being stored:
    /// storing it a second time would not be faster.
    pub(super) async fn find_early(&self, prompt: &str, file: &OutputFile) -> Option<(BlobHash, u64)> {
        let mut in_flight = self.update_run(prompt, |run| {
            run.early.is_closed = true;
            run.early.in_flight.subscribe()
        })?;
        // An error means that the run was dropped together with its early outputs.
        in_flight.wait_for(|it| it.as_ref() != Some(file)).await.ok()?;
        let (hash, size) = self.update_run(prompt, |run| run.early.find(file))??;
        self.blobs.is_stored(&hash).await.then_some((hash, size))
    }

    pub(super) fn update_run<T>(&self, prompt: &str, act: impl FnOnce(&mut Run) -> T) -> Option<T> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get_mut(prompt).map(act)
    }
}
