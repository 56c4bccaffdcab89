//! A plane with a fleet of processes, and everything of it that can be seen from outside.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Client, Gate, Plan, Plane, wait_until};

/// Moments where a fleet would have minutes.
const QUICK: &str = "reversal_cooldown = '1s'\nuptime_min = '1s'\nlist_every = '500ms'\nlist_lag_max = '2s'\norphan_grace = '2s'\nlost_create_timeout = '2s'\nreadiness_timeout = '5s'\n\
                     stop_grace = '20s'\ncontact_timeout = '60s'\n";

pub(super) struct ProcessFleet {
    pub(super) plane: Plane,
    folder: TempDir,
}

impl Deref for ProcessFleet {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        &self.plane
    }
}

impl DerefMut for ProcessFleet {
    fn deref_mut(&mut self) -> &mut Plane {
        &mut self.plane
    }
}

/// Processes outlive their plane, as machines do; here they end with their test.
impl Drop for ProcessFleet {
    fn drop(&mut self) {
        self.plane.kill();
        for (_, pid) in self.processes() {
            kill_process_group(pid, Signal::KILL).ok();
        }
    }
}

impl ProcessFleet {
    /// `keys` are those of the fleet; each job waits at `gate`, then does `what`.
    pub(super) async fn start(keys: &str, gate: Option<&str>, what: &str) -> ProcessFleet {
        ProcessFleet::booting(keys, "", gate, what).await
    }

    /// As `start`, with machines that do something else first.
    pub(super) async fn booting(keys: &str, boot: &str, gate: Option<&str>, what: &str) -> ProcessFleet {
        ProcessFleet::planned(Plane::plan(crate::harness::QUICK), keys, boot, gate, what).await
    }

    /// As `start`, on a plane that requires tokens. A machine leaves its own in the file `token`.
    pub(super) async fn closed(admin: &str, keys: &str, what: &str) -> ProcessFleet {
        let plan = Plane::plan(crate::harness::QUICK).variable("REMUDA_ADMIN_TOKEN", admin);
        ProcessFleet::planned(plan, keys, "printenv REMUDA_TOKEN >\"$HOME\"/token; ", None, what).await
    }

    async fn planned(plan: Plan, keys: &str, boot: &str, gate: Option<&str>, what: &str) -> ProcessFleet {
        let folder = tempfile::tempdir().unwrap();
        let wait =
            gate.map(|name| format!("{}; ", Gate::closed(folder.path(), name).wait())).unwrap_or_default();
        let script = folder.path().join("work.sh");
        std::fs::write(&script, format!("{wait}{what}\n")).unwrap();
        // Each start of a machine leaves a line.
        let command = format!(
            "echo $REMUDA_MACHINE >> {}; {boot}exec remuda worker --exec \"sh {}\"",
            folder.path().join("starts").display(),
            script.display()
        );
        let text = format!(
            "cycle_every = '1s'\n[[fleet]]\nname = 'local'\nprovider = 'process'\ncommand = '{command}'\n{QUICK}{keys}"
        );
        let config = folder.path().join("remuda.toml");
        std::fs::write(&config, text).unwrap();
        let plan = plan.arguments(&["--config", config.to_str().unwrap()]);
        ProcessFleet { plane: plan.start().await, folder }
    }

    pub(super) fn open(&self, gate: &str) {
        std::fs::remove_file(self.folder.path().join(gate)).unwrap();
    }

    /// The machines as they were started, each as often as it was.
    pub(super) fn starts(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("starts")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn records(&self) -> PathBuf {
        self.plane.store().with_file_name("fleets").join("local")
    }

    /// The processes there are, by the names of their machines.
    pub(super) fn processes(&self) -> Vec<(String, Pid)> {
        processes(&self.records())
    }

    /// What a machine wrote while it was there.
    pub(super) fn said(&self, machine: &str) -> String {
        let files = std::fs::read_dir(self.records()).unwrap().map(|file| file.unwrap().path());
        let mut logs =
            files.filter(|path| path.to_str().is_some_and(|path| path.ends_with(&format!("{machine}.log"))));
        logs.next().map(|path| std::fs::read_to_string(path).unwrap()).unwrap_or_default()
    }

    /// Waits until there are so many machines whose workers are at work.
    pub(super) async fn until_active(&self, count: usize) -> Vec<String> {
        wait_until(&format!("{count} machines are at work"), async || {
            let names = active(self).await;
            (names.len() == count).then_some(names)
        })
        .await
    }

    /// Waits until so many machines are left.
    pub(super) async fn until_left(&self, count: usize) {
        wait_until(&format!("{count} machines are left"), async || {
            (self.processes().len() == count).then_some(())
        })
        .await;
    }

    pub(super) async fn submit_many(&self, count: usize) -> Vec<String> {
        let mut jobs = Vec::new();
        for n in 0..count {
            jobs.push(self.submit(json!({ "n": n })).await);
        }
        jobs
    }

    /// Waits until all of them are done.
    pub(super) async fn until_done(&self, jobs: &[String]) {
        for job in jobs {
            let ended = self.ended(job).await;
            assert_eq!(ended["state"], "completed", "{ended}");
        }
    }
}

/// The machines that are at work.
pub(super) async fn active(client: &Client) -> Vec<String> {
    let workers = client.get("/remuda/v1/workers").await;
    let is_active = |worker: &&Value| worker["state"] == "active" && worker["presence"] == "online";
    let active = workers["workers"].as_array().unwrap().iter().filter(is_active);
    active.map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
}

/// The processes recorded in a folder that are there, by the names of their machines.
pub(super) fn processes(folder: &Path) -> Vec<(String, Pid)> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = files.map(|file| file.unwrap().path());
    let records = paths.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let read = |path: PathBuf| {
        // It may have gone just now.
        let record: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let pid = Pid::from_raw(record["process"]["pid"].as_i64()?.try_into().unwrap())?;
        // The tag is remuda-DEPLOYMENT-FLEET-NUMBER, the machine FLEET-NUMBER.
        let machine = record["id"].as_str()?.splitn(3, '-').last()?.to_owned();
        test_kill_process(pid).is_ok().then_some((machine, pid))
    };
    records.filter_map(read).collect()
}
