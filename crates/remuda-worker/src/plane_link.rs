//! The worker's connection to the plane: join, beat and leave, each answered by an event for the agent; and live reports
//! and previews, whose loss is harmless.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::agent::{AgentEvent, CallError};
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::wire::live::LiveReport;
use remuda_core::wire::preview::PreviewAnswer;
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest};
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::worker_credential::{CredentialFile, is_machine_token};

/// Well below a lease, so that a hanging request does not cost the worker its attempts.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer than the requested wait a long poll may take.
const LONG_POLL_MARGIN: Duration = Duration::from_secs(3);
/// A live report or preview that takes longer is outdated anyway.
const LIVE_TIMEOUT: Duration = Duration::from_secs(3);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the plane did not accept a live report or preview.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("refused with {0}")]
    Refused(StatusCode),
    #[error("{0}")]
    Unreachable(String),
}

#[derive(Clone, Debug)]
pub(crate) struct PlaneLink {
    http: Client,
    url: Arc<str>,
    worker: WorkerId,
    credentials: Credentials,
    token: Secret,
    credential_file: CredentialFile,
}

impl PlaneLink {
    /// The credentials are for joining; after that the worker uses the token it gets. A rented machine's credentials are
    /// valid for a single join, so the token of an earlier process takes their place if there is one.
    pub(crate) fn new(url: &str, worker: WorkerId, credentials: Credentials, folder: &Path) -> Self {
        let http = credentials
            .client()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .build()
            .unwrap_or_default();
        let credential_file = CredentialFile::new(folder, &worker);
        let earlier = credential_file.read().filter(|_| is_machine_token(&credentials.token));
        let token = earlier.unwrap_or_default();
        PlaneLink { http, url: url.trim_end_matches('/').into(), worker, credentials, token, credential_file }
    }

    /// The worker's token; empty before the first join.
    pub(crate) fn token(&self) -> &Secret {
        &self.token
    }

    pub(crate) fn set_token(&mut self, token: Secret) {
        if is_machine_token(&self.credentials.token) {
            self.credential_file.write(&token);
        }
        self.token = token;
    }

    pub(crate) async fn join(&self, join: &JoinRequest) -> AgentEvent {
        let is_machine = is_machine_token(&self.credentials.token);
        let by_token = match is_machine && !self.token.is_empty() {
            true => Some(call(self.join_request(join).bearer_auth(self.token.reveal())).await),
            false => None,
        };
        let answer = match by_token {
            Some(answer @ (Ok(_) | Err(CallError::Unreachable(_)))) => answer,
            // The stored token is outdated, or there is none: use the machine's own.
            Some(Err(_)) | None => call::<JoinReply>(self.credentials.sign(self.join_request(join))).await,
        };
        match answer {
            Ok(joined) => AgentEvent::Joined(joined),
            // A machine whose credentials are refused can never join again, so it is as good as retired.
            Err(CallError::Replaced(why)) if is_machine => {
                AgentEvent::CallFailed { seq: None, why: CallError::Retired(why), jitter: random_u64() }
            }
            Err(why) => AgentEvent::CallFailed { seq: None, why, jitter: random_u64() },
        }
    }

    fn join_request(&self, join: &JoinRequest) -> RequestBuilder {
        self.http.post(format!("{}/remuda/v1/workers", self.url)).timeout(REQUEST_TIMEOUT).json(join)
    }

    pub(crate) async fn beat(&self, beat: &Beat, wait: Duration) -> AgentEvent {
        let url = format!("{}/remuda/v1/workers/{}/beat?wait={}", self.url, self.worker, wait.as_secs_f64());
        let request = self
            .http
            .post(url)
            .timeout(REQUEST_TIMEOUT.max(wait + LONG_POLL_MARGIN))
            .bearer_auth(self.token.reveal())
            .json(beat);
        match call::<BeatReply>(request).await {
            Ok(reply) => AgentEvent::Reply { seq: beat.seq, reply },
            Err(why) => AgentEvent::CallFailed { seq: Some(beat.seq), why, jitter: random_u64() },
        }
    }

    /// Sends a preview image of a running attempt, and the node it shows. Returns whether a client watches the attempt.
    pub(crate) async fn send_preview(
        &self,
        job: JobId,
        attempt: Attempt,
        node: Option<&str>,
        bytes: Bytes,
    ) -> Result<bool, ReportError> {
        let request = self.live_request("preview", job, attempt).body(bytes);
        let response = send_live(request.query(&node.map(|node| ("node", node)).as_slice())).await?;
        let answer: Option<PreviewAnswer> = response.json().await.ok();
        Ok(answer.is_some_and(|answer| answer.is_watched))
    }

    /// Sends what a running attempt is doing.
    pub(crate) async fn send_report(
        &self,
        job: JobId,
        attempt: Attempt,
        report: &LiveReport,
    ) -> Result<(), ReportError> {
        send_live(self.live_request("live", job, attempt).json(report)).await.map(drop)
    }

    fn live_request(&self, resource: &str, job: JobId, attempt: Attempt) -> RequestBuilder {
        let url =
            format!("{}/remuda/v1/workers/{}/{resource}?job={job}&attempt={attempt}", self.url, self.worker);
        self.http.put(url).timeout(LIVE_TIMEOUT).bearer_auth(self.token.reveal())
    }

    pub(crate) async fn leave(&self, reason: &str) {
        let url = format!("{}/remuda/v1/workers/{}", self.url, self.worker);
        let request = self.http.delete(url).query(&[("reason", reason)]).bearer_auth(self.token.reveal());
        drop(request.send().await);
    }
}

async fn send_live(request: RequestBuilder) -> Result<Response, ReportError> {
    let response =
        request.send().await.map_err(|error| ReportError::Unreachable(error_with_causes(&error)))?;
    match response.status() {
        status if status.is_success() => Ok(response),
        // The newest progress and outputs are sent again later.
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            Err(ReportError::Unreachable(status.to_string()))
        }
        status => Err(ReportError::Refused(status)),
    }
}

async fn call<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T, CallError> {
    let unreachable = |error: reqwest::Error| CallError::Unreachable(error_with_causes(&error));
    let response = request.send().await.map_err(unreachable)?;
    if response.status().is_success() {
        return response.json().await.map_err(unreachable);
    }
    Err(classify_refusal(response).await)
}

/// The error and its chain of causes: reqwest's outermost message rarely names the actual problem.
pub(crate) fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

async fn classify_refusal(response: Response) -> CallError {
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or_default().to_owned();
    let message = body["error"]["message"].as_str().unwrap_or("no message").to_owned();
    match (status, code.as_str()) {
        (_, "unknown_worker") => CallError::Unknown,
        (_, "machine_retired" | "identity_unproven") => CallError::Retired(message),
        (_, "replaced" | "wrong_token" | "no_token" | "forbidden" | "lost_in_restore") => {
            CallError::Replaced(message)
        }
        (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _) => CallError::Replaced(message),
        _ => CallError::Unreachable(format!("{status}: {message}")),
    }
}

/// Randomness for jitter.
pub(crate) fn random_u64() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
