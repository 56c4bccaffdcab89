//! Servers that answer but do not work: repaired, mildest remedy first, and restarted by the worker that owns them.

use remuda_fakes::comfyui::{Fault, Options};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use super::fixture::{
    ComfyFixture, Server, completed_after_a_mishap, completed_at_once, executions, gave_a_picture,
    until_open, until_progress, verdict,
};
use super::graph::picture;
use super::owned::Owned;
use crate::harness::{Plane, QUICK, assert_contains_all, wait_until};

/// What does not advance for this long is stuck.
const STUCK: &str = "stuck_after=1500ms";

async fn plane(settings: &[&str]) -> Plane {
    Plane::start(&[QUICK, &[STUCK], settings].concat()).await
}

async fn ended(plane: &Plane, job: &str) -> serde_json::Value {
    plane.ended(job).await
}

/// Faults: V11, V22, A9.
#[tokio::test]
async fn dead_executor_restarts_server_and_reruns_job() {
    for fault in ["executor-dead", "hang"] {
        let plane = plane(&[]).await;
        let server = Owned::start(&plane, "w").await;
        let before = server.pid();
        server.strike(fault).await;
        let job = plane.submit(picture(1).sleep(0.2, 2).saved()).await;
        let ended = ended(&plane, &job).await;
        completed_after_a_mishap(&ended);
        gave_a_picture(&plane, &ended).await;
        assert_contains_all(&verdict(&plane, &job, 1).await, &["stuck: no progress"]);
        assert_ne!(server.pid(), before, "another process runs there now");
        until_open(&plane, &server.worker, true).await;
        completed_at_once(&plane.ended(&plane.submit(picture(2).saved()).await).await);
    }
}

/// Faults: V11, V10.
#[tokio::test]
async fn device_error_restarts_server_at_once() {
    let plane = plane(&[]).await;
    let server = Owned::start(&plane, "w").await;
    let before = server.pid();
    server.strike("cuda").await;
    let job = plane.submit(picture(1).sleep(0.2, 2).saved()).await;
    let ended = ended(&plane, &job).await;
    completed_after_a_mishap(&ended);
    assert_contains_all(&verdict(&plane, &job, 1).await, &["illegal memory access"]);
    assert_ne!(server.pid(), before);
}

/// Faults: V8.
#[tokio::test]
async fn dead_server_restarts_and_job_reruns() {
    let plane = plane(&[]).await;
    let server = Owned::start(&plane, "w").await;
    let before = server.pid();
    server.strike("die").await;
    let job = plane.submit(picture(1).sleep(0.2, 2).saved()).await;
    let ended = ended(&plane, &job).await;
    completed_after_a_mishap(&ended);
    gave_a_picture(&plane, &ended).await;
    assert_ne!(server.pid(), before);
}

/// Faults: V22, A11, J9.
#[tokio::test]
async fn poison_workflow_gets_no_third_server() {
    for kind in ["crash", "exit", "cuda"] {
        let plane = plane(&[]).await;
        let servers = [
            Owned::start(&plane, "a").await,
            Owned::start(&plane, "b").await,
            Owned::start(&plane, "c").await,
        ];
        let before: Vec<_> = servers.iter().map(Owned::pid).collect();
        let job = plane.submit(picture(1).fail(kind).saved()).await;
        let ended = ended(&plane, &job).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("failed"), &json!(2)), "{kind}: {ended}");
        assert_contains_all(ended["reason"].as_str().unwrap(), &["stopped by the plane", "poison"]);
        let restarted =
            || servers.iter().zip(&before).filter(|(server, before)| server.pid() != **before).count();
        wait_until("two were restarted", async || (restarted() == 2).then_some(())).await;
        for server in &servers {
            until_open(&plane, &server.worker, true).await;
        }
        for color in 2..5 {
            completed_at_once(&plane.ended(&plane.submit(picture(color).saved()).await).await);
        }
        assert_eq!(restarted(), 2, "{kind}: the third was spared");
    }
}

/// Faults: J8.
#[tokio::test]
async fn server_that_an_operator_kills_twice_makes_its_job_no_poison() {
    let plane = plane(&[]).await;
    let servers = [Owned::start(&plane, "a").await, Owned::start(&plane, "b").await];
    let job = plane.submit(picture(1).sleep(2.0, 20).saved()).await;
    let mut killed = Vec::new();
    for attempt in 1..=2 {
        let runs =
            plane.job_until(&job, "runs", |job| job["state"] == "running" && job["attempt"] == attempt).await;
        let server = servers.iter().find(|server| runs["worker"] == server.worker.name.as_str()).unwrap();
        until_progress(&plane, &job, 0.05).await;
        let pid = server.pid().and_then(Pid::from_raw).unwrap();
        kill_process_group(pid, Signal::KILL).unwrap();
        killed.push(server.worker.name.clone());
        plane.job_until(&job, "was moved", |job| job["attempt"] != attempt).await;
    }
    assert_ne!(killed[0], killed[1], "two distinct servers went down with it");
    let ended = ended(&plane, &job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(3)), "{ended}");
}

/// Faults: V11.
#[tokio::test]
async fn sick_foreign_server_waits_for_restart() {
    let server = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(server, &[STUCK], &["--set", "agent.self_test_timeout=1s"]).await;
    stage.server.as_fake().control().strike_next(Fault::ExecutorDead);
    let job = stage.submit(picture(1).sleep(0.2, 2).saved()).await;
    let closed = wait_until("it is given up", async || {
        let worker = stage.plane.worker(&stage.worker.name).await;
        worker["unavailable_reason"]
            .as_str()
            .filter(|why| why.contains("restart it yourself"))
            .map(str::to_owned)
    })
    .await;
    assert_contains_all(&closed, &["still runs an attempt", "--comfyui-cmd"]);
    stage.job_until(&job, "waits", |job| job["state"] == "queued").await;
    stage.server.as_fake().restart().await;
    let ended = stage.ended(&job).await;
    completed_after_a_mishap(&ended);
    assert_eq!(executions(&[&stage.server], &job), 2);
}

/// Faults: A1, V2.
#[tokio::test]
async fn owned_server_is_adopted_by_next_agent() {
    let plane = Plane::start(&[QUICK, &["lease=20s", "beat.stale_after=30s"]].concat()).await;
    let mut server = Owned::start(&plane, "w").await;
    let before = server.pid();
    let job = plane.submit(picture(1).sleep(3.0, 30).saved()).await;
    until_progress(&plane, &job, 0.1).await;
    server.worker.process.kill();
    server.start_worker_again(&plane).await;
    let ended = ended(&plane, &job).await;
    completed_at_once(&ended);
    gave_a_picture(&plane, &ended).await;
    assert_eq!(server.pid(), before, "it is the same server");
    assert_eq!(server.state().await["ran_twice"], json!([]));
}

/// Faults: V18.
#[tokio::test]
async fn non_comfyui_server_is_refused() {
    let plane = Plane::start(QUICK).await;
    let mut command = crate::harness::remuda(plane.folder());
    command.args(["worker", "--url", &plane.url, "--name", "odd", "--comfyui", &plane.url]);
    let mut worker = crate::harness::Process::start("odd", &mut command);
    assert!(worker.line("waiting for ComfyUI").await.is_some(), "{}", worker.said());
    assert!(
        worker.line("it is a Remuda").await.is_some(),
        "it would give its work to itself: {}",
        worker.said()
    );
    assert_eq!(plane.get("/remuda/v1/workers").await["workers"], json!([]));
}
