//! A stand-in that a worker starts, restarts and stops as it would a real server.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::fixture::worker;
use crate::harness::{Plane, Worker, answered};

#[derive(Debug)]
pub(super) struct Owned {
    pub(super) worker: Worker,
    name: String,
    url: String,
    command: String,
    data: PathBuf,
}

impl Owned {
    pub(super) async fn start(plane: &Plane, name: &str) -> Owned {
        let address = crate::harness::free_address();
        let program = env!("CARGO_BIN_EXE_remuda");
        let command = format!("'{program}' fake comfyui --listen {address}");
        let data = plane.folder().join(name);
        let url = format!("http://{address}");
        let worker = start(plane, name, &url, &command, &data).await;
        Owned { worker, name: name.to_owned(), url, command, data }
    }

    pub(super) async fn start_worker_again(&mut self, plane: &Plane) {
        self.worker = start(plane, &self.name, &self.url, &self.command, &self.data).await;
    }

    /// Which process the server is; none if there is none.
    pub(super) fn pid(&self) -> Option<i32> {
        let marker = self.data.join("workers").join(format!("{}.pid", self.worker.name));
        std::fs::read_to_string(marker).ok()?.split(' ').next()?.parse().ok()
    }

    /// The next prompt meets this fault.
    pub(super) async fn strike(&self, fault: &str) {
        let http = remuda_net::http_client::client_builder().build().unwrap();
        let order = http.post(format!("{}/fake/strike", self.url)).json(&json!({ "fault": fault }));
        let (status, answer) = answered(order).await;
        assert!(status.is_success(), "{answer}");
    }

    pub(super) async fn state(&self) -> Value {
        let http = remuda_net::http_client::client_builder().build().unwrap();
        answered(http.get(format!("{}/fake", self.url))).await.1
    }
}

async fn start(plane: &Plane, name: &str, url: &str, command: &str, data: &std::path::Path) -> Worker {
    let more =
        ["--comfyui-cmd", command, "--data", data.to_str().unwrap(), "--set", "agent.self_test_timeout=1s"];
    worker(plane, name, url, &more).await
}

impl Drop for Owned {
    fn drop(&mut self) {
        // It outlives a worker that is killed; not this test.
        self.worker.process.kill();
        if let Some(pid) = self.pid().and_then(Pid::from_raw) {
            kill_process_group(pid, Signal::KILL).ok();
        }
    }
}
