//! Follows the plane's news and tells each watched job what concerns it. It hears of every end, because what is stored is
//! never left out, and it forgets a job when that has ended: whoever holds a handle keeps the last that was told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{JobId, Sequence};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::events::News;
use super::job_handle::ended;
use super::{Follower, Inner, JobError, JobOutcome, WorkflowPoolStats};
use remuda_core::wire::live::ProgressSnapshot;
use remuda_server::http::Context;
use remuda_server::previews::Preview;
use remuda_server::shutdown::stopped;

/// How a job stands.
#[derive(Clone, Debug, Default)]
pub(super) struct JobSnapshot {
    pub(super) progress: Option<ProgressSnapshot>,
    pub(super) outputs: Vec<Arc<RawValue>>,
    pub(super) preview: Option<Preview>,
    pub(super) ended: Option<Result<JobOutcome, JobError>>,
}

#[derive(Debug, Default)]
pub(super) struct JobWatch {
    jobs: Mutex<BTreeMap<JobId, watch::Sender<JobSnapshot>>>,
    seen: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

impl JobWatch {
    /// Begins after this event.
    pub(super) fn after(sequence: Sequence) -> JobWatch {
        JobWatch { seen: AtomicU64::new(sequence.0), ..JobWatch::default() }
    }

    /// The newest event that is known: whoever follows from here misses nothing that comes.
    pub(super) fn seen(&self) -> Sequence {
        Sequence(self.seen.load(Ordering::Acquire))
    }

    pub(super) fn watch(&self, job: JobId) -> watch::Receiver<JobSnapshot> {
        self.jobs().entry(job).or_insert_with(|| watch::Sender::new(JobSnapshot::default())).subscribe()
    }

    pub(super) fn count(&self, stats: WorkflowPoolStats) -> WorkflowPoolStats {
        let [completed, failed, cancelled] =
            [&self.completed, &self.failed, &self.cancelled].map(|count| count.load(Ordering::Relaxed));
        WorkflowPoolStats { completed, failed, cancelled, ..stats }
    }

    /// Until the plane ends. If that was not our doing, nobody is left waiting for what will not come.
    pub(super) async fn run(inner: Arc<Inner>, mut follower: Follower, mut stopping: watch::Receiver<bool>) {
        loop {
            let news = tokio::select! {
                news = follower.news() => news,
                () = stopped(&mut stopping) => None,
            };
            match news {
                Some(news) => inner.hub.heard(&inner, news).await,
                None => return inner.hub.forget_all(),
            }
        }
    }

    async fn heard(&self, inner: &Arc<Inner>, news: News) {
        match news {
            News::Event(happened) => {
                self.seen.store(happened.seq.0, Ordering::Release);
                let Some(job) = happened.job else { return };
                let count = match &*happened.name {
                    "job:completed" => &self.completed,
                    "job:failed" => &self.failed,
                    "job:cancelled" => &self.cancelled,
                    // What another attempt did is of no more use.
                    "job:retrying" => return self.change(job, |now| *now = JobSnapshot::default()),
                    _ => return,
                };
                count.fetch_add(1, Ordering::Relaxed);
                if let Some(context) = inner.context() {
                    self.look(inner, &context, job).await;
                }
            }
            News::Told(told) => self.change(told.job, |now| {
                if let Some(progress) = &told.report.progress {
                    now.progress = Some(progress.clone());
                }
                if let Some(outputs) = &told.report.outputs {
                    now.outputs.clone_from(outputs);
                }
            }),
            News::Preview(shown) => {
                let preview = inner.context().and_then(|context| context.previews.find(shown.job));
                self.change(shown.job, |now| now.preview = preview);
            }
        }
    }

    /// Tells the end of a job, if it has ended.
    pub(super) async fn look(&self, inner: &Arc<Inner>, context: &Context, job: JobId) {
        if !self.jobs().contains_key(&job) {
            return;
        }
        if let Some(ended) = ended(inner, context, job).await {
            self.change(job, |now| now.ended = Some(ended));
            self.jobs().remove(&job);
        }
    }

    /// Tells all ends that were not told yet; nobody will be told any more afterwards.
    pub(super) async fn close(&self, inner: &Arc<Inner>, context: Option<&Context>) {
        let left: Vec<JobId> = self.jobs().keys().copied().collect();
        for job in left {
            if let Some(context) = context {
                self.look(inner, context, job).await;
            }
        }
        self.forget_all();
    }

    pub(super) fn forget_all(&self) {
        self.jobs().clear();
    }

    fn change(&self, job: JobId, change: impl FnOnce(&mut JobSnapshot)) {
        if let Some(now) = self.jobs().get(&job) {
            now.send_modify(change);
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, watch::Sender<JobSnapshot>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
