//! A plane and two workers, each with a ComfyUI server in a process of its own, and a client's script that uses them.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::tools::Tools;
use crate::harness::{Client, Plane, Process, QUICK, remuda, wait_until};

/// Agent timings scaled down, in the same proportions.
const AGENT: &[&str] = &[
    "agent.inactivity=500ms",
    "agent.unknown_recheck=400ms",
    "agent.cancel_timeout=1s",
    "agent.given_up_recheck=300ms",
];

#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) plane: Plane,
    pub(super) seats: Vec<Seat>,
}

/// A server, and the worker on it.
#[derive(Debug)]
pub(super) struct Seat {
    name: &'static str,
    server: Process,
    server_url: String,
    _worker: Process,
}

impl Deref for Fleet {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        &self.plane
    }
}

impl Fleet {
    pub(super) async fn start() -> Fleet {
        Fleet::on(Plane::start(QUICK).await).await
    }

    pub(super) async fn on(plane: Plane) -> Fleet {
        let everyone = plane.with("");
        Fleet::of(plane, &everyone, "").await
    }

    /// On a plane that asks for tokens: who may look at workers, and what a worker has.
    pub(super) async fn of(plane: Plane, operator: &Client, token: &str) -> Fleet {
        let mut seats = Vec::new();
        for name in ["one", "two"] {
            seats.push(Seat::start(&plane, name, token).await);
        }
        for seat in &seats {
            wait_until(&format!("{} is online", seat.name), async || {
                let workers = operator.get("/remuda/v1/workers").await;
                let is_there = |it: &Value| it["id"] == seat.name && it["presence"] == "online";
                workers["workers"].as_array().unwrap().iter().any(is_there).then_some(())
            })
            .await;
        }
        Fleet { plane, seats }
    }

    /// The address of a server behind it.
    pub(super) fn server_url(&self) -> &str {
        &self.seats[0].server_url
    }

    /// Kills the server that has the job, as soon as some of it is done; the other one has to do it.
    pub(super) async fn kill_the_server_of(&mut self, job: &str) {
        let worker = wait_until(&format!("some of {job} is done"), async || {
            let workers = self.plane.get("/remuda/v1/workers").await;
            let workers = workers["workers"].as_array()?;
            let is_well_on = |hold: &Value| hold["job"] == job && hold["progress"].as_f64() > Some(0.2);
            let holder =
                workers.iter().find(|worker| worker["holds"].as_array().unwrap().iter().any(is_well_on))?;
            Some(holder["id"].as_str().unwrap().to_owned())
        })
        .await;
        let seat = self.seats.iter_mut().find(|seat| seat.name == worker).unwrap();
        seat.server.kill();
    }

    /// The first job that a script submits.
    pub(super) async fn first_job(&self, script: &mut Process) -> String {
        wait_until("there is a job", async || {
            let has_ended = script.has_ended();
            let job = self.jobs().await.pop();
            assert!(job.is_some() || !has_ended, "it should have submitted a job: {}", script.said());
            job.map(|job| job["id"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// That the job was completed in its second attempt, on the server that is left.
    pub(super) async fn was_done_elsewhere(&self, job: &str) {
        let job = self.ended(job).await;
        assert_eq!((&job["state"], &job["attempt"]), (&"completed".into(), &2.into()), "{job}");
    }
}

impl Seat {
    async fn start(plane: &Plane, name: &'static str, token: &str) -> Seat {
        let mut fake = remuda(plane.folder());
        let mut server = Process::start(name, fake.args(["fake", "comfyui", "--listen", "127.0.0.1:0"]));
        let ready = server.line("ready: ").await.expect("the server should start");
        let server_url = ready.split("ready: ").nth(1).unwrap().to_owned();
        let mut worker = remuda(plane.folder());
        worker.args(["worker", "--url", &plane.url, "--name", name]);
        worker.args(["--comfyui", &server_url]);
        for setting in AGENT {
            worker.args(["--set", setting]);
        }
        if !token.is_empty() {
            worker.env("REMUDA_TOKEN", token);
        }
        Seat { name, server, server_url, _worker: Process::start(name, &mut worker) }
    }
}

/// A folder for a client, with these files of ours in it.
pub(super) fn client_folder(plane: &Plane, files: &[&str]) -> PathBuf {
    let folder = plane.folder().join("client");
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients").join(file);
        std::fs::copy(ours, folder.join(file)).unwrap();
    }
    folder
}

/// The same with the workflow and the packages for Node.
pub(super) fn folder(tools: &Tools, plane: &Plane, files: &[&str]) -> PathBuf {
    let folder = client_folder(plane, &[files, &["workflow_api.json"]].concat());
    std::os::unix::fs::symlink(&tools.modules, folder.join("node_modules")).unwrap();
    folder
}

/// A program of the clients', in their folder.
pub(super) fn client(program: &Path, plane: &Plane, folder: &Path) -> Command {
    let mut command = Command::new(program);
    // A key of the person at the keyboard is nothing to send to a plane in a test.
    command.env("COMFY_BASE_URL", &plane.url).env_remove("COMFY_API_KEY").env("NO_PROXY", "127.0.0.1");
    command.current_dir(folder);
    command
}

/// Starts a client's script.
pub(super) fn script<S: AsRef<OsStr>>(tools: &Tools, plane: &Plane, name: &str, arguments: &[S]) -> Process {
    let program = if name.ends_with(".py") { &tools.python } else { &tools.node };
    let mut command = client(program, plane, &folder(tools, plane, &[name]));
    Process::start(name, command.arg(name).args(arguments))
}

/// Waits until a script has ended, and well.
pub(super) async fn ended_well(mut script: Process) -> String {
    let status = script.ended().await;
    assert!(status.success(), "{status}: {}", script.said());
    script.said()
}
