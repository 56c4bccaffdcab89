//! `remuda serve`: store, blobs, event loop, background tasks and HTTP, started in that order and stopped in reverse.

mod exposure;
mod folder_watch;
mod listener_check;
mod number_sampler;
mod retention;
mod sweep;
mod watchdog;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use remuda_config::ResolvedConfig;
use remuda_core::id::FleetId;
use remuda_core::provider::ProviderCall;
use remuda_net::secret::Secret;
use remuda_store::blobs::BlobStore;
use remuda_store::{Store, StoreError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::audit::Audit;
use crate::data_folder;
use crate::effects::{EffectRunner, LiveState};
use crate::event_loop::EventLoop;
use crate::fleets::{FleetContext, Fleets};
use crate::http::{self, AccessControl};
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::{RestartPolicy, Supervisor};
use crate::webhooks::{Policy, WebhookSender};
use crate::workflow_cache::WorkflowCache;

/// The task that accepts connections; it ends before the event loop, so that no answer is lost.
const HTTP_TASK: &str = "http";

/// How long a plane whose store failed still sends answers.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the settings again.
type ReadSettings = Box<dyn Fn() -> anyhow::Result<ResolvedConfig> + Send + Sync>;

/// A plane that serves. Dropped without `stop` it ends in the background if the runtime lives long enough, and otherwise
/// as after a crash, which is safe too.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    pub plane: PlaneHandle,
    access: Arc<AccessControl>,
    /// For callers in the same process, which need no connection.
    pub context: http::Context,
    stop: watch::Sender<bool>,
    main: JoinHandle<anyhow::Result<()>>,
}

impl Serving {
    pub async fn start(resolved: &ResolvedConfig) -> anyhow::Result<Serving> {
        let fixed = resolved.clone();
        Serving::start_with(resolved, move || Ok(fixed.clone())).await
    }

    /// `read` reads the settings again for a reload.
    ///
    /// Boxed here, because a future is compiled in the crate that polls it: otherwise the event loop and all that is
    /// started with it would be built again in every program, with the optimisation of that program's crate.
    pub fn start_with(
        resolved: &ResolvedConfig,
        read: impl Fn() -> anyhow::Result<ResolvedConfig> + Send + Sync + 'static,
    ) -> BoxFuture<'_, anyhow::Result<Serving>> {
        Serving::start_boxed(resolved, Box::new(read))
    }

    fn start_boxed(resolved: &ResolvedConfig, read: ReadSettings) -> BoxFuture<'_, anyhow::Result<Serving>> {
        Box::pin(Serving::start_parts(resolved, read))
    }

    async fn start_parts(resolved: &ResolvedConfig, read: ReadSettings) -> anyhow::Result<Serving> {
        let serve = &resolved.serve;
        let tls = exposure::load_tls(serve)?;
        exposure::require_tls(serve, tls.is_some())?;
        let listening = http::listen(serve.listen).await.with_context(|| {
            format!(
                "cannot listen on {}: is another remuda running? choose another with --listen",
                serve.listen
            )
        })?;
        data_folder::prepare(&serve.data)?;
        let store = Store::open(&serve.store.to_string()).await.context("cannot open the store")?;
        let blobs = BlobStore::open(serve.data.join("blobs"), serve.blob_bytes_max)
            .await
            .context("cannot open the folder of blobs")?;
        for folder in [serve.data.clone(), serve.data.join("blobs")] {
            store.watch(&folder).with_context(|| format!("cannot watch {}", folder.display()))?;
        }
        let (calls_sender, calls) = mpsc::unbounded_channel();
        let effects = EffectRunner::new(WorkflowCache::default(), calls_sender);
        let live = effects.live();
        let (plane, event_loop) = EventLoop::start(store.clone(), resolved.settings.clone(), effects).await?;
        // It ends when every handle is gone.
        let event_loop = tokio::spawn(event_loop.run());
        let (stop, stopping) = watch::channel(false);
        let address = listening.address;
        let audit = Audit::open(&serve.data, plane.clock.now()).context("cannot open the audit log")?;
        let access = AccessControl::load(serve, address, &store, audit, tls.clone()).await?;
        exposure::require_admin(serve, &access, plane.clock.now())?;
        let access = Arc::new(access);
        let url = FleetContext::local_url(address, tls.is_some());
        let fleet_context =
            FleetContext::new(plane.clone(), access.join_key().clone(), url, serve.data.clone());
        let fleets = Fleets::new(fleet_context);
        fleets.activate(fleets.prepare(&resolved.fleets).await?);
        let reload = http::Reload::new(resolved, read, fleets.clone());
        let tasks = Supervisor::new(stopping.clone(), RestartPolicy::default());
        let context = http::Context::new(
            plane.clone(),
            store.clone(),
            store.history().await?,
            blobs,
            live.clone(),
            stopping.clone(),
            reload,
            access.clone(),
            tasks.clone(),
        );
        let parts = Parts { resolved, context: &context, live, listening, fleets, calls, stopping };
        parts.spawn_all(&tasks);
        let main = MainTask { event_loop, tasks, store }.run(plane.clone(), stop.clone());
        let main = tokio::spawn(main);
        Ok(Serving { address, plane, access, context, stop, main })
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The token with which a worker of this process joins.
    pub fn own_token(&self) -> Secret {
        self.access.own_token()
    }

    /// For a program of its own: a stuck event loop ends the process, so that a process supervisor restarts it.
    pub fn end_process_if_stuck(&self) {
        watchdog::start(self.plane.clone());
    }

    /// Returns when the plane has failed; pending otherwise.
    pub async fn failed(&mut self) -> anyhow::Result<()> {
        (&mut self.main).await.context("the plane's task ended")?
    }

    /// Answers open requests, stores pending decisions, then ends.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        self.failed().await
    }
}

