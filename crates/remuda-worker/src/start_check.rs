//! The start check: whether this machine is what it should be, before it offers any room. Each phase has its own words
//! and its own limit.
//!
//! | phase | passes | limit |
//! |---|---|---|
//! | disk | there is room for what comes and goes | |
//! | GPU | the driver answers for every one there is | 10 s |
//! | command | `--check-cmd` ends with 0: a real computation, by whatever can compute here | `--check-timeout` |
//! | service | it answers and does something small for real (`comfyui/start.rs`) | the plane's |

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use tokio::process::Command;
use tokio::time::Instant;
use tracing::info;

use super::exec::Group;
use super::gpu::{self, Gpu};
use super::hands::Events;
use super::metrics;
use remuda_net::secret::VARIABLES;

/// A driver that takes longer has lost its device.
const GPU_MAX: Duration = Duration::from_secs(10);
/// How much of what a failed command said is told.
const SAID_MAX: usize = 400;

/// What a machine has to show.
#[derive(Clone, Debug)]
pub struct Check {
    pub command: Option<String>,
    pub command_max: Duration,
    pub disk_min_bytes: u64,
}

impl Default for Check {
    fn default() -> Self {
        Check { command: None, command_max: Duration::from_secs(120), disk_min_bytes: 256 << 20 }
    }
}

/// Tells the agent what a worker that is not ready yet waits for.
#[derive(Clone, Debug)]
pub(super) struct Says {
    events: Events,
    /// Nothing before: whoever may find its former work again does not join without it.
    not_before: Option<Instant>,
}

impl Says {
    pub(super) fn new(events: Events, not_before: Option<Instant>) -> Says {
        Says { events, not_before }
    }

    pub(super) async fn waits_for(&self, what: impl Into<String>) {
        if self.not_before.is_some_and(|at| at <= Instant::now()) {
            self.says(what.into()).await;
        }
    }

    /// Said whoever it is: there will be no work until somebody does something.
    pub(super) async fn failed(&self, problem: &str) {
        info!(%problem, "the start check failed");
        let check =
            remuda_core::wire::StartCheck { passed: false, problem: problem.to_owned(), gpu: String::new() };
        // Nobody listens any more only when the worker ends.
        drop(self.events.send(AgentEvent::StartChecked(check)).await);
        self.says(format!("start check failed: {problem}")).await;
    }

    async fn says(&self, what: String) {
        drop(self.events.send(AgentEvent::Preparing { what }).await);
    }
}

impl Check {
    /// What the GPU calls itself, if there is one; or what is wrong with this machine.
    pub(super) async fn run(&self, folder: &Path, says: &Says) -> Result<String, String> {
        says.waits_for("start check: looks at the disk").await;
        self.disk(folder)?;
        says.waits_for("start check: looks at the GPU").await;
        let gpus = look_at_gpus().await?;
        if let Some(command) = &self.command {
            says.waits_for("start check: runs the check command").await;
            self.compute(command).await?;
        }
        Ok(gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default())
    }

    fn disk(&self, folder: &Path) -> Result<(), String> {
        let Some((_, free)) = metrics::disk(folder) else { return Ok(()) };
        if free >= self.disk_min_bytes {
            return Ok(());
        }
        let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let (free, wanted) = (mebibytes(free), mebibytes(self.disk_min_bytes));
        Err(format!("{free} free on the disk with {}, at least {wanted} wanted", folder.display()))
    }

    async fn compute(&self, command: &str) -> Result<(), String> {
        let mut shell = Command::new("sh");
        for secret in VARIABLES {
            shell.env_remove(secret);
        }
        let child = shell
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("the check command cannot be started: {error}"))?;
        let _group = Group::of(&child);
        let Ok(ended) = tokio::time::timeout(self.command_max, child.wait_with_output()).await else {
            return Err(format!("the check command was not done within {:?}", self.command_max));
        };
        let output = ended.map_err(|error| format!("the check command could not be watched: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let said = said.trim();
        let from = said.char_indices().rev().nth(SAID_MAX).map_or(0, |(at, _)| at);
        Err(format!("the check command failed ({}): {}", output.status, &said[from..]))
    }
}

async fn look_at_gpus() -> Result<Vec<Gpu>, String> {
    match tokio::time::timeout(GPU_MAX, tokio::task::spawn_blocking(gpu::read)).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => Err(format!("the GPU could not be looked at: {error}")),
        Err(_) => Err(format!("the GPU driver did not answer within {GPU_MAX:?}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    async fn run(check: Check) -> (Result<String, String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let (events, mut inbox) = mpsc::channel(16);
        let result = check.run(folder.path(), &Says::new(events, Some(Instant::now()))).await;
        let mut said = Vec::new();
        while let Some(AgentEvent::Preparing { what }) = inbox.recv().await {
            said.push(what);
        }
        (result, said)
    }

    #[tokio::test]
    async fn a_machine_in_order_passes_and_says_what_it_does() {
        let (result, said) = run(Check { command: Some("true".to_owned()), ..Check::default() }).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(said.len(), 3, "{said:?}");
    }

    /// Faults: M5.
    #[tokio::test]
    async fn what_is_wrong_is_said_in_words_of_its_own() {
        let command = |text: &str| Check { command: Some(text.to_owned()), ..Check::default() };
        let slow = Check { command_max: Duration::from_millis(50), ..command("sleep 60 & wait") };
        for (check, expected) in [
            (Check { disk_min_bytes: u64::MAX, ..Check::default() }, "free on the disk with"),
            (
                command("echo CUDA error: out of order >&2; exit 3"),
                "(exit status: 3): CUDA error: out of order",
            ),
            (slow, "the check command was not done within 50ms"),
        ] {
            let (result, _) = run(check).await;
            let problem = result.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
