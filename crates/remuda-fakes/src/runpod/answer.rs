//! Answers in the provider's format, as values without a connection.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response as Built, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

/// What a client gets.
#[derive(Debug)]
pub(super) enum Answer {
    Json(StatusCode, Value),
    Empty,
    Problem {
        status: StatusCode,
        detail: String,
        errors: Vec<String>,
        retry_after: Option<u64>,
    },
    /// From a proxy in front.
    Html(StatusCode, &'static str),
    /// Silence for this long, then the connection is cut.
    Cut(Duration),
}

impl Answer {
    pub(super) fn ok(value: Value) -> Answer {
        Answer::Json(StatusCode::OK, value)
    }

    pub(super) fn problem(status: StatusCode, detail: impl Into<String>) -> Answer {
        Answer::Problem { status, detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Answer {
        Answer::problem(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found() -> Answer {
        Answer::problem(StatusCode::NOT_FOUND, "resource not found")
    }

    pub(super) fn trouble() -> Answer {
        Answer::problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Something went wrong. Please try again later or contact support.",
        )
    }

    /// Lists everything that is wrong with a body.
    pub(super) fn invalid(errors: Vec<String>) -> Answer {
        Answer::Problem {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            detail: "Request validation failed.".to_owned(),
            errors,
            retry_after: None,
        }
    }

    /// Not for `Cut`, which has no response.
    pub(super) fn into_response(self) -> Response {
        match self {
            Answer::Json(status, value) => build(status, "application/json", value.to_string()),
            Answer::Empty | Answer::Cut(_) => {
                let mut response = Built::new(Body::empty());
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Answer::Problem { status, detail, errors, retry_after } => {
                let title = status.canonical_reason().unwrap_or_default();
                let mut problem = json!({"title": title, "status": status.as_u16(), "detail": detail});
                if !errors.is_empty() {
                    problem["errors"] = errors.into();
                }
                let mut response = build(status, "application/problem+json", problem.to_string());
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                }
                response
            }
            Answer::Html(status, text) => {
                let page = format!(
                    "<html>\r\n<head><title>{text}</title></head>\r\n<body>{text}</body>\r\n</html>\r\n"
                );
                build(status, "text/html; charset=UTF-8", page)
            }
        }
    }
}

fn build(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Built::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
