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
pub(super) mod models;
mod request_fields;
mod routing;

use axum::Router;
use axum::routing::any;

pub(super) use self::error_format::{PATH_PREFIX, error_status, format_error};
pub use self::routing::LocalModels;
use super::routes::{Route, route};
use super::{Context, error};

/// Of a call to a model, beyond those of every route.
const CALL_ERRORS: &[&str] = &[
    "invalid_value",
    "unsupported_parameter",
    "wrong_model",
    "model_not_found",
    "queue_full",
    "quota_exceeded",
    "model_failed",
    "model_unavailable",
    "stream_diverged",
    "out_of_memory",
    "gone",
    "deadline",
];

pub(super) const ROUTES: &[Route] = &[
    route!(POST "/v1/embeddings", Client, embeddings::embed, "OpenAI: a vector for each text" => 200 "EmbeddingList")
        .body("EmbeddingRequest", r#"{"model": "all-minilm-l6-v2", "input": "a wild horse at dawn"}"#)
        .errors(CALL_ERRORS),
    route!(POST "/v1/chat/completions", Client, chat::complete, "OpenAI: continue a conversation, in one answer or as a stream (SSE)" => 200 "ChatCompletion", 200 "text/event-stream")
        .body("ChatRequest", r#"{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}"#)
        .errors(CALL_ERRORS),
    route!(POST "/v1/images/generations", Client, images::generate, "OpenAI: images from a text" => 200 "ImageList")
        .body("ImageRequest", r#"{"model": "sd-turbo", "prompt": "a wild horse at dawn", "size": "512x512"}"#)
        .errors(CALL_ERRORS),
    route!(GET "/v1/models", Client, models::list, "OpenAI: the models that can answer" => 200 "OpenaiModelList"),
    route!(GET "/v1/models/{id}", Client, models::show, "OpenAI: one model" => 200 "OpenaiModel").errors(&["model_not_found"]),
];

/// Unknown paths below `/v1` are answered here, so that the web interface's files never stand in for them.
pub(super) fn unknown_paths() -> Router<Context> {
    let unknown = any(error::no_such_route);
    Router::new().route("/v1", unknown.clone()).route("/v1/{*rest}", unknown)
}
