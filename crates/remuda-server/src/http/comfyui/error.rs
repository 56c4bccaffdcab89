//! Errors in ComfyUI's format: `{"error": {"type", "message", "details", "extra_info"}, "node_errors": {..}}`.
//! Errors that do not concern the prompt itself have the format of the native API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use remuda_core::workflow::PromptRefusal;
use serde_json::json;

use super::super::ApiError;

#[derive(Debug)]
pub(super) enum ComfyuiError {
    /// The prompt is at fault.
    Prompt {
        kind: &'static str,
        message: String,
        details: String,
    },
    /// A server would refuse the prompt, in its words.
    Refused(Box<PromptRefusal>),
    ApiError(ApiError),
}

impl ComfyuiError {
    pub(super) fn prompt(
        kind: &'static str,
        message: impl Into<String>,
        details: impl Into<String>,
    ) -> ComfyuiError {
        ComfyuiError::Prompt { kind, message: message.into(), details: details.into() }
    }

    pub(super) fn no_outputs() -> ComfyuiError {
        ComfyuiError::refused(PromptRefusal::no_outputs())
    }

    pub(super) fn refused(refusal: PromptRefusal) -> ComfyuiError {
        ComfyuiError::Refused(Box::new(refusal))
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
            ComfyuiError::Prompt { kind, message, details } => {
                let error = json!({ "type": kind, "message": message, "details": details, "extra_info": {} });
                let body = json!({ "error": error, "node_errors": {} });
                (StatusCode::BAD_REQUEST, Json(body)).into_response()
            }
            ComfyuiError::Refused(refusal) => {
                let body = json!({ "error": refusal.error, "node_errors": refusal.node_errors });
                (StatusCode::BAD_REQUEST, Json(body)).into_response()
            }
            ComfyuiError::ApiError(problem) => problem.into_response(),
        }
    }
}
