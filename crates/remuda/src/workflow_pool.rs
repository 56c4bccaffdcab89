//! Remuda inside another program: a pool of ComfyUI servers that runs workflows and survives server failures.
//!
//! ```text
//!  enqueue ──▶ plane (store, rules) ◀──loopback──▶ one agent per server ──▶ ComfyUI
//!                 │ events                          (an absent server delays nothing and joins when it is up)
//!                 └──▶ JobWatch ──▶ JobHandle: await, progress, previews, outputs so far
//! ```
//!
//! `remuda up` starts the same plane and the same agents, so the same guarantees hold: an accepted job is never lost, a
//! recorded result is never computed again, and dropping or killing a pool is no worse than a crash, from which a pool on
//! a folder recovers. A pool leaves the program alone: it sets up no log, handles no signals and never exits the process,
//! and one process may run any number of pools.

mod builder;
mod enqueue_options;
mod events;
mod guarded_strategy;
mod job_handle;
mod job_output;
mod job_watch;
mod rules;
mod servers;
mod shutdown;
mod worker_status;
mod workflow_source;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use remuda_core::id::JobId;
use remuda_core::plane::PlaneEvent;
use remuda_core::refusal::Refusal;
use tokio::task::JoinSet;

pub use self::builder::{WorkflowPoolBuildError, WorkflowPoolBuilder};
pub use self::enqueue_options::{AttachmentContent, EnqueueOptions};
pub use self::events::{EventFilter, PoolEvent};
pub use self::job_handle::{JobError, JobHandle, JobOutcome, NodeValue};
pub use self::job_output::{JobOutput, JobOutputError};
pub use self::rules::WorkflowBlock;
pub use self::servers::ComfyuiServer;
pub use self::shutdown::ShutdownError;
pub use self::worker_status::WorkerStatus;
pub use self::workflow_source::WorkflowSource;

use self::builder::TempFolder;
use self::events::PoolFollower;
use self::guarded_strategy::GuardedStrategy;
use self::job_watch::JobWatch;
use self::servers::{ListedServer, PoolServers};
use remuda_server::follower::Follower;
use remuda_server::http::Context;
use remuda_server::intake::IntakeError;
use remuda_server::plane_handle::PlaneError;
use remuda_server::serve::Serving;

/// ComfyUI servers that run workflows together. See [`WorkflowPool::builder`].
///
/// ```
/// # use remuda::{EnqueueOptions, WorkflowPool};
/// # use remuda_fakes::comfyui::{Fake, Options as FakeOptions};
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fake = Fake::start(FakeOptions { speed: f64::INFINITY, ..FakeOptions::default() }).await?;
/// # let url = fake.url();
/// let pool = WorkflowPool::builder()
///     .comfyui(&url) // such as "http://127.0.0.1:8188"
///     .comfyui("http://127.0.0.1:9") // not running: delays nothing
///     .build()
///     .await?;
///
/// let workflow = json!({
///     "1": { "class_type": "EmptyImage", "inputs": { "width": 64, "height": 64, "batch_size": 1, "color": 7 } },
///     "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "picture" } },
/// });
/// let outcome = pool.enqueue(workflow, EnqueueOptions::new()).await?.await?;
/// let picture = outcome.outputs[0].bytes().await?;
/// assert!(picture.starts_with(b"\x89PNG"));
///
/// pool.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WorkflowPool {
    inner: Arc<Inner>,
}

/// State shared by the pool, its handles and its streams.
#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    watch: JobWatch,
    strategy: Option<Arc<GuardedStrategy>>,
    runtime: tokio::runtime::Handle,
}

#[derive(Debug)]
struct State {
    /// None once the pool has stopped; dropping it releases the locks on its files.
    context: Option<Arc<Context>>,
    is_closing: bool,
    running: Option<Running>,
}

/// The background tasks; dropping this stops them.
#[derive(Debug)]
struct Running {
    serving: Serving,
    servers: PoolServers,
    /// The job watch, the listeners added with `on`, and what waits for the strategy to fail.
    listeners: JoinSet<()>,
    /// Removed after everything else has ended.
    _folder: Option<TempFolder>,
}

