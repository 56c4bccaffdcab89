//! `remuda bench workers`: joins many workers to a plane with default settings, each on a connection of its own with a long
//! poll, as real ones are, and looks what breaks: places for connections, memory, the CPU of idle beats, health checks,
//! dispatch, and the return of all of them after the plane was killed. The run fails if a worker is refused or lost.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use remuda_core::id::Term;
use remuda_core::wire::{BeatReply, JoinReply};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::figures::{self, Figures};
use crate::http_connection::HttpConnection;
use crate::load::{self, Board, percentile};
use crate::open_files;
use crate::plane_process::PlaneProcess;

#[derive(Debug, Args)]
pub(crate) struct WorkersBenchOptions {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Workers that join
    #[arg(long, default_value_t = 5000)]
    workers: usize,
    /// Seconds for which they are idle and measured
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Jobs submitted to idle workers, one after the other
    #[arg(long, default_value_t = 200)]
    jobs: u64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// Workers that join at the same time.
const JOINING: usize = 64;
/// As an agent waits for orders: below what middleboxes cut.
const WAIT_SECONDS: u64 = 25;
/// Between two looks at the health of the plane.
const HEALTH_EVERY: Duration = Duration::from_millis(200);
/// An agent waits up to a second before it calls a plane again that does not answer.
const RETRY_MAX_MILLIS: u64 = 1000;
const DISPATCH_MAX: Duration = Duration::from_secs(30);
/// Two minutes: a stale worker would have been noticed by then.
const RETURN_MAX: Duration = Duration::from_secs(120);

pub(crate) async fn run(options: WorkersBenchOptions) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &WorkersBenchOptions, data: &Path) -> anyhow::Result<Figures> {
    open_files::allow(options.workers as u64)?;
    let mut table = Figures::default();
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let crowd = Crowd::join(&plane, options.workers, &mut table).await?;
    crowd.stay_idle(&plane, options, &mut table).await?;
    crowd.run_jobs(&plane, options.jobs, &mut table).await?;
    let address = plane.address.clone();
    plane.kill().await?;
    let plane = PlaneProcess::start_at(&data.join("plane"), &address).await?;
    crowd.come_back(&plane, &mut table).await?;
    plane.kill().await?;
    Ok(table)
}

/// The workers, each in a task of its own.
struct Crowd {
    count: usize,
    beats: Arc<AtomicU64>,
    board: Board,
    _tasks: JoinSet<anyhow::Result<()>>,
}

impl Crowd {
    async fn join(plane: &PlaneProcess, count: usize, table: &mut Figures) -> anyhow::Result<Crowd> {
        let (empty, began) = (plane.memory_bytes()?, Instant::now());
        let (beats, board) = (Arc::<AtomicU64>::default(), Board::default());
        let (mut tasks, mut joining) = (JoinSet::new(), JoinSet::new());
        let mut next = 0..count;
        loop {
            while joining.len() < JOINING
                && let Some(n) = next.next()
            {
                joining.spawn(Member::join(plane.address.clone(), n));
            }
            let Some(joined) = joining.join_next().await else { break };
            let member = joined?.context("a worker could not join")?;
            tasks.spawn(member.run(beats.clone(), board.clone()));
        }
        let took = began.elapsed().as_secs_f64();
        table.add("workers that join", count as f64 / took, "/s", format!("all of {count} in {took:.1} s"));
        let grown = plane.memory_bytes()?.saturating_sub(empty) as f64;
        let note = format!("{:.1} KB a worker", grown / 1e3 / count as f64);
        table.add("memory of the workers", grown / 1e6, "MB", note);
        Ok(Crowd { count, beats, board, _tasks: tasks })
    }

    /// Only long polls, for a while.
    async fn stay_idle(
        &self,
        plane: &PlaneProcess,
        options: &WorkersBenchOptions,
        table: &mut Figures,
    ) -> anyhow::Result<()> {
        let (cpu, beats, from) = (plane.cpu_seconds()?, self.beats.load(Ordering::Relaxed), Instant::now());
        let until = from + Duration::from_secs(options.seconds.max(1));
        let mut health = Vec::new();
        while Instant::now() < until {
            let asked = Instant::now();
            load::get(&plane.address, "/health/ready").await?;
            health.push(asked.elapsed());
            tokio::time::sleep(HEALTH_EVERY).await;
        }
        let seconds = from.elapsed().as_secs_f64();
        let cpu = (plane.cpu_seconds()? - cpu) / seconds * 100.0;
        let beats = (self.beats.load(Ordering::Relaxed) - beats) as f64 / seconds;
        table.add("idle: beats", beats, "/s", String::new());
        table.add("idle: CPU of the plane", cpu, "% of a core", String::new());
        health.sort_unstable();
        for percent in [50, 99] {
            let took = percentile(&health, percent).as_secs_f64() * 1e3;
            table.add(&format!("idle: /health/ready, p{percent}"), took, "ms", String::new());
        }
        self.check(plane).await
    }

