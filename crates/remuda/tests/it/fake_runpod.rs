//! `remuda fake runpod` as a program: its pods are processes, and none of them outlives it.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Process, assert_contains_all, remuda, wait_until};

/// An account that a program stands in for.
struct Account {
    process: Process,
    folder: tempfile::TempDir,
    http: reqwest::Client,
    url: String,
    control: String,
}

impl Account {
    async fn open(flags: &[&str]) -> Account {
        let folder = tempfile::tempdir().unwrap();
        let mut command = remuda(folder.path());
        command.args(["fake", "runpod", "--listen", "127.0.0.1:0", "--json", "--speed", "1000"]).args(flags);
        let mut process = Process::start("the account", &mut command);
        let ready: Value = serde_json::from_str(&process.line("url").await.unwrap()).unwrap();
        let text = |key: &str| ready[key].as_str().unwrap().to_owned();
        let http = remuda_net::http_client::client_builder().user_agent("story/1").build().unwrap();
        Account { url: text("url"), control: text("control"), process, folder, http }
    }

    async fn create(&self, name: &str) -> String {
        let order = json!({
            "name": name, "image": "ours:1", "cloud": "SECURE", "env": {"SECRET": "value"},
            "ports": ["22/tcp"], "gpu": {"id": "NVIDIA L4", "count": 2}, "dataCenterIds": ["EU-RO-1"],
        });
        let request = self.http.post(format!("{}/pods", self.url)).bearer_auth("rpa_x").json(&order);
        let made: Value = request.send().await.unwrap().json().await.unwrap();
        made["id"].as_str().unwrap().to_owned()
    }

    async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.url)).bearer_auth("rpa_x");
        request.send().await.unwrap().json().await.unwrap()
    }

    async fn control(&self, path: &str) -> Value {
        self.http.get(format!("{}/{path}", self.control)).send().await.unwrap().json().await.unwrap()
    }

    async fn delete(&self, id: &str) -> u16 {
        let request = self.http.delete(format!("{}/pods/{id}", self.url)).bearer_auth("rpa_x");
        request.send().await.unwrap().status().as_u16()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The numbers that what runs in pods wrote down, once there are so many.
    async fn pids(&self, count: usize) -> Vec<Pid> {
        let at = self.path("pids");
        wait_until("pods write their numbers down", async || {
            let pids = numbers(&at);
            (pids.len() >= count).then_some(pids)
        })
        .await
    }
}

fn numbers(at: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(at).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| Pid::from_raw(line.trim().parse().unwrap()).unwrap()).collect()
}

/// What is dead and not yet buried does not live.
fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

async fn all_end(pids: &[Pid]) {
    wait_until("nothing of the pods is left", async || pids.iter().all(|pid| !is_alive(*pid)).then_some(()))
        .await;
}

/// A pod that hears no SIGTERM, with a child in a session of its own that hears none either.
const STUBBORN: &str = "trap '' TERM; echo $$ >>pids; \
                        setsid sh -c 'trap \"\" TERM; echo $$ >>pids; while :; do sleep 1; done' & \
                        while :; do sleep 1; done";

#[tokio::test]
async fn pod_process_has_ordered_environment() {
    let account =
        Account::open(&["--exec", "env >environment; echo $$ >>pids; echo hello; exec sleep 1000"]).await;
    let id = account.create("a").await;
    let pids = account.pids(1).await;
    let environment = std::fs::read_to_string(account.path("environment")).unwrap();
    let own = format!("RUNPOD_POD_ID={id}\n");
    assert_contains_all(
        &environment,
        &[&own, "SECRET=value\n", "RUNPOD_DC_ID=EU-RO-1\n", "RUNPOD_GPU_COUNT=2\n", "RUNPOD_TCP_PORT_22="],
    );
    let pods = account.control("pods").await;
    assert_eq!((&pods["pods"][0]["id"], &pods["pods"][0]["containers"]), (&json!(id), &json!(1)));
    let kept = pods["pods"][0]["pid"].as_i64().unwrap();
    let session = rustix::process::getsid(Some(pids[0])).unwrap();
    assert_eq!(i64::from(session.as_raw_nonzero().get()), kept, "a session of its own");
    let request = account.http.get(format!("{}/pods/{id}/logs?source=container", account.url));
    let mut logs = request.bearer_auth("rpa_x").send().await.unwrap();
    assert!(String::from_utf8_lossy(&logs.chunk().await.unwrap().unwrap()).contains("\"line\":\"hello\""));
    assert_eq!(account.delete(&id).await, 204);
    all_end(&pids).await;
    assert_eq!(account.control("ledger").await["alive"], 0);
}

