//! The parts of a drill: one plane, and workers each with a ComfyUI stand-in and a line to the plane. Carries out faults,
//! and starts again what ended by itself, as a service manager would.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tokio::sync::Mutex;

use crate::hostile;
use crate::ledger::worker_name;
use crate::load::Drill;
use crate::process::{ProgramSpec, RunningProgram};
use crate::proxy::{Line, LineState};
use crate::schedule::{DrillRng, FaultKind, PlannedFault};
use crate::tools::{self, Tools};

#[derive(Debug)]
pub(crate) struct DrillFleet {
    plane: Part,
    workers: Vec<DrillWorker>,
    pub(crate) tools: Tools,
    /// Times that a part ended by itself and was started again.
    pub(crate) own_ends: AtomicU32,
}

#[derive(Debug)]
struct DrillWorker {
    worker: Part,
    server: Part,
    server_url: String,
    line: Line,
}

/// A program that is running, or was taken down by a fault.
#[derive(Debug)]
struct Part {
    spec: ProgramSpec,
    running: Mutex<Option<RunningProgram>>,
}

impl Part {
    fn new(spec: ProgramSpec) -> Part {
        Part { spec, running: Mutex::new(None) }
    }

    async fn start(&self) -> anyhow::Result<()> {
        *self.running.lock().await = Some(self.spec.start().await?);
        Ok(())
    }

    async fn kill_for(&self, length: Duration) -> anyhow::Result<()> {
        let running = self.running.lock().await.take();
        if let Some(running) = running {
            running.kill().await;
        }
        tokio::time::sleep(length).await;
        *self.running.lock().await = Some(self.spec.spawn().await?);
        Ok(())
    }

    async fn pause_for(&self, length: Duration) {
        if let Some(running) = &*self.running.lock().await {
            running.pause();
        }
        tokio::time::sleep(length).await;
        if let Some(running) = &*self.running.lock().await {
            running.resume();
        }
    }

    /// Starts it again if it ended by itself.
    async fn revive(&self) -> anyhow::Result<bool> {
        let mut running = self.running.lock().await;
        let has_ended = running.as_mut().is_some_and(RunningProgram::has_ended);
        if has_ended {
            *running = Some(self.spec.spawn().await?);
        }
        Ok(has_ended)
    }

    async fn stop(&self) {
        let running = self.running.lock().await.take();
        if let Some(running) = running {
            running.stop().await;
        }
    }
}

/// How long the plane keeps ended jobs: longer than a clock jumps ahead, so that no repeated submission meets a forgotten
/// job.
pub(crate) const RETENTION: Duration = Duration::from_secs(2 * 3600);
const REVIVE_EVERY: Duration = Duration::from_millis(200);
/// What a delayed line adds to every piece that passes.
const DELAY: Duration = Duration::from_millis(150);
/// The clock is set forward by up to an hour, or back by up to ten minutes.
const CLOCK_AHEAD_MAX: u64 = 3600;
const CLOCK_BEHIND_MAX: u64 = 600;

impl DrillFleet {
    /// Starts all parts; returns them and the plane's address.
    pub(crate) async fn start(
        folder: &Path,
        workers: usize,
        lease: Duration,
        tools: Tools,
    ) -> anyhow::Result<(DrillFleet, String)> {
        let address = free_address()?;
        let url = format!("http://{address}");
        let clock = tools.clock.as_ref().map(tools::FakeClock::environment).unwrap_or_default();
        let mut arguments = vec!["serve".to_owned(), "--listen".to_owned(), address.to_string()];
        arguments.extend(["--data".to_owned(), folder.join("data").display().to_string()]);
        arguments.extend(settings(lease));
        let plane = Part::new(program("plane", arguments, clock, folder));
        plane.start().await?;
        let mut fleet = DrillFleet { plane, workers: Vec::new(), tools, own_ends: AtomicU32::new(0) };
        for index in 0..workers {
            fleet.workers.push(DrillWorker::start(index, address, lease, folder).await?);
        }
        Ok((fleet, url))
    }

    /// Carries out a fault and undoes it.
    pub(crate) async fn cause(&self, drill: &Drill, fault: PlannedFault, seed: u64) -> anyhow::Result<()> {
        let index = drill.ledger().begin_fault(fault);
        let mut rng = DrillRng::new(seed ^ fault.at.as_nanos() as u64);
        let done = self.carry_out(drill, fault, &mut rng).await;
        drill.ledger().end_fault(index, drill.now());
        done.with_context(|| format!("cannot carry out: {}", fault.kind))
    }

