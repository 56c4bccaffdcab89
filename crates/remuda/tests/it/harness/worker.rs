//! A worker process that runs a command for each attempt or drives a ComfyUI server.

use std::path::{Path, PathBuf};

use super::{Plane, Process, answered, remuda, wait_until};

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) process: Process,
}

impl Worker {
    /// Starts it and waits until it is online.
    pub(crate) async fn start(plane: &Plane, name: &str, command: &str) -> Worker {
        Worker::start_with(plane, name, command, &[]).await
    }

    /// As `start`, with more arguments.
    pub(crate) async fn start_with(plane: &Plane, name: &str, command: &str, more: &[&str]) -> Worker {
        Worker::start_doing(plane, name, &[&["--exec", command], more].concat()).await
    }

    /// As `start`, with arguments that say what it does.
    pub(crate) async fn start_doing(plane: &Plane, name: &str, what: &[&str]) -> Worker {
        let mut worker = remuda(plane.folder());
        worker.args(["worker", "--url", &plane.url, "--name", name]).args(what);
        let process = Process::start(name, &mut worker);
        let path = format!("/remuda/v1/workers/{name}");
        wait_until(&format!("{name} is online"), async || {
            let (_, worker) = answered(plane.request(reqwest::Method::GET, &path)).await;
            (worker["presence"] == "online").then_some(())
        })
        .await;
        Worker { name: name.to_owned(), process }
    }
}

/// Keeps commands from ending as long as it is closed. It goes with its folder, so that no command outlives its test
/// even if its worker was killed.
#[derive(Clone, Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    pub(crate) fn closed(folder: &Path, name: &str) -> Gate {
        let gate = Gate(folder.join(name));
        std::fs::write(&gate.0, "").unwrap();
        gate
    }

    pub(crate) fn open(&self) {
        std::fs::remove_file(&self.0).unwrap();
    }

    /// Shell commands that end when the gate is open.
    pub(crate) fn wait(&self) -> String {
        format!("while [ -e '{}' ]; do sleep 0.05; done", self.0.display())
    }
}
