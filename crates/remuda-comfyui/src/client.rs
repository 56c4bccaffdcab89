//! HTTP requests to one ComfyUI server.
//!
//! Every request has a timeout and every answer a size limit: a server that is loading a model does not answer for seconds,
//! which says nothing about any job, and a history of ten thousand graphs must not fill our memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::WorkerId;
use remuda_core::service::{ProbeResult, ProbeTrigger};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;

use super::error::{ComfyuiError, innermost, not_connected, refused, unreadable};
use super::history::{self, Entry};
use super::queue::Queue;
use super::tag::{PromptPhase, TaggedPrompt};
use super::{ComfyuiTarget, json, prompt};

/// A queue of two thousand small graphs has 1 MB; this is enough for a thousand of the largest published graphs.
const LISTING_BYTES_MAX: usize = 128 << 20;

/// For answers with a few fields, and for the error page of a proxy.
const SMALL_BYTES_MAX: usize = 1 << 20;

/// Newest history entries that are searched for our prompts: far more than a worker runs at once.
const OURS_HISTORY_MAX: usize = 64;

/// A prompt may start while it is being deleted, but only once.
const CANCEL_ROUNDS_MAX: usize = 3;

/// The slowest usable link; the timeout of a request grows with its body by this rate.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct ComfyuiClient {
    http: reqwest::Client,
    base: Arc<Url>,
    timeout: Duration,
}

