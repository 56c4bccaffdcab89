//! From `kill -9` of a worker process to its job running elsewhere, with the settings as they are by default. Everything a
//! worker started dies with it, as on a machine that is gone.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use remuda_core::settings::Settings;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::figures::Figures;
use crate::http_connection::HttpConnection;
use crate::load::{self, percentile};
use crate::plane_process::PlaneProcess;

/// So many that the loss of one after the other is no mass loss.
const WORKERS: usize = 12;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longer than any lease: what takes this long never happens.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(table: &mut Figures, kills: usize, data: &Path) -> anyhow::Result<()> {
    if kills == 0 {
        return Ok(());
    }
    let plane = PlaneProcess::start(data).await?;
    let mut stable = Stable { workers: HashMap::new(), started: 0 };
    let times = kill_some(&plane, &mut stable, kills).await;
    stable.end();
    plane.kill().await?;
    let mut times = times?;
    times.sort_unstable();
    let lease = Settings::default().lease.as_secs();
    for percent in [50, 99] {
        let time = percentile(&times, percent).as_secs_f64();
        let note = format!("of {kills}; the lease is {lease} s");
        table.add(&format!("kill -9 until the job runs elsewhere, p{percent}"), time, "s", note);
    }
    Ok(())
}

async fn kill_some(plane: &PlaneProcess, stable: &mut Stable, kills: usize) -> anyhow::Result<Vec<Duration>> {
    for _ in 0..WORKERS {
        stable.start(plane)?;
    }
    let mut times = Vec::with_capacity(kills);
    for n in 0..kills {
        wait_until("enough workers are online", async || Ok(online(plane).await? >= WORKERS)).await?;
        // A kind of its own each time: one that took down several workers would rightly be kept back.
        let job = submit(plane, n).await?;
        let mut holder = String::new();
        wait_until("its worker works on it", async || {
            holder = at_work(plane, &job).await?.unwrap_or_default();
            Ok(!holder.is_empty())
        })
        .await?;
        let killed = Instant::now();
        stable.kill(&holder)?;
        wait_until("the job runs elsewhere", async || {
            let other = at_work(plane, &job).await?;
            Ok(other.is_some_and(|other| other != holder))
        })
        .await?;
        times.push(killed.elapsed());
        let mut line = HttpConnection::open(&plane.address).await?;
        line.post(&format!("/remuda/v1/jobs/{job}/cancel"), "", b"").await?;
        stable.start(plane)?;
    }
    Ok(times)
}

/// The worker processes, by name.
struct Stable {
    workers: HashMap<String, Child>,
    started: usize,
}

impl Stable {
    fn start(&mut self, plane: &PlaneProcess) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let name = format!("bench-{}", self.started);
        self.started += 1;
        let child = Command::new(program)
            .args(["worker", "--url", &format!("http://{}", plane.address), "--name", &name])
            .args(["--exec", "echo begun >&2; exec sleep 600"])
            .env("REMUDA_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker")?;
        self.workers.insert(name, child);
        Ok(())
    }

    /// With all that it started, and without a word.
    fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let child = self.workers.remove(name).with_context(|| format!("{name} is no worker of ours"))?;
        end(&child);
        Ok(())
    }

    fn end(&mut self) {
        for (_, child) in self.workers.drain() {
            end(&child);
        }
    }
}

fn end(child: &Child) {
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        kill_process_group(pid, Signal::KILL).ok();
    }
}

async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        ensure!(began.elapsed() < PATIENCE, "waited {} s in vain until {what}", PATIENCE.as_secs());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn submit(plane: &PlaneProcess, n: usize) -> anyhow::Result<String> {
    let mut line = HttpConnection::open(&plane.address).await?;
    let body = json!({ "workflow": { (format!("kind_{n}")): 1 } }).to_string();
    let (status, body) = line.post("/remuda/v1/jobs", "", body.as_bytes()).await?;
    ensure!(status == 201, "a submission was answered {status}: {}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body)?;
    Ok(answer["id"].as_str().context("no id")?.to_owned())
}

async fn online(plane: &PlaneProcess) -> anyhow::Result<usize> {
    let listed: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/workers").await?)?;
    let workers = listed["workers"].as_array().context("no workers")?;
    Ok(workers.iter().filter(|worker| worker["presence"] == "online").count())
}

/// Who works on the job, as itself has told.
async fn at_work(plane: &PlaneProcess, job: &str) -> anyhow::Result<Option<String>> {
    let listed: Value = serde_json::from_slice(&load::get(&plane.address, "/remuda/v1/workers").await?)?;
    let workers = listed["workers"].as_array().context("no workers")?;
    let has_begun = |worker: &&Value| {
        let holds = worker["holds"].as_array().into_iter().flatten();
        worker["presence"] == "online"
            && holds.into_iter().any(|hold| hold["job"] == job && hold["phase"] == "begun")
    };
    Ok(workers.iter().find(has_begun).and_then(|worker| worker["id"].as_str()).map(str::to_owned))
}
