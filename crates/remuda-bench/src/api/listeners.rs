//! Many who listen to running jobs: what they cost the plane, and how late they hear what a worker told.
//!
//! One worker holds all jobs and reports on each once a second; every report carries the moment at which it was sent, and
//! a listener looks for nothing else in what it is sent. The same listeners serve server-sent events and ComfyUI's socket.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use remuda_core::id::{Attempt, JobId};
use remuda_core::wire::{BeatReply, JoinReply};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{ApiOptions, submission};
use crate::figures::Figures;
use crate::http_connection::HttpConnection;
use crate::load::percentile;
use crate::plane_process::PlaneProcess;

const MARK: &[u8] = b"stamp";
const REPORT_EVERY: Duration = Duration::from_secs(1);
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// What is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Events,
    Socket,
}

pub(crate) async fn measure(table: &mut Figures, options: &ApiOptions, data: &Path) -> anyhow::Result<()> {
    for (kind, name) in [(Kind::Events, "SSE"), (Kind::Socket, "WebSocket")] {
        let places = options.listeners + options.jobs + 100;
        let settings =
            [format!("limits.streams_max={places}"), format!("limits.connections_max={}", 2 * places)];
        let plane = PlaneProcess::start_with(&data.join(name), &settings).await?;
        let result = listen(table, options, &plane, kind, name).await;
        plane.kill().await?;
        result?;
    }
    Ok(())
}

async fn listen(
    table: &mut Figures,
    options: &ApiOptions,
    plane: &PlaneProcess,
    kind: Kind,
    name: &str,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let jobs = submit(plane, options.jobs, kind).await?;
    let mut worker = Worker::join(plane, options.jobs).await?;
    worker.take(options.jobs).await?;
    // What submissions left behind is given back first.
    tokio::time::sleep(2 * REPORT_EVERY).await;
    let before = plane.memory_bytes()?;
    let lags = Lags::default();
    let mut listeners = Vec::new();
    for n in 0..options.listeners {
        let line = open(plane, kind, jobs[n % jobs.len()], n % jobs.len()).await?;
        listeners.push(tokio::spawn(hear(line, began, lags.clone())));
    }
    let url = format!("http://{}", plane.address);
    let sent = Arc::<AtomicUsize>::default();
    let reports = tokio::spawn(worker.report(url, began, sent.clone()));
    // The first reports find everything in place.
    tokio::time::sleep(3 * REPORT_EVERY).await;
    lags.take();
    let sent_before = sent.load(Ordering::Relaxed);
    let (cpu, from) = (plane.cpu_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(options.seconds.max(2))).await;
    let cpu = (plane.cpu_seconds()? - cpu) / from.elapsed().as_secs_f64();
    let grown = plane.memory_bytes()?.saturating_sub(before);
    let mut heard = lags.take();
    let told =
        (sent.load(Ordering::Relaxed) - sent_before) as f64 * options.listeners as f64 / options.jobs as f64;
    ensure!(!reports.is_finished(), "the worker stopped reporting: {:?}", reports.await);
    reports.abort();
    let gone = listeners.iter().filter(|listener| listener.is_finished()).count();
    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    ensure!(gone == 0, "{gone} of {} listeners were cut off", options.listeners);
    heard.sort_unstable();
    let (count, running) = (options.listeners, options.jobs);
    let what = format!("{count} {name} listeners on {running} jobs");
    let rate = heard.len() as f64 / from.elapsed().as_secs_f64();
    table.add(&what, rate, "events/s", format!("{:.2} of what was told", heard.len() as f64 / told));
    table.add(&format!("{what}: CPU"), cpu * 100.0, "% of a core", String::new());
    let note = format!("{:.0} KB a listener", grown as f64 / 1e3 / count as f64);
    table.add(&format!("{what}: memory"), grown as f64 / 1e6, "MB", note);
    for percent in [50, 99] {
        let lag = percentile(&heard, percent).as_secs_f64() * 1e3;
        table.add(&format!("{what}: lag, p{percent}"), lag, "ms", String::new());
    }
    Ok(())
}

/// Jobs by the surface that is listened to: on ComfyUI's socket one hears of what one submitted oneself.
async fn submit(plane: &PlaneProcess, count: usize, kind: Kind) -> anyhow::Result<Vec<JobId>> {
    let mut line = HttpConnection::open(&plane.address).await?;
    let mut jobs = Vec::new();
    for n in 0..count {
        let body = submission(n as u64);
        let (path, body, id) = match kind {
            Kind::Events => ("/api/v2/jobs", body, "id"),
            Kind::Socket => {
                let workflow: Value = serde_json::from_slice(&body)?;
                let body = json!({ "prompt": workflow["workflow"], "client_id": client(n) });
                ("/prompt", body.to_string().into_bytes(), "prompt_id")
            }
        };
        let (status, answer) = line.post(path, "", &body).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!((200..300).contains(&status), "a submission was answered {status}: {answer}");
        jobs.push(answer[id].as_str().context("no id")?.parse()?);
    }
    Ok(jobs)
}

fn client(n: usize) -> String {
    format!("bench-{n}")
}

