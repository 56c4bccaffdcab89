//! HTTP for people: asks the plane and turns what goes wrong into a sentence.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

use super::Connection;
use remuda_net::http_client::Credentials;

pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Nobody answers at the plane's address.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reach the plane at {url}: {cause}. Is `remuda serve` running there? Name another with --url or REMUDA_URL"
)]
pub(crate) struct Unreachable {
    url: String,
    cause: String,
}

/// The plane answered, and said no.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    status: StatusCode,
    message: String,
}

/// Whether trying again in a moment may help.
pub(crate) fn is_passing(error: &anyhow::Error) -> bool {
    let is_busy = |refused: &Refused| {
        refused.status == StatusCode::TOO_MANY_REQUESTS || refused.status.is_server_error()
    };
    // An answer that broke off is one of those.
    let is_cut = error.is::<Unreachable>() || error.chain().any(|cause| cause.is::<reqwest::Error>());
    is_cut || error.downcast_ref::<Refused>().is_some_and(is_busy)
}

/// Whether the plane said that there is no such thing.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
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

    /// For a plane that asks nobody who it is.
    pub(crate) fn at(url: &str) -> anyhow::Result<Self> {
        Client::with(url, Credentials::default())
    }

    fn with(url: &str, credentials: Credentials) -> anyhow::Result<Self> {
        let http = credentials.client().build().context("cannot set up HTTP")?;
        Ok(Client { http, url: url.trim_end_matches('/').to_owned(), credentials })
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.credentials.sign(self.http.request(method, format!("{}{path}", self.url)))
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::GET, path).timeout(ANSWER_MAX)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path).json(body).timeout(ANSWER_MAX)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::DELETE, path).timeout(ANSWER_MAX)).await
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = self.open(request).await?;
        response.json().await.context("the plane's answer could not be read")
    }

    /// As `send`, with the body left to be read as it comes.
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
