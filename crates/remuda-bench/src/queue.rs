//! `remuda bench queue`: one run, one machine, one table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use remuda_store::{measure_inserts, measure_job_cycles};
use serde_json::Value;

use crate::figures::{self, Figures};
use crate::load::{self, Board, BoardEvent};
use crate::plane_process::PlaneProcess;
use crate::{core_claims, machine_limits};

#[derive(Debug, Args)]
pub(crate) struct QueueOptions {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Seconds for each measurement under load
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Waiting jobs for the largest measurement
    #[arg(long, default_value_t = 1_000_000)]
    waiting: u64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// Slots of each of the two workers under load.
const SLOTS: u32 = 256;
const DISPATCHES: usize = 1000;
const SMALL: u64 = 100_000;
const SUBMITTERS: usize = 64;
/// How many jobs are taken from a long queue to see how fast that goes.
const DRAINED: u64 = 20_000;

pub(crate) async fn run(options: QueueOptions) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &QueueOptions, data: &Path) -> anyhow::Result<Figures> {
    let mut table = Figures::default();
    let syncs = machine(&mut table, data)?;
    under_load(&mut table, options, data).await?;
    dispatch(&mut table, data, syncs).await?;
    claims(&mut table, options)?;
    long_queue(&mut table, options, data).await?;
    Ok(table)
}

/// The machine's own limits; gives syncs per second.
fn machine(table: &mut Figures, data: &Path) -> anyhow::Result<f64> {
    let syncs = machine_limits::syncs_per_second(data)?;
    table.add("limit: fdatasync", syncs, "/s", format!("{:.0} µs each", 1e6 / syncs));
    for batch in [64, 256] {
        let rate =
            measure_inserts(&data.join(format!("limit-{batch}.sqlite")), batch, Duration::from_secs(2))?;
        table.add(
            &format!("limit: SQLite inserts, batches of {batch}"),
            rate,
            "rows/s",
            "1 KB rows, synced".to_owned(),
        );
    }
    for batch in [1, 64, 256] {
        let rate =
            measure_job_cycles(&data.join(format!("lives-{batch}.sqlite")), batch, Duration::from_secs(2))?;
        let note = "insert, start, end, each synced; nothing else".to_owned();
        table.add(&lives(batch), rate, "jobs/s", note);
    }
    let sha = machine_limits::sha_megabytes_per_second()?;
    table.add("limit: SHA-256", sha, "MB/s", String::new());
    let hash = machine_limits::workflow_megabytes_per_second()?;
    table.add(
        "workflow read, checked, hashed",
        hash,
        "MB/s",
        format!("50 KB graph; {:.2} of SHA-256 alone", hash / sha),
    );
    Ok(syncs)
}

fn lives(batch: usize) -> String {
    format!("limit: SQLite lives, {batch} at a time")
}

async fn under_load(table: &mut Figures, options: &QueueOptions, data: &Path) -> anyhow::Result<()> {
    let plane = PlaneProcess::start(&data.join("load")).await?;
    let board = Board::default();
    let workers: Vec<_> = (0..2)
        .map(|n| {
            tokio::spawn(load::worker(
                plane.address.clone(),
                format!("bench-{n}"),
                SLOTS,
                board.clone(),
                BoardEvent::Ends,
            ))
        })
        .collect();
    for clients in [1, 64, 256] {
        let cpu = plane.cpu_seconds()?;
        let (count, seconds) = clients_for(&plane, clients, options.seconds, Some(&board)).await?;
        let cpu = (plane.cpu_seconds()? - cpu) * 1e6 / count as f64;
        let limit = table.value(&lives(clients)).unwrap_or(f64::NAN);
        let rate = count as f64 / seconds;
        let note = format!("{cpu:.0} µs of plane CPU a job; {:.2} of SQLite alone", rate / limit);
        table.add(&format!("lifecycle, {clients} in flight"), rate, "jobs/s", note);
    }
    workers.iter().for_each(tokio::task::JoinHandle::abort);
    plane.kill().await?;
    let plane = PlaneProcess::start(&data.join("submit")).await?;
    let cpu = plane.cpu_seconds()?;
    let (count, seconds) = clients_for(&plane, SUBMITTERS, options.seconds, None).await?;
    let cpu = (plane.cpu_seconds()? - cpu) * 1e6 / count as f64;
    table.add(
        "submit only, 64 in flight",
        count as f64 / seconds,
        "jobs/s",
        format!("{cpu:.0} µs of plane CPU a job"),
    );
    plane.kill().await
}

async fn clients_for(
    plane: &PlaneProcess,
    clients: usize,
    seconds: u64,
    board: Option<&Board>,
) -> anyhow::Result<(u64, f64)> {
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let clients: Vec<_> = (0..clients)
        .map(|n| {
            tokio::spawn(load::client(plane.address.clone(), n as u64 * 1_000_000_000, until, board.cloned()))
        })
        .collect();
    let mut count = 0;
    for client in clients {
        count += client.await??;
    }
    Ok((count, started.elapsed().as_secs_f64()))
}

