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
mod native;
mod openai;
mod path;
mod preview;
mod reload;
mod routes;
mod workers;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;

pub use self::access::{AccessControl, Caller, Role, Token, TokenRequest};
pub use self::comfy_v2::run_job_watch;
pub use self::comfyui::{ComfyuiApi, run_publisher};
pub use self::context::Context;
pub use self::error::ApiError;
use self::error::unexpected_answer;
pub use self::events::event_json;
pub use self::listen::{Listening, listen};
pub use self::openai::LocalModels;
pub use self::reload::Reload;

pub fn router(context: Context) -> Router {
    let read_whole = || middleware::from_fn_with_state(context.clone(), body::read_whole);
    let buffered = routes::router(native::ROUTES, false)
        .merge(routes::aliased_router(comfyui::ROUTES, false))
        .fallback(comfyui::fallback)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(read_whole());
    let strict = routes::router(openai::ROUTES, false)
        .merge(routes::router(comfy_v2::ROUTES, false))
        .method_not_allowed_fallback(error::wrong_method)
        .layer(read_whole());
    // Their handlers read the body in pieces, within limits of their own.
    let streamed = routes::router(native::ROUTES, true)
        .merge(routes::aliased_router(comfyui::ROUTES, true))
        .merge(routes::router(comfy_v2::ROUTES, true))
        .method_not_allowed_fallback(error::wrong_method);
    buffered
        .merge(strict)
        .merge(streamed)
        .merge(openai::unknown_paths())
        .merge(comfy_v2::unknown_paths())
        // `body` and `blobs` have their own limits, which refuse before they read.
        .layer(DefaultBodyLimit::disable())
        // Outside everything else: no body is read for a caller without access.
        .layer(middleware::from_fn_with_state(context.clone(), access::check))
        .layer(middleware::from_fn(openai::format_errors))
        .layer(middleware::from_fn(comfy_v2::format_errors))
        .with_state(context)
}
