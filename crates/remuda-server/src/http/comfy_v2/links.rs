//! Where things are found: the contract wants whole addresses for content, and paths for what belongs to a job.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use remuda_core::id::JobId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::Context;

/// The address under which this caller reaches us, as the caller names it: other names may not be known over there.
#[derive(Clone, Debug)]
pub(super) struct Links {
    origin: String,
}

impl Links {
    pub(super) fn content(&self, asset: Uuid) -> String {
        format!("{}/api/v2/assets/{asset}/content", self.origin)
    }

    /// Without the host, which the caller knows best.
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
        // Whoever names nobody is on the same machine, or does not look.
        let host = authority.as_ref().map_or("localhost", |authority| {
            let host = authority.as_str();
            host.rsplit_once('@').map_or(host, |(_, host)| host)
        });
        let scheme = if context.access.tls.is_some() { "https" } else { "http" };
        Ok(Links { origin: format!("{scheme}://{host}") })
    }
}