/// Dropping it does not wait; but every task ends, and the locks on the data folder are released.
impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// What the background tasks need.
struct Parts<'a> {
    resolved: &'a ResolvedConfig,
    context: &'a http::Context,
    live: LiveState,
    listening: http::Listening,
    fleets: Fleets,
    calls: mpsc::UnboundedReceiver<(FleetId, ProviderCall)>,
    stopping: watch::Receiver<bool>,
}

impl Parts<'_> {
    /// Starts every background task of the plane. `/remuda/v1/status` lists them, `/health/ready` names one that is down.
    fn spawn_all(self, tasks: &Supervisor) {
        let Parts { resolved, context, live, listening, fleets, calls, stopping } = self;
        let serve = &resolved.serve;
        let (plane, store, retention) = (context.plane.clone(), context.store.clone(), serve.retention);

        // Shared with its successor after a panic: calls that wait in the channel are not lost.
        let calls = Arc::new(tokio::sync::Mutex::new(calls));
        let until = stopping.clone();
        tasks.spawn("fleets", "makes calls to providers", move |ticker| {
            let (fleets, calls, until) = (fleets.clone(), calls.clone(), until.clone());
            async move { fleets.run(&mut *calls.lock().await, until, ticker).await }
        });

        let policy = Policy::new(&serve.webhooks_private_targets);
        let (webhook_plane, webhook_store, until) = (plane.clone(), store.clone(), stopping.clone());
        tasks.spawn("webhooks", "delivers webhooks", move |ticker| {
            let (plane, store) = (webhook_plane.clone(), webhook_store.clone());
            let sender = WebhookSender::new(plane, store, live.outbox.clone(), policy.clone());
            sender.run(until.clone(), ticker)
        });

        let (retained, retained_plane, until) = (store.clone(), plane.clone(), stopping.clone());
        tasks.spawn("retention", "deletes old jobs and events", move |ticker| {
            retention::run(retained.clone(), retained_plane.clone(), retention, until.clone(), ticker)
        });

        let (blobs, until) = (context.blobs.clone(), stopping.clone());
        tasks.spawn("blob_sweep", "deletes unused blobs", move |ticker| {
            sweep::run(blobs.clone(), store.clone(), plane.clone(), retention, until.clone(), ticker)
        });

        let (watched_store, until) = (context.store.clone(), stopping.clone());
        tasks.spawn("folder_watch", "looks whether the data folder is still there", move |ticker| {
            folder_watch::run(watched_store.clone(), until.clone(), ticker)
        });

        let published = context.clone();
        tasks.spawn("comfyui_publisher", "sends events to ComfyUI clients", move |ticker| {
            http::run_publisher(published.clone(), ticker)
        });

        let watched = context.clone();
        tasks.spawn("job_watch", "wakes the event streams of Comfy API v2", move |ticker| {
            http::run_job_watch(watched.clone(), ticker)
        });

        let sampled = context.clone();
        tasks.spawn("number_sampler", "keeps the last hour of the dashboard's numbers", move |ticker| {
            number_sampler::run(sampled.clone(), ticker)
        });

        let tls = context.access.tls.clone();
        if let Some(tls) = tls.clone() {
            let until = stopping.clone();
            tasks.spawn("tls_reload", "reloads the certificate when its files change", move |ticker| {
                tls.clone().follow(until.clone(), ticker)
            });
        }

        let (listener_plane, address, has_tls, until) =
            (context.plane.clone(), listening.address, tls.is_some(), stopping.clone());
        tasks.spawn("listener_check", "asks whether the plane's own listener answers", move |ticker| {
            listener_check::run(listener_plane.clone(), address, has_tls, until.clone(), ticker)
        });

        let (router, places, listening) =
            (http::router(context.clone()), context.access.places.clone(), Arc::new(listening));
        tasks.spawn(HTTP_TASK, "accepts connections", move |ticker| {
            let (router, places, tls) = (router.clone(), places.clone(), tls.clone());
            listening.clone().serve(router, places, tls, stopping.clone(), ticker)
        });
    }
}

/// Waits for the end, and stops everything in order.
struct MainTask {
    event_loop: JoinHandle<Result<(), StoreError>>,
    tasks: Supervisor,
    store: Store,
}

impl MainTask {
    async fn run(mut self, plane: PlaneHandle, stop: watch::Sender<bool>) -> anyhow::Result<()> {
        let mut stopping = stop.subscribe();
        let result = tokio::select! {
            ended = &mut self.event_loop => {
                stop.send_replace(true);
                // Callers hear what became of their requests.
                drop(tokio::time::timeout(LAST_ANSWERS_TIMEOUT, self.tasks.ended(HTTP_TASK)).await);
                ended
                    .context("the event loop panicked")?
                    .context("the store failed; restart the plane to continue from what it holds")
            }
            () = stopped(&mut stopping) => {
                // First no new requests, then the event loop: every answer that was sent is true.
                self.tasks.ended(HTTP_TASK).await;
                plane.stop().await;
                self.event_loop.await.context("the event loop panicked")?.map_err(Into::into)
            }
        };
        self.tasks.abort_all();
        self.store.close().await?;
        result
    }
}

#[cfg(test)]
mod tests;
