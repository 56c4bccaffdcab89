//! Host and Origin checks. A foreign page must not reach the plane through the browser that shows it: neither by requests
//! from another origin, nor by pointing its own host name at our address (DNS rebinding).

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::super::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[derive(Clone, Debug)]
pub(super) struct Origins {
    pub(super) listen: SocketAddr,
    /// Further host names that requests may use.
    pub(super) hosts: Vec<String>,
    /// Further origins that requests may come from.
    pub(super) origins: Vec<String>,
}

impl Origins {
    /// Checks a request; returns the origin for the CORS headers if it is an allowed foreign one.
    pub(super) fn check(
        &self,
        method: &Method,
        headers: &HeaderMap,
        is_open: bool,
    ) -> Result<Option<HeaderValue>, ApiError> {
        let host = text(headers, &header::HOST)?;
        // Every browser sends it.
        if let Some(host) = host.filter(|host| !self.is_ours(host, is_open)) {
            let name: String = name(host).chars().take(100).collect();
            let message = format!(
                "this plane is not {name:?}: ask for it by its address, or allow the name in http.allowed_hosts"
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message));
        }
        if let Some(origin) = text(headers, &header::ORIGIN)? {
            if self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
                return Ok(headers.get(header::ORIGIN).cloned());
            }
            let from = origin.split_once("://").map(|(_, authority)| authority);
            if !from.zip(host).is_some_and(|(from, host)| from.eq_ignore_ascii_case(host)) {
                let origin: String = origin.chars().take(100).collect();
                let message = format!(
                    "pages of {origin:?} may not ask this plane; http.allowed_origins allows them to"
                );
                return Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message));
            }
        }
        let is_cross = headers.get(FETCH_SITE).is_some_and(|site| site == "cross-site");
        if is_cross && !method.is_safe() {
            let message = "another page made this browser ask; http.allowed_origins allows pages to";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message));
        }
        Ok(None)
    }

    /// Whether the host is one of ours. DNS rebinding needs a name with a dot in it; a plane that requires tokens is safe
    /// from it.
    fn is_ours(&self, host: &str, is_open: bool) -> bool {
        let name = name(host);
        let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
        let is_local = match address {
            Some(address) => address.is_loopback() || address == self.listen.ip(),
            None => is_localhost(name),
        };
        if is_local || self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return true;
        }
        let is_beyond = !self.listen.ip().is_loopback();
        let is_harmless = if is_open { !name.contains('.') } else { self.hosts.is_empty() };
        is_beyond && (address.is_some() || is_harmless)
    }
}

/// Adds the CORS headers for an allowed origin, with those of a preflight request if it is one.
pub(super) fn allowed(headers: &mut HeaderMap, origin: HeaderValue, is_preflight: bool) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let exposed = HeaderValue::from_static("Location, Retry-After, ETag, Content-Range");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    if is_preflight {
        let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let sent = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range, Comfy-User";
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(sent));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let value = headers.get(name).map(HeaderValue::to_str).transpose();
    value.map_err(|_| ApiError::bad_request(format!("the header {name} is not plain text")))
}

/// Without the port.
fn name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(listen: &str) -> Origins {
        let listen = listen.parse().unwrap();
        let origins = vec!["https://app.example.org".to_owned()];
        Origins { listen, hosts: vec!["plane.example.org".to_owned()], origins }
    }

    fn refusal(
        plane: &Origins,
        method: &str,
        headers: &[(&str, &str)],
        is_open: bool,
    ) -> Option<&'static str> {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let checked = plane.check(&method.parse().unwrap(), &pairs.collect(), is_open);
        checked.err().map(|problem| problem.code)
    }

    /// Faults: X8.
    #[test]
    fn loopback_plane_answers_to_its_own_names_only() {
        let plane = plane("127.0.0.1:8288");
        let ours =
            ["127.0.0.1:8288", "localhost:8288", "LOCALHOST", "[::1]:8288", "a.localhost", "127.9.9.9"];
        for host in ours.into_iter().chain(["plane.example.org", "plane.example.org:443"]) {
            assert_eq!(refusal(&plane, "GET", &[("host", host)], true), None, "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8288", "10.0.0.1", "plane"]
        {
            for is_open in [true, false] {
                assert_eq!(
                    refusal(&plane, "GET", &[("host", host)], is_open),
                    Some("host_not_allowed"),
                    "{host}"
                );
            }
        }
    }

    /// Faults: X8.
    #[test]
    fn open_plane_beyond_loopback_resists_dns_rebinding() {
        let mut plane = plane("0.0.0.0:8288");
        for host in ["10.0.0.7:8288", "plane:8288", "plane.example.org"] {
            assert_eq!(refusal(&plane, "GET", &[("host", host)], true), None, "{host}");
        }
        assert_eq!(refusal(&plane, "GET", &[("host", "10.0.0.7")], false), None, "operators use its address");
        assert_eq!(refusal(&plane, "GET", &[("host", "evil.example")], true), Some("host_not_allowed"));
        assert_eq!(refusal(&plane, "GET", &[("host", "evil.example")], false), Some("host_not_allowed"));
        plane.hosts.clear();
        assert_eq!(
            refusal(&plane, "GET", &[("host", "any.example")], false),
            None,
            "tokens keep strangers out"
        );
    }

    /// Faults: X8.
    #[test]
    fn pages_of_other_origins_are_refused() {
        let plane = plane("127.0.0.1:8288");
        let host = ("host", "127.0.0.1:8288");
        for (origin, expected) in [
            ("http://127.0.0.1:8288", None),
            ("https://app.example.org", None),
            ("http://127.0.0.1:8188", Some("origin_not_allowed")),
            ("https://evil.example", Some("origin_not_allowed")),
            ("null", Some("origin_not_allowed")),
        ] {
            for method in ["GET", "POST"] {
                assert_eq!(refusal(&plane, method, &[host, ("origin", origin)], true), expected, "{origin}");
            }
        }
        let cross = [host, ("sec-fetch-site", "cross-site")];
        assert_eq!(refusal(&plane, "POST", &cross, true), Some("origin_not_allowed"));
        assert_eq!(refusal(&plane, "GET", &cross, true), None, "following a link changes nothing");
        assert_eq!(refusal(&plane, "POST", &[host, ("sec-fetch-site", "same-origin")], true), None);
    }
}
