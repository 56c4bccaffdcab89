//! The start check: proves that this machine can work before the worker offers a slot. Each phase has its own message and
//! its own limit.
//!
//! | phase | passes if | limit |
//! |---|---|---|
//! | disk | enough space is free for inputs and outputs | |
//! | GPU | the driver answers for every GPU | 10 s |
//! | command | `--check-cmd` exits with 0; let it compute something on the GPU | `--check-timeout` |
//! | service | it answers and runs a small job (`comfyui/startup.rs`) | the plane's |

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use tokio::process::Command;
use tokio::time::Instant;
use tracing::info;

use remuda_core::service::startup::StartVerdict;
use remuda_core::wire::StartCheck;
use remuda_net::job_environment::JobEnvironment;

use crate::attempt::Events;
use crate::gpu::{self, Gpu};
use crate::metrics;
use crate::process_group::ProcessGroup;

/// A driver that takes longer has lost its device.
const GPU_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a failed command's output is reported.
const OUTPUT_CHARS_MAX: usize = 400;

/// What the start check requires of this machine.
#[derive(Clone, Debug)]
pub struct StartChecks {
    pub command: Option<String>,
    pub command_timeout: Duration,
    pub disk_min_bytes: u64,
}

impl Default for StartChecks {
    fn default() -> Self {
        StartChecks { command: None, command_timeout: Duration::from_secs(120), disk_min_bytes: 256 << 20 }
    }
}

/// Reports to the agent what a worker that is not ready yet is waiting for.
#[derive(Clone, Debug)]
pub(crate) struct StartupReporter {
    events: Events,
    /// Nothing is reported before this time, and never if there is none. The first report makes the worker join, and a
    /// restarted worker should first find the attempts it left with its service.
    not_before: Option<Instant>,
}

impl StartupReporter {
    pub(crate) fn new(events: Events, not_before: Option<Instant>) -> StartupReporter {
        StartupReporter { events, not_before }
    }

    pub(crate) async fn report_phase(&self, phase: impl Into<String>) {
        if self.not_before.is_some_and(|at| at <= Instant::now()) {
            self.send(phase.into()).await;
        }
    }

    /// A start failed.
    pub(crate) async fn report_start(&self, verdict: StartVerdict, message: String) {
        match verdict {
            StartVerdict::Slow => self.report_phase(message).await,
            StartVerdict::Failed => self.report_failure(&message).await,
        }
    }

    /// Reported at once for every worker: it will do no work until an operator acts.
    pub(crate) async fn report_failure(&self, problem: &str) {
        info!(%problem, "start check failed");
        let check = StartCheck { passed: false, problem: problem.to_owned(), gpu: String::new() };
        // The receiver is gone only when the worker ends.
        drop(self.events.send(AgentEvent::StartChecked(check)).await);
        self.send(format!("start check failed: {problem}")).await;
    }

    async fn send(&self, what: String) {
        drop(self.events.send(AgentEvent::Preparing { what }).await);
    }
}

impl StartChecks {
    /// Returns the name of the first GPU (empty without one), or what is wrong with this machine.
    pub(crate) async fn run(
        &self,
        folder: &Path,
        environment: &JobEnvironment,
        reporter: &StartupReporter,
    ) -> Result<String, String> {
        reporter.report_phase("start check: checking the disk").await;
        self.check_disk(folder)?;
        reporter.report_phase("start check: checking the GPU").await;
        let gpus = read_gpus().await?;
        if let Some(command) = &self.command {
            reporter.report_phase("start check: running the check command").await;
            self.run_command(command, environment).await?;
        }
        Ok(gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default())
    }

    fn check_disk(&self, folder: &Path) -> Result<(), String> {
        let Some((_, free)) = metrics::disk(folder) else { return Ok(()) };
        if free >= self.disk_min_bytes {
            return Ok(());
        }
        let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let (free, required) = (mebibytes(free), mebibytes(self.disk_min_bytes));
        Err(format!("{free} free on the disk with {}, at least {required} required", folder.display()))
    }

    async fn run_command(&self, command: &str, environment: &JobEnvironment) -> Result<(), String> {
        let mut shell = Command::new("sh");
        let child = shell
            .env_clear()
            .envs(environment.variables())
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("the check command cannot be started: {error}"))?;
        let _group = ProcessGroup::new(&child);
        let Ok(ended) = tokio::time::timeout(self.command_timeout, child.wait_with_output()).await else {
            return Err(format!("the check command did not finish within {:?}", self.command_timeout));
        };
        let output = ended.map_err(|error| format!("waiting for the check command failed: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        let printed = printed.trim();
        let from = printed.char_indices().rev().nth(OUTPUT_CHARS_MAX).map_or(0, |(at, _)| at);
        Err(format!("the check command failed ({}): {}", output.status, &printed[from..]))
    }
}

async fn read_gpus() -> Result<Vec<Gpu>, String> {
    match tokio::time::timeout(GPU_TIMEOUT, tokio::task::spawn_blocking(gpu::read)).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => Err(format!("the GPU could not be read: {error}")),
        Err(_) => Err(format!("the GPU driver did not answer within {GPU_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    async fn run(checks: StartChecks) -> (Result<String, String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let (events, mut inbox) = mpsc::channel(16);
        let result = checks
            .run(
                folder.path(),
                &JobEnvironment::default(),
                &StartupReporter::new(events, Some(Instant::now())),
            )
            .await;
        let mut phases = Vec::new();
        while let Some(AgentEvent::Preparing { what }) = inbox.recv().await {
            phases.push(what);
        }
        (result, phases)
    }

    #[tokio::test]
    async fn healthy_machine_passes_and_reports_each_phase() {
        let (result, phases) =
            run(StartChecks { command: Some("true".to_owned()), ..StartChecks::default() }).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(phases.len(), 3, "{phases:?}");
    }

    /// Faults: M5.
    #[tokio::test]
    async fn each_failed_phase_has_its_own_message() {
        let command = |text: &str| StartChecks { command: Some(text.to_owned()), ..StartChecks::default() };
        let slow = StartChecks { command_timeout: Duration::from_millis(50), ..command("sleep 60 & wait") };
        for (check, expected) in [
            (StartChecks { disk_min_bytes: u64::MAX, ..StartChecks::default() }, "free on the disk with"),
            (
                command("echo CUDA error: out of order >&2; exit 3"),
                "(exit status: 3): CUDA error: out of order",
            ),
            (slow, "the check command did not finish within 50ms"),
        ] {
            let (result, _) = run(check).await;
            let problem = result.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
