//! Comfy API v2 (`v2/contract.json`) over the fleet: a client of that API finds one ComfyUI here. This translates; what a
//! job may do is decided where every other job's fate is.
//!
//! | part | about |
//! |---|---|
//! | `assets`, `upload`, `asset`, `claim` | files that somebody sent: each a record over a blob, both content-addressed |
//! | `output` | files that a job gave: assets without a record |
//! | `submit`, `graph` | what is asked of a submission before it is one |
//! | `jobs`, `job` | a job as this API shows it |
//! | `stream`, `hub` | a job as it goes on |
//! | `envelope`, `links`, `openapi` | the form of errors, addresses, the document |
//!
//! **Whose.** Everything belongs to the caller's tenant; what is another's is answered as if it were not there.
//!
//! **Ids.** An asset that was sent has a random UUID. An output's is made from its job's id and what it is, so that it
//! leads back to the job and nothing has to be stored for it (`output`).
//!
//! **Keys.** An `Idempotency-Key` is good for one request in a day. A submission's is kept with its job, in one commit; an
//! upload's is a document of its own, claimed before anything else is stored.

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

pub(super) use self::error_format::put_on;
use self::job_watch::Hub;
use self::upload_keys::Claims;
use super::{Context, body, error};
use crate::live::LiveEvent;

/// What the handlers of this surface share.
#[derive(Clone, Debug)]
pub(super) struct ComfyV2State {
    claims: Claims,
    hub: Hub,
}

impl ComfyV2State {
    pub(super) fn new(events: &broadcast::Sender<LiveEvent>) -> ComfyV2State {
        ComfyV2State { claims: Claims::default(), hub: Hub::new(events.clone()) }
    }
}

pub(super) fn router(context: &Context) -> Router<Context> {
    let streamed = Router::new()
        .route("/api/v2/assets", post(upload::upload))
        .method_not_allowed_fallback(error::wrong_method);
    let nothing = any(error::no_such_route);
    // Beside them nothing is found, whoever else serves paths that begin alike.
    let nothing = Router::new().route("/api/v2", nothing.clone()).route("/api/v2/{*rest}", nothing);
    Router::new()
        .route("/api/v2/assets/from-hash", post(assets::from_hash))
        .route("/api/v2/assets/by-hash/{hash}", head(assets::by_hash))
        .route("/api/v2/assets/{id}", get(assets::one).delete(assets::delete))
        .route("/api/v2/assets/{id}/content", get(assets::content))
        .route("/api/v2/jobs", post(submit::submit).get(jobs::list))
        .route("/api/v2/jobs/{id}", get(jobs::one))
        .route("/api/v2/jobs/{id}/workflow", get(jobs::workflow))
        .route("/api/v2/jobs/{id}/events", get(stream::stream))
        .route("/api/v2/jobs/{id}/cancel", post(jobs::cancel))
        .route("/openapi.json", get(openapi::document))
        .method_not_allowed_fallback(error::wrong_method)
        .layer(middleware::from_fn_with_state(context.clone(), body::read_whole))
        .merge(streamed)
        .merge(nothing)
}
