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
mod output_summary;
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
    /// Connected clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.lock().len()
    }

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
    route!(POST "/prompt", Client, submit::submit, "ComfyUI: submit a graph, under the client's own `prompt_id` if it has one" => 200 "ComfyuiAccepted")
        .body("ComfyuiPrompt", r#"{"prompt": {"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 7}}, "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "picture"}}}}"#)
        .errors(&["queue_full", "quota_exceeded"]),
    route!(GET "/prompt", Client, queue::count, "ComfyUI: the number of unfinished prompts" => 200 "ComfyuiQueueCount"),
    route!(GET "/queue", Client, queue::list, "ComfyUI: running and waiting prompts; those that `client_id` runs come first" => 200 "ComfyuiQueue")
        .query(&["client_id"]),
    route!(POST "/queue", Client, queue::change, "ComfyUI: remove prompts from the queue: `delete`, `clear`" => 200 "")
        .body("ComfyuiDelete", r#"{"delete": ["0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"]}"#),
    route!(POST "/interrupt", Client, queue::interrupt, "ComfyUI: stop a running prompt, or all of the caller's, or of `client_id`" => 200 "")
        .query(&["client_id"])
        .optional_body("ComfyuiInterrupt", r#"{"prompt_id": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"}"#),
    route!(GET "/history", Client, history::list, "ComfyUI: finished prompts" => 200 "ComfyuiHistory").query(&["max_items", "offset"]),
    route!(POST "/history", Client, history::hide, "ComfyUI: hide finished prompts: `delete`, `clear`; the jobs stay" => 200 "")
        .body("ComfyuiDelete", r#"{"clear": true}"#),
    route!(GET "/history/{id}", Client, history::show, "ComfyUI: one finished prompt" => 200 "ComfyuiHistory"),
    route!(GET "/api/jobs", Client, jobs::list, "ComfyUI: queue and history in one list" => 200 "ComfyuiJobPage")
        .query(&["status", "limit", "offset", "sort_by", "sort_order", "workflow_id"]),
    route!(GET "/api/jobs/{id}", Client, jobs::show, "ComfyUI: one job" => 200 "ComfyuiJob"),
    route!(POST "/api/jobs/{id}/cancel", Client, jobs::cancel_one, "ComfyUI: cancel a job in any state" => 200 "ComfyuiCancelled"),
    route!(POST "/api/jobs/cancel", Client, jobs::cancel_many, "ComfyUI: cancel several jobs: `job_ids`" => 200 "ComfyuiCancelled")
        .body("ComfyuiCancel", r#"{"job_ids": ["0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"]}"#),
    route!(GET "/ws", Client, socket::open, "ComfyUI: the WebSocket: events of the caller's prompts, previews included" => 101 "")
        .query(&["clientId"])
        .errors(&["too_many_streams"]),
    route!(GET "/view", Client, view::view, "ComfyUI: a file by name" => 200 "*/*", 206 "*/*", 304 "")
        .query(&["filename", "subfolder", "type"])
        .headers(&["Range", "If-None-Match"])
        .errors(&["not_found", "range_not_satisfiable"]),
    route!(POST "/upload/image", Client, uploads::upload, "ComfyUI: upload a file by name, as multipart/form-data" => 200 "ComfyuiUploaded")
        .form("ComfyuiUpload").errors(&["too_many_uploads", "refused"]).streamed(),
    route!(POST "/upload/mask", Client, upload_mask::upload, "ComfyUI: store an image with the alpha channel of an uploaded mask; PNG and JPEG" => 200 "ComfyuiUploaded")
        .form("ComfyuiMaskUpload").errors(&["too_many_uploads", "refused"]).streamed(),
    route!(GET "/object_info", Client, node_classes::list, "ComfyUI: node classes of all servers, merged" => 200 "ComfyuiNodeClasses", 304 "")
        .headers(&["If-None-Match"]),
    route!(GET "/object_info/{name}", Client, node_classes::show, "ComfyUI: one node class" => 200 "ComfyuiNodeClasses", 304 "")
        .headers(&["If-None-Match"]),
    route!(GET "/system_stats", Client, server_info::system_stats, "ComfyUI: the fleet as one machine with many devices" => 200 "ComfyuiSystemStats"),
    route!(GET "/features", Client, server_info::all_features, "ComfyUI: supported features" => 200 "AnyObject"),
    route!(GET "/models", Client, server_info::model_folders, "ComfyUI: folders of model files" => 200 "ComfyuiNames"),
    route!(GET "/models/{name}", Client, server_info::models, "ComfyUI: model files that any server has" => 200 "ComfyuiNames", 404 ""),
    route!(POST "/free", Client, server_info::accept, "ComfyUI: no effect; servers free their memory themselves" => 200 "")
        .optional_body("AnyJson", r#"{"unload_models": true, "free_memory": true}"#),
    route!(GET "/users", Client, server_info::users, "ComfyUI: reports a single user" => 200 "AnyObject"),
    route!(POST "/users", Client, server_info::accept, "ComfyUI: no effect; users are not created" => 200 "")
        .optional_body("AnyJson", r#"{"username": "anna"}"#),
    route!(GET "/settings", Client, userdata::settings, "ComfyUI: settings of the web interface, per tenant" => 200 "AnyObject"),
    route!(POST "/settings", Client, userdata::set_all, "ComfyUI: change several settings" => 200 "")
        .body("AnyObject", r#"{"Comfy.ColorPalette": "dark"}"#),
    route!(GET "/settings/{id}", Client, userdata::setting, "ComfyUI: one setting" => 200 "AnyJson"),
    route!(POST "/settings/{id}", Client, userdata::set_one, "ComfyUI: change one setting" => 200 "")
        .body("AnyJson", r#""dark""#),
    route!(GET "/userdata", Client, userdata::list, "ComfyUI: saved user files" => 200 "ComfyuiUserFiles")
        .query(&["dir", "recurse", "split", "full_info"])
        .errors(&["not_found"]),
    route!(GET "/userdata/{name}", Client, userdata::get, "ComfyUI: one user file" => 200 "*/*"),
    route!(POST "/userdata/{name}", Client, userdata::put, "ComfyUI: save a user file" => 200 "ComfyuiUserFile")
        .bytes(&["text/plain"]).errors(&["refused"]).query(&["overwrite", "full_info"]),
    route!(DELETE "/userdata/{name}", Client, userdata::delete, "ComfyUI: delete a user file" => 204 ""),
    route!(POST "/userdata/{name}/move/{id}", Client, userdata::rename, "ComfyUI: rename a user file" => 200 "ComfyuiUserFile")
        .query(&["overwrite", "full_info"]).errors(&["refused"]),
    route!(GET "/internal/files/{name}", Client, folders::files, "ComfyUI: names of the caller's files: `input`, `output`, `temp`" => 200 "ComfyuiNames"),
    route!(GET "/internal/folder_paths", Client, folders::folder_paths, "ComfyUI: folders of model files" => 200 "AnyObject"),
    route!(GET "/internal/logs", Client, logs::text, "ComfyUI: what happened to the caller's prompts, as one text" => 200 "ComfyuiLogText"),
    route!(GET "/internal/logs/raw", Client, logs::raw, "ComfyUI: the same as a list of lines" => 200 "ComfyuiLog"),
    route!(PATCH "/internal/logs/subscribe", Client, logs::subscribe, "ComfyUI: send new lines to the sockets of a client, or stop" => 200 "")
        .body("ComfyuiLogSubscription", r#"{"clientId": "0193e7a05b1c7d52", "enabled": true}"#),
    route!(GET "/embeddings", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list" => 200 "AnyList"),
    route!(GET "/extensions", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list" => 200 "AnyList"),
    route!(GET "/experiment/models", Client, server_info::empty_list, "ComfyUI: from a forwarded server, else an empty list" => 200 "AnyList"),
    route!(GET "/i18n", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object" => 200 "AnyObject"),
    route!(GET "/global_subgraphs", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object" => 200 "AnyObject"),
    route!(GET "/workflow_templates", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object" => 200 "AnyObject"),
    route!(GET "/node_replacements", Client, server_info::empty_object, "ComfyUI: from a forwarded server, else an empty object" => 200 "AnyObject"),
];
