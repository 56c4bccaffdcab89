//! Comfy API v2 (`comfy_v2/contract.json`) over the fleet. This module translates; decisions about jobs are made where the
//! decisions about all other jobs are made.
//!
//! | module | about |
//! |---|---|
//! | `assets`, `upload`, `asset`, `upload_keys` | uploaded files: each a record over a blob, both content-addressed |
//! | `output` | files that a job produced: assets without a record |
//! | `submit`, `validate` | checks of a submission |
//! | `jobs`, `job` | a job in the format of this API |
//! | `stream`, `job_watch` | the event stream of a job |
//! | `error_format`, `links`, `openapi` | error format, URLs, the OpenAPI document |
//!
//! **Tenants.** Everything belongs to the caller's tenant; objects of other tenants are answered as not found.
//!
//! **Ids.** An uploaded asset has a random UUID. The id of an output is derived from its job's id and its content, so it leads
//! back to the job and nothing has to be stored for it (`output`).
//!
//! **Keys.** An `Idempotency-Key` is valid for one request in a day. The key of a submission is stored with its job, in one
//! commit; the key of an upload is a separate document, claimed before anything else is stored.

mod asset;
mod assets;
pub(super) mod error_format;
mod job;
mod job_watch;
mod jobs;
mod links;
pub(super) mod openapi;
mod output;
mod stream;
mod submit;
mod upload;
mod upload_keys;
mod validate;

use axum::Router;
use axum::routing::any;

pub(super) use self::error_format::{PATH_PREFIX, format_error};
use self::job_watch::JobWatchers;
use self::upload_keys::KeyClaims;
use super::routes::{Route, route};
use super::{Context, error};
use crate::tasks::Ticker;

/// State shared by the handlers of this API.
#[derive(Clone, Debug, Default)]
pub(super) struct ComfyV2State {
    claims: KeyClaims,
    watchers: JobWatchers,
}

/// Wakes the event streams of this API; runs until the program stops.
pub async fn run_job_watch(context: Context, ticker: Ticker) {
    context.comfy_v2.watchers.run(&context, &ticker).await;
}

pub(super) const ROUTES: &[Route] = &[
    route!(POST "/api/v2/assets", Client, upload::upload, "Comfy API v2: upload an asset, as multipart/form-data").streamed(),
    route!(POST "/api/v2/assets/from-hash", Client, assets::from_hash, "Comfy API v2: another asset of content that was uploaded before"),
    route!(HEAD "/api/v2/assets/by-hash/{hash}", Client, assets::by_hash, "Comfy API v2: whether `from-hash` would find it"),
    route!(GET "/api/v2/assets/{id}", Client, assets::show, "Comfy API v2: an asset, or an output of a job"),
    route!(DELETE "/api/v2/assets/{id}", Client, assets::delete, "Comfy API v2: delete an asset; outputs are deleted with their job"),
    route!(GET "/api/v2/assets/{id}/content", Client, assets::content, "Comfy API v2: an asset's content, with Range"),
    route!(POST "/api/v2/jobs", Client, submit::submit, "Comfy API v2: submit a workflow"),
    route!(GET "/api/v2/jobs", Client, jobs::list, "Jobs, newest first (an addition to Comfy API v2)")
        .query(&["limit", "cursor", "metadata[KEY]"]),
    route!(GET "/api/v2/jobs/{id}", Client, jobs::show, "Comfy API v2: a job, its progress and its outputs so far"),
    route!(GET "/api/v2/jobs/{id}/workflow", Client, jobs::workflow, "Comfy API v2: the workflow of a job"),
    route!(GET "/api/v2/jobs/{id}/events", Client, stream::subscribe, "Comfy API v2: a job's events (SSE); the final status comes last"),
    route!(POST "/api/v2/jobs/{id}/cancel", Client, jobs::cancel, "Comfy API v2: cancel a job; a finished one stays as it is"),
];

/// Unknown paths below `/api/v2` are answered here, so that the ComfyUI routes below `/api` never stand in for them.
pub(super) fn unknown_paths() -> Router<Context> {
    let unknown = any(error::no_such_route);
    Router::new().route("/api/v2", unknown.clone()).route("/api/v2/{*rest}", unknown)
}
