//! The command line's HTTP client: sends requests to the plane and turns failures into messages for people.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

use super::Connection;
use remuda_net::http_client::Credentials;
use remuda_net::text::url_without_password;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Only chooses the words of an error, so it must not cost much time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Nothing answers at the plane's address.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reach the plane at {url}: {cause}. Is `remuda serve` running there? Set another address with --url or REMUDA_URL"
)]
pub(crate) struct Unreachable {
    url: String,
    cause: String,
    /// It broke off after the request was sent, so that the plane may have acted on it.
    was_sent: bool,
}

/// Something answers at the plane's address, and it is something else.
#[derive(Debug, thiserror::Error)]
#[error("{url} answers, but is no Remuda plane{what}. Set the address of the plane with --url or REMUDA_URL")]
pub(crate) struct NoPlane {
    url: String,
    /// What it is, where that is known.
    what: &'static str,
}

/// The plane refused the request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    status: StatusCode,
    code: String,
    message: String,
}

/// Whether a retry may succeed.
pub(crate) fn is_retryable(error: &anyhow::Error) -> bool {
    let is_busy = |refused: &Refused| {
        refused.status == StatusCode::TOO_MANY_REQUESTS || refused.status.is_server_error()
    };
    // Includes an answer that broke off in the middle.
    let is_cut = error.is::<Unreachable>() || error.chain().any(|cause| cause.is::<reqwest::Error>());
    is_cut || error.downcast_ref::<Refused>().is_some_and(is_busy)
}

/// Whether the plane may have done what it was asked although the call failed.
pub(crate) fn is_outcome_unknown(error: &anyhow::Error) -> bool {
    let is_cut = error.downcast_ref::<Unreachable>().is_some_and(|cut| cut.was_sent);
    is_cut || error.downcast_ref::<Refused>().is_some_and(|refused| refused.code == "outcome_unknown")
}

/// Whether the plane answered 404.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
}

/// Whether the plane refused a workflow for what it is.
pub(crate) fn is_invalid_workflow(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.code == "invalid_workflow")
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) credentials: Credentials,
}

impl Client {
    pub(crate) fn new(connection: &Connection) -> anyhow::Result<Self> {
        Client::with(&connection.url, connection.credentials()?)
    }

    /// For a plane without access control.
    pub(crate) fn without_token(url: &str) -> anyhow::Result<Self> {
        Client::with(url, Credentials::default())
    }

    fn with(url: &str, credentials: Credentials) -> anyhow::Result<Self> {
        let http = credentials.client().build().context("cannot set up the HTTP client")?;
        Ok(Client { http, url: url.trim_end_matches('/').to_owned(), credentials })
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.credentials.sign(self.http.request(method, format!("{}{path}", self.url)))
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::GET, path).timeout(REQUEST_TIMEOUT)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path).json(body).timeout(REQUEST_TIMEOUT)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::DELETE, path).timeout(REQUEST_TIMEOUT)).await
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = self.open(request).await?;
        let answer = response.json().await;
        if answer.is_err() {
            self.check_is_plane().await?;
        }
        answer.context("the plane's answer is not readable JSON")
    }

    /// As `send`, but returns the response so that its body can be streamed.
    pub(crate) async fn open(&self, request: RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: Value = response.json().await.unwrap_or_default();
        let text = |name: &str| body["error"][name].as_str().map(str::to_owned);
        // A plane has every route that is asked for, and gives each error a code and a message.
        let has_no_route = status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED;
        if has_no_route || text("code").is_none() || text("message").is_none() {
            self.check_is_plane().await?;
        }
        let message = text("message").unwrap_or_else(|| format!("the plane answered {status}"));
        Err(Refused { status, code: text("code").unwrap_or_default(), message }.into())
    }

    /// As `open`, for a stream of events.
    pub(crate) async fn open_events(&self, request: RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = self.open(request).await?;
        let media = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !media.is_some_and(|media| media.starts_with("text/event-stream")) {
            self.check_is_plane().await?;
            anyhow::bail!("the plane's answer is no stream of events");
        }
        Ok(response)
    }

    /// An error if something else than a plane answers; asked only after an answer that a plane would hardly give.
    async fn check_is_plane(&self) -> Result<(), NoPlane> {
        let health = self.probe("/health/live").await;
        if health.is_none_or(|health| health["tick_age_millis"].is_u64()) {
            return Ok(());
        }
        let is_comfyui = self.probe("/system_stats").await.is_some_and(|stats| stats["system"].is_object());
        let what = if is_comfyui {
            ": it is ComfyUI, and `remuda up --comfyui URL` starts a plane for it"
        } else {
            ""
        };
        Err(NoPlane { url: url_without_password(&self.url), what })
    }

    /// The answer as JSON, null if it is something else; None if there is no answer now.
    async fn probe(&self, path: &str) -> Option<Value> {
        let answer = self.request(Method::GET, path).timeout(PROBE_TIMEOUT).send().await.ok()?;
        Some(answer.json().await.unwrap_or_default())
    }

    fn unreachable(&self, error: &reqwest::Error) -> Unreachable {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let was_sent = !error.is_connect() && !error.is_builder();
        Unreachable { url: url_without_password(&self.url), cause: cause.to_string(), was_sent }
    }
}
