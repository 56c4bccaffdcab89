//! The OpenAI-compatible API over models. This module translates; a call is answered by one of two sources.
//!
//! ```text
//!                       model of this process ──▶ the model pool directly: nothing is stored
//! body ─▶ request_fields ─▶ routing ─┤                │ full, or no copy available
//!                       model of the fleet ─────▶ a job for its service, followed to its end; a closed connection cancels it
//! ```
//!
//! | module | about |
//! |---|---|
//! | `embeddings`, `chat`, `images`, `models` | one call each |
//! | `request_fields` | fields of a request; one that would change the answer and is not supported is refused |
//! | `routing`, `job_call` | who answers |
//! | `error_format` | errors in OpenAI's format |

mod chat;
mod embeddings;
mod error_format;
mod images;
mod job_call;
mod models;
mod request_fields;
mod routing;

use axum::Router;
use axum::middleware;
use axum::routing::{any, get, post};

pub(super) use self::error_format::format_errors;
pub use self::routing::LocalModels;
use super::{Context, body, error};

pub(super) fn router(context: &Context) -> Router<Context> {
    let nothing = any(error::no_such_route);
    // Other paths below the prefix are not found, even where another surface serves paths that start alike.
    let nothing = Router::new().route("/v1", nothing.clone()).route("/v1/{*rest}", nothing);
    Router::new()
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/images/generations", post(images::generate))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::show))
        .route("/remuda/v1/models", get(models::status))
        .method_not_allowed_fallback(error::wrong_method)
        .layer(middleware::from_fn_with_state(context.clone(), body::read_whole))
        .merge(nothing)
}
