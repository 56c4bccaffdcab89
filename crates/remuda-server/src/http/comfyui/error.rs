//! What is refused, in ComfyUI's own form: `{"error": {"type", "message", "details", "extra_info"}, "node_errors": {..}}`.
//! What has nothing to do with the prompt itself has the form that errors have everywhere in Remuda.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::ApiError;

#[derive(Debug)]
pub(super) enum Refused {
    /// The prompt is at fault.
    Prompt {
        kind: &'static str,
        message: String,
        details: String,
        node_errors: Value,
    },
    ApiError(ApiError),
}

impl Refused {
    pub(super) fn prompt(
        kind: &'static str,
        message: impl Into<String>,
        details: impl Into<String>,
    ) -> Refused {
        Refused::Prompt { kind, message: message.into(), details: details.into(), node_errors: json!({}) }
    }

    pub(super) fn no_outputs() -> Refused {
        Refused::prompt("prompt_no_outputs", "Prompt has no outputs", "")
    }
}

impl<E: Into<ApiError>> From<E> for Refused {
    fn from(error: E) -> Refused {
        Refused::ApiError(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Refused::Prompt { kind, message, details, node_errors } => {
                let error = json!({ "type": kind, "message": message, "details": details, "extra_info": {} });
                let body = json!({ "error": error, "node_errors": node_errors });
                (StatusCode::BAD_REQUEST, Json(body)).into_response()
            }
            Refused::ApiError(problem) => problem.into_response(),
        }
    }
}
