//! Blobs over the line to the plane: fetched and stored whole or not at all, tried again while that may help.
//!
//! ```text
//!  store:  hash ──▶ HEAD ──there──▶ done        fetch:  GET ──cut──▶ GET with Range ──▶ hash ──right──▶ rename
//!                    └─not there──▶ PUT ──▶ done                                          └─wrong──▶ from the start
//! ```
//!
//! A lost answer is harmless: content names itself, so the next try finds it there. How often is tried is bounded; who
//! has to get through, such as a worker with a finished job, asks again and keeps its lease meanwhile.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use remuda_store::blobs::{BlobHash, pieces};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use serde_json::Value;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::link::{CONNECT_MAX, described, luck};
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;

/// Together with the waits between them a quarter of a minute: longer than a restart of the plane.
const TRIES_MAX: u32 = 8;
const WAIT_BASE: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// What was fetched may have been changed on its way, but not every time.
const WRONGS_MAX: u32 = 3;
/// Without a byte in either direction the line counts as cut. Includes the time the plane takes to sync gigabytes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Where blobs are; clones share their connections.
#[derive(Clone, Debug)]
pub struct BlobLink {
    http: Client,
    url: Arc<str>,
    /// What they are asked for with.
    token: Arc<Mutex<Secret>>,
}

/// Why a blob is not where it should be, sorted by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Whoever named it has to store it again.
    #[error("the plane has no {hash}")]
    Missing { hash: BlobHash },
    /// Trying again will not help.
    #[error("the plane refuses it with {status}: {message}")]
    Refused { status: StatusCode, message: String },
    /// Tried often enough; worth asking again later.
    #[error("gave up after {tries} tries: {why}")]
    Unreachable { tries: u32, why: String },
    /// The plane's disk has changed what it holds, or someone did: a person has to look.
    #[error("what the plane has as {hash} is {actual}")]
    Wrong { hash: BlobHash, actual: BlobHash },
    /// Something on this machine.
    #[error("{}: {cause}", path.display())]
    Local { path: PathBuf, cause: io::Error },
    /// More than the caller wants to have in memory.
    #[error("{hash} has more than {bytes_max} bytes")]
    TooLarge { hash: BlobHash, bytes_max: usize },
}

/// Why one try did not do it.
enum Failed {
    /// The next one may.
    Now(String),
    ForGood(LinkError),
}

impl BlobLink {
    /// `token` is what the worker was given when it joined; empty where none is needed.
    pub fn new(url: &str, token: &str) -> BlobLink {
        let credentials = Credentials::of(Secret::new(token));
        BlobLink::with(url, &credentials)
    }

    /// As `new`, for a plane that others than the system vouch for.
    pub fn with(url: &str, credentials: &Credentials) -> BlobLink {
        let http = credentials.client().connect_timeout(CONNECT_MAX).tcp_nodelay(true);
        let http = http.build().unwrap_or_default();
        let token = Arc::new(Mutex::new(credentials.token.clone()));
        BlobLink { http, url: url.trim_end_matches('/').into(), token }
    }

    /// From now on it goes by this, and so do all its clones.
    pub fn go_by(&self, token: Secret) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Fetches a blob into a file, which is there when all of it is and it is what it should be. How many bytes it has.
    pub async fn fetch(&self, hash: &BlobHash, into: &Path) -> Result<u64, LinkError> {
        let mut name = into.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        let local = |cause| LinkError::Local { path: into.to_owned(), cause };
        let fetched = match self.fetch_part(hash, &part).await {
            Ok(size) => tokio::fs::rename(&part, into).await.map(|()| size).map_err(local),
            Err(error) => Err(error),
        };
        if fetched.is_err() {
            // It may be gone already; what counts is why there is nothing.
            tokio::fs::remove_file(&part).await.ok();
        }
        fetched
    }

    /// As `fetch`, into memory, for small things.
    pub async fn fetch_bytes(&self, hash: &BlobHash, bytes_max: usize) -> Result<Bytes, LinkError> {
        let (mut tries, mut wrongs) = (Tries::default(), 0);
        loop {
            let problem = match self.fetch_whole(hash, bytes_max).await {
                Ok(bytes) => {
                    let actual = BlobHash::of(&bytes);
                    if actual == *hash {
                        return Ok(bytes);
                    }
                    wrongs += 1;
                    wrong(hash, &actual, wrongs)
                }
                Err(problem) => problem,
            };
            tries.again(problem).await?;
        }
    }

