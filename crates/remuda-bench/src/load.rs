//! The load: clients that submit one job after another, and workers with many slots that beat in batches and do
//! nothing at all with what they get.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use remuda_core::id::{Attempt, JobId, Term};
use remuda_core::wire::{AttemptOutcome, Beat, BeatReply, FinishedAttempt, JoinReply};
use serde_json::json;
use tokio::sync::oneshot;

use crate::http_connection::HttpConnection;

/// Who waits for which job: the client that submitted it hears from the worker that ended it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<HashMap<JobId, Entry>>>);

#[derive(Debug)]
enum Entry {
    Waiting(oneshot::Sender<Instant>),
    /// It arrived at the worker (or ended) before anyone asked.
    Seen(Instant),
}

impl Board {
    pub(crate) fn wait_for(&self, job: JobId) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match board.remove(&job) {
            Some(Entry::Seen(at)) => drop(sender.send(at)),
            Some(Entry::Waiting(_)) | None => drop(board.insert(job, Entry::Waiting(sender))),
        }
        receiver
    }

    pub(crate) fn tell(&self, job: JobId, at: Instant) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match board.remove(&job) {
            Some(Entry::Waiting(sender)) => drop(sender.send(at)),
            Some(Entry::Seen(_)) | None => drop(board.insert(job, Entry::Seen(at))),
        }
    }
}

/// What a worker tells the board: that an order came, or that an end was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoardEvent {
    Orders,
    Ends,
}

/// A workflow of about a kilobyte, different each time.
pub(crate) fn submission(seed: u64) -> Vec<u8> {
    const TEXT: &str = "a herd of horses on a wide plain under a low sun, dust, film grain, 35 mm, ";
    format!(r#"{{"workflow":{{"model":"bench","seed":{seed},"text":"{}"}}}}"#, TEXT.repeat(11)).into_bytes()
}

/// Submits one job after another until `until`; each is waited for if there is a board. How many ended.
pub(crate) async fn client(
    address: String,
    first_seed: u64,
    until: Instant,
    board: Option<Board>,
) -> anyhow::Result<u64> {
    let mut line = HttpConnection::open(&address).await?;
    let mut count = 0;
    while Instant::now() < until {
        let job = submit(&mut line, first_seed + count).await?;
        if let Some(board) = &board {
            board.wait_for(job).await.context("the worker went away")?;
        }
        count += 1;
    }
    Ok(count)
}

#[derive(Debug, serde::Deserialize)]
struct Accepted {
    id: JobId,
}

pub(crate) async fn submit(line: &mut HttpConnection, seed: u64) -> anyhow::Result<JobId> {
    let (status, body) = line.post("/remuda/v1/jobs", "", &submission(seed)).await?;
    ensure!(status == 201, "a submission was answered {status}: {}", String::from_utf8_lossy(&body));
    let answer: Accepted = serde_json::from_slice(&body)?;
    Ok(answer.id)
}

/// A worker that ends everything at once, until it is aborted.
pub(crate) async fn worker(
    address: String,
    name: String,
    slots: u32,
    board: Board,
    tells: BoardEvent,
) -> anyhow::Result<()> {
    let mut line = HttpConnection::open(&address).await?;
    let join = json!({ "worker": name, "services": ["exec"], "slots": slots });
    let (status, body) = line.post("/remuda/v1/workers", "", join.to_string().as_bytes()).await?;
    ensure!(status == 201, "the worker was not let in: {}", String::from_utf8_lossy(&body));
    let joined: JoinReply = serde_json::from_slice(&body)?;
    let path = format!("/remuda/v1/workers/{name}/beat?wait=20");
    let mut finished: Vec<FinishedAttempt> = Vec::new();
    let mut term = joined.term;
    for seq in 1.. {
        let beat = beat(&joined, seq, term, std::mem::take(&mut finished));
        let (status, body) = line.post(&path, &joined.token, &serde_json::to_vec(&beat)?).await?;
        ensure!(status == 200, "a beat was answered {status}: {}", String::from_utf8_lossy(&body));
        let reply: BeatReply = serde_json::from_slice(&body)?;
        let now = Instant::now();
        term = reply.term;
        if tells == BoardEvent::Ends {
            reply.settled.iter().for_each(|settled| board.tell(settled.job, now));
        }
        for start in reply.start {
            if tells == BoardEvent::Orders {
                board.tell(start.job, now);
            }
            finished.push(done(start.job, start.attempt));
        }
    }
    Ok(())
}

pub(crate) async fn get(address: &str, path: &str) -> anyhow::Result<Vec<u8>> {
    let response = remuda_net::http_client::client_builder()
        .build()?
        .get(format!("http://{address}{path}"))
        .send()
        .await?;
    Ok(response.bytes().await?.to_vec())
}

pub(crate) fn beat(joined: &JoinReply, seq: u64, term: Term, finished: Vec<FinishedAttempt>) -> Beat {
    Beat {
        incarnation: joined.incarnation,
        seq,
        term,
        held: Vec::new(),
        finished,
        unavailable_reason: None,
        slots: None,
        offer: None,
        metrics: serde_json::Map::new(),
        check: None,
        draining: false,
        service_restarts: None,
    }
}

pub(crate) fn done(job: JobId, attempt: Attempt) -> FinishedAttempt {
    FinishedAttempt {
        job,
        attempt,
        outcome: AttemptOutcome::Completed,
        result: None,
        cause: None,
        fault: None,
        node: None,
        shortage: None,
        recovered: false,
        message: String::new(),
    }
}

/// The value below which `percent` of the sorted values lie.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}
