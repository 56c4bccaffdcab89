//! The autoscaling commands of the README, word for word.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process_group};

use super::machine_history::{MachineHistory, last_cycle};
use super::process_fleet::{active, processes};
use crate::harness::{Client, Process, assert_contains_all, free_address, wait_until};

const HEADING: &str = "## Autoscaling without a cloud";

/// What the README says to type there, in two terminals.
fn commands() -> [String; 2] {
    let readme = include_str!("../../../../../README.md");
    let section = readme.split(HEADING).nth(1).expect("the README has this section");
    let mut blocks =
        section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    [(); 2].map(|()| blocks.next().expect("it says what to type"))
}

/// Ends the machines, which outlive their plane.
struct Machines(PathBuf);

impl Drop for Machines {
    fn drop(&mut self) {
        for (_, pid) in processes(&self.0) {
            kill_process_group(pid, Signal::KILL).ok();
        }
    }
}

/// A terminal in the folder of the project. Where the plane listens and keeps its things comes from the environment: the
/// commands are as they stand there.
fn typed(what: &str, home: &Path, address: SocketAddr) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_remuda")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    // The shell is replaced by the command, so that killing this process kills the command.
    let is_one = what.trim().lines().count() == 1;
    let mut shell = Command::new("sh");
    shell.args(["-ec", &if is_one { format!("exec {what}") } else { what.to_owned() }]);
    shell.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).env_clear();
    shell.env("PATH", path).env("HOME", home).env("REMUDA_LISTEN", address.to_string());
    shell.env("REMUDA_DATA", home.join("data")).env("REMUDA_URL", format!("http://{address}"));
    Process::start("a terminal", &mut shell)
}

/// The minimum, the computed size, never more than the maximum, and the minimum again; and the reports say the same.
#[tokio::test]
async fn readme_autoscaling_commands_work() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let _machines = Machines(folder.path().join("data/fleets/local"));
    let [serve, rest] = commands();
    let mut plane = typed(&serve, folder.path(), address);
    assert!(plane.line("serves on").await.is_some(), "{}", plane.said());
    let mut other = typed(&rest, folder.path(), address);
    let client = Client::new(format!("http://{address}"));
    let most = wait_until("four machines are at work", async || {
        let active = active(&client).await;
        (active.len() == 4).then_some(active)
    })
    .await;
    let jobs = client.jobs().await;
    assert_eq!(jobs.len(), 30);
    for job in jobs {
        let ended = client.ended(job["id"].as_str().unwrap()).await;
        assert_eq!(ended["state"], "completed", "{ended}");
    }
    for machine in &most {
        assert!(client.worker(machine).await["completed"].as_u64() >= Some(1), "{machine} did nothing");
    }
    let books = wait_until("one machine is left", async || {
        let books = MachineHistory::of(&client).await;
        (books.there().len() == 1).then_some(books)
    })
    .await;
    assert_eq!(books.most, 4, "{books:?}");
    assert_eq!(books.machines.len() as u64, books.ordered);
    let last = last_cycle(&client).await;
    assert_eq!(last["fleets"]["local"]["status"]["active_workers"], 1, "{last}");
    assert!(other.ended().await.success(), "{}", other.said());
    assert_contains_all(&other.said(), &["local-", "active_workers"]);
}
