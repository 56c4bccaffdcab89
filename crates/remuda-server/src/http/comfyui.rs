//! The ComfyUI-compatible API: stock clients and the stock web interface use a fleet as if it were one ComfyUI server.
//!
//! ```text
//!  POST /prompt ──▶ submit ──▶ intake ──▶ plane            every job of the tenant that ComfyUI runs is a prompt here
//! GET  /queue, /history, /api/jobs ◀── prompt, history_entry ◀── store: the history survives restarts
//! GET  /ws ◀── client_registry ◀── publisher ◀── stored events, live reports of workers, previews
//!  GET  /view, POST /upload/* ◀──▶ blobs, found by name
//! ```
//!
//! | ComfyUI | Remuda |
//! |---|---|
//! | `prompt_id` | the client's id, stored as the job's idempotency key; otherwise the job id |
//! | output `subfolder` | `<job>/<node>`: two servers may both have written `ComfyUI_00001_.png` |
//! | `number`, `front` | a negative number or `front` raises the priority; equal priorities run oldest first |
//! | input files | documents of the tenant, found by name; a graph that names one refers to its content by hash |
//! | `/history` delete, clear | hides entries in this API only; the jobs are kept as long as any other |
//!
//! Every route is also served under `/api`. A caller sees only the jobs of its own tenant.

mod client_registry;
mod connection;
mod error;
mod history;
mod history_entry;
mod jobs;
mod node_classes;
mod prompt;
mod proxy;
mod publisher;
mod queue;
mod run_translator;
mod server_info;
mod socket;
mod submit;
mod ui;
mod upload_mask;
mod uploads;
mod userdata;
mod validate;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

pub use self::publisher::run_publisher;
pub(super) use self::ui::fallback;

use self::client_registry::ClientRegistry;
use super::Context;

/// State of the ComfyUI API that lives in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ComfyuiApi {
    clients: Arc<ClientRegistry>,
    node_classes: Arc<node_classes::NodeClassCache>,
    name_lock: Arc<uploads::NameLock>,
    proxy: Arc<proxy::ServerProxy>,
}

impl ComfyuiApi {
    /// Node classes of all servers of the fleet, merged.
    pub(super) async fn classes(&self, context: &Context) -> Arc<node_classes::MergedClasses> {
        self.node_classes.merged(context).await
    }
}

pub(super) fn routes() -> Router<Context> {
    // Newer routes, which ComfyUI serves under `/api` only.
    let jobs = Router::new()
        .route("/api/jobs", get(jobs::list))
        .route("/api/jobs/cancel", post(jobs::cancel_many))
        .route("/api/jobs/{id}", get(jobs::show))
        .route("/api/jobs/{id}/cancel", post(jobs::cancel_one));
    Router::new().merge(plain()).nest("/api", plain()).merge(jobs)
}

/// Routes that accept files, which may exceed the body limit of the others.
pub(super) fn streamed() -> Router<Context> {
    let both = || {
        Router::new()
            .route("/upload/image", post(uploads::upload))
            .route("/upload/mask", post(upload_mask::upload))
            .method_not_allowed_fallback(super::error::wrong_method)
    };
    Router::new().merge(both()).nest("/api", both())
}

fn plain() -> Router<Context> {
    let mut routes = Router::new();
    for path in EMPTY_LISTS {
        routes = routes.route(path, get(server_info::empty_list));
    }
    for path in EMPTY_OBJECTS {
        routes = routes.route(path, get(server_info::empty_object));
    }
    routes
        .route("/prompt", post(submit::submit).get(queue::count))
        .route("/queue", get(queue::list).post(queue::change))
        .route("/interrupt", post(queue::interrupt))
        .route("/history", get(history::list).post(history::hide))
        .route("/history/{id}", get(history::show))
        .route("/view", get(view::view))
        .route("/ws", get(socket::open))
        .route("/object_info", get(node_classes::list))
        .route("/object_info/{name}", get(node_classes::show))
        .route("/system_stats", get(server_info::system_stats))
        .route("/features", get(server_info::all_features))
        .route("/models", get(server_info::model_folders))
        .route("/models/{name}", get(server_info::models))
        .route("/free", post(server_info::accept))
        .route("/users", get(server_info::users).post(server_info::accept))
        .route("/settings", get(userdata::settings).post(userdata::set_all))
        .route("/settings/{id}", get(userdata::setting).post(userdata::set_one))
        .route("/userdata", get(userdata::list))
        .route("/userdata/{name}", get(userdata::get).post(userdata::put).delete(userdata::delete))
        .route("/userdata/{name}/move/{id}", post(userdata::rename))
}

/// Paths that are empty unless a server that the plane can reach answers them.
const EMPTY_LISTS: [&str; 3] = ["/embeddings", "/extensions", "/experiment/models"];
const EMPTY_OBJECTS: [&str; 4] = ["/i18n", "/global_subgraphs", "/workflow_templates", "/node_replacements"];
