//! A child process that never outlives its test, and whose output is printed when the test fails.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::wait_until;

/// The program, without the environment of the test run.
pub(crate) fn remuda(folder: &Path) -> Command {
    remuda_environment(Command::new(env!("CARGO_BIN_EXE_remuda")), folder)
}

/// A command that sees only a path and a home folder.
pub(super) fn remuda_environment(mut command: Command, folder: &Path) -> Command {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", folder)
        .current_dir(folder);
    command
}

/// A killed process may still be a zombie until its new parent reaps it.
pub(crate) fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let readers = vec![
            listen(child.stdout.take().unwrap(), said.clone()),
            listen(child.stderr.take().unwrap(), said.clone()),
        ];
        Process { name: name.to_owned(), child, said, readers }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// `kill -9`, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end and for all of its output.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let status = wait_until(&what, async || self.child.try_wait().unwrap()).await;
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        status
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// Waits for a line with `part` in it; none if it ends without one.
    pub(crate) async fn line(&mut self, part: &str) -> Option<String> {
        let what = format!("{} says {part:?}", self.name);
        wait_until(&what, async || {
            let has_ended = self.has_ended();
            let line = self.said.lock().unwrap().iter().find(|line| line.contains(part)).cloned();
            (has_ended || line.is_some()).then_some(line)
        })
        .await
    }

    /// CPU time it has used, in ticks.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error only says that it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- {} said:\n{}\n---", self.name, self.said());
        }
    }
}

fn listen(pipe: impl Read + Send + 'static, said: Arc<Mutex<Vec<String>>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    })
}
