//! `remuda bench comfyui`: what the way through Remuda costs, against stand-ins that compute in no time.

mod interactive;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use futures_util::{Stream, StreamExt as _};
use remuda_comfyui::{ComfyuiClient, ComfyuiSocket, ComfyuiTarget, PromptDraft, PromptTag};
use remuda_core::event_kind::EventKind;
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeResult, ProbeTrigger, SubmitOutcome};
use remuda_fakes::comfyui::{Fake, Fault, Faults, Options as FakeOptions};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::figures::{self, Figures};
use crate::http_connection::HttpConnection;
use crate::load::percentile;
use crate::plane_process::{PlaneProcess, Workers};
use remuda_net::http_client as dial;
use remuda_net::sse::SseReader;

#[derive(Debug, Args)]
pub(crate) struct ComfyuiBenchOptions {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Stand-ins for ComfyUI, each with a worker
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Cached prompts for the measurement under load
    #[arg(long, default_value_t = 5000)]
    jobs: usize,
    /// Successes, errors, cancellations and previews, each, for the time that a client waits for them
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Seconds to watch a server that has nothing to do
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

const SINGLES: usize = 300;
const LOSSES: usize = 5;
/// Silence after which an attempt is asked about, in the measurements of lost news.
const INACTIVITY: Duration = Duration::from_secs(2);
/// As people run it.
const USUAL_INACTIVITY: Duration = Duration::from_secs(30);
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Jobs under way at a time, for each server.
const AHEAD: usize = 8;

pub(crate) async fn run(options: ComfyuiBenchOptions) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &ComfyuiBenchOptions, data: &Path) -> anyhow::Result<Figures> {
    let mut rows = Figures::default();
    latency(&mut rows, &data.join("latency")).await?;
    interactive::measure(&mut rows, options.rounds.into(), &data.join("interactive")).await?;
    throughput(&mut rows, options, &data.join("load")).await?;
    lost(&mut rows, &data.join("lost"), Fault::DropCompletion, "completion message lost").await?;
    lost(&mut rows, &data.join("cut"), Fault::DropSockets, "socket cut in mid-run").await?;
    idle(&mut rows, options, &data.join("idle")).await?;
    Ok(rows)
}

fn fake(faults: Faults, speed: f64) -> FakeOptions {
    FakeOptions { speed, faults, ..FakeOptions::default() }
}

/// A graph that is the same every time, so that ComfyUI answers from its cache.
fn cached() -> Value {
    json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": 7 } },
        "2": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
    })
}

/// A graph that takes a moment, so that something can happen to it.
fn slow(seed: usize) -> Value {
    json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": seed } },
        "2": { "class_type": "RemudaSleep", "inputs": { "image": ["1", 0], "seconds": 0.2, "steps": 4, "preview": false } },
        "3": { "class_type": "PreviewImage", "inputs": { "images": ["2", 0] } },
    })
}

