//! Deletes unused blobs.
//!
//! A blob's file time is when the blob was last used: sent, read, or named by a job at its submission or completion. The
//! blob is deleted `retention` and a margin after that, which is later than the records that name it. Exceptions are jobs
//! that stay open for longer, assets with a later expiry, and files uploaded by name, which may be used at any time: their
//! blobs are touched before anything is deleted. If the store cannot be read, nothing is deleted.

use std::time::Duration;

use anyhow::Context as _;
use remuda_core::document::Collection;
use remuda_core::time::Timestamp;
use remuda_store::Store;
use remuda_store::blobs::{BlobStore, DeletedBlobs, find_blob_hashes};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;

/// Reading a million files takes some seconds of disk time.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// How much longer than its records a blob is kept: file times are updated hourly, clocks change, and a submission under
/// way may name it.
const MARGIN: Duration = Duration::from_secs(24 * 60 * 60);
/// A file's time may be this much before its job was accepted: an hour without an update, and the time of a submission.
const SLACK: Duration = Duration::from_secs(2 * 60 * 60);
const PAGE: usize = 500;

/// Sweeps at the start and then every hour.
pub(super) async fn run(
    blobs: BlobStore,
    store: Store,
    plane: PlaneHandle,
    retention: Duration,
    mut stopping: watch::Receiver<bool>,
    ticker: Ticker,
) {
    // What tenants stored before this start; until it is counted, their quotas see less.
    if let Err(error) = blobs.count_owned().await {
        warn!(%error, "counting the blobs of tenants failed; quotas of stored bytes see too little");
    }
    loop {
        ticker.tick();
        match sweep(&blobs, &store, plane.clock.now(), retention).await {
            Ok(DeletedBlobs { blobs: 0, .. }) => {}
            Ok(DeletedBlobs { blobs, bytes }) => {
                info!(blobs, bytes, "unused blobs deleted");
            }
            Err(error) => {
                warn!(error = %format!("{error:#}"), "deleting unused blobs failed; will retry");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = stopped(&mut stopping) => return,
        }
    }
}

async fn sweep(
    blobs: &BlobStore,
    store: &Store,
    now: Timestamp,
    retention: Duration,
) -> anyhow::Result<DeletedBlobs> {
    let before = now.minus(retention + MARGIN);
    touch_for_open_jobs(blobs, store, now, before.plus(SLACK)).await?;
    touch_for_assets(blobs, store, now).await?;
    touch_for_uploads(blobs, store, now).await?;
    blobs.delete_unused(before).await.context("deleting blobs")
}

/// Open jobs come oldest first; jobs accepted later touched their blobs at submission.
async fn touch_for_open_jobs(
    blobs: &BlobStore,
    store: &Store,
    now: Timestamp,
    accepted_before: Timestamp,
) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let page = store.open_jobs(after, PAGE).await.context("reading open jobs")?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(last.id);
        for (job, _) in page {
            if job.accepted_at >= accepted_before {
                return Ok(());
            }
            let workflow = store.workflow(job.id).await.context("reading an open job's workflow")?;
            let named = workflow.map(|workflow| find_blob_hashes(workflow.get())).unwrap_or_default();
            blobs.touch_all(named, now).await.context("touching an open job's blobs")?;
        }
    }
}

/// The index key of an asset is its blob's hash.
async fn touch_for_assets(blobs: &BlobStore, store: &Store, now: Timestamp) -> anyhow::Result<()> {
    let mut after = String::new();
    loop {
        let page = store.documents(Collection::Asset, &after, PAGE).await.context("reading assets")?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.id);
        let there = page.iter().filter(|asset| asset.is_live(now));
        let named = there.filter_map(|asset| asset.index_key.parse().ok()).collect();
        blobs.touch_all(named, now).await.context("touching an asset's blob")?;
    }
}