#[tokio::test]
async fn pod_gets_sigterm_before_sigkill() {
    let command = "trap 'echo asked >asked; exit 0' TERM; echo $$ >>pids; while :; do sleep 0.05; done";
    let account = Account::open(&["--exec", command]).await;
    let id = account.create("a").await;
    let pids = account.pids(1).await;
    account.delete(&id).await;
    all_end(&pids).await;
    assert!(account.path("asked").exists());
}

#[tokio::test]
async fn exited_command_restarts_while_pod_bills() {
    let account = Account::open(&["--exec", "echo $$ >>pids; exit 3"]).await;
    let id = account.create("a").await;
    account.pids(3).await;
    let pod = account.get(&format!("/pods/{id}")).await;
    assert_eq!((&pod["status"], &pod["runtime"]["uptime"]), (&json!("RUNNING"), &json!(0)));
    account.delete(&id).await;
}

#[tokio::test]
async fn stubborn_pod_is_killed_with_children() {
    let account = Account::open(&["--exec", STUBBORN]).await;
    let id = account.create("a").await;
    let pids = account.pids(2).await;
    account.delete(&id).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)), "it has its grace");
    all_end(&pids).await;
}

#[tokio::test]
async fn no_pod_outlives_stopped_fake() {
    let mut account = Account::open(&["--exec", STUBBORN]).await;
    account.create("a").await;
    account.create("b").await;
    let pids = account.pids(4).await;
    account.process.signal(Signal::INT);
    assert!(account.process.ended().await.success());
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "it waits for their end");
}

#[tokio::test]
async fn no_pod_outlives_killed_fake() {
    let mut account = Account::open(&["--exec", STUBBORN]).await;
    account.create("a").await;
    account.create("b").await;
    let pids = account.pids(4).await;
    account.process.kill();
    all_end(&pids).await;
}

#[tokio::test]
async fn host_death_gives_no_grace_and_crash_restarts() {
    let command = "trap 'echo asked >asked; exit 0' TERM; echo $$ >>pids; while :; do sleep 0.05; done";
    let account = Account::open(&["--exec", command]).await;
    let id = account.create("a").await;
    let first = account.pids(1).await;
    let harm = async |how: &str| {
        let request = account.http.post(format!("{}/pods/{id}/{how}", account.control));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(harm("crash").await, 200);
    let second = account.pids(2).await;
    assert!(!is_alive(first[0]));
    assert_eq!(harm("vanish").await, 200);
    all_end(&second).await;
    assert!(!account.path("asked").exists());
    assert_eq!(harm("exit").await, 404);
}

#[tokio::test]
async fn orphaned_pod_child_is_killed() {
    let command = "(setsid sleep 1000 & echo $! >>pids); echo $$ >>pids; exec sleep 1000";
    let account = Account::open(&["--exec", command]).await;
    account.create("a").await;
    let pids = account.pids(2).await;
    // Its command ends: whatever it left behind ends before the next one starts.
    kill_process(pids[1], Signal::KILL).unwrap();
    all_end(&pids).await;
    account.pids(4).await;
}

#[tokio::test]
async fn faults_can_change_at_run_time() {
    let account = Account::open(&["--fault", "all=0", "--fault", "empty-list=1", "--foreign", "2"]).await;
    assert_eq!(account.get("/pods").await["pods"], json!([]));
    let none = account.http.put(format!("{}/faults", account.control)).json(&json!({}));
    none.send().await.unwrap();
    assert_eq!(account.get("/pods").await["pods"].as_array().unwrap().len(), 2);
    assert_eq!(account.control("faults").await["struck"], json!({"empty-list": 1}));
}
