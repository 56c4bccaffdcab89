//! Remuda inside another program: ComfyUI servers as one pool that runs workflows and survives what servers do.
//!
//! ```text
//!  enqueue ──▶ plane (store, rules) ◀──loopback──▶ an agent for each server ──▶ ComfyUI
//!                 │ news                            a server that is away delays nobody and joins when it comes
//!                 └──▶ JobWatch ──▶ JobHandle: await, progress, previews, outputs so far
//! ```
//!
//! It is the same plane and the same agents as `remuda up` starts, so the same promises hold: what was accepted is never
//! lost, nothing is done twice once it is recorded, and a pool that is dropped or killed has done no more harm than a
//! crash, which a pool on a folder recovers from. A pool touches nothing that is the program's own: no log is set up, no
//! signal is taken, the process is never ended, and any number of pools live side by side.

mod builder;
mod enqueue_options;
mod events;
mod job_handle;
mod job_output;
mod job_watch;
mod shutdown;
mod workflow_source;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use remuda_core::affinity::Affinity;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::plane::PlaneEvent;
use remuda_core::refusal::Refusal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use self::builder::{ComfyuiServer, WorkflowPoolBuildError, WorkflowPoolBuilder};
pub use self::enqueue_options::{AttachmentContent, EnqueueOptions};
pub use self::events::{EventFilter, PoolEvent};
pub use self::job_handle::{JobError, JobHandle, JobOutcome, NodeValue};
pub use self::job_output::{JobOutput, JobOutputError};
pub use self::shutdown::ShutdownError;
pub use self::workflow_source::WorkflowSource;

use self::builder::TempFolder;
use self::events::Follower;
use self::job_watch::JobWatch;
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
///     .comfyui("http://127.0.0.1:9") // nobody there: delays nobody
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

/// What the pool shares with its handles and streams.
#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    hub: JobWatch,
    servers: Vec<(WorkerId, String)>,
    runtime: tokio::runtime::Handle,
}

#[derive(Debug)]
struct State {
    /// Gone once the pool has stopped, and with it every lock on files.
    context: Option<Arc<Context>>,
    is_closing: bool,
    running: Option<Running>,
}

/// What runs in the background; dropped, it stops.
#[derive(Debug)]
struct Running {
    serving: Serving,
    workers: JoinSet<()>,
    stops: Vec<mpsc::Sender<()>>,
    /// The hub, and whoever listens to events.
    listeners: JoinSet<()>,
    /// Removed when all else has ended.
    _folder: Option<TempFolder>,
}

/// Why a pool did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkflowPoolError {
    /// Enqueue it in another pool.
    #[error("the pool is shut down, or about to be")]
    Stopped,
    /// Mend the workflow or the options: the same will be refused again.
    #[error("it cannot be taken: {0}")]
    Invalid(String),
    /// There is no such job; jobs are forgotten some time after their end.
    #[error("there is no job {0}")]
    Unknown(JobId),
    /// Nothing is left to be done about it.
    #[error("the job is {state} already")]
    Ended { state: &'static str },
    /// Nothing was changed; worth trying again in a moment.
    #[error("not now: {0}")]
    Busy(String),
}

/// How much there is to do, and what was done since the pool was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkflowPoolStats {
    pub queued: usize,
    pub running: usize,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub workers: usize,
    /// Of those, how many are there right now.
    pub workers_online: usize,
}

/// A server of the pool, as it is right now.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    pub worker: WorkerId,
    pub url: String,
    pub is_online: bool,
    /// Why it takes no work, if so.
    pub reason: String,
    pub running: Vec<JobId>,
    pub completed: u64,
    pub failed: u64,
}

impl WorkflowPool {
    pub fn builder() -> WorkflowPoolBuilder {
        WorkflowPoolBuilder::default()
    }

    /// Accepts a job. Once this returns it is stored, and will end in one way or another.
    pub async fn enqueue(
        &self,
        workflow: impl Into<WorkflowSource>,
        options: EnqueueOptions,
    ) -> Result<JobHandle, WorkflowPoolError> {
        let context = self.inner.open_context()?;
        let workflow = workflow.into().read().await.map_err(WorkflowPoolError::Invalid)?;
        let request = options.request(workflow, &context).await?;
        let submitted = context.intake().submit(request).await?;
        Ok(self.inner.handle(submitted.job).await)
    }

