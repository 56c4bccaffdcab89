//! A ComfyUI server that a worker started, and may therefore restart and stop. It outlives a killed agent, so that the
//! next agent of the same name can adopt its prompts: that agent finds the server through the PID file and owns it from
//! then on.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::agent::AgentEvent;
use remuda_core::service::{ServiceEvent, ServiceExit};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use tokio::process::Command;
use tokio::sync::{Mutex, oneshot};
use tracing::{debug, info, warn};

use remuda_net::job_environment::JobEnvironment;

use crate::attempt::Events;

/// How long the server may take after SIGTERM before it is killed.
const TERM_GRACE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The exit status of a child that is gone from the process table is there at once.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of the log is part of an exit's message.
const LAST_LINES_MAX: usize = 10;
const LAST_BYTES_MAX: u64 = 4096;

#[derive(Debug)]
pub(super) struct ServerProcess {
    command: String,
    environment: JobEnvironment,
    /// Names the process for the next agent.
    pid_file: PathBuf,
    /// The server's output; a pipe would break when the agent is killed.
    log: PathBuf,
    events: Events,
    running: Mutex<Option<ServerPid>>,
}

/// A process id with its start time, because the kernel reuses ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerPid {
    pid: i32,
    started: u64,
}

impl ServerProcess {
    /// Adopts the server that an earlier agent of this name started, or starts one.
    pub(super) async fn adopt_or_start(
        command: String,
        environment: JobEnvironment,
        pid_file: PathBuf,
        events: Events,
    ) -> anyhow::Result<ServerProcess> {
        let log = pid_file.with_extension("log");
        let process =
            ServerProcess { command, environment, pid_file, log, events, running: Mutex::default() };
        match read_pid_file(&process.pid_file) {
            Some(running) => {
                info!(pid = running.pid, "adopted the ComfyUI that an earlier worker of this name started");
                *process.running.lock().await = Some(running);
                process.watch(running, None);
            }
            None => process.start().await?,
        }
        Ok(process)
    }

    async fn start(&self) -> anyhow::Result<()> {
        let log = File::create(&self.log)
            .with_context(|| format!("cannot write {}, the log of ComfyUI", self.log.display()))?;
        let mut shell = Command::new("sh");
        let mut child = shell
            .env_clear()
            .envs(self.environment.variables())
            .arg("-c")
            .arg(format!("exec {}", self.command))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot start the command of --comfyui-cmd")?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.context("the command of --comfyui-cmd exited at once")?;
        let running = ServerPid { pid, started: start_time(pid).unwrap_or_default() };
        info!(pid, command = self.command, log = %self.log.display(), "started ComfyUI");
        let (exit, status) = oneshot::channel();
        tokio::spawn(async move { child.wait().await.map(|status| exit.send(status)) });
        if let Err(error) = std::fs::write(&self.pid_file, format!("{pid} {}", running.started)) {
            warn!(%error, path = %self.pid_file.display(), "could not write the PID file; a later worker cannot adopt this server");
        }
        *self.running.lock().await = Some(running);
        self.watch(running, Some(status));
        Ok(())
    }

    /// Reports when the server has exited. It polls, because an adopted server is not a child of this process.
    fn watch(&self, running: ServerPid, status: Option<oneshot::Receiver<ExitStatus>>) {
        let (events, log) = (self.events.clone(), self.log.clone());
        let memory_kills = memory_kills();
        tokio::spawn(async move {
            while running.is_alive() && !events.is_closed() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let status = match status {
                Some(status) => tokio::time::timeout(STATUS_TIMEOUT, status).await.ok().and_then(Result::ok),
                None => None,
            };
            let how = status.map_or(ServiceExit::Unknown, |status| {
                service_exit(status, memory_kills < self::memory_kills())
            });
            let why = last_lines(&log);
            drop(events.send(AgentEvent::Service(ServiceEvent::Exited { why, how })).await);
        });
    }

