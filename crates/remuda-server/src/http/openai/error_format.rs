//! Errors in OpenAI's format, translated from the common `ApiError`: `{"error": {"message", "type", "param", "code"}}`.
//! Clients choose an exception by the status and show the message.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::ApiError;

pub(in crate::http) const PATH_PREFIX: &str = "/v1";

/// Formats the error of a response, if it has one; any other response stays as it is.
pub(in crate::http) fn format_error(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<ApiError>() else { return response };
    let replaced = Json(error_body(&problem)).into_response();
    // Other headers, such as Retry-After, stay as they are.
    *response.status_mut() = error_status(problem.status);
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = replaced.into_body();
    response
}

/// OpenAI has one status for invalid requests.
pub(in crate::http) fn error_status(status: StatusCode) -> StatusCode {
    match status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

/// Also sent within a stream, where the status is already sent.
pub(super) fn error_body(problem: &ApiError) -> Value {
    let (kind, code) = match problem.status {
        StatusCode::UNAUTHORIZED => ("authentication_error", "invalid_api_key"),
        StatusCode::FORBIDDEN => ("permission_error", problem.code),
        StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", "rate_limit_exceeded"),
        status if status.is_server_error() => ("server_error", problem.code),
        _ => ("invalid_request_error", problem.code),
    };
    let param = problem.detail.get("param").cloned().unwrap_or_default();
    json!({ "error": { "message": problem.message, "type": kind, "param": param, "code": code } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_openai_format() {
        let full = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", "the queue is full")
            .with_retry_after(2);
        assert_eq!(
            error_body(&full),
            json!({ "error": {
                "message": "the queue is full", "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded",
            }})
        );
        let mut wrong = ApiError::bad_request("n is 2");
        wrong.detail = json!({ "param": "n" });
        assert_eq!(
            (&error_body(&wrong)["error"]["param"], error_status(wrong.status)),
            (&json!("n"), StatusCode::BAD_REQUEST)
        );
        assert_eq!(error_status(ApiError::invalid("…").status), StatusCode::BAD_REQUEST);
        let stranger = ApiError::new(StatusCode::UNAUTHORIZED, "no_token", "…");
        assert_eq!(error_body(&stranger)["error"]["code"], "invalid_api_key");
    }
}
