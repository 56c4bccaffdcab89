//! Transfers blobs between the plane and this machine: each one completely or not at all, with a bounded number of
//! retries.
//!
//! ```text
//!  store:  hash ──▶ HEAD ──present──▶ done      fetch:  GET ──cut──▶ GET with Range ──▶ hash ──match────▶ rename
//!                    └───absent───▶ PUT ──▶ done                                          └─mismatch──▶ start over
//! ```
//!
//! A small blob is sent without asking first, which would take as long. A lost answer is harmless: blobs are addressed by
//! their content, so the next try finds the blob already there. A caller that must succeed, such as a worker with a
//! finished job, calls again and keeps its lease in the meantime.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use remuda_store::blobs::{BlobHash, read_chunks};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::Value;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use remuda_core::supervise::Backoff;

use crate::plane_link::{CONNECT_TIMEOUT, error_with_causes, random_u64};
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;

/// With the waits between them about fifteen seconds: longer than a restart of the plane.
const TRIES_MAX: u32 = 8;
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// A transfer may be corrupted once or twice; a third mismatch means that the stored content is wrong.
const MISMATCHES_MAX: u32 = 3;
/// A connection without a byte in either direction for this long counts as cut. Covers the time the plane needs to sync
/// gigabytes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A blob of this size is sent as fast as it is asked whether the plane has it.
const UNASKED_BYTES_MAX: u64 = 64 << 10;

/// A client for the plane's blobs; clones share their connections and token.
#[derive(Clone, Debug)]
pub struct BlobLink {
    http: Client,
    url: Arc<str>,
    token: Arc<Mutex<Secret>>,
}

/// Why a transfer failed, sorted by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum BlobLinkError {
    /// The client that referenced the blob has to store it again.
    #[error("the plane has no blob {hash}")]
    Missing { hash: BlobHash },
    /// Retrying will not help.
    #[error("the plane refused the blob with {status}: {message}")]
    Refused { status: StatusCode, message: String },
    /// All retries were used; try again later.
    #[error("gave up after {tries} tries: {why}")]
    Unreachable { tries: u32, why: String },
    /// The stored content was changed on the plane's disk: an operator has to look.
    #[error("the plane's content for {hash} hashes to {actual}")]
    Wrong { hash: BlobHash, actual: BlobHash },
    /// A file of this machine.
    #[error("{}: {cause}", path.display())]
    Local { path: PathBuf, cause: io::Error },
    /// Larger than the caller accepts in memory.
    #[error("{hash} has more than {bytes_max} bytes")]
    TooLarge { hash: BlobHash, bytes_max: usize },
}

/// Why one try failed.
enum TransferError {
    Retry(String),
    Final(BlobLinkError),
}

impl BlobLink {
    /// `token` is the one the worker got when it joined; empty if the plane requires none.
    pub fn new(url: &str, token: &str) -> BlobLink {
        let credentials = Credentials::from_token(Secret::new(token));
        BlobLink::with_credentials(url, &credentials)
    }

    /// As `new`, for a plane whose certificate is signed by an authority the system does not know.
    pub fn with_credentials(url: &str, credentials: &Credentials) -> BlobLink {
        let http = credentials.client().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let http = http.build().unwrap_or_default();
        let token = Arc::new(Mutex::new(credentials.token.clone()));
        BlobLink { http, url: url.trim_end_matches('/').into(), token }
    }

    /// Uses this token from now on, in every clone.
    pub fn set_token(&self, token: Secret) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Fetches a blob into a file and returns its size. The file appears only once it is complete and its hash matches.
    pub async fn fetch(&self, hash: &BlobHash, into: &Path) -> Result<u64, BlobLinkError> {
        let mut name = into.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        let local = |cause| BlobLinkError::Local { path: into.to_owned(), cause };
        let fetched = match self.fetch_part(hash, &part).await {
            Ok(size) => tokio::fs::rename(&part, into).await.map(|()| size).map_err(local),
            Err(error) => Err(error),
        };
        if fetched.is_err() {
            // It may never have been created; the fetch error is the one to report.
            tokio::fs::remove_file(&part).await.ok();
        }
        fetched
    }

    /// As `fetch`, into memory, for small blobs.
    pub async fn fetch_bytes(&self, hash: &BlobHash, bytes_max: usize) -> Result<Bytes, BlobLinkError> {
        let (mut backoff, mut mismatches) = (RetryBackoff::default(), 0);
        loop {
            let problem = match self.fetch_whole(hash, bytes_max).await {
                Ok(bytes) => {
                    let actual = BlobHash::from_content(&bytes);
                    if actual == *hash {
                        return Ok(bytes);
                    }
                    mismatches += 1;
                    mismatch(hash, &actual, mismatches)
                }
                Err(problem) => problem,
            };
            backoff.wait(problem).await?;
        }
    }

