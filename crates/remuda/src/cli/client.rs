//! The command line's HTTP client: sends requests to the plane and turns failures into messages for people.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

use super::Connection;
use remuda_net::http_client::Credentials;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Nothing answers at the plane's address.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reach the plane at {url}: {cause}. Is `remuda serve` running there? Set another address with --url or REMUDA_URL"
)]
pub(crate) struct Unreachable {
    url: String,
    cause: String,
}

/// The plane refused the request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    status: StatusCode,
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

/// Whether the plane answered 404.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
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
        response.json().await.context("the plane's answer is not readable JSON")
    }

    /// As `send`, but returns the response so that its body can be streamed.
    pub(crate) async fn open(&self, request: RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: Value = response.json().await.unwrap_or_default();
        let message = body["error"]["message"].as_str();
        let message = message.map_or_else(|| format!("the plane answered {status}"), str::to_owned);
        Err(Refused { status, message }.into())
    }

    fn unreachable(&self, error: &reqwest::Error) -> Unreachable {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Unreachable { url: self.url.clone(), cause: cause.to_string() }
    }
}
