//! The plane over HTTP: routes, and nothing that decides. A handler turns a request into an event or a look, and what
//! comes back into JSON; every refusal becomes a `ApiError` in one place.

mod access;
mod affinities;
mod base64;
mod blobs;
mod body;
mod comfy_v2;
mod comfyui;
#[cfg(test)]
mod document;
mod error;
mod events;
mod jobs;
mod listen;
mod live;
mod native;
mod openai;
mod path;
mod preview;
mod reload;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{delete, get, post, put};
use remuda_core::workflow::WorkflowLimits;
use remuda_store::Store;
use remuda_store::blobs::Blobs;
use tokio::sync::{Semaphore, broadcast};

pub use self::access::{AccessControl, Caller, JoinKey, Role, Token, TokenRequest};
pub use self::comfyui::{ComfyuiApi, run_publisher};
pub use self::error::ApiError;
use self::error::unexpected_answer;
pub use self::events::event_json;
pub use self::listen::{Listening, listen};
pub use self::openai::LocalModels;
pub use self::reload::Reload;

use crate::effects::LiveState;
use crate::intake::Intake;
use crate::job_secrets::JobSecrets;
use crate::live::{LiveAttempts, LiveEvent};
use crate::plane_handle::PlaneHandle;
use crate::previews::Previews;
use crate::webhooks::Policy;
use crate::workflow_cache::WorkflowCache;

/// What every handler can reach.
#[derive(Clone, Debug)]
pub struct Context {
    pub plane: PlaneHandle,
    pub store: Store,
    pub blobs: Blobs,
    pub workflows: WorkflowCache,
    pub previews: Previews,
    pub live_attempts: LiveAttempts,
    pub secrets: JobSecrets,
    pub events: broadcast::Sender<LiveEvent>,
    pub limits: WorkflowLimits,
    /// Where webhooks may go.
    pub webhooks: Policy,
    /// Places for event streams, which stay open for long.
    pub streams: Arc<Semaphore>,
    /// Dropped when the program stops: streams and waiting beats end.
    pub stopping: tokio::sync::watch::Receiver<bool>,
    pub body_bytes_max: usize,
    pub reload: Reload,
    /// Places for blobs on their way in, which keep the disk busy.
    pub uploads: Arc<Semaphore>,
    pub blob_upload_idle_timeout: Duration,
    pub access: Arc<AccessControl>,
    /// How long what has ended is kept, and an asset of which nobody said.
    pub retention: Duration,
    pub comfyui: ComfyuiApi,
    /// Those of this process, which `/v1` asks directly.
    pub models: LocalModels,
    /// How long a call at `/v1` may take.
    pub request_timeout: Duration,
    comfy_v2: comfy_v2::ComfyV2State,
    /// Where the web interface lies, if it is to be served.
    pub ui: Option<std::path::PathBuf>,
    /// Servers that the plane itself may ask.
    pub forward_to: Arc<[remuda_comfyui::Target]>,
}

