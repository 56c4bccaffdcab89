//! A program of the drill in a process of its own, started from the current executable. It can be killed, stopped and
//! started again, and it never outlives the drill: a shell holds it and ends it when our end of the shell's standard input
//! is gone, even if the drill itself is killed.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Starts a program, prints its process id, and ends it when standard input is closed.
const LIFELINE: &str = r#""$@" </dev/null & echo $!; exec >&-; read -r _; kill -9 $!; wait"#;
/// How long a program may take until it prints that it is ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a program may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(15);

/// How a program is started; the same every time.
#[derive(Clone, Debug)]
pub(crate) struct ProgramSpec {
    /// For messages, and the name of its log.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) folder: PathBuf,
}

#[derive(Debug)]
pub(crate) struct RunningProgram {
    pid: Pid,
    shell: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl ProgramSpec {
    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    /// Returns as soon as the process exists.
    pub(crate) async fn spawn(&self) -> anyhow::Result<RunningProgram> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut shell = Command::new("sh")
            .args(["-c", LIFELINE, "sh"])
            .arg(program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            // Settings of the user are not meant for the drill.
            .env_remove("REMUDA_CONFIG")
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(open_log(&self.log_path())?)
            // Ctrl-C is for the drill, which ends its programs in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let stdout = shell.stdout.take().context("its output cannot be read")?;
        let mut output = BufReader::new(stdout).lines();
        loop {
            let line = output.next_line().await?.with_context(|| format!("{} ended at once", self.name))?;
            // The program's own first line may come before the shell's.
            if let Some(pid) = line.trim().parse().ok().and_then(Pid::from_raw) {
                return Ok(RunningProgram { pid, shell, output });
            }
        }
    }

    /// Returns when the program has printed that it is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<RunningProgram> {
        let mut running = self.spawn().await?;
        let ready = tokio::time::timeout(READY_MAX, running.output.next_line()).await;
        let line = ready.with_context(|| format!("{} was not ready within {READY_MAX:?}", self.name))??;
        let log = self.log_path();
        line.with_context(|| format!("{} ended before it was ready; see {}", self.name, log.display()))?;
        Ok(running)
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let log = OpenOptions::new().create(true).append(true).open(path);
    log.with_context(|| format!("cannot write {}", path.display()))
}

impl RunningProgram {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        // A process of ours that ended stays a zombie of the shell until the shell ends, so ask the kernel for its state.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        let state = stat.ok().and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z')));
        state.unwrap_or(true)
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// `kill -9`, as the kernel or a power cut would do it.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::KILL);
        drop(self.shell.stdin.take());
        drop(tokio::time::timeout(STOP_MAX, self.shell.wait()).await);
    }

    /// Asks it to end, and kills it if it takes too long. Whether it ended by itself.
    pub(crate) async fn stop(mut self) -> bool {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        let ended = async {
            while !self.has_ended() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(STOP_MAX, ended).await.is_ok();
        self.kill().await;
        in_time
    }

    fn signal(&self, signal: Signal) {
        // The process may have ended meanwhile, which is what the drill is about.
        kill_process(self.pid, signal).ok();
    }
}

/// If all else fails: the shell and the program are one group.
impl Drop for RunningProgram {
    fn drop(&mut self) {
        if let Some(group) = self.shell.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}