async fn open(plane: &PlaneProcess, kind: Kind, job: JobId, n: usize) -> anyhow::Result<TcpStream> {
    let mut line = TcpStream::connect(&plane.address).await?;
    let address = &plane.address;
    let head = match kind {
        Kind::Events => format!("GET /api/v2/jobs/{job}/events HTTP/1.1\r\nhost: {address}\r\n\r\n"),
        Kind::Socket => format!(
            "GET /ws?clientId={} HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            client(n)
        ),
    };
    line.write_all(head.as_bytes()).await?;
    let mut first = [0; 12];
    line.read_exact(&mut first).await?;
    let status = String::from_utf8_lossy(&first).into_owned();
    ensure!(status.ends_with("200") || status.ends_with("101"), "a listener was answered {status}");
    Ok(line)
}

/// Latencies of every event at every listener.
#[derive(Clone, Debug, Default)]
struct Lags(Arc<Mutex<Vec<Duration>>>);

impl Lags {
    fn add(&self, lag: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(lag);
    }

    fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Looks for the moments in whatever comes, until the line is cut.
async fn hear(mut line: TcpStream, began: Instant, lags: Lags) -> anyhow::Result<()> {
    let mut read = Vec::with_capacity(4096);
    loop {
        if line.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        let now = began.elapsed();
        let mut seen = 0;
        while let Some(at) = read[seen..].windows(MARK.len()).position(|piece| piece == MARK) {
            let rest = &read[seen + at + MARK.len()..];
            let digits: Vec<u8> = rest
                .iter()
                .copied()
                .skip_while(|it| !it.is_ascii_digit())
                .take_while(u8::is_ascii_digit)
                .collect();
            // The rest of it is still on its way.
            if rest.len() < digits.len() + 4 {
                break;
            }
            if let Ok(micros) = String::from_utf8(digits)?.parse() {
                lags.add(now.saturating_sub(Duration::from_micros(micros)));
            }
            seen += at + MARK.len();
        }
        let keep = read.len().saturating_sub(64).max(seen);
        read.drain(..keep);
    }
}

/// A worker that takes everything, ends nothing, and tells how far it is.
struct Worker {
    line: HttpConnection,
    joined: JoinReply,
    seq: u64,
    held: Vec<(JobId, Attempt)>,
}

const NAME: &str = "bench";

impl Worker {
    async fn join(plane: &PlaneProcess, slots: usize) -> anyhow::Result<Worker> {
        let mut line = HttpConnection::open(&plane.address).await?;
        let join = json!({ "worker": NAME, "services": ["comfyui"], "slots": slots });
        let (status, body) = line.post("/remuda/v1/workers", "", join.to_string().as_bytes()).await?;
        ensure!(status == 201, "the worker was not let in: {}", String::from_utf8_lossy(&body));
        Ok(Worker { line, joined: serde_json::from_slice(&body)?, seq: 0, held: Vec::new() })
    }

    async fn take(&mut self, wanted: usize) -> anyhow::Result<()> {
        while self.held.len() < wanted {
            let reply = self.beat().await?;
            for start in reply.start {
                if !self.held.iter().any(|(job, _)| *job == start.job) {
                    self.held.push((start.job, start.attempt));
                }
            }
        }
        self.beat().await.map(drop)
    }

    async fn beat(&mut self) -> anyhow::Result<BeatReply> {
        self.seq += 1;
        let held: Vec<_> = self
            .held
            .iter()
            .map(|(job, attempt)| json!({ "job": job, "attempt": attempt, "step": self.seq }))
            .collect();
        let JoinReply { incarnation, term, token, .. } = &self.joined;
        let beat = json!({ "incarnation": incarnation, "seq": self.seq, "term": term, "held": held });
        let path = format!("/remuda/v1/workers/{NAME}/beat");
        let (status, body) = self.line.post(&path, token, beat.to_string().as_bytes()).await?;
        ensure!(status == 200, "a beat was answered {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }

    /// For ever: on each job in turn, evenly over time.
    async fn report(mut self, url: String, began: Instant, told: Arc<AtomicUsize>) -> anyhow::Result<()> {
        let http = remuda_net::http_client::client_builder().build()?;
        let mut next = tokio::time::interval(REPORT_EVERY / u32::try_from(self.held.len().max(1))?);
        next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut beat_at = Instant::now();
        for round in 1_u64.. {
            for (job, attempt) in self.held.clone() {
                next.tick().await;
                let stamp = u64::try_from(began.elapsed().as_micros())?;
                let prompt = job.service_job_id(attempt);
                let data = json!({ "value": round, "max": 1_000_000, "node": "3", "prompt_id": prompt, "stamp": stamp });
                let report = json!({
                    "progress": {
                        "value": 0.5, "nodes_done": 1, "nodes_total": 3, "current_node": "3", "step": round,
                        "message": format!("stamp:{stamp} of a second"),
                    },
                    "messages": [{ "type": "progress", "data": data }],
                });
                let path = format!("{url}/remuda/v1/workers/{NAME}/live?job={job}&attempt={attempt}");
                let sent = http.put(path).bearer_auth(&self.joined.token).json(&report).send().await?;
                ensure!(sent.status().is_success(), "a report was answered {}", sent.text().await?);
                told.fetch_add(1, Ordering::Relaxed);
            }
            if beat_at.elapsed() >= BEAT_EVERY {
                beat_at = Instant::now();
                self.beat().await?;
            }
        }
        Ok(())
    }
}