    /// One job after the other; each goes to one of thousands of idle workers.
    async fn run_jobs(&self, plane: &PlaneProcess, jobs: u64, table: &mut Figures) -> anyhow::Result<()> {
        let mut line = HttpConnection::open(&plane.address).await?;
        let mut took = Vec::new();
        for seed in 0..jobs {
            let submitted = Instant::now();
            let job = load::submit(&mut line, seed).await?;
            let arrived = tokio::time::timeout(DISPATCH_MAX, self.board.wait_for(job)).await;
            let arrived = arrived.with_context(|| format!("job {job} reached no worker"))??;
            took.push(arrived.duration_since(submitted));
        }
        took.sort_unstable();
        for percent in [50, 99] {
            let took = percentile(&took, percent).as_secs_f64() * 1e3;
            let note = "from the submission to the order at the worker, synced".to_owned();
            table.add(&format!("job to an idle worker, p{percent}"), took, "ms", note);
        }
        self.check(plane).await
    }

    /// After `kill -9` of the plane all of them call the new process at about the same time.
    async fn come_back(&self, plane: &PlaneProcess, table: &mut Figures) -> anyhow::Result<()> {
        let began = Instant::now();
        let note = format!("the plane was ready after {:.1} s", plane.ready_after.as_secs_f64());
        loop {
            let missing = self.count - reconnected(plane).await?;
            if missing == 0 {
                break;
            }
            ensure!(
                began.elapsed() < RETURN_MAX,
                "{missing} workers did not come back after the plane's restart"
            );
            tokio::time::sleep(HEALTH_EVERY).await;
        }
        table.add("all workers back after kill -9 of the plane", began.elapsed().as_secs_f64(), "s", note);
        self.check(plane).await
    }

    /// Every worker is online, and no connection was refused.
    async fn check(&self, plane: &PlaneProcess) -> anyhow::Result<()> {
        let status: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/status").await?)?;
        let listed: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/workers").await?)?;
        let workers = listed["workers"].as_array().context("no list of workers")?;
        let online = workers.iter().filter(|worker| worker["presence"] == "online").count();
        ensure!(online == self.count, "{online} of {} workers are online: {}", self.count, status["brake"]);
        let stale: u64 = workers.iter().filter_map(|worker| worker["went_stale"].as_u64()).sum();
        ensure!(stale == 0, "workers went stale {stale} times although each had a request under way");
        let refused = status["connections"]["refused"].as_object().context("no refused connections")?;
        let refused_sum: u64 = refused.values().filter_map(Value::as_u64).sum();
        ensure!(refused_sum == 0, "connections were refused: {refused:?}");
        Ok(())
    }
}

/// How many workers have beaten since this process of the plane started.
async fn reconnected(plane: &PlaneProcess) -> anyhow::Result<usize> {
    let listed: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/workers").await?)?;
    let workers = listed["workers"].as_array().context("no list of workers")?;
    Ok(workers.iter().filter(|worker| worker["availability"] == "ready").count())
}

/// One worker with one slot that ends what it gets at once.
struct Member {
    address: String,
    line: HttpConnection,
    number: usize,
    joined: JoinReply,
}

impl Member {
    async fn join(address: String, number: usize) -> anyhow::Result<Member> {
        let mut line = HttpConnection::open(&address).await?;
        let join = json!({ "worker": name(number), "services": ["exec"], "slots": 1 });
        let (status, body) = line.post("/remuda/v1/workers", "", join.to_string().as_bytes()).await?;
        ensure!(status == 201, "a join was answered {status}: {}", String::from_utf8_lossy(&body));
        Ok(Member { address, line, number, joined: serde_json::from_slice(&body)? })
    }

    /// Beats until the program ends; a plane that is away is called again.
    async fn run(mut self, beats: Arc<AtomicU64>, board: Board) -> anyhow::Result<()> {
        let path = format!("/remuda/v1/workers/{}/beat?wait={WAIT_SECONDS}", name(self.number));
        let (mut term, mut finished) = (self.joined.term, Vec::new());
        for seq in 1_u64.. {
            let beat = load::beat(&self.joined, seq, term, finished.clone());
            let sent = self.line.post(&path, &self.joined.token, &serde_json::to_vec(&beat)?).await;
            let Ok((200, body)) = sent else {
                self.reconnect(seq).await;
                continue;
            };
            beats.fetch_add(1, Ordering::Relaxed);
            let reply: BeatReply = serde_json::from_slice(&body).context("a reply could not be read")?;
            term = Term(reply.term.0.max(term.0));
            if !reply.beat_again {
                finished.clear();
            }
            let now = Instant::now();
            reply.start.iter().for_each(|start| board.tell(start.job, now));
            finished.extend(reply.start.iter().map(|start| load::done(start.job, start.attempt)));
        }
        Ok(())
    }

    /// Spread over a second, as agents do.
    async fn reconnect(&mut self, seq: u64) {
        loop {
            let spread =
                (self.number as u64).wrapping_mul(2_654_435_761).wrapping_add(seq) % RETRY_MAX_MILLIS;
            tokio::time::sleep(Duration::from_millis(spread)).await;
            if let Ok(line) = HttpConnection::open(&self.address).await {
                self.line = line;
                return;
            }
        }
    }
}

fn name(number: usize) -> String {
    format!("bench-{number:05}")
}