/// Every route there is; `docs/http.md` is written from this list.
pub const ROUTES: &[(&str, &str, &str)] = &[
    ("POST", "/remuda/v1/jobs", "Submit a job; 201 with its id, 200 if the idempotency key is known"),
    ("GET", "/remuda/v1/jobs", "Page through jobs, newest first: ?state= &tenant= &before= &limit="),
    ("GET", "/remuda/v1/jobs/{id}", "One job: what it asked for, how it stands, why it waits, what it gave"),
    (
        "GET",
        "/remuda/v1/jobs/{id}/why",
        "The whole story: every attempt, every candidate and why it was passed over",
    ),
    ("GET", "/remuda/v1/jobs/{id}/workflow", "The workflow as it was submitted, byte for byte"),
    ("GET", "/remuda/v1/jobs/{id}/result", "The result alone"),
    (
        "GET",
        "/remuda/v1/jobs/{id}/preview",
        "The newest preview of a running job, as an attachment; live only",
    ),
    ("POST", "/remuda/v1/jobs/{id}/cancel", "Cancel a job, wherever it is"),
    ("POST", "/remuda/v1/workers", "A worker joins"),
    ("GET", "/remuda/v1/workers", "All workers"),
    ("GET", "/remuda/v1/workers/{id}", "One worker"),
    ("POST", "/remuda/v1/workers/{id}/beat", "A worker beats; ?wait=SECONDS keeps the line open for orders"),
    (
        "PUT",
        "/remuda/v1/workers/{id}/preview",
        "A worker shows how far an attempt is: ?job= &attempt=, a JPEG, PNG or WebP of at most 1 MiB",
    ),
    (
        "PUT",
        "/remuda/v1/workers/{id}/live",
        "A worker tells what an attempt is doing: ?job= &attempt=, how far it is, what its service said, outputs so far",
    ),
    (
        "POST",
        "/remuda/v1/workers/{id}/drain",
        "No new work for a worker; it leaves when it holds nothing, or after `deadline_seconds`",
    ),
    ("DELETE", "/remuda/v1/workers/{id}", "A worker leaves: offline now"),
    ("POST", "/remuda/v1/blobs", "Store a blob; the answer has its hash and size"),
    (
        "PUT",
        "/remuda/v1/blobs/{hash}",
        "Store a blob whose hash is known; 201, or 200 at once if it is there already",
    ),
    (
        "GET",
        "/remuda/v1/blobs/{hash}",
        "A blob, as an attachment; HEAD, Range, If-Range and If-None-Match as usual; ?name=photo.png gives it a type",
    ),
    (
        "GET",
        "/remuda/v1/machines",
        "All machines: rented or not, how they stand, what they cost, what they wait for",
    ),
    ("GET", "/remuda/v1/machines/{id}", "One machine"),
    (
        "POST",
        "/remuda/v1/machines/{id}/drain",
        "No new work for a machine's workers; it is returned when they hold nothing, or after `deadline_seconds`",
    ),
    ("GET", "/remuda/v1/fleets", "All fleets: settings, machines, budget and spending, what holds them back"),
    ("GET", "/remuda/v1/fleets/{id}", "One fleet"),
    (
        "POST",
        "/remuda/v1/fleets/{id}/pause",
        "It neither grows nor shrinks until it is resumed: {\"reason\": \"…\"}",
    ),
    ("POST", "/remuda/v1/fleets/{id}/resume", "It follows its policy again"),
    (
        "POST",
        "/remuda/v1/fleets/{id}/scale",
        "So many machines, whatever waits: {\"machines\": 4}; {\"machines\": null} is as the policy says",
    ),
    (
        "POST",
        "/remuda/v1/fleets/{id}/reset-brake",
        "What holds back creations is over: the brake, offers passed over, waits",
    ),
    (
        "GET",
        "/remuda/v1/cost",
        "What machines cost, now and in a time: ?from= &until= (milliseconds) &by=fleet, tenant, job or hour",
    ),
    ("GET", "/remuda/v1/blocks", "Workers and shapes kept apart"),
    ("DELETE", "/remuda/v1/blocks/{worker}/{shape}", "Lift a block"),
    ("GET", "/remuda/v1/affinities", "Shapes with preferred or excluded workers"),
    ("GET", "/remuda/v1/affinities/{shape}", "One shape's preferred and excluded workers"),
    (
        "PUT",
        "/remuda/v1/affinities/{shape}",
        "Say where a shape should run, and where not: {\"preferred\": [WORKER], \"excluded\": [WORKER]}",
    ),
    ("DELETE", "/remuda/v1/affinities/{shape}", "Let a shape run anywhere again"),
    ("GET", "/remuda/v1/quarantine", "Shapes that fail everywhere"),
    ("DELETE", "/remuda/v1/quarantine/{shape}", "Release a shape"),
    (
        "GET",
        "/remuda/v1/events",
        "Events as they happen (SSE); resumes with Last-Event-ID; ?job= &tenant= &worker= &name= &metadata.KEY=",
    ),
    ("GET", "/remuda/v1/cycles", "The newest reports of the control cycle"),
    ("POST", "/remuda/v1/cycles", "Run a control cycle now; the answer is its report"),
    ("GET", "/remuda/v1/plan", "What a cycle would do now; changes nothing"),
    (
        "POST",
        "/remuda/v1/reload",
        "Read the settings again and go on under them; a bad file changes nothing and is answered 422",
    ),
    (
        "POST",
        "/remuda/v1/tokens",
        "Make a token: role, tenant, name, workers, expires_seconds; shown this once",
    ),
    ("GET", "/remuda/v1/tokens", "All tokens, without what is secret"),
    ("DELETE", "/remuda/v1/tokens/{id}", "Revoke a token, by its id or its name; at once"),
    ("GET", "/remuda/v1/status", "Counts, the brake, refused messages, when and why the plane wakes next"),
    ("GET", "/remuda/v1/views/{name}", "orchestrator_status, active_workers_health or worker_performance"),
    ("POST", "/api/v2/assets", "Comfy API v2: upload an asset, as multipart/form-data"),
    ("POST", "/api/v2/assets/from-hash", "Comfy API v2: another asset of content that was sent before"),
    ("HEAD", "/api/v2/assets/by-hash/{hash}", "Comfy API v2: whether `from-hash` would find it"),
    ("GET", "/api/v2/assets/{id}", "Comfy API v2: an asset, or an output of a job"),
    ("DELETE", "/api/v2/assets/{id}", "Comfy API v2: forget an asset; outputs go with their job"),
    ("GET", "/api/v2/assets/{id}/content", "Comfy API v2: what is in it; Range as usual"),
    ("POST", "/api/v2/jobs", "Comfy API v2: submit a workflow"),
    ("GET", "/api/v2/jobs", "Jobs, newest first: ?limit= &cursor= &metadata[key]=value"),
    ("GET", "/api/v2/jobs/{id}", "Comfy API v2: a job, how far it is, what it gave so far"),
    ("GET", "/api/v2/jobs/{id}/workflow", "Comfy API v2: the workflow behind a job"),
    (
        "GET",
        "/api/v2/jobs/{id}/events",
        "Comfy API v2: a job as it goes on (SSE); the terminal status comes last",
    ),
    ("POST", "/api/v2/jobs/{id}/cancel", "Comfy API v2: cancel a job; one that has ended stays as it is"),
    ("GET", "/openapi.json", "Comfy API v2 as it is served here: the contract, and what was added to it"),
    ("GET", "/remuda/v1/models", "Every model with whoever has it, copy by copy"),
    ("POST", "/v1/embeddings", "OpenAI: a vector for each text"),
    ("POST", "/v1/chat/completions", "OpenAI: go on with a conversation, whole or as it comes (SSE)"),
    ("POST", "/v1/images/generations", "OpenAI: pictures from a text"),
    ("GET", "/v1/models", "OpenAI: models that can be asked"),
    ("GET", "/v1/models/{id}", "OpenAI: one of them"),
    ("POST", "/prompt", "ComfyUI: submit a graph, under the client's own `prompt_id` if it has one"),
    ("GET", "/prompt", "ComfyUI: how many prompts have not ended"),
    ("GET", "/queue", "ComfyUI: what runs and what waits"),
    ("POST", "/queue", "ComfyUI: take prompts out of the queue: `delete`, `clear`"),
    ("POST", "/interrupt", "ComfyUI: stop a prompt that runs, or all of the caller's"),
    ("GET", "/history", "ComfyUI: what has ended: ?max_items= &offset="),
    ("POST", "/history", "ComfyUI: hide what has ended: `delete`, `clear`; the jobs stay"),
    ("GET", "/history/{id}", "ComfyUI: what became of a prompt"),
    (
        "GET",
        "/api/jobs",
        "ComfyUI: queue and history: ?status= &limit= &offset= &sort_by= &sort_order= &workflow_id=",
    ),
    ("GET", "/api/jobs/{id}", "ComfyUI: one of them"),
    ("POST", "/api/jobs/{id}/cancel", "ComfyUI: cancel one, wherever it is"),
    ("POST", "/api/jobs/cancel", "ComfyUI: cancel several: `job_ids`"),
    (
        "GET",
        "/ws",
        "ComfyUI: the socket: what happens to the caller's prompts, previews included; ?clientId=",
    ),
    ("GET", "/view", "ComfyUI: a file by name: ?filename= &subfolder= &type="),
    ("POST", "/upload/image", "ComfyUI: send a file by name, as multipart/form-data"),
    ("POST", "/upload/mask", "ComfyUI: send the alpha for a picture; a server of the fleet joins them"),
    ("GET", "/object_info", "ComfyUI: node classes of all servers, merged"),
    ("GET", "/object_info/{name}", "ComfyUI: one node class"),
    ("GET", "/system_stats", "ComfyUI: the fleet, as one machine with many devices"),
    ("GET", "/features", "ComfyUI: supported features"),
    ("GET", "/models", "ComfyUI: folders of model files"),
    ("GET", "/models/{name}", "ComfyUI: model files that any server has"),
    ("POST", "/free", "ComfyUI: nothing to do: servers free their memory by themselves"),
    ("GET", "/users", "ComfyUI: that there is one user"),
    ("POST", "/users", "ComfyUI: no more users are made"),
    ("GET", "/settings", "ComfyUI: settings of the web interface, kept for the tenant"),
    ("POST", "/settings", "ComfyUI: change some of them"),
    ("GET", "/settings/{id}", "ComfyUI: one of them"),
    ("POST", "/settings/{id}", "ComfyUI: change one of them"),
    ("GET", "/userdata", "ComfyUI: files that people keep: ?dir= &recurse= &split= &full_info="),
    ("GET", "/userdata/{name}", "ComfyUI: one of them"),
    ("POST", "/userdata/{name}", "ComfyUI: keep a text: ?overwrite= &full_info="),
    ("DELETE", "/userdata/{name}", "ComfyUI: keep it no longer"),
    ("POST", "/userdata/{name}/move/{id}", "ComfyUI: give it another name"),
    ("GET", "/health/live", "200 while the loop goes round"),
    ("GET", "/health/ready", "200 while jobs are accepted"),
];

