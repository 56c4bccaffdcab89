//! Errors in ComfyUI's format: `{"error": {"type", "message", "details", "extra_info"}, "node_errors": {..}}`.
//! Errors that do not concern the prompt itself have the format of the native API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::ApiError;

#[derive(Debug)]
pub(super) enum ComfyuiError {
    /// The prompt is at fault.
    Prompt {
        kind: &'static str,
        message: String,
        details: String,
        node_errors: Value,
    },
    ApiError(ApiError),
}

impl ComfyuiError {
    pub(super) fn prompt(
        kind: &'static str,
        message: impl Into<String>,
        details: impl Into<String>,
    ) -> ComfyuiError {
        ComfyuiError::Prompt {
            kind,
            message: message.into(),
            details: details.into(),
            node_errors: json!({}),
        }
    }

    pub(super) fn no_outputs() -> ComfyuiError {
        ComfyuiError::prompt("prompt_no_outputs", "Prompt has no outputs", "")
    }
}

impl<E: Into<ApiError>> From<E> for ComfyuiError {
    fn from(error: E) -> ComfyuiError {
        ComfyuiError::ApiError(error.into())
    }
}

impl IntoResponse for ComfyuiError {
    fn into_response(self) -> Response {
        match self {
            ComfyuiError::Prompt { kind, message, details, node_errors } => {
                let error = json!({ "type": kind, "message": message, "details": details, "extra_info": {} });
                let body = json!({ "error": error, "node_errors": node_errors });
                (StatusCode::BAD_REQUEST, Json(body)).into_response()
            }
            ComfyuiError::ApiError(problem) => problem.into_response(),
        }
    }
}
