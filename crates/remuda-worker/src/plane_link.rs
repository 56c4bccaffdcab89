//! The line to the plane: three calls, each answered by an event for the agent; and what is only shown, for which nobody
//! answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::agent::{AgentEvent, CallError};
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use super::ticket::{Drawer, is_rented};
use remuda_core::wire::live::LiveReport;
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;

/// How long an answer may take before the line counts as cut: well below a lease.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much longer than it was asked to wait.
const ANSWER_MARGIN: Duration = Duration::from_secs(3);
/// What takes longer shows what is long past.
const SHOW_MAX: Duration = Duration::from_secs(3);
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Why the plane did not take what is only shown.
#[derive(Debug, thiserror::Error)]
pub enum Untold {
    #[error("refused with {0}")]
    Refused(StatusCode),
    #[error("{0}")]
    Unreachable(String),
}

#[derive(Clone, Debug)]
pub struct Link {
    http: Client,
    url: Arc<str>,
    worker: WorkerId,
    credentials: Credentials,
    token: Secret,
    drawer: Drawer,
}

impl Link {
    /// The credentials are for joining; from then on it goes by what it is given. A rented machine's are good once:
    /// what a former process was given takes their place.
    pub fn new(url: &str, worker: WorkerId, credentials: Credentials, folder: &Path) -> Self {
        let http =
            credentials.client().connect_timeout(CONNECT_MAX).tcp_nodelay(true).build().unwrap_or_default();
        let drawer = Drawer::new(folder, &worker);
        let former = drawer.open().filter(|_| is_rented(&credentials.token)).unwrap_or_default();
        Link { http, url: url.trim_end_matches('/').into(), worker, credentials, token: former, drawer }
    }

    /// What it was given, as long as that is known.
    pub fn token(&self) -> &Secret {
        &self.token
    }

    pub fn joined(&mut self, token: Secret) {
        if is_rented(&self.credentials.token) {
            self.drawer.put(&token);
        }
        self.token = token;
    }

    pub async fn join(&self, join: &JoinRequest) -> AgentEvent {
        let is_rented = is_rented(&self.credentials.token);
        let by_ticket = match is_rented && !self.token.is_empty() {
            true => Some(answer(self.join_request(join).bearer_auth(self.token.reveal())).await),
            false => None,
        };
        let answered = match by_ticket {
            Some(answered @ (Ok(_) | Err(CallError::Unreachable(_)))) => answered,
            // A ticket of another time, or none: then it is what the machine came with.
            Some(Err(_)) | None => answer::<JoinReply>(self.credentials.sign(self.join_request(join))).await,
        };
        match answered {
            Ok(joined) => AgentEvent::Joined(joined),
            // Nothing it could still show: whoever rented it will never hear from it.
            Err(CallError::Replaced(why)) if is_rented => {
                AgentEvent::Unanswered { seq: None, why: CallError::NotWanted(why), luck: luck() }
            }
            Err(why) => AgentEvent::Unanswered { seq: None, why, luck: luck() },
        }
    }

    fn join_request(&self, join: &JoinRequest) -> RequestBuilder {
        self.http.post(format!("{}/remuda/v1/workers", self.url)).timeout(ANSWER_MAX).json(join)
    }

    pub async fn beat(&self, beat: &Beat, wait: Duration) -> AgentEvent {
        let url = format!("{}/remuda/v1/workers/{}/beat?wait={}", self.url, self.worker, wait.as_secs_f64());
        let request = self
            .http
            .post(url)
            .timeout(ANSWER_MAX.max(wait + ANSWER_MARGIN))
            .bearer_auth(self.token.reveal())
            .json(beat);
        match answer::<BeatReply>(request).await {
            Ok(reply) => AgentEvent::Reply { seq: beat.seq, reply },
            Err(why) => AgentEvent::Unanswered { seq: Some(beat.seq), why, luck: luck() },
        }
    }

    /// A picture of an attempt under way, and which part of the workflow it shows.
    pub async fn preview(
        &self,
        job: JobId,
        attempt: Attempt,
        node: Option<&str>,
        bytes: Bytes,
    ) -> Result<(), Untold> {
        let request = self.show("preview", job, attempt).body(bytes);
        shown(request.query(&node.map(|node| ("node", node)).as_slice())).await
    }

    /// What an attempt is doing.
    pub async fn live(&self, job: JobId, attempt: Attempt, report: &LiveReport) -> Result<(), Untold> {
        shown(self.show("live", job, attempt).json(report)).await
    }

    fn show(&self, what: &str, job: JobId, attempt: Attempt) -> RequestBuilder {
        let url =
            format!("{}/remuda/v1/workers/{}/{what}?job={job}&attempt={attempt}", self.url, self.worker);
        self.http.put(url).timeout(SHOW_MAX).bearer_auth(self.token.reveal())
    }

    pub async fn leave(&self, reason: &str) {
        let url = format!("{}/remuda/v1/workers/{}", self.url, self.worker);
        let request = self.http.delete(url).query(&[("reason", reason)]).bearer_auth(self.token.reveal());
        drop(request.send().await);
    }
}

async fn shown(request: RequestBuilder) -> Result<(), Untold> {
    let response = request.send().await.map_err(|error| Untold::Unreachable(described(&error)))?;
    match response.status() {
        status if status.is_success() => Ok(()),
        status if status.is_server_error() => Err(Untold::Unreachable(status.to_string())),
        status => Err(Untold::Refused(status)),
    }
}

async fn answer<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T, CallError> {
    let unreachable = |error: reqwest::Error| CallError::Unreachable(described(&error));
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

async fn refused(response: Response) -> CallError {
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    let code = body["error"]["code"].as_str().unwrap_or_default().to_owned();
    let message = body["error"]["message"].as_str().unwrap_or("no message").to_owned();
    match (status, code.as_str()) {
        (_, "unknown_worker") => CallError::Unknown,
        (_, "machine_retired" | "identity_unproven") => CallError::NotWanted(message),
        (_, "replaced" | "wrong_token" | "no_token" | "forbidden") => CallError::Replaced(message),
        (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _) => CallError::Replaced(message),
        _ => CallError::Unreachable(format!("{status}: {message}")),
    }
}

pub(super) fn luck() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