pub fn router(context: Context) -> Router {
    // Blobs are streamed; everything else comes whole and within the one limit.
    let streamed = Router::new()
        .route("/remuda/v1/blobs", post(blobs::store))
        .route("/remuda/v1/blobs/{hash}", get(blobs::read).put(blobs::store_named))
        .merge(comfyui::streamed())
        .method_not_allowed_fallback(error::wrong_method);
    Router::new()
        .route("/remuda/v1/jobs", post(jobs::submit).get(jobs::list))
        .route("/remuda/v1/jobs/{id}", get(jobs::one))
        .route("/remuda/v1/jobs/{id}/why", get(jobs::why))
        .route("/remuda/v1/jobs/{id}/workflow", get(jobs::workflow))
        .route("/remuda/v1/jobs/{id}/result", get(jobs::result))
        .route("/remuda/v1/jobs/{id}/preview", get(preview::get))
        .route("/remuda/v1/jobs/{id}/cancel", post(jobs::cancel))
        .route("/remuda/v1/workers", post(workers::join).get(workers::list))
        .route("/remuda/v1/workers/{id}", get(workers::one).delete(workers::leave))
        .route("/remuda/v1/workers/{id}/beat", post(workers::beat))
        .route("/remuda/v1/workers/{id}/preview", put(preview::put))
        .route("/remuda/v1/workers/{id}/live", put(live::put))
        .route("/remuda/v1/workers/{id}/drain", post(workers::drain))
        .route("/remuda/v1/machines", get(native::machines::list))
        .route("/remuda/v1/machines/{id}", get(native::machines::one))
        .route("/remuda/v1/machines/{id}/drain", post(native::machines::drain))
        .route("/remuda/v1/fleets", get(native::fleets::list))
        .route("/remuda/v1/fleets/{id}", get(native::fleets::one))
        .route("/remuda/v1/fleets/{id}/pause", post(native::fleets::pause))
        .route("/remuda/v1/fleets/{id}/resume", post(native::fleets::resume))
        .route("/remuda/v1/fleets/{id}/scale", post(native::fleets::scale))
        .route("/remuda/v1/fleets/{id}/reset-brake", post(native::fleets::reset_brake))
        .route("/remuda/v1/cost", get(native::cost::cost))
        .route("/remuda/v1/blocks", get(native::blocks))
        .route("/remuda/v1/blocks/{worker}/{shape}", delete(native::lift))
        .route("/remuda/v1/affinities", get(affinities::list))
        .route("/remuda/v1/affinities/{shape}", get(affinities::one).put(affinities::set))
        .route("/remuda/v1/affinities/{shape}", delete(affinities::remove))
        .route("/remuda/v1/quarantine", get(native::quarantine))
        .route("/remuda/v1/quarantine/{shape}", delete(native::release))
        .route("/remuda/v1/events", get(events::stream))
        .route("/remuda/v1/cycles", get(native::cycles::list).post(native::cycles::now))
        .route("/remuda/v1/plan", get(native::cycles::plan))
        .route("/remuda/v1/reload", post(reload::reload))
        .route("/remuda/v1/tokens", post(access::tokens::create).get(access::tokens::list))
        .route("/remuda/v1/tokens/{id}", delete(access::tokens::revoke))
        .route("/remuda/v1/status", get(native::status))
        .route("/remuda/v1/views/{name}", get(native::view))
        .route("/health/live", get(native::live))
        .route("/health/ready", get(native::ready))
        .merge(comfyui::routes())
        .fallback(comfyui::fallback)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(middleware::from_fn_with_state(context.clone(), body::read_whole))
        .merge(streamed)
        .merge(openai::router(&context))
        .merge(comfy_v2::router(&context))
        // `body` and `blobs` have their own limits, which refuse before they read.
        .layer(DefaultBodyLimit::disable())
        // The outermost: nothing is read for whoever may not ask.
        .layer(middleware::from_fn_with_state(context.clone(), access::check))
        .layer(middleware::from_fn(openai::format_errors))
        .layer(middleware::from_fn(comfy_v2::format_errors))
        .with_state(context)
}

