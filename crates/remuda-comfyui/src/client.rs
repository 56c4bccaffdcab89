//! The connection to one ComfyUI server over HTTP, and the questions asked through it.
//!
//! Every request has a time limit and every answer a size limit: a server that is busy loading a model does not answer for
//! seconds, which says nothing about anybody's job, and a history of ten thousand graphs must not fill our memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::WorkerId;
use remuda_core::service::{ProbeResult, ProbeTrigger};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::history::{self, Entry};
use super::queue::Queue;
use super::tag::{Place, Tagged};
use super::{Target, json};
use remuda_net::text::one_line;

/// A queue of two thousand small graphs has a megabyte; this holds a thousand of the largest graphs people share.
const LISTING_BYTES_MAX: usize = 128 << 20;

/// What answers with a few fields, with room for an error of the server's proxy.
const SMALL_BYTES_MAX: usize = 1 << 20;

/// How many of the newest entries of history are searched for prompts of ours: far more than a worker runs at once.
const OURS_HISTORY_MAX: usize = 64;

/// A prompt may begin to run while it is being deleted; it cannot do so twice.
const CANCEL_ROUNDS_MAX: usize = 3;

/// Slower than this nobody would run a fleet; a body's time limit grows with its size by it.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// Cheap to clone: the clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Arc<Url>,
    timeout: Duration,
}

/// Why a question got no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A person has to correct the address or the headers.
    #[error("{0}")]
    Target(String),
    /// Nothing was sent, because nobody listens there: the server is not up, or was.
    #[error("ComfyUI is not there: {0}")]
    Gone(String),
    /// Nothing was sent: the way there is broken, or too slow.
    #[error("no connection to ComfyUI: {0}")]
    Unreachable(String),
    /// It may be busy; whether it did what was asked is not known.
    #[error("no answer from ComfyUI within {0:?}")]
    Timeout(Duration),
    /// The connection broke while we talked; whether it did what was asked is not known.
    #[error("the connection to ComfyUI broke: {0}")]
    Broken(String),
    /// What was asked for is not there.
    #[error("ComfyUI has no {0}")]
    NotFound(String),
    /// It said no, or something went wrong inside it.
    #[error("ComfyUI answered {status} to {path}: {text}")]
    Status { status: u16, path: String, text: String },
    /// It is no ComfyUI, or one that speaks differently.
    #[error("the answer to {path} makes no sense: {why}")]
    Unreadable { path: String, why: String },
}

