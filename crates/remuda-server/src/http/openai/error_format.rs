//! Errors in OpenAI's form, made from the one form they all have: `{"error": {"message", "type", "param", "code"}}`. Its
//! clients choose what to raise by the status, and tell people the message.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::ApiError;

const SURFACE: &str = "/v1";

/// Around everything, so that whoever is turned away at the gate is told in the same form.
pub(in crate::http) async fn put_on(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_here = path == SURFACE || path.strip_prefix(SURFACE).is_some_and(|rest| rest.starts_with('/'));
    let response = next.run(request).await;
    if is_here { translate(response) } else { response }
}

fn translate(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<ApiError>() else { return response };
    let anew = (status(&problem), Json(told(&problem))).into_response();
    // What else it says, such as when to come back, holds as it did.
    *response.status_mut() = status(&problem);
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = anew.into_body();
    response
}

/// What is wrong with a request is one status here.
fn status(problem: &ApiError) -> StatusCode {
    match problem.status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

/// Also said in the middle of a stream, where there is no status any more.
pub(super) fn told(problem: &ApiError) -> Value {
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
    fn every_problem_has_openais_form() {
        let full = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", "the queue is full").later(2);
        assert_eq!(
            told(&full),
            json!({ "error": {
                "message": "the queue is full", "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded",
            }})
        );
        let mut wrong = ApiError::bad_request("n is 2");
        wrong.detail = json!({ "param": "n" });
        assert_eq!((&told(&wrong)["error"]["param"], status(&wrong)), (&json!("n"), StatusCode::BAD_REQUEST));
        assert_eq!(status(&ApiError::invalid("…")), StatusCode::BAD_REQUEST);
        let stranger = ApiError::new(StatusCode::UNAUTHORIZED, "no_token", "…");
        assert_eq!(told(&stranger)["error"]["code"], "invalid_api_key");
    }
}