impl Context {
    /// The way in for jobs.
    pub fn intake(&self) -> Intake {
        let Context { plane, store, blobs, workflows, secrets, limits, webhooks, .. } = self.clone();
        Intake { plane, store, blobs, workflows, secrets, limits, webhooks }
    }

    pub fn new(
        plane: PlaneHandle,
        store: Store,
        blobs: Blobs,
        live: LiveState,
        stopping: tokio::sync::watch::Receiver<bool>,
        reload: Reload,
        access: Arc<AccessControl>,
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
        let comfy_v2 = comfy_v2::ComfyV2State::new(&events);
        Context {
            plane,
            store,
            blobs,
            workflows,
            previews,
            live_attempts: attempts,
            secrets,
            events,
            limits,
            webhooks: Policy { allow_private: settings.webhooks_may_be_private() },
            streams,
            stopping,
            body_bytes_max: settings.body_bytes_max,
            reload,
            uploads: Arc::new(Semaphore::new(blobs::UPLOADS_MAX)),
            blob_upload_idle_timeout: settings.blob_upload_idle_timeout,
            access,
            retention: settings.retention,
            comfy_v2,
            comfyui: ComfyuiApi::default(),
            models: LocalModels::default(),
            request_timeout,
            ui: settings.ui.clone(),
            forward_to: settings.forward_to.as_slice().into(),
        }
    }
}