/// One prompt after the other: straight to a server, then through the plane to the same server.
async fn latency(rows: &mut Figures, data: &Path) -> anyhow::Result<()> {
    let server = Fake::start(fake(Faults::none(), f64::INFINITY)).await?;
    let direct = directly(&server).await?;
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let workers = Workers::start(&plane, &[server.url()], &data.join("workers"), USUAL_INACTIVITY).await?;
    let mut ends = Box::pin(ends(&plane).await?);
    let mut line = HttpConnection::open(&plane.address).await?;
    let mut through = Vec::with_capacity(SINGLES);
    for _ in 0..SINGLES {
        let started = Instant::now();
        let id = submit(&mut line, &cached()).await?;
        wait_for(&mut ends, &id).await?;
        through.push(started.elapsed());
        // Idle again: the worker has heard that its news arrived.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    workers.kill().await?;
    plane.kill().await?;
    through.sort_unstable();
    for percent in [50, 99] {
        let (direct, through) = (percentile(&direct, percent), percentile(&through, percent));
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let note = format!(
            "cached run: {:.2} ms directly, {:.2} ms through Remuda",
            millis(direct),
            millis(through)
        );
        rows.add(&format!("added latency, p{percent}"), millis(through) - millis(direct), "ms", note);
    }
    server.stop().await;
    Ok(())
}

/// From the submission to the outputs in history, as a careful client does it.
async fn directly(server: &Fake) -> anyhow::Result<Vec<Duration>> {
    let target = ComfyuiTarget::new(server.url());
    let client = ComfyuiClient::new(&target, Duration::from_secs(5))?;
    let mut socket = ComfyuiSocket::connect(&target, "bench", Duration::from_secs(5)).await?;
    let workflow = RawValue::from_string(cached().to_string())?;
    let mut latencies = Vec::with_capacity(SINGLES);
    for n in 0..SINGLES {
        let tag =
            PromptTag { worker: "bench".parse()?, job: JobId::from_u128(n as u128), attempt: Attempt(1) };
        let id = uuid::Uuid::new_v4().to_string();
        let Ok(prompt) = PromptDraft::read(&workflow, &Default::default())
            .and_then(|draft| draft.prepare(&tag, &id, "bench", &Default::default()))
        else {
            bail!("the graph of the benchmark is not sound");
        };
        let started = Instant::now();
        ensure!(
            matches!(client.submit(&prompt).await, SubmitOutcome::Accepted),
            "the stand-in refused a prompt"
        );
        while !socket.recv_message().await?.is_end_of(&id) {}
        let seen = client.probe(&id, ProbeTrigger::CompletionHint).await;
        ensure!(matches!(seen, ProbeResult::Succeeded { .. }), "the stand-in said {seen:?}");
        latencies.push(started.elapsed());
    }
    socket.close().await;
    latencies.sort_unstable();
    Ok(latencies)
}

/// Many cached prompts over several servers; each must complete exactly once.
async fn throughput(rows: &mut Figures, options: &ComfyuiBenchOptions, data: &Path) -> anyhow::Result<()> {
    let mut servers = Vec::new();
    for _ in 0..options.servers {
        servers.push(Fake::start(fake(Faults::none(), f64::INFINITY)).await?);
    }
    let urls: Vec<_> = servers.iter().map(Fake::url).collect();
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let workers = Workers::start(&plane, &urls, &data.join("workers"), USUAL_INACTIVITY).await?;
    let before: u64 = servers.iter().map(requests).sum();
    let ran_before: u64 = servers.iter().map(executions).sum();
    let mut ends = Box::pin(ends(&plane).await?);
    let mut line = HttpConnection::open(&plane.address).await?;
    let started = Instant::now();
    let (mut submitted, mut ended, mut twice) = (0, HashMap::new(), 0);
    while ended.len() < options.jobs {
        while submitted < options.jobs && submitted - ended.len() < AHEAD * servers.len() {
            submit(&mut line, &cached()).await?;
            submitted += 1;
        }
        let (id, state) = next_end(&mut ends).await?;
        ensure!(state == EventKind::JobCompleted, "job {id}: {state}");
        twice += usize::from(ended.insert(id, ()).is_some());
    }
    let seconds = started.elapsed().as_secs_f64();
    let jobs = options.jobs as f64;
    let asked = servers.iter().map(requests).sum::<u64>() - before;
    let ran = servers.iter().map(executions).sum::<u64>() - ran_before;
    let note = format!("{} servers, one slot each; {ran} executions, {twice} ends told twice", servers.len());
    rows.add(&format!("{} cached prompts", options.jobs), jobs / seconds, "jobs/s", note);
    let note = "submit, look, history, view; and the check at the start is not counted".to_owned();
    rows.add("requests to ComfyUI", asked as f64 / jobs, "a job", note);
    workers.kill().await?;
    plane.kill().await
}

/// How long after the end of the run, whose news is lost, the job is recorded.
async fn lost(rows: &mut Figures, data: &Path, fault: Fault, what: &str) -> anyhow::Result<()> {
    let server = Fake::start(fake(Faults::none(), 1.0)).await?;
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let workers = Workers::start(&plane, &[server.url()], &data.join("workers"), INACTIVITY).await?;
    server.control().set_faults(Faults::none().with(fault, 1.0));
    let mut ends = Box::pin(ends(&plane).await?);
    let mut line = HttpConnection::open(&plane.address).await?;
    let mut worst = Duration::ZERO;
    for seed in 0..LOSSES {
        let started = Instant::now();
        let id = submit(&mut line, &slow(seed)).await?;
        wait_for(&mut ends, &id).await?;
        worst = worst.max(started.elapsed().saturating_sub(Duration::from_millis(200)));
    }
    let executions = executions(&server);
    let note = format!(
        "worst of {LOSSES} until it is recorded; inactivity limit {INACTIVITY:?}; {executions} executions with the check"
    );
    rows.add(&format!("{what}: recovery"), worst.as_secs_f64(), "s", note);
    workers.kill().await?;
    plane.kill().await
}

/// How often a healthy server without work is asked anything.
async fn idle(rows: &mut Figures, options: &ComfyuiBenchOptions, data: &Path) -> anyhow::Result<()> {
    let server = Fake::start(fake(Faults::none(), 1.0)).await?;
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let workers = Workers::start(&plane, &[server.url()], &data.join("workers"), USUAL_INACTIVITY).await?;
    let before = requests(&server);
    tokio::time::sleep(Duration::from_secs(options.idle)).await;
    let asked = (requests(&server) - before) as f64;
    let note = format!("over {} s", options.idle);
    rows.add("requests to an idle server", asked * 10.0 / options.idle.max(1) as f64, "per 10 s", note);
    workers.kill().await?;
    plane.kill().await
}

fn requests(server: &Fake) -> u64 {
    server.counts().requests.values().sum()
}

fn executions(server: &Fake) -> u64 {
    server.counts().executions.values().map(|times| u64::from(*times)).sum()
}

async fn submit(line: &mut HttpConnection, workflow: &Value) -> anyhow::Result<String> {
    let body = json!({ "workflow": workflow }).to_string();
    let (status, body) = line.post("/remuda/v1/jobs", "", body.as_bytes()).await?;
    ensure!(status == 201, "a submission was answered {status}: {}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body)?;
    Ok(answer["id"].as_str().context("the plane did not say the job's id")?.to_owned())
}

/// Ends of jobs as they happen.
async fn ends(plane: &PlaneProcess) -> anyhow::Result<impl Stream<Item = (String, EventKind)> + use<>> {
    let url = format!("http://{}/remuda/v1/events?name=job", plane.address);
    // With what was before: the mark after it says that nothing is missed from then on.
    let asked = dial::client_builder().build()?.get(url).header("last-event-id", "0").send();
    let mut bytes = asked.await?.error_for_status()?.bytes_stream();
    let (sender, receiver) = tokio::sync::mpsc::channel(1024);
    let (is_there, there) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut reader, mut is_there) = (SseReader::default(), Some(is_there));
        while let Some(Ok(piece)) = bytes.next().await {
            for event in reader.feed(&piece).unwrap_or_default() {
                if event.name == "caught_up" {
                    is_there.take().map(|is_there| is_there.send(()));
                }
                if let Some(kind) = event.name.parse().ok().filter(|kind: &EventKind| kind.is_job_end()) {
                    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    let id = data["job"].as_str().unwrap_or_default().to_owned();
                    if sender.send((id, kind)).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    tokio::time::timeout(WAIT_MAX, there).await.context("the plane sends no events")??;
    Ok(futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|end| (end, receiver))
    }))
}

async fn next_end(
    ends: &mut (impl Stream<Item = (String, EventKind)> + Unpin),
) -> anyhow::Result<(String, EventKind)> {
    let end = tokio::time::timeout(WAIT_MAX, ends.next()).await;
    end.with_context(|| format!("no job ended within {WAIT_MAX:?}"))?
        .context("the plane sends no more events")
}

async fn wait_for(
    ends: &mut (impl Stream<Item = (String, EventKind)> + Unpin),
    id: &str,
) -> anyhow::Result<()> {
    loop {
        let (ended, state) = next_end(ends).await?;
        if ended == id {
            ensure!(state == EventKind::JobCompleted, "job {id}: {state}");
            return Ok(());
        }
    }
}