impl ComfyuiClient {
    /// `timeout` applies to each request; 5 s is a good choice, because a healthy server answers all of them quickly.
    pub fn new(target: &ComfyuiTarget, timeout: Duration) -> Result<ComfyuiClient, ComfyuiError> {
        // Only the first call of a process installs it; all callers install the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = target.base()?;
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .user_agent(concat!("remuda/", env!("CARGO_PKG_VERSION")))
            .default_headers(target.header_map()?);
        if base.scheme() == "http" {
            // A slim container has no certificates and needs none for plain HTTP.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| ComfyuiError::Target(innermost(&error).to_string()))?;
        Ok(ComfyuiClient { http, base: Arc::new(base), timeout })
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The state of a prompt. The queue is read before history: a prompt that ends in between is then found in history; in
    /// the other order it would be found nowhere. After a message that the prompt has ended, history is read first,
    /// because an entry there is conclusive.
    pub async fn probe(&self, id: &str, trigger: ProbeTrigger) -> ProbeResult {
        self.probe_with_copies(id, trigger).await.0
    }

    /// The same, and the number of surplus copies in the queue, which exist if something between us and the server repeated
    /// the request.
    pub async fn probe_with_copies(&self, id: &str, trigger: ProbeTrigger) -> (ProbeResult, usize) {
        match self.try_probe(id, trigger).await {
            Ok(seen) => seen,
            Err(error @ ComfyuiError::Gone(_)) => (ProbeResult::Gone(error.to_string()), 0),
            Err(error) => (ProbeResult::NoAnswer(error.to_string()), 0),
        }
    }

    async fn try_probe(&self, id: &str, trigger: ProbeTrigger) -> Result<(ProbeResult, usize), ComfyuiError> {
        if trigger == ProbeTrigger::CompletionHint
            && let Ok(Some(entry)) = self.history(id).await
        {
            return Ok((entry.seen(), 0));
        }
        let queue = self.queue().await?;
        let waiting = queue.pending(id);
        if queue.is_running(id) {
            return Ok((ProbeResult::Running, waiting));
        }
        if waiting > 0 {
            return Ok((ProbeResult::Pending { ahead: queue.ahead() }, waiting - 1));
        }
        Ok((self.history(id).await?.map_or(ProbeResult::Unknown, Entry::seen), 0))
    }

    /// Deletes `copies` waiting copies of a prompt from the queue. A running or remaining copy is not affected.
    pub async fn delete_queued(&self, id: &str, copies: usize) -> Result<(), ComfyuiError> {
        // ComfyUI deletes one copy for each time the id is listed.
        self.post_json("queue", &json!({ "delete": vec![id; copies] })).await
    }

    /// Deletes a prompt from the queue, and interrupts it if it runs. Servers before 0.3.57 ignore the id of an interrupt and
    /// stop the running prompt, which may belong to another client; so the interrupt is sent only while our prompt runs.
    /// ComfyUI ignores an interrupt in the last node of a prompt, so probe again afterwards.
    pub async fn cancel(&self, id: &str) -> Result<(), ComfyuiError> {
        for _ in 0..CANCEL_ROUNDS_MAX {
            let queue = self.queue().await?;
            let copies = queue.pending(id);
            if copies > 0 {
                self.delete_queued(id, copies).await?;
            }
            if queue.is_running(id) {
                return self.post_json("interrupt", &json!({ "prompt_id": id })).await;
            }
            if copies == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Prompts that `worker` submitted: those in the queue, and those among the newest ended ones (oldest first).
    pub async fn tagged_prompts(&self, worker: &WorkerId) -> Result<Vec<TaggedPrompt>, ComfyuiError> {
        let queue: Queue<Box<RawValue>> = self.read("queue", &[]).await?;
        let newest = OURS_HISTORY_MAX.to_string();
        let ended = self.read::<history::Tags>("history", &[("max_items", &newest)]).await?;
        let queued = queue.items().filter_map(|(item, phase)| {
            let tag = item.tag().filter(|tag| tag.worker == *worker)?;
            let nodes = item.graph().and_then(|graph| prompt::describe_graph(graph)).unwrap_or_default();
            Some(TaggedPrompt::new(item.id()?, tag, phase, nodes))
        });
        let ended = ended.tags().filter(|(_, tag)| tag.worker == *worker);
        let ended = ended.map(|(id, tag)| TaggedPrompt::new(id, tag, PromptPhase::Ended, BTreeMap::new()));
        Ok(queued.chain(ended).collect())
    }

    /// Whether history contains this prompt. History holds ten thousand prompts and is lost when the server restarts.
    pub async fn is_in_history(&self, id: &str) -> Result<bool, ComfyuiError> {
        Ok(self.history(id).await?.is_some())
    }

    /// Deletes an ended prompt from history.
    pub(super) async fn delete_from_history(&self, id: &str) -> Result<(), ComfyuiError> {
        self.post_json("history", &json!({ "delete": [id] })).await
    }

    /// Unloads models and frees cached results after the running prompt.
    pub async fn free_memory(&self) -> Result<(), ComfyuiError> {
        self.post_json("free", &json!({ "unload_models": true, "free_memory": true })).await
    }

    pub(super) async fn queue(&self) -> Result<Queue, ComfyuiError> {
        self.read("queue", &[]).await
    }

    async fn history(&self, id: &str) -> Result<Option<Entry>, ComfyuiError> {
        let entries: history::Entries = self.read(&format!("history/{id}"), &[]).await?;
        Ok(entries.into_entry(id))
    }

    /// Requests a listing and parses it.
    async fn read<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, ComfyuiError> {
        self.read_within(path, query, self.timeout).await
    }

    pub(super) async fn read_within<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<T, ComfyuiError> {
        let (status, body) = match self.get(path, query, timeout).await {
            // A pooled connection may have died while it was idle, which says nothing about the server; so retry once.
            Err(ComfyuiError::Broken(_)) => self.get(path, query, timeout).await?,
            answer => answer?,
        };
        if status != StatusCode::OK {
            return Err(refused(status, path, &body));
        }
        json::parse(&body).map_err(|error| unreadable(path, &error.to_string()))
    }

    async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ComfyuiError> {
        let request = self.http.get(self.url(path)?).query(query).timeout(timeout);
        let response = request.send().await.map_err(|error| self.failed(&error, timeout))?;
        self.body(path, response, LISTING_BYTES_MAX, timeout).await
    }

    /// Posts a request that is answered with an empty body.
    async fn post_json(&self, path: &str, what: &serde_json::Value) -> Result<(), ComfyuiError> {
        let (status, body) = self.post(path, what.to_string().into_bytes()).await?;
        if status.is_success() { Ok(()) } else { Err(refused(status, path, &body)) }
    }

    pub(super) async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), ComfyuiError> {
        let timeout = self.timeout_for(body.len() as u64);
        let request = self.http.post(self.url(path)?).header(CONTENT_TYPE, "application/json").body(body);
        self.exchange(path, request, timeout).await
    }

    /// Sends a request with a small answer.
    pub(super) async fn exchange(
        &self,
        path: &str,
        request: reqwest::RequestBuilder,
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ComfyuiError> {
        let response = request.timeout(timeout).send().await.map_err(|error| self.failed(&error, timeout))?;
        self.body(path, response, SMALL_BYTES_MAX, timeout).await
    }

    pub(super) fn request(
        &self,
        method: reqwest::Method,
        path: &str,
    ) -> Result<reqwest::RequestBuilder, ComfyuiError> {
        Ok(self.http.request(method, self.url(path)?))
    }

    /// The timeout of a request with a body of this size.
    pub(super) fn timeout_for(&self, bytes: u64) -> Duration {
        self.timeout + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
    }

    fn url(&self, path: &str) -> Result<Url, ComfyuiError> {
        self.base.join(path).map_err(|error| ComfyuiError::Target(error.to_string()))
    }

    async fn body(
        &self,
        path: &str,
        mut response: Response,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), ComfyuiError> {
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error, timeout))? {
            if body.len() + chunk.len() > bytes_max {
                return Err(unreadable(path, &format!("it exceeds {bytes_max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }

    pub(super) fn failed(&self, error: &reqwest::Error, timeout: Duration) -> ComfyuiError {
        let innermost = innermost(error);
        if error.is_connect() {
            not_connected(innermost)
        } else if error.is_timeout() {
            ComfyuiError::Timeout(timeout)
        } else {
            ComfyuiError::Broken(innermost.to_string())
        }
    }
}