    /// Stores a file and returns its hash and size.
    pub async fn store(&self, from: &Path) -> Result<(BlobHash, u64), BlobLinkError> {
        let local = |cause| BlobLinkError::Local { path: from.to_owned(), cause };
        let (hash, size) = hash_file(from).await.map_err(local)?;
        let body = |sent: Arc<AtomicU64>| {
            let file = File::open(from).map_err(local)?;
            let counted = read_chunks(file, 0, size).inspect(move |_| {
                sent.fetch_add(1, Ordering::Relaxed);
            });
            Ok(reqwest::Body::wrap_stream(counted))
        };
        self.store_as(&hash, size, body).await?;
        Ok((hash, size))
    }

    /// As `store`, from memory, for small blobs.
    pub async fn store_bytes(&self, bytes: Bytes) -> Result<(BlobHash, u64), BlobLinkError> {
        let (hash, size) = (BlobHash::from_content(&bytes), bytes.len() as u64);
        self.store_as(&hash, size, |_| Ok(bytes.clone().into())).await?;
        Ok((hash, size))
    }

    async fn store_as(
        &self,
        hash: &BlobHash,
        size: u64,
        body: impl Fn(Arc<AtomicU64>) -> Result<reqwest::Body, BlobLinkError>,
    ) -> Result<(), BlobLinkError> {
        let mut backoff = RetryBackoff::default();
        loop {
            let is_known = if size <= UNASKED_BYTES_MAX { Ok(false) } else { self.has(hash).await };
            let problem = match is_known {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let sent = Arc::<AtomicU64>::default();
                    let put = self.request(Method::PUT, hash).header(header::CONTENT_LENGTH, size);
                    match send(put.body(body(sent.clone())?), hash, &sent).await {
                        Ok(_) => return Ok(()),
                        Err(problem) => problem,
                    }
                }
                Err(problem) => problem,
            };
            backoff.wait(problem).await?;
        }
    }

    /// Whether the plane has the blob; also false if it did not answer a single request.
    pub async fn is_stored(&self, hash: &BlobHash) -> bool {
        matches!(self.has(hash).await, Ok(true))
    }

    async fn has(&self, hash: &BlobHash) -> Result<bool, TransferError> {
        match send(self.request(Method::HEAD, hash), hash, &AtomicU64::new(0)).await {
            Ok(_) => Ok(true),
            Err(TransferError::Final(BlobLinkError::Missing { .. })) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// Fetches until the file's hash matches. Only tries without a new byte count towards the retry limit, so a slow but
    /// steady transfer is not given up.
    async fn fetch_part(&self, hash: &BlobHash, path: &Path) -> Result<u64, BlobLinkError> {
        let local = |cause| BlobLinkError::Local { path: path.to_owned(), cause };
        let mut file = tokio::fs::File::create(path).await.map_err(local)?;
        let (mut backoff, mut received, mut mismatches) = (RetryBackoff::default(), 0, 0);
        loop {
            let rest = self.fetch_rest(hash, received, &mut file, path).await;
            // Bytes that arrived before the connection was cut are not fetched again.
            file.flush().await.map_err(local)?;
            let size = file.metadata().await.map_err(local)?.len();
            if size > received {
                backoff = RetryBackoff::default();
            }
            received = size;
            let problem = match rest {
                Ok(()) => {
                    let (actual, size) = hash_file(path).await.map_err(local)?;
                    if actual == *hash {
                        return Ok(size);
                    }
                    truncate(&mut file).await.map_err(local)?;
                    (received, mismatches) = (0, mismatches + 1);
                    mismatch(hash, &actual, mismatches)
                }
                Err(problem) => problem,
            };
            backoff.wait(problem).await?;
        }
    }

    /// Fetches the rest of a file that already has its first `size` bytes.
    async fn fetch_rest(
        &self,
        hash: &BlobHash,
        size: u64,
        file: &mut tokio::fs::File,
        path: &Path,
    ) -> Result<(), TransferError> {
        let local = |cause| TransferError::Final(BlobLinkError::Local { path: path.to_owned(), cause });
        let mut request = self.request(Method::GET, hash);
        if size > 0 {
            request = request.header(header::RANGE, format!("bytes={size}-"));
        }
        let response = send(request, hash, &AtomicU64::new(0)).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // The file is complete already.
            StatusCode::RANGE_NOT_SATISFIABLE => return Ok(()),
            _ => truncate(file).await.map_err(local)?,
        }
        let mut read_chunks = response.bytes_stream();
        while let Some(piece) = next(&mut read_chunks).await? {
            file.write_all(&piece).await.map_err(local)?;
        }
        Ok(())
    }

    async fn fetch_whole(&self, hash: &BlobHash, bytes_max: usize) -> Result<Bytes, TransferError> {
        let too_large = || TransferError::Final(BlobLinkError::TooLarge { hash: *hash, bytes_max });
        let response = send(self.request(Method::GET, hash), hash, &AtomicU64::new(0)).await?;
        let mut whole = Vec::new();
        let mut read_chunks = response.bytes_stream();
        while let Some(piece) = next(&mut read_chunks).await? {
            if whole.len() + piece.len() > bytes_max {
                return Err(too_large());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    fn request(&self, method: Method, hash: &BlobHash) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/remuda/v1/blobs/{hash}", self.url));
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if token.is_empty() { request } else { request.bearer_auth(token.reveal()) }
    }
}

/// Counts tries without progress and waits before the next one.
#[derive(Debug, Default)]
struct RetryBackoff(u32);

impl RetryBackoff {
    async fn wait(&mut self, problem: TransferError) -> Result<(), BlobLinkError> {
        let why = match problem {
            TransferError::Retry(why) => why,
            TransferError::Final(error) => return Err(error),
        };
        self.0 += 1;
        if self.0 >= TRIES_MAX {
            return Err(BlobLinkError::Unreachable { tries: self.0, why });
        }
        tokio::time::sleep(self.delay(random_u64())).await;
        Ok(())
    }

    /// Doubles from try to try, minus up to a half of jitter: workers that failed together do not retry together.
    fn delay(&self, jitter: u64) -> Duration {
        RETRY.equal_jitter(self.0.saturating_sub(1), jitter)
    }
}

/// Sends a request. `sent` counts the body's read_chunks as they go out; a connection that stalls is given up.
async fn send(request: RequestBuilder, hash: &BlobHash, sent: &AtomicU64) -> Result<Response, TransferError> {
    let answer = request.send();
    tokio::pin!(answer);
    let mut seen = 0;
    let response = loop {
        match tokio::time::timeout(IDLE_TIMEOUT, &mut answer).await {
            Ok(answer) => break answer.map_err(|error| TransferError::Retry(error_with_causes(&error)))?,
            Err(_) if sent.load(Ordering::Relaxed) == seen => return Err(stalled()),
            Err(_) => seen = sent.load(Ordering::Relaxed),
        }
    };
    let status = response.status();
    if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(response);
    }
    if status == StatusCode::NOT_FOUND {
        return Err(TransferError::Final(BlobLinkError::Missing { hash: *hash }));
    }
    let body: Value = response.json().await.unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("no message").to_owned();
    let is_temporary = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    if is_temporary || status.is_server_error() {
        return Err(TransferError::Retry(format!("{status}: {message}")));
    }
    Err(TransferError::Final(BlobLinkError::Refused { status, message }))
}

/// The next piece of a body, within the idle timeout.
async fn next(
    read_chunks: &mut (impl Stream<Item = reqwest::Result<Bytes>> + Unpin),
) -> Result<Option<Bytes>, TransferError> {
    let piece = tokio::time::timeout(IDLE_TIMEOUT, read_chunks.next()).await.map_err(|_| stalled())?;
    piece.transpose().map_err(|error| TransferError::Retry(error_with_causes(&error)))
}

fn stalled() -> TransferError {
    TransferError::Retry(format!("no byte was transferred for {IDLE_TIMEOUT:?}"))
}

fn mismatch(hash: &BlobHash, actual: &BlobHash, times: u32) -> TransferError {
    if times >= MISMATCHES_MAX {
        return TransferError::Final(BlobLinkError::Wrong { hash: *hash, actual: *actual });
    }
    TransferError::Retry(format!("the received bytes hash to {actual}"))
}

async fn truncate(file: &mut tokio::fs::File) -> io::Result<()> {
    file.set_len(0).await?;
    file.rewind().await.map(drop)
}

async fn hash_file(path: &Path) -> io::Result<(BlobHash, u64)> {
    let path = path.to_owned();
    let hash = tokio::task::spawn_blocking(move || BlobHash::from_reader(File::open(path)?));
    hash.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_with_jitter() {
        for (tries, most) in [(1, 200), (2, 400), (3, 800), (6, 5000), (1000, 5000)] {
            let delays = [most / 2, 0].map(|jitter| RetryBackoff(tries).delay(jitter));
            assert_eq!(delays[0], Duration::from_millis(most));
            assert_eq!(delays[1], delays[0] / 2);
        }
    }
}
