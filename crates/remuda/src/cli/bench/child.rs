//! A plane in a process of its own, so that its memory and CPU time can be told from the load's.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

#[derive(Debug)]
pub(super) struct Plane {
    pub(super) address: String,
    /// From the start of the process to the line that says it is ready.
    pub(super) ready_after: Duration,
    child: Child,
}

const READY_MAX: Duration = Duration::from_secs(300);
/// The kernel counts CPU time in these.
const TICKS_PER_SECOND: f64 = 100.0;

impl Plane {
    pub(super) async fn start(data: &Path) -> anyhow::Result<Self> {
        let started = Instant::now();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
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
        Ok(Plane { address, ready_after: started.elapsed(), child })
    }

    /// As a crash would.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill the plane")
    }

    pub(super) fn memory_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()?))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kibibytes: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kibibytes << 10)
    }

    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()?))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / TICKS_PER_SECOND)
    }

    fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("the plane has ended")
    }
}
