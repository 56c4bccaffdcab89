//! URLs: the contract has absolute ones for content, and paths for jobs.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use remuda_core::id::JobId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::Context;

/// The address as the caller wrote it; other names may not resolve for the caller.
#[derive(Clone, Debug)]
pub(super) struct Links {
    origin: String,
}

impl Links {
    pub(super) fn content(&self, asset: Uuid) -> String {
        format!("{}/api/v2/assets/{asset}/content", self.origin)
    }

    /// Without a host, which the caller knows best.
    pub(super) fn job(job: JobId) -> Value {
        let path = format!("/api/v2/jobs/{job}");
        json!({ "self": path, "events": format!("{path}/events"), "cancel": format!("{path}/cancel") })
    }
}

impl FromRequestParts<Context> for Links {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, context: &Context) -> Result<Self, Infallible> {
        let named = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse().ok());
        let authority: Option<Authority> = named.or_else(|| parts.uri.authority().cloned());
        // Without a Host header the caller is on the same machine or does not care.
        let host = authority.as_ref().map_or("localhost", |authority| {
            let host = authority.as_str();
            host.rsplit_once('@').map_or(host, |(_, host)| host)
        });
        let scheme = if context.access.tls.is_some() { "https" } else { "http" };
        Ok(Links { origin: format!("{scheme}://{host}") })
    }
}
