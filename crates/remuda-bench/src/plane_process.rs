//! A plane and its workers in processes of their own, so that their memory and CPU time can be told from the load's.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

#[derive(Debug)]
pub(crate) struct PlaneProcess {
    pub(crate) address: String,
    /// From the start of the process to the line that says it is ready.
    pub(crate) ready_after: Duration,
    child: Child,
}

const READY_MAX: Duration = Duration::from_secs(300);
/// The kernel counts CPU time in these.
const TICKS_PER_SECOND: f64 = 100.0;

impl PlaneProcess {
    pub(crate) async fn start(data: &Path) -> anyhow::Result<Self> {
        PlaneProcess::start_with(data, &[]).await
    }

    /// Where another process of the plane was.
    pub(crate) async fn start_at(data: &Path, address: &str) -> anyhow::Result<Self> {
        PlaneProcess::spawn(data, address, &[]).await
    }

    pub(crate) async fn start_with(data: &Path, settings: &[String]) -> anyhow::Result<Self> {
        PlaneProcess::spawn(data, "127.0.0.1:0", settings).await
    }

    async fn spawn(data: &Path, listen: &str, settings: &[String]) -> anyhow::Result<Self> {
        let started = Instant::now();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", listen, "--data"])
            .arg(data)
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .env("REMUDA_LOG", "warn")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a plane")?;
        let stdout = child.stdout.take().context("the plane has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(READY_MAX, lines.next_line())
            .await
            .context("the plane did not get ready")??;
        let line = line.context("the plane ended before it was ready")?;
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.with_context(|| format!("the plane said {line:?}"))?.to_owned();
        Ok(PlaneProcess { address, ready_after: started.elapsed(), child })
    }

    /// As a crash would.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill the plane")
    }

    pub(crate) fn memory_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// The most it ever had.
    pub(crate) fn memory_peak_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, name: &'static str) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()?))?;
        let line = status.lines().find(|line| line.starts_with(name)).context(name)?;
        let kibibytes: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kibibytes << 10)
    }

    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()?))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / TICKS_PER_SECOND)
    }

    fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("the plane has ended")
    }
}

/// Workers for ComfyUI servers, all in one process.
#[derive(Debug)]
pub(crate) struct Workers {
    child: Child,
}

impl Workers {
    /// Ready when all of them have joined.
    pub(crate) async fn start(
        plane: &PlaneProcess,
        servers: &[String],
        data: &Path,
        inactivity: Duration,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let url = format!("http://{}", plane.address);
        let mut command = Command::new(program);
        command.args(["worker", "--url", &url, "--set"]);
        command.arg(format!("agent.inactivity={}ms", inactivity.as_millis()));
        for server in servers {
            command.args(["--comfyui", server]);
        }
        command.arg("--data").arg(data).env("REMUDA_LOG", "error").stdout(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().context("cannot start workers")?;
        let mut workers = Workers { child };
        let ready = workers.joined(plane, servers.len());
        tokio::time::timeout(READY_MAX, ready).await.context("the workers did not get ready")??;
        Ok(workers)
    }

    async fn joined(&mut self, plane: &PlaneProcess, wanted: usize) -> anyhow::Result<()> {
        loop {
            let listed = crate::load::get(&plane.address, "/remuda/v1/workers").await?;
            let listed: serde_json::Value = serde_json::from_slice(&listed)?;
            let rows = listed["workers"].as_array().or_else(|| listed.as_array());
            if rows
                .is_some_and(|rows| rows.iter().filter(|row| row["presence"] == "online").count() >= wanted)
            {
                return Ok(());
            }
            anyhow::ensure!(self.child.try_wait()?.is_none(), "the workers ended before they joined");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill the workers")
    }
}
