//! Answers in the original's format.

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, Response as Built, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::super::values;

pub(in super::super) fn json(status: StatusCode, value: &Value) -> Response {
    text_json(status, values::text(value))
}

/// Text that is already JSON.
pub(in super::super) fn text_json(status: StatusCode, text: String) -> Response {
    build(status, "application/json; charset=utf-8", text)
}

pub(in super::super) fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    build(status, "text/plain; charset=utf-8", text.into())
}

fn build(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Built::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(in super::super) fn empty(status: StatusCode) -> Response {
    let mut response = Built::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The original's answer after an exception; it also closes the connection.
pub(in super::super) fn trouble() -> Response {
    let text = "500 Internal Server Error\n\nServer got itself in trouble";
    let mut response = plain(StatusCode::INTERNAL_SERVER_ERROR, text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The answer for an unknown path.
pub(super) fn unknown() -> Response {
    build(StatusCode::NOT_FOUND, "application/octet-stream", String::new())
}

pub(super) fn wrong_method(allowed: &'static str) -> Response {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
