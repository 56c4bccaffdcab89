//! The line to the plane: three calls, each answered by an event for the agent; and previews, which nobody answers for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::agent::{AgentEvent, Unanswered};
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::wire::{Beat, Join, Joined, Reply};
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;

use crate::dial::Credentials;
use crate::secret::Secret;

/// How long an answer may take before the line counts as cut: well below a lease.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much longer than it was asked to wait.
const ANSWER_MARGIN: Duration = Duration::from_secs(3);
/// A preview that takes longer shows what is long past.
const PREVIEW_MAX: Duration = Duration::from_secs(3);
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Link {
    http: Client,
    url: Arc<str>,
    worker: WorkerId,
    credentials: Credentials,
    token: Secret,
}

impl Link {
    /// `credentials` are for joining; from then on it goes by what it is given.
    pub fn new(url: &str, worker: WorkerId, credentials: Credentials) -> Self {
        let http =
            credentials.client().connect_timeout(CONNECT_MAX).tcp_nodelay(true).build().unwrap_or_default();
        Link { http, url: url.trim_end_matches('/').into(), worker, credentials, token: Secret::default() }
    }

    pub fn set_token(&mut self, token: String) {
        self.token = Secret::new(token);
    }

    pub async fn join(&self, join: &Join) -> AgentEvent {
        let request = self.http.post(format!("{}/fleet/workers", self.url)).timeout(ANSWER_MAX).json(join);
        match answer::<Joined>(self.credentials.sign(request)).await {
            Ok(joined) => AgentEvent::Joined(joined),
            Err(why) => AgentEvent::Unanswered { seq: None, why, luck: luck() },
        }
    }

    pub async fn beat(&self, beat: &Beat, wait: Duration) -> AgentEvent {
        let url = format!("{}/fleet/workers/{}/beat?wait={}", self.url, self.worker, wait.as_secs_f64());
        let request = self
            .http
            .post(url)
            .timeout(ANSWER_MAX.max(wait + ANSWER_MARGIN))
            .bearer_auth(self.token.reveal())
            .json(beat);
        match answer::<Reply>(request).await {
            Ok(reply) => AgentEvent::Reply { seq: beat.seq, reply },
            Err(why) => AgentEvent::Unanswered { seq: Some(beat.seq), why, luck: luck() },
        }
    }

    /// A picture of an attempt under way; why it was not taken, if so.
    pub async fn preview(&self, job: JobId, attempt: Attempt, bytes: Bytes) -> Result<(), String> {
        let url = format!("{}/fleet/workers/{}/preview?job={job}&attempt={attempt}", self.url, self.worker);
        let request = self.http.put(url).timeout(PREVIEW_MAX).bearer_auth(self.token.reveal()).body(bytes);
        let response = request.send().await.map_err(|error| described(&error))?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(status.to_string()) }
    }

    pub async fn leave(&self, reason: &str) {
        let url = format!("{}/fleet/workers/{}", self.url, self.worker);
        let request = self.http.delete(url).query(&[("reason", reason)]).bearer_auth(self.token.reveal());
        drop(request.send().await);
    }
}

async fn answer<T: serde::de::DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, Unanswered> {
    let unreachable = |error: reqwest::Error| Unanswered::Unreachable(described(&error));
    let response = request.send().await.map_err(unreachable)?;
    if response.status().is_success() {
        return response.json().await.map_err(unreachable);
    }
    Err(refused(response).await)
}

/// An error with its causes: the outermost one rarely says what is wrong.
pub(super) fn described(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

async fn refused(response: Response) -> Unanswered {
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or_default().to_owned();
    let message = body["error"]["message"].as_str().unwrap_or("no message").to_owned();
    match (status, code.as_str()) {
        (_, "unknown_worker") => Unanswered::Unknown,
        (_, "replaced" | "wrong_token" | "no_token" | "forbidden") => Unanswered::Replaced(message),
        (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _) => Unanswered::Replaced(message),
        _ => Unanswered::Unreachable(format!("{status}: {message}")),
    }
}

pub(super) fn luck() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
