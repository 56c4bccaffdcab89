//! Before a worker accepts jobs: its environment and its start check.

use serde_json::json;

use crate::harness::{
    Gate, Plane, Process, QUICK, Worker, answered, assert_contains_all, remuda, wait_until,
};

/// Faults: M6.
#[tokio::test]
async fn machine_before_readiness_gets_no_work() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let more = ["--fleet", "gpus", "--check-cmd", &gate.wait()];
    let _worker = Worker::start_with(&plane, "a", "echo done", &more).await;
    wait_until("it says what it does", async || {
        (plane.worker("a").await["unavailable_reason"] == "start check: running the check command")
            .then_some(())
    })
    .await;
    let worker = plane.worker("a").await;
    assert_eq!((&worker["slots"], &worker["check"]), (&json!(0), &json!(null)));
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.job(&job).await["state"], "queued");
    gate.open();
    assert_eq!(plane.ended(&job).await["result"], "done");
    let worker = plane.worker("a").await;
    assert_eq!((&worker["slots"], &worker["check"]["passed"]), (&json!(1), &json!(true)));
}

/// Faults: M5.
#[tokio::test]
async fn failed_gpu_check_is_reported_and_gets_no_work() {
    let plane = Plane::start(QUICK).await;
    let more = ["--check-cmd", "echo 'CUDA error: device lost' >&2; exit 1"];
    let mut sick = Worker::start_with(&plane, "sick", "echo sick", &more).await;
    wait_until("the plane knows", async || {
        (plane.worker("sick").await["check"]["passed"] == false).then_some(())
    })
    .await;
    let worker = plane.worker("sick").await;
    assert_contains_all(
        worker["check"]["problem"].as_str().unwrap(),
        &["check command failed", "CUDA error: device lost"],
    );
    assert_eq!(worker["slots"], 0);
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.job(&job).await["state"], "queued");
    let _well = Worker::start(&plane, "well", "echo well").await;
    assert_eq!(plane.ended(&job).await["result"], "well");
    sick.process.signal(rustix::process::Signal::TERM);
    assert!(
        sick.process.ended().await.success(),
        "it can be stopped while it waits: {}",
        sick.process.said()
    );
}

#[tokio::test]
async fn full_disk_fails_start_check() {
    let plane = Plane::start(QUICK).await;
    let _worker = Worker::start_with(&plane, "a", "true", &["--disk-min", "1000000GiB"]).await;
    wait_until("the plane knows", async || {
        let closed = plane.worker("a").await["unavailable_reason"].as_str().unwrap_or_default().to_owned();
        (closed.contains("start check failed: ") && closed.contains("free on the disk")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn flags_override_machine_environment() {
    let plane = Plane::start(QUICK).await;
    let mut command = remuda(plane.folder());
    command
        .args(["worker", "--exec", "true", "--label", "zone=b"])
        .env("REMUDA_URL", &plane.url)
        .env("REMUDA_WORKER", "gpus-7")
        .env("REMUDA_MACHINE", "gpus-7")
        .env("REMUDA_FLEET", "gpus")
        .env("REMUDA_LABELS", "gpu=a100,zone=a")
        .env("REMUDA_CONTACT_TIMEOUT", "900");
    let _worker = Process::start("gpus-7", &mut command);
    let worker = wait_until("it has joined and may work", async || {
        let request = plane.request(reqwest::Method::GET, "/remuda/v1/workers/gpus-7");
        let (_, worker) = answered(request).await;
        (worker["presence"] == "online" && worker["slots"] == 1).then_some(worker)
    })
    .await;
    assert_eq!((&worker["machine"], &worker["fleet"]), (&json!("gpus-7"), &json!("gpus")));
    assert_eq!(worker["labels"], json!({ "gpu": "a100", "zone": "b" }));
    assert!(worker["metrics"]["service"].as_str().is_some(), "{worker}");
}
