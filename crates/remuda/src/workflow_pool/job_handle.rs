//! A job as whoever enqueued it sees it.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

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

/// A job that was accepted. Awaited, it gives the outcome; dropped, the job goes on.
#[derive(Clone, Debug)]
pub struct JobHandle {
    id: JobId,
    inner: Arc<Inner>,
    now: watch::Receiver<JobSnapshot>,
}

/// What a job gave.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    pub job: JobId,
    /// Files, in the order in which the nodes ended.
    pub outputs: Vec<JobOutput>,
    /// What nodes put out that is no file: texts, numbers.
    pub values: Vec<NodeValue>,
    pub worker: WorkerId,
    /// How often it was tried, the last time included.
    pub attempts: u32,
}

/// A text, a number, a list that a node put out.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeValue {
    pub node: String,
    pub key: String,
    pub value: Value,
}

/// Why a job gave nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobError {
    /// With `Cause::Job` it is the workflow: mend it. Otherwise servers failed it again and again.
    #[error("the job failed after {attempts} attempts ({cause}): {message}")]
    Failed { cause: Cause, message: String, attempts: u32 },
    #[error("the job was cancelled: {message}")]
    Cancelled { message: String },
    /// A pool on the same folder goes on with it; in memory it is lost.
    #[error("the pool was shut down before the job had ended")]
    Stopped,
    /// It ended, and what became of it cannot be read: see to the store, then ask `WorkflowPool::job` again.
    #[error("what became of the job cannot be read: {0}")]
    Unreadable(String),
}

impl JobHandle {
    pub(super) fn new(id: JobId, inner: Arc<Inner>, now: watch::Receiver<JobSnapshot>) -> Self {
        JobHandle { id, inner, now }
    }

    pub fn id(&self) -> JobId {
        self.id
    }

    /// Waits for the end.
    pub async fn outcome(&self) -> Result<JobOutcome, JobError> {
        let mut now = self.now.clone();
        match now.wait_for(|now| now.ended.is_some()).await {
            Ok(now) => now.ended.clone().unwrap_or(Err(JobError::Stopped)),
            // Nobody is left to say so.
            Err(_) => Err(JobError::Stopped),
        }
    }

    /// Stops the job wherever it is; it is never run afterwards.
    pub async fn cancel(&self) -> Result<(), WorkflowPoolError> {
        self.inner.cancel(self.id).await
    }

    /// How far it is, whenever that changes, until it has ended. Whoever is slow sees the newest.
    pub fn progress(&self) -> impl Stream<Item = ProgressSnapshot> + Send + use<> {
        self.changes(|now| now.progress.clone())
    }

    /// Pictures of how far it is, where its server shows any, until it has ended. Whoever is slow sees the newest.
    pub fn previews(&self) -> impl Stream<Item = Preview> + Send + use<> {
        self.changes(|now| now.preview.clone())
    }

    /// What it has put out so far; all of it once it has ended.
    pub fn outputs(&self) -> Vec<JobOutput> {
        let now = self.now.borrow();
        match &now.ended {
            Some(Ok(outcome)) => outcome.outputs.clone(),
            Some(Err(_)) => Vec::new(),
            None => now.outputs.iter().filter_map(|raw| JobOutput::read(raw, &self.inner)).collect(),
        }
    }

    /// Something of how the job stands, each time it is another, until the job has ended.
    fn changes<T, F>(&self, of: F) -> impl Stream<Item = T> + Send + use<T, F>
    where
        T: PartialEq + Clone + Send + 'static,
        F: Fn(&JobSnapshot) -> Option<T> + Send + 'static,
    {
        futures_util::stream::unfold((self.now.clone(), of, None), |(mut now, of, mut seen)| async {
            loop {
                let (current, is_over) = {
                    let now = now.borrow_and_update();
                    (of(&now), now.ended.is_some())
                };
                if current.is_some() && current != seen {
                    seen.clone_from(&current);
                    return Some((current?, (now, of, seen)));
                }
                if is_over || now.changed().await.is_err() {
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

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    outputs: Vec<Box<RawValue>>,
    #[serde(default)]
    values: Vec<NodeValue>,
}

/// What became of a job, if it has ended.
pub(super) async fn ended(
    inner: &Arc<Inner>,
    context: &Context,
    job: JobId,
) -> Option<Result<JobOutcome, JobError>> {
    let unreadable = |why: &dyn std::fmt::Display| Some(Err(JobError::Unreadable(why.to_string())));
    let life = match context.store.job(job).await {
        Ok(Some((_, life))) => life,
        Ok(None) => return unreadable(&"it is not kept any more"),
        Err(error) => return unreadable(&error),
    };
    let attempts = life.attempt.0;
    let worker = match life.state {
        StateRow::Queued { .. } | StateRow::Running { .. } => return None,
        StateRow::Failed { cause, message, .. } => {
            return Some(Err(JobError::Failed { cause, message, attempts }));
        }
        StateRow::Cancelled { message } => return Some(Err(JobError::Cancelled { message })),
        StateRow::Completed { worker } => worker,
    };
    let result = match context.store.result(job).await {
        Ok(result) => result,
        Err(error) => return unreadable(&error),
    };
    let written = result.map(|result| serde_json::from_str(result.get())).transpose();
    let Written { outputs, values } = match written {
        Ok(written) => written.unwrap_or(Written { outputs: Vec::new(), values: Vec::new() }),
        Err(error) => return unreadable(&error),
    };
    let outputs = outputs.iter().filter_map(|raw| JobOutput::read(raw, inner)).collect();
    Some(Ok(JobOutcome { job, outputs, values, worker, attempts }))
}
