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
mod openapi;
mod output;
mod stream;
mod submit;
mod upload;
mod upload_keys;
mod validate;

use axum::Router;
use axum::middleware;
use axum::routing::{any, get, head, post};
use tokio::sync::broadcast;

pub(super) use self::error_format::format_errors;
use self::job_watch::JobWatchers;
use self::upload_keys::KeyClaims;
use super::{Context, body, error};
use crate::live::LiveEvent;

/// State shared by the handlers of this API.
#[derive(Clone, Debug)]
pub(super) struct ComfyV2State {
    claims: KeyClaims,
    watchers: JobWatchers,
}

impl ComfyV2State {
    pub(super) fn new(news: &broadcast::Sender<LiveEvent>) -> ComfyV2State {
        ComfyV2State { claims: KeyClaims::default(), watchers: JobWatchers::new(news.clone()) }
    }
}

pub(super) fn router(context: &Context) -> Router<Context> {
    let streamed = Router::new()
        .route("/api/v2/assets", post(upload::upload))
        .method_not_allowed_fallback(error::wrong_method);
    let nothing = any(error::no_such_route);
    // Other paths below the prefix are not found, even where another surface serves paths that start alike.
    let nothing = Router::new().route("/api/v2", nothing.clone()).route("/api/v2/{*rest}", nothing);
    Router::new()
        .route("/api/v2/assets/from-hash", post(assets::from_hash))
        .route("/api/v2/assets/by-hash/{hash}", head(assets::by_hash))
        .route("/api/v2/assets/{id}", get(assets::show).delete(assets::delete))
        .route("/api/v2/assets/{id}/content", get(assets::content))
        .route("/api/v2/jobs", post(submit::submit).get(jobs::list))
        .route("/api/v2/jobs/{id}", get(jobs::show))
        .route("/api/v2/jobs/{id}/workflow", get(jobs::workflow))
        .route("/api/v2/jobs/{id}/events", get(stream::subscribe))
        .route("/api/v2/jobs/{id}/cancel", post(jobs::cancel))
        .route("/openapi.json", get(openapi::document))
        .method_not_allowed_fallback(error::wrong_method)
        .layer(middleware::from_fn_with_state(context.clone(), body::read_whole))
        .merge(streamed)
        .merge(nothing)
}
