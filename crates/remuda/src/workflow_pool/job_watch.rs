//! Follows the plane's events and publishes a snapshot of each watched job to its handles. Stored events are never
//! skipped, so every end is seen; a job is dropped once it has ended, and its handles keep the last snapshot.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Sequence};
use remuda_core::wire::live::ProgressSnapshot;
use remuda_server::follower::{Followed, Follower};
use remuda_server::http::Context;
use remuda_server::live::LiveEvent;
use remuda_server::previews::Preview;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::job_handle::read_end;
use super::{Inner, JobError, JobOutcome, WorkflowPoolStats};

/// What a handle knows about its job.
#[derive(Clone, Debug, Default)]
pub(super) struct JobSnapshot {
    pub(super) progress: Option<ProgressSnapshot>,
    pub(super) outputs: Vec<Arc<RawValue>>,
    pub(super) preview: Option<Preview>,
    pub(super) end: Option<Result<JobOutcome, JobError>>,
}

#[derive(Debug, Default)]
pub(super) struct JobWatch {
    jobs: Mutex<BTreeMap<JobId, watch::Sender<JobSnapshot>>>,
    last_sequence: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

impl JobWatch {
    /// Starts after this event.
    pub(super) fn after(sequence: Sequence) -> JobWatch {
        JobWatch { last_sequence: AtomicU64::new(sequence.0), ..JobWatch::default() }
    }

    /// The newest event seen: a follower that starts here misses none that comes.
    pub(super) fn last_sequence(&self) -> Sequence {
        Sequence(self.last_sequence.load(Ordering::Acquire))
    }

    pub(super) fn subscribe(&self, job: JobId) -> watch::Receiver<JobSnapshot> {
        self.jobs().entry(job).or_insert_with(|| watch::Sender::new(JobSnapshot::default())).subscribe()
    }

    /// Adds the number of jobs that ended since the pool was built.
    pub(super) fn count(&self, stats: WorkflowPoolStats) -> WorkflowPoolStats {
        let [completed, failed, cancelled] =
            [&self.completed, &self.failed, &self.cancelled].map(|count| count.load(Ordering::Relaxed));
        WorkflowPoolStats { completed, failed, cancelled, ..stats }
    }

    /// Runs until the plane ends. Then every handle still waiting is told that the pool has stopped.
    pub(super) async fn run(inner: Arc<Inner>, mut events: Follower) {
        while let Some(followed) = events.next().await {
            if let Followed::Event(event) = followed {
                inner.watch.apply(&inner, event).await;
            }
        }
        inner.watch.drop_all();
    }

    async fn apply(&self, inner: &Arc<Inner>, event: LiveEvent) {
        match event {
            LiveEvent::Stored(stored) => {
                self.last_sequence.store(stored.seq.0, Ordering::Release);
                let Some(job) = stored.job else { return };
                let count = match stored.kind {
                    EventKind::JobCompleted => &self.completed,
                    EventKind::JobFailed => &self.failed,
                    EventKind::JobCancelled => &self.cancelled,
                    // Progress and outputs of the lost attempt no longer apply.
                    EventKind::JobRetrying => {
                        return self.update(job, |snapshot| *snapshot = JobSnapshot::default());
                    }
                    _ => return,
                };
                count.fetch_add(1, Ordering::Relaxed);
                if let Some(context) = inner.context() {
                    self.publish_end(inner, &context, job).await;
                }
            }
            LiveEvent::Update(update) => self.update(update.job, |snapshot| {
                if let Some(progress) = &update.report.progress {
                    snapshot.progress = Some(progress.clone());
                }
                if let Some(outputs) = &update.report.outputs {
                    snapshot.outputs.clone_from(outputs);
                }
            }),
            LiveEvent::Preview(update) => {
                let preview = inner.context().and_then(|context| context.previews.find(update.job));
                self.update(update.job, |snapshot| snapshot.preview = preview);
            }
            // The live update has more detail.
            LiveEvent::Progress { .. } => {}
        }
    }

    /// Publishes the end of a watched job, if it has ended.
    pub(super) async fn publish_end(&self, inner: &Arc<Inner>, context: &Context, job: JobId) {
        if !self.jobs().contains_key(&job) {
            return;
        }
        if let Some(end) = read_end(inner, context, job).await {
            self.update(job, |snapshot| snapshot.end = Some(end));
            self.jobs().remove(&job);
        }
    }

    /// Publishes every end not published yet, and drops all jobs.
    pub(super) async fn close(&self, inner: &Arc<Inner>, context: Option<&Context>) {
        let open: Vec<JobId> = self.jobs().keys().copied().collect();
        for job in open {
            if let Some(context) = context {
                self.publish_end(inner, context, job).await;
            }
        }
        self.drop_all();
    }

    pub(super) fn drop_all(&self) {
        self.jobs().clear();
    }

    fn update(&self, job: JobId, change: impl FnOnce(&mut JobSnapshot)) {
        if let Some(snapshot) = self.jobs().get(&job) {
            snapshot.send_modify(change);
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, watch::Sender<JobSnapshot>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