/// Why a call of the pool failed, sorted by what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkflowPoolError {
    /// Enqueue the job in another pool.
    #[error("the pool is shut down or shutting down")]
    Stopped,
    /// Fix the workflow or the options: the same call would be refused again.
    #[error("the job is invalid: {0}")]
    Invalid(String),
    /// There is no such job; ended jobs are deleted after the retention time.
    #[error("there is no job {0}")]
    Unknown(JobId),
    /// The job has ended; it cannot be changed any more.
    #[error("the job is already {state}")]
    Ended { state: &'static str },
    /// The server cannot be added or removed.
    #[error("{0}")]
    Server(String),
    /// There is no such block or affinity.
    #[error("{0}")]
    NothingToRemove(String),
    /// Nothing was changed; retry in a moment.
    #[error("the pool is busy: {0}")]
    Busy(String),
    /// The disk failed: the job may be stored or not. Build the pool again on the same folder and enqueue the job with this
    /// idempotency key: if it is there, you get its handle.
    #[error("{why} (idempotency key {key:?})")]
    OutcomeUnknown { key: String, why: String },
}

/// Jobs and workers right now, and jobs ended since the pool was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkflowPoolStats {
    pub queued: usize,
    pub running: usize,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub workers: usize,
    /// How many of the workers are online and accept work.
    pub workers_online: usize,
}

impl WorkflowPool {
    pub fn builder() -> WorkflowPoolBuilder {
        WorkflowPoolBuilder::default()
    }

    /// Accepts a job. Once this returns, the job is stored and will complete, fail or be cancelled.
    pub async fn enqueue(
        &self,
        workflow: impl Into<WorkflowSource>,
        options: EnqueueOptions,
    ) -> Result<JobHandle, WorkflowPoolError> {
        let context = self.inner.open_context()?;
        let workflow = workflow.into().read().await.map_err(WorkflowPoolError::Invalid)?;
        let (workflow, fields) = options.parse(workflow, &context).await?;
        let key = fields.idempotency_key.clone().unwrap_or_default();
        let submitted = context.intake().submit(workflow, fields).await.map_err(|error| match error {
            IntakeError::Plane(why @ PlaneError::OutcomeUnknown(_)) => {
                WorkflowPoolError::OutcomeUnknown { key, why: why.to_string() }
            }
            error => error.into(),
        })?;
        Ok(self.inner.handle(submitted.job).await)
    }

    /// A job of this pool, or one that an earlier pool on the same folder accepted.
    pub async fn job(&self, id: JobId) -> Result<JobHandle, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        context.store.job(id).await.map_err(busy)?.ok_or(WorkflowPoolError::Unknown(id))?;
        Ok(self.inner.handle(id).await)
    }

    /// Cancels a job, whether it waits or runs; it will not run again.
    pub async fn cancel(&self, id: JobId) -> Result<(), WorkflowPoolError> {
        self.inner.cancel(id).await
    }

    /// Calls `act` for every event with this name (`job:completed`) or of this kind (`job`) until the pool is shut down.
    /// Events are passed one at a time and no stored event is skipped, so `act` should be quick: hand longer work to
    /// another task.
    pub fn on(&self, name: &str, mut act: impl FnMut(PoolEvent) + Send + 'static) {
        let mut follower = self.follow(EventFilter::new().name(name));
        let mut state = self.inner.state();
        if let Some(running) = &mut state.running {
            let listen = async move {
                while let Some(event) = follower.next().await {
                    act(event);
                }
            };
            running.listeners.spawn_on(listen, &self.inner.runtime);
        }
    }

    /// Events from now on. No stored event is skipped, however slowly the stream is read; progress and previews may be.
    pub fn events(&self, filter: EventFilter) -> impl Stream<Item = PoolEvent> + Send + use<> {
        futures_util::stream::unfold(self.follow(filter), |mut follower| async {
            let event = follower.next().await?;
            Some((event, follower))
        })
    }

    fn follow(&self, filter: EventFilter) -> PoolFollower {
        PoolFollower::new(&self.inner, filter)
    }

    pub async fn stats(&self) -> Result<WorkflowPoolStats, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let workers = self.inner.servers().len();
        let read = move |plane: &remuda_core::plane::Plane, now| {
            let running: usize = plane.workers().map(|worker| worker.assignments.len()).sum();
            let workers_online = plane.workers().filter(|worker| worker.availability(now).is_ready()).count();
            let queued = plane.open_jobs().saturating_sub(running);
            WorkflowPoolStats { queued, running, workers, workers_online, ..WorkflowPoolStats::default() }
        };
        let stats = context.plane.read(read).await?;
        Ok(self.inner.watch.count(stats))
    }
}

