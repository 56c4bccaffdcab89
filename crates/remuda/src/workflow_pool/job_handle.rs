//! A job as the program that enqueued it sees it.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use remuda_core::cause::Cause;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::record::StateRow;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::job_watch::JobSnapshot;
use super::{Inner, JobOutput, WorkflowPoolError};
use remuda_core::wire::live::ProgressSnapshot;
use remuda_server::http::Context;
use remuda_server::previews::Preview;

/// An accepted job. Await it for the outcome; dropping it does not affect the job.
#[derive(Clone, Debug)]
pub struct JobHandle {
    id: JobId,
    inner: Arc<Inner>,
    snapshot: watch::Receiver<JobSnapshot>,
}

/// The result of a completed job.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    pub job: JobId,
    /// Files, in the order in which the nodes ended.
    pub outputs: Vec<JobOutput>,
    /// Outputs of nodes that are not files: texts, numbers.
    pub values: Vec<NodeValue>,
    pub worker: WorkerId,
    /// Number of attempts, including the successful one.
    pub attempts: u32,
    /// How long each node ran, by its id in the workflow, as far as the server's messages told. Nodes whose result was
    /// cached did not run.
    pub node_times: BTreeMap<String, Duration>,
}

/// A text, number or list that a node returned.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeValue {
    pub node: String,
    pub key: String,
    pub value: Value,
}

/// Why a job has no outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobError {
    /// With `Cause::Job` the workflow is at fault: fix it. Otherwise servers failed repeatedly.
    #[error("the job failed after {attempts} attempts ({cause}): {message}")]
    Failed { cause: Cause, message: String, attempts: u32 },
    #[error("the job was cancelled: {message}")]
    Cancelled { message: String },
    /// A pool on the same folder continues the job; a pool in memory loses it.
    #[error("the pool was shut down before the job had ended")]
    Stopped,
    /// The job ended, but its outcome cannot be read: repair the store, then call `WorkflowPool::job`.
    #[error("the outcome of the job cannot be read: {0}")]
    Unreadable(String),
}

impl JobHandle {
    pub(super) fn new(id: JobId, inner: Arc<Inner>, snapshot: watch::Receiver<JobSnapshot>) -> Self {
        JobHandle { id, inner, snapshot }
    }

    pub fn id(&self) -> JobId {
        self.id
    }

    /// Waits until the job has ended.
    pub async fn outcome(&self) -> Result<JobOutcome, JobError> {
        let mut snapshot = self.snapshot.clone();
        match snapshot.wait_for(|snapshot| snapshot.end.is_some()).await {
            Ok(snapshot) => snapshot.end.clone().unwrap_or(Err(JobError::Stopped)),
            // The sender is dropped when the pool stops.
            Err(_) => Err(JobError::Stopped),
        }
    }

    /// Cancels the job, whether it waits or runs; it will not run again.
    pub async fn cancel(&self) -> Result<(), WorkflowPoolError> {
        self.inner.cancel(self.id).await
    }

    /// Progress whenever it changes, until the job has ended. A slow reader gets the newest.
    pub fn progress(&self) -> impl Stream<Item = ProgressSnapshot> + Send + use<> {
        self.changes(|snapshot| snapshot.progress.clone())
    }

    /// Preview images, if the server sends any, until the job has ended. A slow reader gets the newest.
    pub fn previews(&self) -> impl Stream<Item = Preview> + Send + use<> {
        self.changes(|snapshot| snapshot.preview.clone())
    }

    /// Outputs stored so far; all of them once the job has ended.
    pub fn outputs(&self) -> Vec<JobOutput> {
        let snapshot = self.snapshot.borrow();
        match &snapshot.end {
            Some(Ok(outcome)) => outcome.outputs.clone(),
            Some(Err(_)) => Vec::new(),
            None => snapshot.outputs.iter().filter_map(|raw| JobOutput::read(raw, &self.inner)).collect(),
        }
    }

    /// One field of the snapshot whenever it changes, until the job has ended.
    fn changes<T, F>(&self, field: F) -> impl Stream<Item = T> + Send + use<T, F>
    where
        T: PartialEq + Clone + Send + 'static,
        F: Fn(&JobSnapshot) -> Option<T> + Send + 'static,
    {
        let start = (self.snapshot.clone(), field, None);
        futures_util::stream::unfold(start, |(mut snapshot, field, mut last)| async {
            loop {
                let (current, has_ended) = {
                    let snapshot = snapshot.borrow_and_update();
                    (field(&snapshot), snapshot.end.is_some())
                };
                if current.is_some() && current != last {
                    last.clone_from(&current);
                    return Some((current?, (snapshot, field, last)));
                }
                if has_ended || snapshot.changed().await.is_err() {
                    return None;
                }
            }
        })
    }
}

impl IntoFuture for JobHandle {
    type Output = Result<JobOutcome, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await })
    }
}

/// The stored result of a ComfyUI job.
#[derive(Default, Deserialize)]
struct StoredResult {
    #[serde(default)]
    outputs: Vec<Box<RawValue>>,
    #[serde(default)]
    values: Vec<NodeValue>,
    #[serde(default)]
    node_seconds: BTreeMap<String, f64>,
}

/// Reads how a job ended; None if it has not.
pub(super) async fn read_end(
    inner: &Arc<Inner>,
    context: &Context,
    job: JobId,
) -> Option<Result<JobOutcome, JobError>> {
    let unreadable = |why: &dyn std::fmt::Display| Some(Err(JobError::Unreadable(why.to_string())));
    let status = match context.store.job(job).await {
        Ok(Some((_, status))) => status,
        Ok(None) => return unreadable(&"the job was deleted"),
        Err(error) => return unreadable(&error),
    };
    let attempts = status.attempt.0;
    let worker = match status.state {
        StateRow::Queued { .. } | StateRow::Running { .. } => return None,
        ref state @ (StateRow::Failed { .. } | StateRow::Expired { .. }) => {
            let (cause, message) = state.failure()?;
            return Some(Err(JobError::Failed { cause, message: message.to_owned(), attempts }));
        }
        StateRow::Cancelled { message } => return Some(Err(JobError::Cancelled { message })),
        StateRow::Completed { worker } => worker,
    };
    let result = match context.store.result(job).await {
        Ok(result) => result,
        Err(error) => return unreadable(&error),
    };
    let stored = result.map(|result| serde_json::from_str(result.get())).transpose();
    let StoredResult { outputs, values, node_seconds } = match stored {
        Ok(stored) => stored.unwrap_or_default(),
        Err(error) => return unreadable(&error),
    };
    let outputs = outputs.iter().filter_map(|raw| JobOutput::read(raw, inner)).collect();
    let time = |(node, seconds)| (node, Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let node_times = node_seconds.into_iter().map(time).collect();
    Some(Ok(JobOutcome { job, outputs, values, worker, attempts, node_times }))
}
