//! What every handler can reach.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::Sequence;
use remuda_core::workflow::WorkflowLimits;
use remuda_store::blobs::BlobStore;
use remuda_store::{Store, StoreHistory};
use tokio::sync::{Semaphore, broadcast};

use super::{AccessControl, ComfyuiApi, LocalModels, Reload, blobs, comfy_v2};
use crate::effects::LiveState;
use crate::follower::Follower;
use crate::intake::Intake;
use crate::job_secrets::JobSecrets;
use crate::live::{LiveAttempts, LiveEvent};
use crate::live_budgets::LiveBudgets;
use crate::plane_handle::PlaneHandle;
use crate::previews::Previews;
use crate::tasks::Supervisor;
use crate::webhooks::Policy;
use crate::workflow_cache::WorkflowCache;

/// What every handler can reach. One `Arc`: axum clones it for every layer and extractor of a request.
#[derive(Clone, Debug)]
pub struct Context(Arc<SharedContext>);

#[derive(Debug)]
pub struct SharedContext {
    pub plane: PlaneHandle,
    pub store: Store,
    /// Where the store lost data before this start.
    pub history: StoreHistory,
    pub blobs: BlobStore,
    pub workflows: WorkflowCache,
    pub previews: Previews,
    pub live_attempts: LiveAttempts,
    pub live_budgets: LiveBudgets,
    pub secrets: JobSecrets,
    pub events: broadcast::Sender<LiveEvent>,
    pub limits: WorkflowLimits,
    /// Which addresses webhooks may be sent to.
    pub webhooks: Policy,
    /// Permits for event streams, which stay open for long.
    pub streams: Arc<Semaphore>,
    /// Becomes `true` when the program stops: streams and held beats end.
    pub stopping: tokio::sync::watch::Receiver<bool>,
    pub body_bytes_max: usize,
    pub reload: Reload,
    /// The background tasks.
    pub tasks: Supervisor,
    /// Permits for uploads of blobs, which keep the disk busy.
    pub uploads: Arc<Semaphore>,
    pub blob_upload_idle_timeout: Duration,
    pub access: Arc<AccessControl>,
    /// How long finished jobs are kept, and assets without an expiry of their own.
    pub retention: Duration,
    pub comfyui: ComfyuiApi,
    /// `/queue` lists one running prompt at most.
    pub comfyui_one_running: bool,
    /// The models of this process, which `/v1` calls directly.
    pub models: LocalModels,
    /// The deadline of a call to `/v1`.
    pub request_timeout: Duration,
    pub(super) comfy_v2: comfy_v2::ComfyV2State,
    /// The folder of the web interface, if it is served.
    pub ui: Option<std::path::PathBuf>,
    /// ComfyUI servers that the plane itself can reach.
    pub forward_to: Arc<[remuda_comfyui::ComfyuiTarget]>,
}

impl Deref for Context {
    type Target = SharedContext;

    fn deref(&self) -> &SharedContext {
        &self.0
    }
}

impl Context {
    /// Accepts jobs on behalf of any surface.
    pub fn intake(&self) -> Intake {
        Intake {
            plane: self.plane.clone(),
            store: self.store.clone(),
            blobs: self.blobs.clone(),
            workflows: self.workflows.clone(),
            secrets: self.secrets.clone(),
            webhooks: self.webhooks.clone(),
        }
    }

    /// Follows the plane's events after `position`, or from now on, until the program is told to stop.
    pub fn follow(&self, position: Option<Sequence>) -> Follower {
        Follower::new(self.store.clone(), &self.events, position).until(self.stopping.clone())
    }

    #[expect(clippy::too_many_arguments, reason = "each is a part of the server, made once in `serve`")]
    pub fn new(
        plane: PlaneHandle,
        store: Store,
        history: StoreHistory,
        blobs: BlobStore,
        live: LiveState,
        stopping: tokio::sync::watch::Receiver<bool>,
        reload: Reload,
        access: Arc<AccessControl>,
        tasks: Supervisor,
    ) -> Self {
        let (settings, request_timeout) = (reload.settings(), reload.request_timeout());
        let limits = WorkflowLimits {
            depth_max: settings.depth_max,
            nodes_max: settings.nodes_max,
            bytes_max: settings.body_bytes_max,
            ..WorkflowLimits::default()
        };
        let streams = Arc::new(Semaphore::new(settings.streams_max));
        let LiveState { workflows, previews, attempts, secrets, events, .. } = live;
        Context(Arc::new(SharedContext {
            plane,
            store,
            history,
            blobs,
            workflows,
            previews,
            live_attempts: attempts,
            live_budgets: LiveBudgets::default(),
            secrets,
            events,
            limits,
            webhooks: Policy::new(&settings.webhooks_private_targets),
            streams,
            stopping,
            body_bytes_max: settings.body_bytes_max,
            reload,
            tasks,
            uploads: Arc::new(Semaphore::new(blobs::UPLOADS_MAX)),
            blob_upload_idle_timeout: settings.blob_upload_idle_timeout,
            access,
            retention: settings.retention,
            comfy_v2: comfy_v2::ComfyV2State::default(),
            comfyui: ComfyuiApi::default(),
            comfyui_one_running: settings.comfyui_one_running,
            models: LocalModels::default(),
            request_timeout,
            ui: settings.ui.clone(),
            forward_to: settings.forward_to.as_slice().into(),
        }))
    }
}
