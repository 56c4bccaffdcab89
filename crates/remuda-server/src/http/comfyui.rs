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
//! | output names | numbered by the plane, see `output_names`; files of other jobs are in the folder `<job>/<node>` |
//! | `number`, `front` | a negative number or `front` raises the priority; equal priorities run oldest first |
//! | input files | documents of the tenant, found by name; a graph that names one refers to its content by hash |
//! | `/history` delete, clear | hides entries in this API only; the jobs are kept as long as any other |
//!
//! Every route is also served under `/api`. A caller sees only the jobs of its own tenant.

mod client_registry;
mod connection;
mod error;
mod folders;
mod history;
mod history_entry;
mod jobs;
mod logs;
mod mask_image;
mod node_classes;
mod output_names;
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
mod view;

use std::sync::Arc;

pub use self::publisher::run_publisher;
pub(super) use self::ui::fallback;
pub(super) use self::uploads::{asset_name, resolve_files};

use remuda_core::id::JobId;

use self::client_registry::ClientRegistry;
pub(super) use self::node_classes::FleetCheck;
pub(super) use self::prompt::SERVICE;
use super::Context;
use super::routes::{Route, route};
use crate::plane_handle::PlaneError;

/// State of the ComfyUI API that lives in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ComfyuiApi {
    clients: Arc<ClientRegistry>,
    node_classes: Arc<node_classes::NodeClassCache>,
    name_lock: Arc<uploads::NameLock>,
    proxy: Arc<proxy::ServerProxy>,
    logs: Arc<logs::LogLines>,
    output_names: Arc<output_names::OutputNames>,
    mask_permits: Arc<upload_mask::MaskPermits>,
}

impl ComfyuiApi {
    /// Whether a client is connected that sees every preview of this job.
    pub(super) fn is_watched(&self, job: JobId) -> bool {
        self.clients.lock().is_watched(job)
    }

    /// What graphs are checked against. `waits`: the job waits for what no worker has.
    pub(super) async fn fleet_check(&self, context: &Context, waits: bool) -> Result<FleetCheck, PlaneError> {
        self.node_classes.fleet_check(context, waits).await
    }
}

/// All of them are also served below `/api`, except those that begin with it: ComfyUI has these nowhere else.
pub(super) const ROUTES: &[Route] = &[
    route!(POST "/prompt", Client, submit::submit, "ComfyUI: submit a graph, under the client's own `prompt_id` if it has one"),
    route!(GET "/prompt", Client, queue::count, "ComfyUI: the number of unfinished prompts"),
    route!(GET "/queue", Client, queue::list, "ComfyUI: running and waiting prompts; those that `client_id` runs come first")
        .query(&["client_id"]),
    route!(POST "/queue", Client, queue::change, "ComfyUI: remove prompts from the queue: `delete`, `clear`"),
    route!(POST "/interrupt", Client, queue::interrupt, "ComfyUI: stop a running prompt, or all of the caller's, or of `client_id`")
        .query(&["client_id"]),
    route!(GET "/history", Client, history::list, "ComfyUI: finished prompts").query(&["max_items", "offset"]),
    route!(POST "/history", Client, history::hide, "ComfyUI: hide finished prompts: `delete`, `clear`; the jobs stay"),
    route!(GET "/history/{id}", Client, history::show, "ComfyUI: one finished prompt"),
    route!(GET "/api/jobs", Client, jobs::list, "ComfyUI: queue and history in one list")
        .query(&["status", "limit", "offset", "sort_by", "sort_order", "workflow_id"]),
    route!(GET "/api/jobs/{id}", Client, jobs::show, "ComfyUI: one job"),
    route!(POST "/api/jobs/{id}/cancel", Client, jobs::cancel_one, "ComfyUI: cancel a job in any state"),
    route!(POST "/api/jobs/cancel", Client, jobs::cancel_many, "ComfyUI: cancel several jobs: `job_ids`"),
    route!(GET "/ws", Client, socket::open, "ComfyUI: the WebSocket: events of the caller's prompts, previews included")
        .query(&["clientId"]),
    route!(GET "/view", Client, view::view, "ComfyUI: a file by name").query(&["filename", "subfolder", "type"]),
    route!(POST "/upload/image", Client, uploads::upload, "ComfyUI: upload a file by name, as multipart/form-data").streamed(),
    route!(POST "/upload/mask", Client, upload_mask::upload, "ComfyUI: store an image with the alpha channel of an uploaded mask; PNG and JPEG").streamed(),
    route!(GET "/object_info", Client, node_classes::list, "ComfyUI: node classes of all servers, merged"),
    route!(GET "/object_info/{name}", Client, node_classes::show, "ComfyUI: one node class"),
    route!(GET "/system_stats", Client, server_info::system_stats, "ComfyUI: the fleet as one machine with many devices"),
    route!(GET "/features", Client, server_info::all_features, "ComfyUI: supported features"),
    route!(GET "/models", Client, server_info::model_folders, "ComfyUI: folders of model files"),
    route!(GET "/models/{name}", Client, server_info::models, "ComfyUI: model files that any server has"),
    route!(POST "/free", Client, server_info::accept, "ComfyUI: no effect; servers free their memory themselves"),
    route!(GET "/users", Client, server_info::users, "ComfyUI: reports a single user"),
    route!(POST "/users", Client, server_info::accept, "ComfyUI: no effect; users are not created"),
    route!(GET "/settings", Client, userdata::settings, "ComfyUI: settings of the web interface, per tenant"),
    route!(POST "/settings", Client, userdata::set_all, "ComfyUI: change several settings"),
    route!(GET "/settings/{id}", Client, userdata::setting, "ComfyUI: one setting"),
    route!(POST "/settings/{id}", Client, userdata::set_one, "ComfyUI: change one setting"),
    route!(GET "/userdata", Client, userdata::list, "ComfyUI: saved user files").query(&["dir", "recurse", "split", "full_info"]),
    route!(GET "/userdata/{name}", Client, userdata::get, "ComfyUI: one user file"),
    route!(POST "/userdata/{name}", Client, userdata::put, "ComfyUI: save a user file").query(&["overwrite", "full_info"]),
    route!(DELETE "/userdata/{name}", Client, userdata::delete, "ComfyUI: delete a user file"),
    route!(POST "/userdata/{name}/move/{id}", Client, userdata::rename, "ComfyUI: rename a user file"),
    route!(GET "/internal/files/{name}", Client, folders::files, "ComfyUI: names of the caller's files: `input`, `output`, `temp`"),
    route!(GET "/internal/folder_paths", Client, folders::folder_paths, "ComfyUI: folders of model files"),
    route!(GET "/internal/logs", Client, logs::text, "ComfyUI: what happened to the caller's prompts, as one text"),
    route!(GET "/internal/logs/raw", Client, logs::raw, "ComfyUI: the same as a list of lines"),
    route!(PATCH "/internal/logs/subscribe", Client, logs::subscribe, "ComfyUI: send new lines to the sockets of a client, or stop"),
    route!(GET "/embeddings", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list"),
    route!(GET "/extensions", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list"),
    route!(GET "/experiment/models", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list"),
    route!(GET "/i18n", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object"),
    route!(GET "/global_subgraphs", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object"),
    route!(GET "/workflow_templates", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object"),
    route!(GET "/node_replacements", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object"),
];
