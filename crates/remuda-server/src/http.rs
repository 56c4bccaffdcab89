//! The plane over HTTP: routes and handlers, no decisions. A handler turns a request into an event or a read of the plane,
//! and the answer into JSON; every refusal becomes an `ApiError`. `routes` has the one table of all routes.

mod access;
mod affinities;
mod blobs;
mod body;
mod comfy_v2;
mod comfyui;
mod context;
#[cfg(test)]
mod document;
mod error;
mod events;
mod jobs;
mod listen;
mod live;
mod live_limit;
mod lost;
mod native;
mod openai;
mod openapi;
mod path;
mod preview;
mod reload;
mod request_key;
mod routes;
mod workers;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;

pub use self::access::{AccessControl, Caller, Role, Token, TokenRequest};
pub use self::comfy_v2::run_job_watch;
pub use self::comfyui::{ComfyuiApi, run_publisher};
pub use self::context::Context;
pub use self::error::ApiError;
use self::error::unexpected_answer;
pub use self::events::event_json;
pub use self::listen::{ConnectionPlaces, Listening, listen, raise_open_files_limit};
pub use self::openai::LocalModels;
pub use self::reload::Reload;

pub fn router(context: Context) -> Router {
    routes::router(native::ROUTES)
        .merge(routes::router(openai::ROUTES))
        .merge(routes::router(comfy_v2::ROUTES))
        .merge(routes::aliased_router(comfyui::ROUTES))
        .merge(openai::unknown_paths())
        .merge(comfy_v2::unknown_paths())
        .fallback(comfyui::fallback)
        .method_not_allowed_fallback(error::wrong_method)
        // `body` and `blobs` have their own limits, which refuse before they read.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(context.clone(), admit))
        .with_state(context)
}

/// Outside everything else: no body is read for a caller without access, and a refused request gets the error format of
/// the API that it called. One layer, because each costs every request an allocation and a copy of the whole route.
async fn admit(State(context): State<Context>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_below =
        |prefix| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let format_error = if is_below(openai::PATH_PREFIX) {
        openai::format_error
    } else if is_below(comfy_v2::PATH_PREFIX) {
        comfy_v2::format_error
    } else {
        std::convert::identity
    };
    format_error(access::check(context, request, next).await)
}