    /// A job of this pool, also one that a former pool on the same folder accepted.
    pub async fn job(&self, id: JobId) -> Result<JobHandle, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        context.store.job(id).await.map_err(busy)?.ok_or(WorkflowPoolError::Unknown(id))?;
        Ok(self.inner.handle(id).await)
    }

    /// Stops a job wherever it is; it is never run afterwards.
    pub async fn cancel(&self, id: JobId) -> Result<(), WorkflowPoolError> {
        self.inner.cancel(id).await
    }

    /// Calls `act` for every event of this name (`job:completed`), or of all that begin with it (`job`), until the pool
    /// is shut down. Events come one after the other and none of those that are stored is left out, so `act` should be
    /// quick: send it on if there is much to do.
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

    /// Events as they happen from now on. What is stored is never left out, however slowly it is read; progress and
    /// previews may be.
    pub fn events(&self, filter: EventFilter) -> impl Stream<Item = PoolEvent> + Send + use<> {
        futures_util::stream::unfold(self.follow(filter), |mut follower| async {
            let event = follower.next().await?;
            Some((event, follower))
        })
    }

    fn follow(&self, filter: EventFilter) -> Follower {
        Follower::new(&self.inner, filter)
    }

    pub async fn stats(&self) -> Result<WorkflowPoolStats, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let workers = self.inner.servers.len();
        let look = move |plane: &remuda_core::plane::Plane, _| {
            let running: usize = plane.workers().map(|worker| worker.holds.len()).sum();
            let workers_online = plane.workers().filter(|worker| is_online(worker)).count();
            let queued = plane.open_jobs().saturating_sub(running);
            WorkflowPoolStats { queued, running, workers, workers_online, ..WorkflowPoolStats::default() }
        };
        let stats = context.plane.read(look).await?;
        Ok(self.inner.hub.count(stats))
    }

    /// All servers, those that are away included.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let servers = self.inner.servers.clone();
        let look = move |plane: &remuda_core::plane::Plane, _| {
            let status = |(worker, url): (WorkerId, String)| match plane.worker(&worker) {
                Some(it) => WorkerStatus {
                    is_online: is_online(it),
                    reason: if it.unavailable_reason.is_empty() {
                        it.reason.clone()
                    } else {
                        it.unavailable_reason.clone()
                    },
                    running: it.holds.keys().copied().collect(),
                    completed: it.tally.completed,
                    failed: it.tally.failed,
                    worker,
                    url,
                },
                None => WorkerStatus {
                    is_online: false,
                    reason: "it has not answered yet, or does not work".to_owned(),
                    running: Vec::new(),
                    completed: 0,
                    failed: 0,
                    worker,
                    url,
                },
            };
            servers.into_iter().map(status).collect()
        };
        Ok(context.plane.read(look).await?)
    }

    /// Says where workflows of this kind (the graph and its models, whatever their texts, seeds and sizes) would rather
    /// run, and where never. In place of what was said of them before.
    pub async fn set_affinity(
        &self,
        workflow: impl Into<WorkflowSource>,
        preferred: impl IntoIterator<Item = WorkerId>,
        excluded: impl IntoIterator<Item = WorkerId>,
    ) -> Result<(), WorkflowPoolError> {
        let (preferred, excluded) = (BTreeSet::from_iter(preferred), BTreeSet::from_iter(excluded));
        let context = self.inner.open_context()?;
        let workflow = workflow.into().read().await.map_err(WorkflowPoolError::Invalid)?;
        let examined = remuda_core::workflow::examine(workflow.get(), &context.limits)
            .map_err(|invalid| WorkflowPoolError::Invalid(invalid.to_string()))?;
        let affinity = Affinity { preferred, excluded };
        context.plane.request(PlaneEvent::SetAffinity { shape: examined.shape, affinity }).await?;
        Ok(())
    }
}

fn is_online(worker: &remuda_core::worker::Worker) -> bool {
    worker.presence == remuda_core::machine::Presence::Online && worker.unavailable_reason.is_empty()
}

impl Inner {
    /// For whoever only looks.
    fn context(&self) -> Option<Arc<Context>> {
        self.state().context.clone()
    }

    /// For whoever brings more work.
    fn open_context(&self) -> Result<Arc<Context>, WorkflowPoolError> {
        let state = self.state();
        state.context.clone().filter(|_| !state.is_closing).ok_or(WorkflowPoolError::Stopped)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(self: &Arc<Self>, id: JobId) -> JobHandle {
        let now = self.hub.watch(id);
        // Only now: what ended before somebody watched is not told.
        if let Some(context) = self.context() {
            self.hub.look(self, &context, id).await;
        }
        JobHandle::new(id, self.clone(), now)
    }

    async fn cancel(&self, job: JobId) -> Result<(), WorkflowPoolError> {
        let context = self.context().ok_or(WorkflowPoolError::Stopped)?;
        let message = "cancelled by the program".to_owned();
        match context.plane.request(PlaneEvent::Cancel { job, message }).await {
            Ok(_) => Ok(()),
            Err(PlaneError::Refused(Refusal::UnknownJob(_))) => {
                let known = context.store.job(job).await.map_err(busy)?;
                let (_, life) = known.ok_or(WorkflowPoolError::Unknown(job))?;
                Err(WorkflowPoolError::Ended { state: life.state.name() })
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
            PlaneError::Refused(refusal @ Refusal::QueueFull { .. }) => busy(refusal),
            PlaneError::Refused(refusal) => WorkflowPoolError::Invalid(refusal.to_string()),
            why @ (PlaneError::Overloaded | PlaneError::NotStored(_)) => busy(why),
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
