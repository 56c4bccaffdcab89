//! HTTP calls to RunPod: each made once, with a timeout and a limit on the size of the answer.

use std::time::{Duration, Instant};

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};

use super::error::{self, Operation};
use super::rate_limit::{self, RateLimit};
use super::settings::RunPodSettings;

/// A page of pods, each with its full environment and half as much again.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A pooled connection that died unnoticed makes a creation ambiguous, so connections are not kept for long.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Api {
    http: Client,
    base: Url,
    rate_limit: RateLimit,
    create_max: Duration,
    read_max: Duration,
}

impl Api {
    pub(super) fn new(settings: &RunPodSettings, http: ClientBuilder) -> Result<Api, ProviderError> {
        let bad = |why: String| ProviderError::new(ProviderErrorClass::Invalid, why);
        let base = settings.base()?;
        let mut key = HeaderValue::from_str(&format!("Bearer {}", settings.key.reveal().trim()))
            .map_err(|_| bad("the API key has characters that no key has".to_owned()))?;
        key.set_sensitive(true);
        let mut http = http
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, key)]))
            // The proxy in front of the API refuses requests without a user agent.
            .user_agent(concat!("remuda/", env!("CARGO_PKG_VERSION")))
            // A repeated creation would make two pods.
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT);
        if base.scheme() == "http" {
            // On loopback no certificates are needed, and a slim container has none.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| bad(format!("no HTTP client can be made: {error}")))?;
        let (create_max, read_max) = (settings.create_max, settings.read_max);
        Ok(Api { http, base, rate_limit: RateLimit::default(), create_max, read_max })
    }

    pub(super) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Vec<u8>, ProviderError> {
        let request = self.http.get(self.url(path)?).query(query).header(ACCEPT, "application/json");
        self.call(Operation::Read, request, self.read_max).await
    }

    pub(super) async fn create(&self, body: Vec<u8>) -> Result<Vec<u8>, ProviderError> {
        let request =
            self.http.post(self.url(&["pods"])?).header(CONTENT_TYPE, "application/json").body(body);
        self.call(Operation::Create, request, self.create_max).await
    }

    pub(super) async fn delete(&self, path: &[&str]) -> Result<(), ProviderError> {
        let request = self.http.delete(self.url(path)?);
        self.call(Operation::Delete, request, self.read_max).await.map(drop)
    }

    /// An answer that the caller reads as it arrives.
    pub(super) async fn stream(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Response, ProviderError> {
        let request = self.http.get(self.url(path)?).query(query).header(ACCEPT, "text/event-stream");
        self.send(Operation::Read, request, self.read_max).await
    }

    async fn call(
        &self,
        operation: Operation,
        request: RequestBuilder,
        within: Duration,
    ) -> Result<Vec<u8>, ProviderError> {
        let response = self.send(operation, request, within).await?;
        whole(operation, response, within).await
    }

    /// Returns any answer that is not a refusal. `within` covers the whole answer with its body.
    async fn send(
        &self,
        operation: Operation,
        request: RequestBuilder,
        within: Duration,
    ) -> Result<Response, ProviderError> {
        self.rate_limit.check(Instant::now())?;
        let response = request.timeout(within).send().await;
        let response = response.map_err(|error| error::unanswered(operation, &error, within))?;
        let (status, headers) = (response.status(), response.headers());
        let is_too_fast = status == StatusCode::TOO_MANY_REQUESTS;
        let wait = self.rate_limit.record(Instant::now(), headers, is_too_fast);
        if status.is_success() {
            return Ok(response);
        }
        let wait = wait.filter(|_| is_too_fast).or_else(|| rate_limit::retry_after(headers));
        let body = whole(operation, response, within).await?;
        Err(ProviderError { wait, ..error::refused(operation, status, &body) })
    }

    /// Each item becomes one path segment, properly escaped.
    fn url(&self, path: &[&str]) -> Result<Url, ProviderError> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => {
                return Err(ProviderError::new(ProviderErrorClass::Invalid, "RunPod's URL has no path"));
            }
        };
        Ok(url)
    }
}

async fn whole(
    operation: Operation,
    mut response: Response,
    within: Duration,
) -> Result<Vec<u8>, ProviderError> {
    let mut body = Vec::new();
    while let Some(piece) =
        response.chunk().await.map_err(|error| error::unanswered(operation, &error, within))?
    {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(error::too_large(operation, ANSWER_BYTES_MAX));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}
