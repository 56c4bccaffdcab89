//! Access checks: token, the original's origin check, and body size.

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::super::Version;
use super::super::server::Server;
use super::{BODY_MAX, answer};

/// Why a request is refused.
pub(super) fn check(server: &Server, headers: &HeaderMap) -> Option<Response> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(token) = &server.options().token
        && header("authorization") != Some(&format!("Bearer {token}"))
    {
        return Some(answer::plain(StatusCode::UNAUTHORIZED, "401: Unauthorized"));
    }
    let is_cross =
        header("sec-fetch-site") == Some("cross-site") && server.options().version >= Version::V0_30_0;
    let is_foreign = match (header("host"), header("origin")) {
        (Some(host), Some(origin)) => is_foreign(host, origin),
        _ => false,
    };
    (is_cross || is_foreign).then(|| answer::empty(StatusCode::FORBIDDEN))
}

/// A page from another origin that calls a server on this machine. The original compares host and port, and ignores a
/// port that only one of them has.
fn is_foreign(host: &str, origin: &str) -> bool {
    let (host, origin) = (host.to_lowercase(), origin.to_lowercase());
    let origin = origin.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
    let (host_name, host_port) = split_port(&host);
    let (origin_name, origin_port) = split_port(origin);
    let left = if origin_port.is_none() { host_name } else { &host };
    let right = if host_port.is_none() { origin_name } else { origin };
    is_loopback(host_name) && !left.is_empty() && !right.is_empty() && left != right
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(port))
        }
        _ => (host, None),
    }
}

fn is_loopback(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The whole body, or a refusal if it is too long.
pub(super) async fn body(request: Request) -> Result<Bytes, Response> {
    to_bytes(request.into_body(), BODY_MAX).await.map_err(|_| too_long())
}

pub(in super::super) fn too_long() -> Response {
    let message = format!("Maximum request body size {BODY_MAX} exceeded.");
    answer::plain(StatusCode::PAYLOAD_TOO_LARGE, message)
}

#[cfg(test)]
mod tests {
    use super::is_foreign;

    /// As observed on the real server.
    #[test]
    fn origins_are_told_apart_as_the_original_does() {
        let cases = [
            ("127.0.0.1:8188", "http://127.0.0.1:8188", false),
            ("127.0.0.1:8188", "http://example.com", true),
            ("127.0.0.1:8188", "http://127.0.0.1:9000", true),
            ("127.0.0.1:8188", "http://localhost:8188", true),
            ("127.0.0.1:8188", "http://127.0.0.1", false),
            ("127.0.0.1:8188", "null", false),
            ("comfy.example.com", "http://other.example.org", false),
            ("localhost:8188", "https://front.example.com", true),
        ];
        for (host, origin, foreign) in cases {
            assert_eq!(is_foreign(host, origin), foreign, "{host} {origin}");
        }
    }
}
