//! A ComfyUI server that we started, and may therefore restart and stop. It outlives an agent that is killed, so that its
//! prompts can be adopted; the next agent of that name knows it again by the marker file and owns it from then on.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::agent::AgentEvent;
use remuda_core::service::ServiceEvent;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use tokio::process::Command;
use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use crate::hands::Events;
use remuda_net::secret::VARIABLES;

/// It is asked to end, and after this long ended.
const TERM_GRACE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How many of its last lines an end is told with.
const LAST_LINES: usize = 10;
const LAST_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Process {
    command: String,
    /// Where its number stands for the next agent.
    marker: PathBuf,
    /// Where it writes; a pipe would break with the agent.
    log: PathBuf,
    events: Events,
    running: Mutex<Option<Running>>,
}

/// Who runs, told apart from whoever may get the same number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    pid: i32,
    started: u64,
}

impl Process {
    /// Takes over what a former agent started, or starts it.
    pub(super) async fn begin(command: String, marker: PathBuf, events: Events) -> anyhow::Result<Process> {
        let log = marker.with_extension("log");
        let process = Process { command, marker, log, events, running: Mutex::default() };
        match marked(&process.marker) {
            Some(running) => {
                info!(pid = running.pid, "ComfyUI runs already: a former worker of this name started it");
                *process.running.lock().await = Some(running);
                process.watch(running);
            }
            None => process.start().await?,
        }
        Ok(process)
    }

    async fn start(&self) -> anyhow::Result<()> {
        let log = File::create(&self.log)
            .with_context(|| format!("cannot write {}, the log of ComfyUI", self.log.display()))?;
        let mut shell = Command::new("sh");
        for secret in VARIABLES {
            shell.env_remove(secret);
        }
        let mut child = shell
            .arg("-c")
            .arg(format!("exec {}", self.command))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot start the command of --comfyui-cmd")?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).context("it ended at once")?;
        let running = Running { pid, started: started(pid).unwrap_or_default() };
        info!(pid, command = self.command, log = %self.log.display(), "started ComfyUI");
        tokio::spawn(async move { drop(child.wait().await) });
        if let Err(error) = std::fs::write(&self.marker, format!("{pid} {}", running.started)) {
            warn!(%error, "cannot write {}: a later worker will not know this server again", self.marker.display());
        }
        *self.running.lock().await = Some(running);
        self.watch(running);
        Ok(())
    }

    /// Says when it has ended. It may not be our child, so it is looked for.
    fn watch(&self, running: Running) {
        let (events, log) = (self.events.clone(), self.log.clone());
        tokio::spawn(async move {
            while running.is_alive() && !events.is_closed() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let why = said(&log);
            drop(events.send(AgentEvent::Service(ServiceEvent::Exited { why })).await);
        });
    }

    /// Why it has ended, if it has.
    pub(super) async fn ended(&self) -> Option<String> {
        let is_alive = self.running.lock().await.is_some_and(Running::is_alive);
        (!is_alive).then(|| said(&self.log))
    }

    pub(super) async fn restart(&self) -> Result<(), String> {
        self.stop().await;
        self.start().await.map_err(|error| format!("{error:#}"))
    }

    pub(super) async fn stop(&self) {
        let Some(running) = self.running.lock().await.take() else { return };
        running.end().await;
        // It may never have been written.
        std::fs::remove_file(&self.marker).ok();
    }

    /// Ends what an agent started, if it runs.
    pub(super) async fn stop_marked(marker: &Path) {
        if let Some(running) = marked(marker) {
            running.end().await;
            std::fs::remove_file(marker).ok();
        }
    }

    /// Whether a former agent started what runs now.
    pub(super) fn is_marked(marker: &Path) -> bool {
        marked(marker).is_some()
    }
}

impl Running {
    fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }

    async fn end(self) {
        self.send(Signal::TERM);
        let ended = async {
            while self.is_alive() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(TERM_GRACE, ended).await.is_err() {
            self.send(Signal::KILL);
        }
    }

    /// To it and everything it started.
    fn send(self, signal: Signal) {
        let Some(pid) =
            Pid::from_raw(self.pid).filter(|pid| self.is_alive() && test_kill_process(*pid).is_ok())
        else {
            return;
        };
        if let Err(error) = kill_process_group(pid, signal) {
            debug!(%error, "nothing left to end");
        }
    }
}

fn marked(marker: &Path) -> Option<Running> {
    let text = std::fs::read_to_string(marker).ok()?;
    let (pid, started) = text.trim().split_once(' ')?;
    let running = Running { pid: pid.parse().ok()?, started: started.parse().ok()? };
    running.is_alive().then_some(running)
}

/// When a process started, as the kernel counts it; nothing if there is none, or only what is left of one.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The last lines of its log.
fn said(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    if last.is_empty() { "without a word".to_owned() } else { last.join(" / ") }
}