    /// Stores a file; its name and size.
    pub async fn store(&self, from: &Path) -> Result<(BlobHash, u64), LinkError> {
        let local = |cause| LinkError::Local { path: from.to_owned(), cause };
        let (hash, size) = hash_of(from).await.map_err(local)?;
        let body = |sent: Arc<AtomicU64>| {
            let file = File::open(from).map_err(local)?;
            let counted = pieces(file, 0, size).inspect(move |_| {
                sent.fetch_add(1, Ordering::Relaxed);
            });
            Ok(reqwest::Body::wrap_stream(counted))
        };
        self.store_as(&hash, size, body).await?;
        Ok((hash, size))
    }

    /// As `store`, from memory, for small things.
    pub async fn store_bytes(&self, bytes: Bytes) -> Result<(BlobHash, u64), LinkError> {
        let (hash, size) = (BlobHash::of(&bytes), bytes.len() as u64);
        self.store_as(&hash, size, |_| Ok(bytes.clone().into())).await?;
        Ok((hash, size))
    }

    async fn store_as(
        &self,
        hash: &BlobHash,
        size: u64,
        body: impl Fn(Arc<AtomicU64>) -> Result<reqwest::Body, LinkError>,
    ) -> Result<(), LinkError> {
        let mut tries = Tries::default();
        loop {
            let problem = match self.has(hash).await {
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
            tries.again(problem).await?;
        }
    }

    /// Whether the plane has it, as far as one question tells.
    pub async fn is_there(&self, hash: &BlobHash) -> bool {
        matches!(self.has(hash).await, Ok(true))
    }

    async fn has(&self, hash: &BlobHash) -> Result<bool, Failed> {
        match send(self.request(Method::HEAD, hash), hash, &AtomicU64::new(0)).await {
            Ok(_) => Ok(true),
            Err(Failed::ForGood(LinkError::Missing { .. })) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// Until the file is what it should be. Who gets on is not turned away: only tries that bring nothing count.
    async fn fetch_part(&self, hash: &BlobHash, path: &Path) -> Result<u64, LinkError> {
        let local = |cause| LinkError::Local { path: path.to_owned(), cause };
        let mut file = tokio::fs::File::create(path).await.map_err(local)?;
        let (mut tries, mut has, mut wrongs) = (Tries::default(), 0, 0);
        loop {
            let rest = self.fetch_rest(hash, has, &mut file, path).await;
            // What was received before the line was cut is not received again.
            file.flush().await.map_err(local)?;
            let size = file.metadata().await.map_err(local)?.len();
            if size > has {
                tries = Tries::default();
            }
            has = size;
            let problem = match rest {
                Ok(()) => {
                    let (actual, size) = hash_of(path).await.map_err(local)?;
                    if actual == *hash {
                        return Ok(size);
                    }
                    start_over(&mut file).await.map_err(local)?;
                    (has, wrongs) = (0, wrongs + 1);
                    wrong(hash, &actual, wrongs)
                }
                Err(problem) => problem,
            };
            tries.again(problem).await?;
        }
    }

    /// What is missing of a file that has its first `size` bytes.
    async fn fetch_rest(
        &self,
        hash: &BlobHash,
        size: u64,
        file: &mut tokio::fs::File,
        path: &Path,
    ) -> Result<(), Failed> {
        let local = |cause| Failed::ForGood(LinkError::Local { path: path.to_owned(), cause });
        let mut request = self.request(Method::GET, hash);
        if size > 0 {
            request = request.header(header::RANGE, format!("bytes={size}-"));
        }
        let response = send(request, hash, &AtomicU64::new(0)).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // Nothing is missing.
            StatusCode::RANGE_NOT_SATISFIABLE => return Ok(()),
            _ => start_over(file).await.map_err(local)?,
        }
        let mut pieces = response.bytes_stream();
        while let Some(piece) = next(&mut pieces).await? {
            file.write_all(&piece).await.map_err(local)?;
        }
        Ok(())
    }

    async fn fetch_whole(&self, hash: &BlobHash, bytes_max: usize) -> Result<Bytes, Failed> {
        let too_large = || Failed::ForGood(LinkError::TooLarge { hash: *hash, bytes_max });
        let response = send(self.request(Method::GET, hash), hash, &AtomicU64::new(0)).await?;
        let mut whole = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = next(&mut pieces).await? {
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

/// How often it was tried, and how long to wait before the next time.
#[derive(Debug, Default)]
struct Tries(u32);

impl Tries {
    async fn again(&mut self, problem: Failed) -> Result<(), LinkError> {
        let why = match problem {
            Failed::Now(why) => why,
            Failed::ForGood(error) => return Err(error),
        };
        self.0 += 1;
        if self.0 >= TRIES_MAX {
            return Err(LinkError::Unreachable { tries: self.0, why });
        }
        tokio::time::sleep(self.wait(luck())).await;
        Ok(())
    }

    /// Doubles from try to try, and is cut by up to a half: many that failed together do not come back together.
    fn wait(&self, luck: u64) -> Duration {
        let whole = (WAIT_BASE * (1 << (self.0 - 1).min(16))).min(WAIT_MAX);
        whole - whole.mul_f64((luck % 1000) as f64 / 2000.0)
    }
}

/// Sends a request. `sent` rises while its body goes out; a line that stands still is given up.
async fn send(request: RequestBuilder, hash: &BlobHash, sent: &AtomicU64) -> Result<Response, Failed> {
    let answer = request.send();
    tokio::pin!(answer);
    let mut seen = 0;
    let response = loop {
        match tokio::time::timeout(PAUSE_MAX, &mut answer).await {
            Ok(answer) => break answer.map_err(|error| Failed::Now(described(&error)))?,
            Err(_) if sent.load(Ordering::Relaxed) == seen => return Err(stands_still()),
            Err(_) => seen = sent.load(Ordering::Relaxed),
        }
    };
    let status = response.status();
    if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(response);
    }
    if status == StatusCode::NOT_FOUND {
        return Err(Failed::ForGood(LinkError::Missing { hash: *hash }));
    }
    let body: Value = response.json().await.unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("no message").to_owned();
    let is_passing = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
    if is_passing || status.is_server_error() {
        return Err(Failed::Now(format!("{status}: {message}")));
    }
    Err(Failed::ForGood(LinkError::Refused { status, message }))
}

/// The next piece of a body, if it comes in time.
async fn next(
    pieces: &mut (impl Stream<Item = reqwest::Result<Bytes>> + Unpin),
) -> Result<Option<Bytes>, Failed> {
    let piece = tokio::time::timeout(PAUSE_MAX, pieces.next()).await.map_err(|_| stands_still())?;
    piece.transpose().map_err(|error| Failed::Now(described(&error)))
}

fn stands_still() -> Failed {
    Failed::Now(format!("nothing moved for {PAUSE_MAX:?}"))
}

fn wrong(hash: &BlobHash, actual: &BlobHash, times: u32) -> Failed {
    if times >= WRONGS_MAX {
        return Failed::ForGood(LinkError::Wrong { hash: *hash, actual: *actual });
    }
    Failed::Now(format!("what came is {actual}"))
}

async fn start_over(file: &mut tokio::fs::File) -> io::Result<()> {
    file.set_len(0).await?;
    file.rewind().await.map(drop)
}

async fn hash_of(path: &Path) -> io::Result<(BlobHash, u64)> {
    let path = path.to_owned();
    let hash = tokio::task::spawn_blocking(move || BlobHash::of_reader(File::open(path)?));
    hash.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_differ() {
        for (tries, most) in [(1, 200), (2, 400), (3, 800), (6, 5000), (1000, 5000)] {
            let waits = [0, 999].map(|luck| Tries(tries).wait(luck));
            assert_eq!(waits[0], Duration::from_millis(most));
            assert!(waits[1] < waits[0] && waits[1] >= waits[0] / 2, "{waits:?}");
        }
    }
}