    async fn carry_out(&self, drill: &Drill, fault: PlannedFault, rng: &mut DrillRng) -> anyhow::Result<()> {
        let PlannedFault { kind, length, .. } = fault;
        let at = &self.workers[fault.worker % self.workers.len()];
        match kind {
            FaultKind::PlaneKill => self.plane.kill_for(length).await?,
            FaultKind::PlanePause => self.plane.pause_for(length).await,
            FaultKind::WorkerKill => at.worker.kill_for(length).await?,
            FaultKind::WorkerPause => at.worker.pause_for(length).await,
            FaultKind::ServerKill => at.server.kill_for(length).await?,
            FaultKind::ServerPause => at.server.pause_for(length).await,
            FaultKind::MachineKill => {
                let (worker, server) = tokio::join!(at.worker.kill_for(length), at.server.kill_for(length));
                worker.and(server)?;
            }
            FaultKind::LineCut => set_for(&[&at.line], LineState::Cut, length).await,
            FaultKind::LineDelay => set_for(&[&at.line], LineState::Delayed(DELAY), length).await,
            FaultKind::AllLinesCut => {
                let lines: Vec<_> = self.workers.iter().map(|worker| &worker.line).collect();
                set_for(&lines, LineState::Cut, length).await;
            }
            FaultKind::SocketsDropped => at.ask_server(drill, "drop-sockets", json!({})).await,
            FaultKind::CompletionLost => {
                at.ask_server(drill, "strike", json!({ "fault": "drop-completion" })).await;
            }
            FaultKind::DiskFull => {
                if let Some(disk) = &self.tools.disk {
                    disk.fill();
                    tokio::time::sleep(length).await;
                    disk.clear();
                }
            }
            FaultKind::SyncFails | FaultKind::SyncSlow => {
                let pid = self.plane.running.lock().await.as_ref().map(RunningProgram::pid);
                if let Some(pid) = pid {
                    tools::tamper_with_syncs(pid, kind, length).await?;
                }
            }
            FaultKind::ClockJump => {
                if let Some(clock) = &self.tools.clock {
                    let ahead = i64::try_from(rng.below(CLOCK_AHEAD_MAX + CLOCK_BEHIND_MAX)).unwrap_or(0);
                    clock.set(ahead - CLOCK_BEHIND_MAX as i64)?;
                    tokio::time::sleep(length).await;
                    clock.set(0)?;
                }
            }
            FaultKind::HostileWorker => hostile::attack(drill, rng, length).await,
        }
        Ok(())
    }

    /// Watches all parts; never returns unless one cannot be started.
    pub(crate) async fn revive_all(&self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(REVIVE_EVERY).await;
            let workers = self.workers.iter().flat_map(|it| [&it.worker, &it.server]);
            for part in std::iter::once(&self.plane).chain(workers) {
                if part.revive().await? {
                    self.own_ends.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    pub(crate) async fn stop(&self) {
        for worker in &self.workers {
            worker.worker.stop().await;
            worker.server.stop().await;
        }
        self.plane.stop().await;
    }
}

impl DrillWorker {
    async fn start(
        index: usize,
        plane: SocketAddr,
        lease: Duration,
        folder: &Path,
    ) -> anyhow::Result<DrillWorker> {
        let name = worker_name(index);
        let line = Line::open(plane).await?;
        let server_at = free_address()?;
        let server_url = format!("http://{server_at}");
        let arguments = ["fake", "comfyui", "--listen", &server_at.to_string(), "--speed", "1"];
        let arguments = arguments.map(str::to_owned).to_vec();
        let server = Part::new(program(&format!("server-{index}"), arguments, Vec::new(), folder));
        server.start().await?;
        let mut arguments = vec!["worker".to_owned(), "--url".to_owned(), format!("http://{}", line.address)];
        arguments.extend(["--name", &name, "--machine", &name, "--comfyui", &server_url].map(str::to_owned));
        arguments.extend(["--data".to_owned(), folder.join(&name).display().to_string()]);
        arguments.extend(["--set".to_owned(), format!("agent.inactivity={}ms", lease.as_millis())]);
        let worker = Part::new(program(&name, arguments, Vec::new(), folder));
        *worker.running.lock().await = Some(worker.spec.spawn().await?);
        Ok(DrillWorker { worker, server, server_url, line })
    }

    /// The stand-in may be down, and then the fault has no effect.
    async fn ask_server(&self, drill: &Drill, what: &str, body: serde_json::Value) {
        drop(drill.http.post(format!("{}/fake/{what}", self.server_url)).json(&body).send().await);
    }
}

async fn set_for(lines: &[&Line], state: LineState, length: Duration) {
    lines.iter().for_each(|line| line.set(state));
    tokio::time::sleep(length).await;
    lines.iter().for_each(|line| line.set(LineState::Open));
}

fn program(
    name: &str,
    arguments: Vec<String>,
    mut environment: Vec<(&'static str, String)>,
    folder: &Path,
) -> ProgramSpec {
    environment.push(("REMUDA_LOG", "warn".to_owned()));
    ProgramSpec { name: name.to_owned(), arguments, environment, folder: folder.to_owned() }
}

/// The settings of a plane with this lease: everything that waits for silence keeps its ratio to the lease.
fn settings(lease: Duration) -> Vec<String> {
    let millis = |part: f64| format!("{}ms", lease.mul_f64(part).as_millis());
    let stall_max = lease.mul_f64(0.1).max(Duration::from_millis(1500));
    let settings = [
        format!("lease={}", millis(1.0)),
        format!("beat.busy={}", millis(1.0 / 6.0)),
        format!("beat.suspect_after={}", millis(0.5)),
        format!("beat.idle={}", millis(1.0)),
        format!("beat.stale_after={}", millis(3.0)),
        format!("order_grace={}", millis(1.0 / 6.0)),
        format!("plane_stall_max={}ms", stall_max.as_millis()),
        format!("retention={}s", RETENTION.as_secs()),
    ];
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

/// An address that is free now. Another program might take it in the next moment; then the start fails and says so.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?)
}