impl Client {
    /// `timeout` bounds each request; 5 s is a good choice, as nothing asked here takes a healthy server long.
    pub fn new(target: &Target, timeout: Duration) -> Result<Client, Error> {
        // Whoever comes first chooses for the whole process; all of ours choose the same.
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
            // A slim container has no certificates, and on loopback needs none.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| Error::Target(innermost(&error).to_string()))?;
        Ok(Client { http, base: Arc::new(base), timeout })
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What became of a prompt. The queue is read before history: what ends in between is then found in history, while
    /// the other way round it would be found nowhere. Only if somebody said that it is over history comes first, because
    /// there a yes needs nothing else.
    pub async fn look(&self, id: &str, trigger: ProbeTrigger) -> ProbeResult {
        self.look_closely(id, trigger).await.0
    }

    /// The same, and how many copies of it wait that nobody needs: something between us and the server sent it twice.
    pub async fn look_closely(&self, id: &str, trigger: ProbeTrigger) -> (ProbeResult, usize) {
        match self.try_look(id, trigger).await {
            Ok(seen) => seen,
            Err(error @ Error::Gone(_)) => (ProbeResult::Gone(error.to_string()), 0),
            Err(error) => (ProbeResult::NoAnswer(error.to_string()), 0),
        }
    }

    async fn try_look(&self, id: &str, trigger: ProbeTrigger) -> Result<(ProbeResult, usize), Error> {
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

    /// Takes so many copies of a prompt that wait out of the queue, and lets the one that runs, or is left, alone.
    pub async fn take_out(&self, id: &str, copies: usize) -> Result<(), Error> {
        // One copy goes for each time it is named.
        self.tell("queue", &json!({ "delete": vec![id; copies] })).await
    }

    /// Takes a prompt out of the queue, and interrupts it if it runs. Never anybody else's: an interrupt without an id stops
    /// whatever runs, and servers before 0.3.57 read every interrupt so; hence it is sent only while ours is seen to run.
    /// An interrupt is a wish: in its last node a prompt ends as if nothing had been said. So look again afterwards.
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        for _ in 0..CANCEL_ROUNDS_MAX {
            let queue = self.queue().await?;
            let copies = queue.pending(id);
            if copies > 0 {
                self.take_out(id, copies).await?;
            }
            if queue.is_running(id) {
                return self.tell("interrupt", &json!({ "prompt_id": id })).await;
            }
            if copies == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Prompts in the queue, and among the newest that ended (the oldest first), which `worker` handed in at some time.
    pub async fn ours(&self, worker: &WorkerId) -> Result<Vec<Tagged>, Error> {
        let queue = self.queue().await?;
        let newest = OURS_HISTORY_MAX.to_string();
        let ended = self.read::<history::Tags>("history", &[("max_items", &newest)]).await?;
        let all = queue.tags().chain(ended.tags().map(|(id, tag)| (id, tag, Place::Ended)));
        Ok(all
            .filter(|(_, tag, _)| tag.worker == *worker)
            .map(|(id, tag, place)| Tagged { id: id.to_owned(), job: tag.job, attempt: tag.attempt, place })
            .collect())
    }

    /// Whether this prompt is in history. It remembers ten thousand, and forgets all of them when it restarts.
    pub async fn knows(&self, id: &str) -> Result<bool, Error> {
        Ok(self.history(id).await?.is_some())
    }

    /// Takes a prompt that ended out of history.
    pub(super) async fn forget(&self, id: &str) -> Result<(), Error> {
        self.tell("history", &json!({ "delete": [id] })).await
    }

    /// Lets go of models and results, once what runs now is over.
    pub async fn free(&self) -> Result<(), Error> {
        self.tell("free", &json!({ "unload_models": true, "free_memory": true })).await
    }

    pub(super) async fn queue(&self) -> Result<Queue, Error> {
        self.read("queue", &[]).await
    }

    async fn history(&self, id: &str) -> Result<Option<Entry>, Error> {
        let entries: history::Entries = self.read(&format!("history/{id}"), &[]).await?;
        Ok(entries.into_entry(id))
    }

    /// Asks for a listing and reads it.
    async fn read<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Error> {
        self.read_within(path, query, self.timeout).await
    }

    pub(super) async fn read_within<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<T, Error> {
        let (status, body) = match self.ask(path, query, timeout).await {
            // A connection that was kept may have died while nobody used it: that says nothing about the server now.
            Err(Error::Broken(_)) => self.ask(path, query, timeout).await?,
            answer => answer?,
        };
        if status != StatusCode::OK {
            return Err(refused(status, path, &body));
        }
        json::read(&body).map_err(|error| unreadable(path, &error.to_string()))
    }

    async fn ask(
        &self,
        path: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), Error> {
        let request = self.http.get(self.url(path)?).query(query).timeout(timeout);
        let response = request.send().await.map_err(|error| self.failed(&error, timeout))?;
        self.body(path, response, LISTING_BYTES_MAX, timeout).await
    }

    /// Posts what is answered with an empty body.
    async fn tell(&self, path: &str, what: &serde_json::Value) -> Result<(), Error> {
        let (status, body) = self.post(path, what.to_string().into_bytes()).await?;
        if status.is_success() { Ok(()) } else { Err(refused(status, path, &body)) }
    }

    pub(super) async fn post(&self, path: &str, body: Vec<u8>) -> Result<(StatusCode, Vec<u8>), Error> {
        let timeout = self.timeout_for(body.len() as u64);
        let request = self.http.post(self.url(path)?).header(CONTENT_TYPE, "application/json").body(body);
        self.exchange(path, request, timeout).await
    }

    /// Sends what has a small answer.
    pub(super) async fn exchange(
        &self,
        path: &str,
        request: reqwest::RequestBuilder,
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), Error> {
        let response = request.timeout(timeout).send().await.map_err(|error| self.failed(&error, timeout))?;
        self.body(path, response, SMALL_BYTES_MAX, timeout).await
    }

    pub(super) fn request(
        &self,
        method: reqwest::Method,
        path: &str,
    ) -> Result<reqwest::RequestBuilder, Error> {
        Ok(self.http.request(method, self.url(path)?))
    }

    /// The time limit for a request with a body of this size.
    pub(super) fn timeout_for(&self, bytes: u64) -> Duration {
        self.timeout + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
    }

    fn url(&self, path: &str) -> Result<Url, Error> {
        self.base.join(path).map_err(|error| Error::Target(error.to_string()))
    }

    async fn body(
        &self,
        path: &str,
        mut response: Response,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(StatusCode, Vec<u8>), Error> {
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error, timeout))? {
            if body.len() + chunk.len() > bytes_max {
                return Err(unreadable(path, &format!("it has more than {bytes_max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((status, body))
    }

    pub(super) fn failed(&self, error: &reqwest::Error, timeout: Duration) -> Error {
        let innermost = innermost(error);
        if error.is_connect() {
            not_connected(innermost)
        } else if error.is_timeout() {
            Error::Timeout(timeout)
        } else {
            Error::Broken(innermost.to_string())
        }
    }
}

/// Only a refusal says that nobody is there; a name that is not found or a way that is closed may be ours.
pub(super) fn not_connected(cause: &(dyn std::error::Error + 'static)) -> Error {
    let io = cause.downcast_ref::<io::Error>();
    if io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        Error::Gone(cause.to_string())
    } else {
        Error::Unreachable(cause.to_string())
    }
}

/// Every layer repeats in its own words what the innermost one knows.
fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

pub(super) fn refused(status: StatusCode, path: &str, body: &[u8]) -> Error {
    let text = one_line(&String::from_utf8_lossy(&body[..body.len().min(2000)]), 200);
    Error::Status { status: status.as_u16(), path: format!("/{path}"), text }
}

pub(super) fn unreadable(path: &str, why: &str) -> Error {
    Error::Unreadable { path: format!("/{path}"), why: why.to_owned() }
}
