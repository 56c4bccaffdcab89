//! Workers that beat as the settings say, each on a connection of its own, while jobs come in at a steady pace. A job
//! takes a second at its worker, so that most workers wait for orders most of the time, as they do in a fleet.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use remuda_core::wire::{BeatReply, JoinReply};
use serde_json::json;
use tokio::task::JoinSet;

use super::FleetBenchOptions;
use crate::figures::Figures;
use crate::http_connection::HttpConnection;
use crate::load::{self, percentile};
use crate::plane_process::PlaneProcess;

/// How long a job takes.
const WORK: Duration = Duration::from_secs(1);
/// As an agent waits for orders: below what middleboxes cut.
const WAIT_SECONDS: u64 = 25;
/// Workers that join at the same time.
const JOINING: usize = 64;
const SUBMITTERS: u64 = 16;
/// Until the flow is steady.
const WARM_UP: Duration = Duration::from_secs(5);

/// What all workers together have seen.
#[derive(Debug, Default)]
struct Seen {
    /// Nothing counts before.
    is_open: AtomicBool,
    beats: AtomicU64,
    done: AtomicU64,
    submitted: AtomicU64,
    /// Beats with news, which are answered at once.
    latencies: Mutex<Vec<Duration>>,
}

impl Seen {
    fn count(&self, counter: &AtomicU64, by: u64) {
        if self.is_open.load(Ordering::Relaxed) {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn took(&self, latency: Duration) {
        if self.is_open.load(Ordering::Relaxed) {
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
        }
    }
}

pub(crate) async fn measure(
    table: &mut Figures,
    options: &FleetBenchOptions,
    data: &Path,
) -> anyhow::Result<()> {
    let places = format!("limits.worker_connections_max={}", options.workers + 500);
    let plane = PlaneProcess::start_with(data, &[places]).await?;
    let result = crowd(table, options, &plane).await;
    plane.kill().await?;
    result
}

async fn crowd(table: &mut Figures, options: &FleetBenchOptions, plane: &PlaneProcess) -> anyhow::Result<()> {
    let empty = plane.memory_bytes()?;
    let seen = Arc::<Seen>::default();
    let began = Instant::now();
    let mut workers = join(plane, options.workers, &seen).await?;
    let joined_after = began.elapsed().as_secs_f64();
    let count = options.workers;
    let note = format!("all of {count} in {joined_after:.1} s");
    table.add("workers that join", count as f64 / joined_after, "/s", note);
    let grown = plane.memory_bytes()?.saturating_sub(empty);
    let note = format!("{:.1} KB a worker", grown as f64 / 1e3 / count as f64);
    table.add(&format!("memory, {count} workers on the line"), grown as f64 / 1e6, "MB", note);

    let mut submitters = JoinSet::new();
    for n in 0..SUBMITTERS {
        submitters.spawn(submit(plane.address.clone(), n, options.jobs, seen.clone()));
    }
    tokio::time::sleep(WARM_UP).await;
    seen.is_open.store(true, Ordering::Relaxed);
    let (cpu, from) = (plane.cpu_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(options.seconds.max(1))).await;
    seen.is_open.store(false, Ordering::Relaxed);
    let seconds = from.elapsed().as_secs_f64();
    let cpu = (plane.cpu_seconds()? - cpu) / seconds;
    for tasks in [&mut submitters, &mut workers] {
        if let Some(ended) = tasks.try_join_next() {
            ended??;
            anyhow::bail!("a worker stopped before the end");
        }
    }
    let rate = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / seconds;
    let name = format!("{count} workers, {} jobs/s asked for", options.jobs);
    table.add(&format!("{name}: submitted"), rate(&seen.submitted), "jobs/s", String::new());
    table.add(&format!("{name}: done"), rate(&seen.done), "jobs/s", String::new());
    table.add(&format!("{name}: beats"), rate(&seen.beats), "/s", String::new());
    table.add(&format!("{name}: CPU of the plane"), cpu * 100.0, "% of a core", String::new());
    let peak = plane.memory_peak_bytes()? as f64 / 1e6;
    table.add(
        &format!("{name}: memory"),
        plane.memory_bytes()? as f64 / 1e6,
        "MB",
        format!("{peak:.0} at most"),
    );
    let mut latencies = std::mem::take(&mut *seen.latencies.lock().unwrap_or_else(PoisonError::into_inner));
    latencies.sort_unstable();
    for percent in [50, 99] {
        let latency = percentile(&latencies, percent).as_secs_f64() * 1e3;
        table.add(
            &format!("{name}: beat, p{percent}"),
            latency,
            "ms",
            "with an end to report, synced".to_owned(),
        );
    }
    Ok(())
}

/// Lets all of them in; from then on each does as an agent does.
async fn join(
    plane: &PlaneProcess,
    count: usize,
    seen: &Arc<Seen>,
) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let (mut workers, mut joining) = (JoinSet::new(), JoinSet::new());
    let mut next = 0..count;
    loop {
        while joining.len() < JOINING
            && let Some(n) = next.next()
        {
            joining.spawn(enter(plane.address.clone(), format!("bench-{n:05}")));
        }
        let Some(joined) = joining.join_next().await else { return Ok(workers) };
        workers.spawn(work(joined??, seen.clone()));
    }
}

struct Worker {
    line: HttpConnection,
    path: String,
    joined: JoinReply,
}

async fn enter(address: String, name: String) -> anyhow::Result<Worker> {
    let mut line = HttpConnection::open(&address).await?;
    let join = json!({ "worker": name, "services": ["exec"], "slots": 1 });
    let (status, body) = line.post("/remuda/v1/workers", "", join.to_string().as_bytes()).await?;
    ensure!(status == 201, "a worker was not let in: {}", String::from_utf8_lossy(&body));
    let path = format!("/remuda/v1/workers/{name}/beat?wait={WAIT_SECONDS}");
    Ok(Worker { line, path, joined: serde_json::from_slice(&body)? })
}

/// Waits for orders, works, tells.
async fn work(mut worker: Worker, seen: Arc<Seen>) -> anyhow::Result<()> {
    let (mut finished, mut term) = (Vec::new(), worker.joined.term);
    for seq in 1.. {
        let has_news = !finished.is_empty();
        let beat = load::beat(&worker.joined, seq, term, std::mem::take(&mut finished));
        let asked = Instant::now();
        let body = serde_json::to_vec(&beat)?;
        let (status, body) = worker.line.post(&worker.path, &worker.joined.token, &body).await?;
        ensure!(status == 200, "a beat was answered {status}: {}", String::from_utf8_lossy(&body));
        if has_news {
            seen.took(asked.elapsed());
        }
        seen.count(&seen.beats, 1);
        let reply: BeatReply = serde_json::from_slice(&body).context("a reply could not be read")?;
        term = reply.term;
        seen.count(&seen.done, reply.settled.len() as u64);
        if !reply.start.is_empty() {
            tokio::time::sleep(WORK).await;
            finished = reply.start.iter().map(|start| load::done(start.job, start.attempt)).collect();
        }
    }
    Ok(())
}

/// One job after another at its share of the pace; what is late is caught up with.
async fn submit(address: String, n: u64, jobs: u64, seen: Arc<Seen>) -> anyhow::Result<()> {
    let mut line = HttpConnection::open(&address).await?;
    let mut pace =
        tokio::time::interval(Duration::from_secs(1).mul_f64(SUBMITTERS as f64 / jobs.max(1) as f64));
    for seed in n * 1_000_000_000.. {
        pace.tick().await;
        load::submit(&mut line, seed).await?;
        seen.count(&seen.submitted, 1);
    }
    Ok(())
}
