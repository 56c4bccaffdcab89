//! The ComfyUI front door: to stock clients and to the stock web interface, Remuda is one ComfyUI that happens to be a fleet.
//!
//! ```text
//!  POST /prompt ──▶ submit ──▶ intake ──▶ plane            every job of the tenant that ComfyUI runs is a prompt here
//!  GET  /queue, /history, /api/jobs ◀── prompt, entry ◀── store: histories survive restarts
//!  GET  /ws ◀── hub ◀── publisher ◀── news: what happened, what workers told, previews
//!  GET  /view, POST /upload/* ◀──▶ blobs, found by name
//! ```
//!
//! | of ComfyUI | here |
//! |---|---|
//! | `prompt_id` | the client's own, kept as the job's key; else the job's id |
//! | output `subfolder` | `<job>/<node>`: two servers may both have written `ComfyUI_00001_.png` |
//! | `number`, `front` | below zero and in front are a higher priority; among equals the oldest goes first |
//! | input files | documents of the tenant, by name; a graph that names one gets its content by hash |
//! | `/history` delete, clear | hidden from this door; the jobs stay as long as every other |
//!
//! Every route stands also under `/api`. Who asks sees the jobs of one tenant and of nobody else.

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
pub(super) use self::ui::file;

use self::client_registry::Hub;
use super::Context;

/// What the door keeps in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct ComfyuiApi {
    hub: Arc<Hub>,
    classes: Arc<node_classes::Classes>,
    naming: Arc<uploads::Naming>,
    forward: Arc<proxy::Forward>,
}

impl ComfyuiApi {
    /// What the servers of the fleet say of their classes, as one.
    pub(super) async fn classes(&self, context: &Context) -> Arc<node_classes::Merged> {
        self.classes.merged(context).await
    }
}

pub(super) fn routes() -> Router<Context> {
    // Newer ones, which stand nowhere else.
    let jobs = Router::new()
        .route("/api/jobs", get(jobs::list))
        .route("/api/jobs/cancel", post(jobs::cancel_many))
        .route("/api/jobs/{id}", get(jobs::one))
        .route("/api/jobs/{id}/cancel", post(jobs::cancel_one));
    Router::new().merge(plain()).nest("/api", plain()).merge(jobs)
}

/// Those that take files, which may be larger than other bodies.
pub(super) fn streamed() -> Router<Context> {
    let both = || {
        Router::new()
            .route("/upload/image", post(uploads::image))
            .route("/upload/mask", post(upload_mask::mask))
            .method_not_allowed_fallback(super::error::wrong_method)
    };
    Router::new().merge(both()).nest("/api", both())
}

fn plain() -> Router<Context> {
    let mut routes = Router::new();
    for path in EMPTY_LISTS {
        routes = routes.route(path, get(server_info::none));
    }
    for path in EMPTY_OBJECTS {
        routes = routes.route(path, get(server_info::nothing));
    }
    routes
        .route("/prompt", post(submit::submit).get(queue::remaining))
        .route("/queue", get(queue::list).post(queue::change))
        .route("/interrupt", post(queue::interrupt))
        .route("/history", get(history::list).post(history::hide))
        .route("/history/{id}", get(history::one))
        .route("/view", get(view::view))
        .route("/ws", get(socket::open))
        .route("/object_info", get(node_classes::all))
        .route("/object_info/{name}", get(node_classes::one))
        .route("/system_stats", get(server_info::system_stats))
        .route("/features", get(server_info::all_features))
        .route("/models", get(server_info::model_folders))
        .route("/models/{name}", get(server_info::models))
        .route("/free", post(server_info::done))
        .route("/users", get(server_info::users).post(server_info::done))
        .route("/settings", get(userdata::settings).post(userdata::set_all))
        .route("/settings/{id}", get(userdata::setting).post(userdata::set_one))
        .route("/userdata", get(userdata::list))
        .route("/userdata/{name}", get(userdata::get).post(userdata::put).delete(userdata::delete))
        .route("/userdata/{name}/move/{id}", post(userdata::rename))
}

/// Where there is nothing to be said; a server that is known to the plane is asked instead.
const EMPTY_LISTS: [&str; 3] = ["/embeddings", "/extensions", "/experiment/models"];
const EMPTY_OBJECTS: [&str; 4] = ["/i18n", "/global_subgraphs", "/workflow_templates", "/node_replacements"];
