//! OpenAI's API over models: a client of that API finds one model host here. This translates; who answers is one of two.
//!
//! ```text
//!                        a model of this process ──▶ the pool itself: nothing is stored
//!  body ──ask──▶ route ──┤                               │ full, or without a copy
//!                        a model of the fleet ─────▶ a job for its service, followed to its end; who hangs up cancels it
//! ```
//!
//! | part | about |
//! |---|---|
//! | `embeddings`, `chat`, `images`, `models` | one call each |
//! | `ask` | what a body says, field by field; what would change the answer and cannot be honoured is refused |
//! | `route`, `job` | who answers |
//! | `envelope` | errors as OpenAI's clients read them |

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

pub(super) use self::error_format::put_on;
pub use self::routing::Models;
use super::{Context, body, error};

pub(super) fn router(context: &Context) -> Router<Context> {
    let nothing = any(error::no_such_route);
    // Beside them nothing is found, whoever else serves paths that begin alike.
    let nothing = Router::new().route("/v1", nothing.clone()).route("/v1/{*rest}", nothing);
    Router::new()
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/images/generations", post(images::draw))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/remuda/v1/models", get(models::status))
        .method_not_allowed_fallback(error::wrong_method)
        .layer(middleware::from_fn_with_state(context.clone(), body::read_whole))
        .merge(nothing)
}