/// Files uploaded to the ComfyUI API stay until they are replaced, as on a ComfyUI server.
async fn touch_for_uploads(blobs: &BlobStore, store: &Store, now: Timestamp) -> anyhow::Result<()> {
    let mut after = String::new();
    loop {
        let page = store.documents(Collection::Comfyui, &after, PAGE).await.context("reading uploads")?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.id);
        let named = page.iter().flat_map(|document| find_blob_hashes(document.body.get())).collect();
        blobs.touch_all(named, now).await.context("touching an upload's blob")?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use remuda_core::document::Document;
    use remuda_core::id::JobId;
    use remuda_core::plane::{JobSubmission, PlaneEvent};
    use remuda_core::record::AcceptedJob;
    use remuda_core::settings::Settings;
    use remuda_core::workflow::{Workflow, WorkflowLimits};
    use remuda_store::blobs::BlobHash;
    use serde_json::value::RawValue;

    use super::*;
    use crate::effects::EffectRunner;
    use crate::event_loop::EventLoop;
    use crate::workflow_cache::WorkflowCache;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

    /// A plane with blobs and no workers.
    struct Story {
        plane: PlaneHandle,
        store: Store,
        blobs: BlobStore,
        _folder: tempfile::TempDir,
    }

    impl Story {
        async fn begin() -> Story {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open("memory:").await.unwrap();
            let blobs = BlobStore::open(folder.path().join("blobs"), 1000).await.unwrap();
            let effects =
                EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
            let (plane, event_loop) =
                EventLoop::start(store.clone(), Settings::default(), effects).await.unwrap();
            tokio::spawn(event_loop.run());
            Story { plane, store, blobs, _folder: folder }
        }

        async fn put(&self, content: &[u8]) -> BlobHash {
            let upload = self.blobs.begin_upload().await.unwrap().write(content).await.unwrap();
            upload.finish(None, self.plane.clock.now()).await.unwrap().hash
        }

        /// Submits a job that names a blob and never runs.
        async fn submit(&self, blob: BlobHash) -> JobId {
            let text = format!("{{\"picture\":{{\"info\":{{\"hash\":\"{blob}\"}}}}}}");
            let text = RawValue::from_string(text).unwrap();
            let workflow = Workflow::parse(text, &WorkflowLimits::default()).unwrap();
            let id = self.plane.new_job_id();
            let job = AcceptedJob {
                id,
                accepted_at: Timestamp::ZERO,
                tenant: "default".parse().unwrap(),
                token: None,
                priority: 0,
                service: "exec".parse().unwrap(),
                shape: workflow.facts().shape,
                workflow_hash: workflow.facts().workflow_hash,
                needs: Default::default(),
                deadline: None,
                attempts_max: None,
                options: remuda_core::options::JobOptions::default(),
                key: None,
                labels: Default::default(),
                metadata: Default::default(),
            };
            let workflow = workflow.text().clone();
            let submission = JobSubmission { job, deadline: None, known: None, workflow, stored_bytes: 0 };
            self.plane.request(PlaneEvent::Submit(Box::new(submission))).await.unwrap();
            id
        }

        /// Sweeps as if this much time had passed; returns which blobs are left.
        async fn sweep_after(&self, time: Duration, blobs: &[BlobHash]) -> Vec<bool> {
            sweep(&self.blobs, &self.store, self.plane.clock.now().plus(time), RETENTION).await.unwrap();
            let mut left = Vec::new();
            for blob in blobs {
                left.push(self.blobs.size(*blob).await.unwrap().is_some());
            }
            left
        }
    }

    #[tokio::test]
    async fn blob_outlives_its_records_and_an_open_job_keeps_it() {
        let story = Story::begin().await;
        let blobs = [story.put(b"unused!!").await, story.put(b"of an open job").await];
        let job = story.submit(blobs[1]).await;
        assert_eq!(story.sweep_after(RETENTION + DAY / 2, &blobs).await, [true, true]);
        assert_eq!(story.sweep_after(RETENTION + 2 * DAY, &blobs).await, [false, true]);
        // Touched for the open job just now, so it stays for as long again.
        assert_eq!(story.sweep_after(2 * RETENTION, &blobs).await, [false, true]);
        assert_eq!(story.sweep_after(100 * RETENTION, &blobs).await, [false, true]);
        story.plane.request(PlaneEvent::Cancel { job, message: String::new() }).await.unwrap();
        assert_eq!(story.sweep_after(101 * RETENTION, &blobs).await, [false, true]);
        assert_eq!(story.sweep_after(102 * RETENTION, &blobs).await, [false, false]);
    }

    #[tokio::test]
    async fn blob_is_kept_until_its_asset_expires() {
        let story = Story::begin().await;
        let blobs = [story.put(b"unused!!").await, story.put(b"of an asset").await];
        let document = Document {
            collection: Collection::Asset,
            id: "an asset".to_owned(),
            tenant: None,
            index_key: blobs[1].to_string(),
            expires_at: Some(story.plane.clock.now().plus(3 * RETENTION)),
            body: Arc::from(RawValue::NULL.to_owned()),
        };
        story.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await.unwrap();
        assert_eq!(story.sweep_after(2 * RETENTION, &blobs).await, [false, true]);
        assert_eq!(story.sweep_after(3 * RETENTION + DAY / 2, &blobs).await, [false, true]);
        assert_eq!(story.sweep_after(4 * RETENTION + 2 * DAY, &blobs).await, [false, false]);
    }

    #[tokio::test]
    async fn no_blob_is_deleted_while_the_store_cannot_be_read() {
        let story = Story::begin().await;
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("x.sqlite").display());
        let store = Store::open(&url).await.unwrap();
        let blob = story.put(b"unused!!").await;
        store.clone().close().await.unwrap();
        let now = story.plane.clock.now().plus(100 * RETENTION);
        let error = sweep(&story.blobs, &store, now, RETENTION).await.unwrap_err();
        assert_eq!(error.to_string(), "reading open jobs");
        assert_eq!(story.blobs.size(blob).await.unwrap(), Some(8));
    }
}