    /// The server's last lines, if it has exited.
    pub(super) async fn exit_reason(&self) -> Option<String> {
        let is_alive = self.running.lock().await.is_some_and(ServerPid::is_alive);
        (!is_alive).then(|| last_lines(&self.log))
    }

    pub(super) async fn restart(&self) -> Result<(), String> {
        self.stop().await;
        self.start().await.map_err(|error| format!("{error:#}"))
    }

    pub(super) async fn stop(&self) {
        let Some(running) = self.running.lock().await.take() else { return };
        running.end().await;
        // The file may never have been written.
        std::fs::remove_file(&self.pid_file).ok();
    }

    /// Stops the server that the PID file names, if it runs.
    pub(super) async fn stop_recorded(pid_file: &Path) {
        if let Some(running) = read_pid_file(pid_file) {
            running.end().await;
            std::fs::remove_file(pid_file).ok();
        }
    }

    /// Whether a worker of this name started the server that runs now.
    pub(super) fn is_recorded(pid_file: &Path) -> bool {
        read_pid_file(pid_file).is_some()
    }
}

/// Who ended the server. It never sends itself these signals, so an operator or another program did, unless the kernel
/// ran out of memory. An exit status of zero is an orderly end that someone asked for.
fn service_exit(status: ExitStatus, is_out_of_memory: bool) -> ServiceExit {
    const SENT_BY_OTHERS: [i32; 4] = [1, 2, 9, 15];
    // A shell reports the signal that ended its child as 128 and its number.
    let signal = status.signal().or_else(|| status.code().map(|code| code - 128));
    let was_sent = signal.is_some_and(|signal| SENT_BY_OTHERS.contains(&signal));
    if was_sent && !(is_out_of_memory && signal == Some(9)) || status.success() {
        ServiceExit::Killed
    } else {
        ServiceExit::Crashed
    }
}

/// How many processes the kernel has killed for want of memory; zero if it does not say.
fn memory_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl ServerPid {
    fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    async fn end(self) {
        self.send(Signal::TERM);
        let ended = async {
            while self.is_alive() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(TERM_GRACE, ended).await.is_err() {
            self.send(Signal::KILL);
        }
    }

    /// Sends the signal to the server and everything it started.
    fn send(self, signal: Signal) {
        let Some(pid) =
            Pid::from_raw(self.pid).filter(|pid| self.is_alive() && test_kill_process(*pid).is_ok())
        else {
            return;
        };
        if let Err(error) = kill_process_group(pid, signal) {
            debug!(%error, "process group already gone");
        }
    }
}

fn read_pid_file(path: &Path) -> Option<ServerPid> {
    let text = std::fs::read_to_string(path).ok()?;
    let (pid, started) = text.trim().split_once(' ')?;
    let running = ServerPid { pid: pid.parse().ok()?, started: started.parse().ok()? };
    running.is_alive().then_some(running)
}

/// When a process started, in kernel ticks; None if there is no such process or it is a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name in parentheses may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The last lines of the server's log.
fn last_lines(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LAST_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES_MAX)..];
    if last.is_empty() { "it printed nothing".to_owned() } else { last.join(" / ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: J8.
    #[test]
    fn signal_from_outside_is_no_crash() {
        let by_signal = |signal| service_exit(ExitStatus::from_raw(signal), false);
        let with_code = |code: i32| service_exit(ExitStatus::from_raw(code << 8), false);
        for (found, expected) in [
            (by_signal(15), ServiceExit::Killed),
            (by_signal(9), ServiceExit::Killed),
            (by_signal(11), ServiceExit::Crashed),
            (by_signal(6), ServiceExit::Crashed),
            (service_exit(ExitStatus::from_raw(9), true), ServiceExit::Crashed),
            (with_code(0), ServiceExit::Killed),
            (with_code(143), ServiceExit::Killed),
            (with_code(1), ServiceExit::Crashed),
            (with_code(139), ServiceExit::Crashed),
        ] {
            assert_eq!(found, expected);
        }
    }
}
