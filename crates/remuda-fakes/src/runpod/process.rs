//! The process of a pod as seen by the fake: a supervisor, and the pipe that keeps it running.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use super::logs::Source;

/// The command of a pod's container, and the program that supervises it.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Run by `sh -c`.
    pub command: String,
    /// A program that calls `supervise`, with its first arguments; the grace in milliseconds and the command are
    /// appended.
    pub keeper: (PathBuf, Vec<OsString>),
}

/// Longer lines are cut, so that endless output does not fill the memory.
const LINE_BYTES_MAX: u64 = 8 << 10;
/// Inherited environment; a container gets nothing else from its host.
const INHERITED: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LANG"];

/// Output or end of a container.
#[derive(Debug)]
pub(super) enum Word {
    Line { pod: String, source: Source, text: String },
    Ended { pod: String, run: u64, code: Option<i32> },
}

/// Dropping it ends the process gracefully.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// `None` once it is to end.
    line: Option<File>,
}

impl Process {
    pub(super) fn start(
        exec: &Exec,
        environment: &BTreeMap<String, String>,
        grace: Duration,
        (pod, run): (&str, u64),
        (words, living): (&mpsc::Sender<Word>, &watch::Sender<usize>),
    ) -> io::Result<Process> {
        let (program, words_before) = &exec.keeper;
        let inherited = INHERITED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut child = Command::new(program)
            .args(words_before)
            .arg(grace.as_millis().to_string())
            .arg(&exec.command)
            .env_clear()
            .envs(inherited)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let line = child.stdin.take().map(|stdin| stdin.into_owned_fd().map(File::from)).transpose()?;
        listen(child.stdout.take(), pod, words);
        listen(child.stderr.take(), pod, words);
        let pid = child.id().unwrap_or_default();
        let (pod, words, living) = (pod.to_owned(), words.clone(), living.clone());
        living.send_modify(|living| *living += 1);
        tokio::spawn(async move {
            let code = child.wait().await.ok().and_then(|status| status.code());
            living.send_modify(|living| *living -= 1);
            // The receiver is gone: the fake is stopping.
            words.send(Word::Ended { pod, run, code }).await.ok();
        });
        Ok(Process { pid, line })
    }

    /// SIGTERM, a grace period, SIGKILL.
    pub(super) fn end(&mut self) {
        self.line = None;
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut line) = self.line.take() {
            // It may have ended just now.
            line.write_all(b"k").ok();
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.line.is_none()
    }
}

fn listen(pipe: Option<impl AsyncRead + Unpin + Send + 'static>, pod: &str, words: &mpsc::Sender<Word>) {
    let Some(pipe) = pipe else { return };
    let (pod, words) = (pod.to_owned(), words.clone());
    tokio::spawn(async move {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if words.send(Word::Line { pod: pod.clone(), source: Source::Container, text }).await.is_err() {
                return;
            }
        }
    });
}