impl Inner {
    /// For calls that only read; None once the pool has stopped.
    fn context(&self) -> Option<Arc<Context>> {
        self.state().context.clone()
    }

    /// Follows what comes after the last event that was applied to the handles; None once the pool has stopped.
    fn follow(&self) -> Option<Follower> {
        let context = self.context()?;
        let follower = Follower::new(context.store.clone(), &context.events, None);
        Some(follower.skip_until(self.watch.last_sequence()))
    }

    /// For calls that add work; refused once the pool is shutting down.
    fn open_context(&self) -> Result<Arc<Context>, WorkflowPoolError> {
        let state = self.state();
        state.context.clone().filter(|_| !state.is_closing).ok_or(WorkflowPoolError::Stopped)
    }

    /// The servers of the pool; none once it is shutting down.
    fn servers(&self) -> Vec<ListedServer> {
        self.state().running.as_ref().map(|running| running.servers.list()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(self: &Arc<Self>, id: JobId) -> JobHandle {
        let snapshot = self.watch.subscribe(id);
        // After the subscription: the end of a job that ended before it is not published again.
        if let Some(context) = self.context() {
            self.watch.publish_end(self, &context, id).await;
        }
        JobHandle::new(id, self.clone(), snapshot)
    }

    async fn cancel(&self, job: JobId) -> Result<(), WorkflowPoolError> {
        let context = self.context().ok_or(WorkflowPoolError::Stopped)?;
        let message = "cancelled by the program".to_owned();
        match context.plane.request(PlaneEvent::Cancel { job, message }).await {
            Ok(_) => Ok(()),
            Err(PlaneError::Refused(Refusal::UnknownJob(_))) => {
                let known = context.store.job(job).await.map_err(busy)?;
                let (_, status) = known.ok_or(WorkflowPoolError::Unknown(job))?;
                Err(WorkflowPoolError::Ended { state: status.state.name() })
            }
            Err(other) => Err(other.into()),
        }
    }
}

fn busy(error: impl std::fmt::Display) -> WorkflowPoolError {
    WorkflowPoolError::Busy(error.to_string())
}

impl From<PlaneError> for WorkflowPoolError {
    fn from(why: PlaneError) -> Self {
        match why {
            PlaneError::Stopping => WorkflowPoolError::Stopped,
            PlaneError::Refused(Refusal::Ended { state }) => WorkflowPoolError::Ended { state },
            PlaneError::Refused(Refusal::UnknownJob(job)) => WorkflowPoolError::Unknown(job),
            PlaneError::Refused(refusal @ (Refusal::QueueFull { .. } | Refusal::QuotaExceeded { .. })) => {
                busy(refusal)
            }
            PlaneError::Refused(refusal @ Refusal::NothingToRemove { .. }) => {
                WorkflowPoolError::NothingToRemove(refusal.to_string())
            }
            PlaneError::Refused(refusal) => WorkflowPoolError::Invalid(refusal.to_string()),
            why @ (PlaneError::Overloaded | PlaneError::NotStored(_)) => busy(why),
            why @ PlaneError::OutcomeUnknown(_) => {
                WorkflowPoolError::OutcomeUnknown { key: String::new(), why: why.to_string() }
            }
        }
    }
}

impl From<IntakeError> for WorkflowPoolError {
    fn from(why: IntakeError) -> Self {
        match why {
            IntakeError::Plane(why) => why.into(),
            IntakeError::Store(error) => busy(error),
            IntakeError::Blobs(error) => busy(error),
            IntakeError::Workflow(_) | IntakeError::Invalid(_) => WorkflowPoolError::Invalid(why.to_string()),
        }
    }
}