/// From the submission to the order at a worker that waits for it, nothing else going on.
async fn dispatch(table: &mut Figures, data: &Path, syncs: f64) -> anyhow::Result<()> {
    let plane = PlaneProcess::start(&data.join("dispatch")).await?;
    let board = Board::default();
    let worker = tokio::spawn(load::worker(
        plane.address.clone(),
        "bench".to_owned(),
        1,
        board.clone(),
        BoardEvent::Orders,
    ));
    let mut line = crate::http_connection::HttpConnection::open(&plane.address).await?;
    let mut latencies = Vec::with_capacity(DISPATCHES);
    for seed in 0..DISPATCHES as u64 {
        let submitted = Instant::now();
        let job = load::submit(&mut line, seed).await?;
        let ordered = board.wait_for(job).await.context("the worker went away")?;
        latencies.push(ordered.saturating_duration_since(submitted));
        // Idle again: the worker has reported and waits on its line.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    worker.abort();
    plane.kill().await?;
    latencies.sort_unstable();
    for percent in [50, 99] {
        let latency = load::percentile(&latencies, percent).as_secs_f64();
        let note = format!("{:.1} syncs", latency * syncs);
        table.add(&format!("dispatch on an idle plane, p{percent}"), latency * 1e3, "ms", note);
    }
    Ok(())
}

fn claims(table: &mut Figures, options: &QueueOptions) -> anyhow::Result<()> {
    let mut first = None;
    for waiting in [1000, SMALL.min(options.waiting), options.waiting] {
        let rate = core_claims::claims_per_second(waiting)?;
        let first = *first.get_or_insert(rate);
        let note = format!("{:.2} of the rate at 1,000", rate / first);
        table.add(&format!("core: claim and complete, {waiting} waiting"), rate, "jobs/s", note);
    }
    Ok(())
}

/// Memory with a long queue, restarts with it, and claims from it through the whole program.
async fn long_queue(table: &mut Figures, options: &QueueOptions, data: &Path) -> anyhow::Result<()> {
    let data = data.join("long");
    let mut plane = PlaneProcess::start(&data).await?;
    let empty = plane.memory_bytes()?;
    let (mut waiting, mut first) = (0, None);
    for level in [DRAINED, SMALL.min(options.waiting), options.waiting] {
        fill(&plane, waiting, level).await?;
        let grown = plane.memory_bytes()?.saturating_sub(empty);
        let note = format!("{:.0} bytes a job", grown as f64 / level as f64);
        table.add(&format!("memory, {level} waiting"), grown as f64 / 1e6, "MB", note);
        plane.kill().await?;
        plane = PlaneProcess::start(&data).await?;
        let note = "after kill -9, until it says that it serves".to_owned();
        table.add(&format!("restart, {level} open jobs"), plane.ready_after.as_secs_f64(), "s", note);
        let grown = plane.memory_bytes()?.saturating_sub(empty);
        let note = format!("{:.0} bytes a job", grown as f64 / level as f64);
        table.add(&format!("memory after restart, {level} waiting"), grown as f64 / 1e6, "MB", note);
        let rate = drain(&plane, level).await?;
        let first = *first.get_or_insert(rate);
        let note = format!("one worker, {SLOTS} slots; {:.2} of the first", rate / first);
        table.add(&format!("claim and complete over HTTP, {level} waiting"), rate, "jobs/s", note);
        waiting = level - DRAINED.min(level);
    }
    plane.kill().await
}

/// How fast one worker takes and ends a few jobs of many.
async fn drain(plane: &PlaneProcess, waiting: u64) -> anyhow::Result<f64> {
    let worker = tokio::spawn(load::worker(
        plane.address.clone(),
        "bench".to_owned(),
        SLOTS,
        Board::default(),
        BoardEvent::Ends,
    ));
    let started = Instant::now();
    let left = waiting - DRAINED.min(waiting);
    while open_jobs(plane).await? > left {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let rate = DRAINED.min(waiting) as f64 / started.elapsed().as_secs_f64();
    worker.abort();
    Ok(rate)
}

async fn open_jobs(plane: &PlaneProcess) -> anyhow::Result<u64> {
    let status: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/status").await?)?;
    status["open_jobs"].as_u64().context("the plane did not say how many jobs are open")
}

async fn fill(plane: &PlaneProcess, from: u64, to: u64) -> anyhow::Result<()> {
    let share = (to - from).div_ceil(SUBMITTERS as u64);
    let submitters: Vec<_> = (0..SUBMITTERS as u64)
        .map(|n| {
            let (address, first) = (plane.address.clone(), from + n * share);
            let last = (first + share).min(to);
            tokio::spawn(async move {
                let mut line = crate::http_connection::HttpConnection::open(&address).await?;
                for seed in first..last {
                    load::submit(&mut line, seed).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for submitter in submitters {
        submitter.await??;
    }
    Ok(())
}
