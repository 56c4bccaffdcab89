//! Errors in the format and vocabulary of the contract, translated from the common `ApiError`. A status that the contract
//! does not have is mapped to the nearest one it has; errors that no contract can rule out (a body too large or too slow, a
//! wrong method) keep their status and are listed in our additions.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tracing::warn;

use super::super::ApiError;

pub(in crate::http) const PATH_PREFIX: &str = "/api/v2";

/// Formats the error of a response, if it has one; any other response stays as it is.
pub(in crate::http) fn format_error(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (status, code, message) = contract_error(problem.status, problem.code, &problem.message);
    if status.is_server_error() {
        warn!(code = problem.code, message = %problem.message, "request failed");
    }
    let details = match problem.code {
        "outcome_unknown" => json!({ "reason": "outcome_unknown" }),
        _ if problem.detail.is_object() => problem.detail,
        _ => serde_json::Value::Null,
    };
    let error = json!({ "code": code, "message": message, "details": details });
    let replaced = (status, Json(json!({ "error": error }))).into_response();
    // Other headers, such as Retry-After, stay as they are.
    *response.status_mut() = status;
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = replaced.into_body();
    response
}

fn contract_error<'a>(status: StatusCode, code: &'a str, message: &'a str) -> (StatusCode, &'a str, &'a str) {
    use StatusCode as S;
    match (status, code) {
        (S::UNAUTHORIZED, _) => (S::UNAUTHORIZED, "unauthorized", message),
        (S::FORBIDDEN, _) => (S::FORBIDDEN, "forbidden", message),
        (S::NOT_FOUND, "blob_not_found") => (status, code, message),
        (S::NOT_FOUND, _) => (status, "not_found", message),
        (S::BAD_REQUEST, _) | (S::UNPROCESSABLE_ENTITY, "invalid") => {
            (S::UNPROCESSABLE_ENTITY, "invalid_request", message)
        }
        (_, "hash_mismatch") => (S::CONFLICT, code, message),
        (_, "key_conflict") => (S::UNPROCESSABLE_ENTITY, "idempotency_key_reuse", message),
        (S::TOO_MANY_REQUESTS, "queue_full" | "too_many_streams") => (status, code, message),
        (S::TOO_MANY_REQUESTS, _) | (_, "overloaded") => (S::TOO_MANY_REQUESTS, "rate_limited", message),
        // The contract has no status of its own for it; a client must not take it for "nothing happened".
        (_, "outcome_unknown") => (
            S::INTERNAL_SERVER_ERROR,
            "upstream_error",
            "the outcome is unknown: look whether it is there, or send it again with the same Idempotency-Key",
        ),
        // Internal errors are logged and not shown to clients.
        _ if status.is_server_error() => (
            S::INTERNAL_SERVER_ERROR,
            "upstream_error",
            "the request could not be processed: try again in a moment",
        ),
        _ => (status, code, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_code_of_the_contract_or_the_additions() {
        for (status, code, expected) in [
            (400, "bad_request", (422, "invalid_request")),
            (400, "malformed", (422, "invalid_request")),
            (401, "no_token", (401, "unauthorized")),
            (404, "not_found", (404, "not_found")),
            (404, "blob_not_found", (404, "blob_not_found")),
            (405, "wrong_method", (405, "wrong_method")),
            (409, "key_conflict", (422, "idempotency_key_reuse")),
            (409, "asset_in_use", (409, "asset_in_use")),
            (413, "too_large", (413, "too_large")),
            (422, "hash_mismatch", (409, "hash_mismatch")),
            (422, "invalid_workflow", (422, "invalid_workflow")),
            (429, "queue_full", (429, "queue_full")),
            (429, "too_many_uploads", (429, "rate_limited")),
            (429, "quota_exceeded", (429, "rate_limited")),
            (503, "overloaded", (429, "rate_limited")),
            (503, "outcome_unknown", (500, "upstream_error")),
            (507, "store_full", (500, "upstream_error")),
        ] {
            let (given, word, _) = contract_error(StatusCode::from_u16(status).unwrap(), code, "");
            assert_eq!((given.as_u16(), word), expected, "{status} {code}");
        }
    }
}
