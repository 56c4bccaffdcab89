//! Planes that are stopped, killed and paused while work is running: clients and workers only notice a delay.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Gate, Plane, QUICK, ScriptedWorker, Stream, Worker, sleep_for, wait_until};

/// Notes each start in a file before it waits: so often did the job really run.
fn counted(gate: &Gate) -> String {
    format!("echo $REMUDA_ATTEMPT >> starts; echo begun >&2; {}; echo done", gate.wait())
}

fn starts(plane: &Plane) -> String {
    std::fs::read_to_string(plane.folder().join("starts")).unwrap_or_default()
}

async fn has_begun(plane: &Plane) {
    wait_until("the command has begun", async || (starts(plane) == "1\n").then_some(())).await;
}

/// Faults: C1.
#[tokio::test]
async fn stopping_plane_answers_then_resumes() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let _worker = Worker::start(&plane, "a", &counted(&gate)).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    has_begun(&plane).await;
    let mut events = Stream::open(&plane, "", None).await;
    let mut idle = ScriptedWorker::join(&plane, "idle", 1).await;
    let line = tokio::spawn(idle.beat(&json!([]), &json!([]), 25.0).send());
    wait_until("its line is open", async || {
        (plane.worker("idle").await["seen_millis_ago"].as_u64()? < 5_000).then_some(())
    })
    .await;

    let asked_at = Instant::now();
    let status = plane.stop().await;
    assert_eq!(status.code(), Some(0), "{}", plane.process.said());
    assert!(asked_at.elapsed() < Duration::from_secs(9), "open lines held it up: {:?}", asked_at.elapsed());
    assert!(
        line.await.unwrap().is_ok_and(|answer| answer.status().is_success()),
        "the open line was answered"
    );
    while events.read().await.is_some() {}

    plane.start_again().await;
    assert_eq!(plane.worker("a").await["incarnation"], 1, "it is the same worker to the new plane");
    gate.open();
    assert_eq!(plane.ended(&job).await["attempt"], 1);
    assert_eq!(starts(&plane), "1\n");
}

/// Faults: C1.
#[tokio::test]
async fn killed_plane_resumes_with_running_workers() {
    let beats = ["beat.busy=300ms", "beat.suspect_after=1s", "beat.idle=2s", "beat.stale_after=5s"];
    let mut plane = Plane::start(&[&["lease=5s", "order_grace=1s"], &beats[..]].concat()).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let busy = Worker::start(&plane, "a", &counted(&gate)).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    has_begun(&plane).await;
    let idle = Worker::start(&plane, "idle", "true").await;
    for worker in [&busy, &idle] {
        worker.process.signal(Signal::STOP);
    }
    plane.kill();
    // Longer than any allowed silence; and no worker is there at once when it is back.
    sleep_for(Duration::from_secs(6)).await;
    plane.start_again().await;
    sleep_for(Duration::from_secs(2)).await;
    for worker in [&busy, &idle] {
        worker.process.signal(Signal::CONT);
    }
    wait_until("the worker is back with its attempt", async || {
        let worker = plane.worker("a").await;
        (worker["holds"][0]["phase"] == "begun").then_some(())
    })
    .await;
    assert_eq!(plane.worker("a").await["incarnation"], 1);
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!(
        (&ended["state"], &ended["attempt"], &ended["infra_failures"]),
        (&json!("completed"), &json!(1), &json!(0))
    );
    assert_eq!(starts(&plane), "1\n", "it ran once");
    assert_no_worker_was_blamed(&plane).await;
}

/// Faults: N1, C1.
#[tokio::test]
async fn completion_during_absence_is_recorded() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut worker = Worker::start(&plane, "a", &counted(&gate)).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    has_begun(&plane).await;
    plane.kill();
    gate.open();
    worker.process.line("plane unreachable").await.expect("it should notice");
    plane.start_again().await;
    assert_eq!(plane.ended(&job).await["attempt"], 1);
    assert_eq!(starts(&plane), "1\n");
}

/// Faults: K2, D8, C1.
#[tokio::test]
async fn paused_plane_blames_no_worker() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let _busy = Worker::start(&plane, "a", &counted(&gate)).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    has_begun(&plane).await;
    let _idle = Worker::start(&plane, "idle", "true").await;
    let mut events = Stream::open(&plane, "?after=0", None).await;
    plane.process.signal(Signal::STOP);
    // Longer than the lease, and than an idle worker may be silent.
    sleep_for(Duration::from_secs(7)).await;
    plane.process.signal(Signal::CONT);
    events.until("plane:away").await;
    // A whole lease in which anyone who was blamed would be judged.
    sleep_for(Duration::from_secs(2)).await;
    gate.open();
    assert_eq!(plane.ended(&job).await["attempt"], 1);
    assert_eq!(starts(&plane), "1\n");
    assert_no_worker_was_blamed(&plane).await;
}

async fn assert_no_worker_was_blamed(plane: &Plane) {
    let blamed = ["job:retrying", "job:failed", "worker:offline", "fleet:brake"];
    let history = plane.history().await;
    let blames: Vec<_> = history.iter().filter(|event| blamed.contains(&event.name.as_str())).collect();
    assert!(blames.is_empty(), "{blames:?}");
}
