//! A store that is away for longer than a lease, one that was put back from a backup, and a clock that jumps: what real
//! workers hold survives (rows D16, D17, K1).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Gate, Plane, QUICK, Worker, answered, sleep_for, wait_until};
use crate::start::run;

/// Says that it has begun, waits at the gate, and tells which attempt it was.
fn gated(gate: &Gate) -> String {
    format!("echo begun >&2; {}; echo $REMUDA_ATTEMPT", gate.wait())
}

async fn begun(plane: &Plane, job: &str) {
    let worker = plane.runs_on(job).await;
    wait_until("the attempt is under way", async || {
        let holds = plane.worker(&worker).await["holds"].clone();
        holds.as_array()?.iter().any(|hold| hold["job"] == job && hold["phase"] == "begun").then_some(())
    })
    .await;
}

async fn told(plane: &Plane, names: &[&str]) -> Vec<String> {
    let history = plane.history().await.into_iter().map(|event| event.name);
    history.filter(|name| names.contains(&name.as_str())).collect()
}

/// Faults: D17. Three leases without a store: one attempt ends meanwhile, the other goes on.
#[tokio::test]
async fn store_that_is_away_for_three_leases_costs_no_worker_its_job() {
    let plane = Plane::start(QUICK).await;
    let (first, second) = (Gate::closed(plane.folder(), "first"), Gate::closed(plane.folder(), "second"));
    let _one = Worker::start(&plane, "one", &gated(&first)).await;
    let ends = plane.submit(json!({ "n": 1 })).await;
    begun(&plane, &ends).await;
    let _two = Worker::start(&plane, "two", &gated(&second)).await;
    let goes_on = plane.submit(json!({ "n": 2 })).await;
    begun(&plane, &goes_on).await;

    let (data, away) = (plane.store().parent().unwrap().to_owned(), plane.folder().join("away"));
    fs::rename(&data, &away).unwrap();
    first.open();
    wait_until("it is not ready", async || {
        let (status, _) = answered(plane.request(Method::GET, "/health/ready")).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    sleep_for(Duration::from_secs(6)).await;
    fs::rename(&away, &data).unwrap();
    wait_until("it is ready again", async || {
        let (status, _) = answered(plane.request(Method::GET, "/health/ready")).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
    let ended = plane.ended(&ends).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(1)), "{ended}");
    second.open();
    let ended = plane.ended(&goes_on).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(1)), "{ended}");
    let blamed = ["worker:offline", "job:retrying", "job:failed", "fleet:brake"];
    assert_eq!(told(&plane, &blamed).await, [""; 0]);
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Every incarnation that the worker got, as it logs them.
fn incarnations(worker: &Worker) -> Vec<u64> {
    let said = worker.process.said();
    let numbers = said.lines().filter(|line| line.contains("joined the plane"));
    numbers.filter_map(|line| line.split("incarnation=").nth(1)?.split(' ').next()?.parse().ok()).collect()
}

/// Faults: D16. The worker lives on, and holds attempts and an incarnation that the restored store has never heard of.
#[tokio::test]
async fn workers_of_a_restored_plane_are_fenced_above_all_they_ever_had() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut worker = Worker::start_with(&plane, "w", &gated(&gate), &["--slots", "2"]).await;
    let kept = plane.submit(json!({ "n": 1 })).await;
    begun(&plane, &kept).await;
    plane.stop().await;
    let backup = fs::read(plane.store()).unwrap();
    plane.start_again().await;

    // After the backup the worker dies and comes back, and the job is tried again; another job is accepted and begins.
    worker.process.kill();
    worker = Worker::start_with(&plane, "w", &gated(&gate), &["--slots", "2"]).await;
    let has_later_attempt = |job: &Value| job["attempt"].as_u64() >= Some(2) && job["state"] == "running";
    plane.job_until(&kept, "runs again", has_later_attempt).await;
    begun(&plane, &kept).await;
    let lost = plane.submit(json!({ "n": 2 })).await;
    begun(&plane, &lost).await;
    let before = incarnations(&worker).into_iter().max().unwrap();
    let attempt_before = plane.job(&kept).await["attempt"].as_u64().unwrap();

    plane.kill();
    fs::write(plane.store(), backup).unwrap();
    for suffix in ["-wal", "-shm", ".lock"] {
        fs::remove_file(with_suffix(&plane.store(), suffix)).ok();
    }
    let data = plane.store().parent().unwrap().to_str().unwrap().to_owned();
    let (code, said) = run(plane.folder(), &["store", "recover", "--data", &data, "--accept-loss"]).await;
    assert_eq!(code, 0, "{said}");
    plane.start_again().await;
    wait_until("the worker has joined above its last incarnation", async || {
        (incarnations(&worker).into_iter().max() > Some(before)).then_some(())
    })
    .await;
    // What no record explains is stopped; what the store knows is done once, under a number never used before.
    wait_until("the lost job is stopped", async || {
        let holds = plane.worker("w").await["holds"].clone();
        holds.as_array()?.iter().all(|hold| hold["job"] != lost.as_str()).then_some(())
    })
    .await;
    gate.open();
    let ended = plane.ended(&kept).await;
    assert_eq!(ended["state"], "completed", "{ended}");
    assert!(ended["attempt"].as_u64().unwrap() >= attempt_before, "{ended}");
    let (status, gone) = answered(plane.request(Method::GET, &format!("/remuda/v1/jobs/{lost}"))).await;
    assert_eq!(status, StatusCode::GONE, "{gone}");
    assert!(!worker.process.has_ended(), "{}", worker.process.said());
}

/// Where Debian puts it.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Faults: K1. An hour forwards and back, twice, while a job runs, one waits for its retry, and others come and go.
#[tokio::test]
async fn clock_that_jumps_an_hour_while_running_costs_nothing_and_keeps_ids_in_order() {
    if !Path::new(FAKETIME).exists() {
        return remuda_testkit::skip("libfaketime");
    }
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |seconds: i64| {
        let new = clock.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(&new, &clock).unwrap();
    };
    set(0);
    let plan = Plane::plan(QUICK)
        .variable("LD_PRELOAD", FAKETIME)
        .variable("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap())
        .variable("FAKETIME_NO_CACHE", "1")
        // Timers go by the monotonic clock, which no operator can set.
        .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let plane = plan.start().await;
    let gate = Gate::closed(plane.folder(), "gate");
    let _held = Worker::start(&plane, "held", &gated(&gate)).await;
    let long = plane.submit(json!({ "n": 0 })).await;
    begun(&plane, &long).await;
    let _quick =
        Worker::start(&plane, "quick", "[ $REMUDA_ATTEMPT -gt 1 ] || exit 75; echo $REMUDA_ATTEMPT").await;
    let mut jobs = vec![long.clone()];
    for hours in [1, 0, -1, 0] {
        // Its first attempt fails, so that a timer runs while the clock jumps.
        jobs.push(plane.submit(json!({ "n": jobs.len() })).await);
        set(hours * 3600);
        // Longer than a lease: a lease that goes by the wall clock is lost or never ends.
        sleep_for(Duration::from_secs(3)).await;
        let retried = plane.ended(jobs.last().unwrap()).await;
        assert_eq!((&retried["state"], &retried["result"]), (&json!("completed"), &json!(2)), "{retried}");
    }
    gate.open();
    let ended = plane.ended(&long).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(1)), "{ended}");
    let mut ordered = jobs.clone();
    ordered.sort();
    assert_eq!(jobs, ordered, "ids are in the order of submission");
    assert_eq!(told(&plane, &["worker:offline", "fleet:brake", "job:failed"]).await, [""; 0]);
}
