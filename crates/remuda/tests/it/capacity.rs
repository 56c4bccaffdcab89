//! Limits of jobs, connections and file descriptors.

use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use serde_json::json;

use crate::harness::{Plane, Raw, ScriptedWorker, answered, assert_contains_all, sleep_for, wait_until};

/// Faults: C7.
#[tokio::test]
async fn full_queue_answers_429_and_keeps_working() {
    let plane = Plane::start(&["limits.open_jobs_max=3"]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    for n in 0..3 {
        plane.submit_as(json!({ "workflow": { "n": n }, "idempotency_key": n.to_string() })).await;
    }
    let one_more = || plane.request(Method::POST, "/remuda/v1/jobs").json(&json!({ "workflow": { "n": 4 } }));
    let refused = one_more().send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = refused.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!(seconds > 0);
    let (status, ready) = answered(plane.request(Method::GET, "/health/ready")).await;
    assert_eq!((status, &ready["reason"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("the queue is full")));
    let again = json!({ "workflow": { "n": 0 }, "idempotency_key": "0" });
    assert_eq!(plane.post("/remuda/v1/jobs", &again).await.0, StatusCode::OK, "what is known needs no room");

    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!(null)).await, "recorded");
    assert_eq!(answered(one_more()).await.0, StatusCode::CREATED);
    assert_eq!(plane.jobs().await.len(), 4);
}

/// Enough to starve a plane that counts all connections alike; this process holds the other ends.
const IDLE: usize = 4000;

/// Faults: C20, X13.
#[tokio::test]
async fn idle_connections_keep_neither_workers_nor_health_checks_out() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = files.maximum.unwrap_or(u64::MAX);
    if most < 2 * IDLE as u64 {
        return remuda_testkit::skip("permission to open 8,000 files (`ulimit -Hn`)");
    }
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: files.maximum, ..files },
    )
    .unwrap();
    let settings = ["lease=6s", "beat.busy=500ms", "beat.suspect_after=1s", "order_grace=1s", "retry.max=1s"];
    let mut plane = Plane::start(&[&settings[..], &["retry.base=10ms", "plane_stall_max=2s"]].concat()).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let held = json!([attempt]);
    let (began_at, address) = (std::time::Instant::now(), plane.address);
    let flood = tokio::spawn(async move {
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            idle.push(Raw::open(address).await);
        }
        idle
    });
    // Longer than two leases: without its beats the worker would lose the job.
    while !flood.is_finished() || began_at.elapsed() < Duration::from_secs(13) {
        let asked_at = std::time::Instant::now();
        hand.say(&held, &json!([])).await;
        plane.get("/health/live").await;
        assert!(asked_at.elapsed() < Duration::from_secs(5), "the plane took {:?}", asked_at.elapsed());
        sleep_for(Duration::from_millis(50)).await;
    }
    let idle = flood.await.unwrap();
    let status = plane.get("/remuda/v1/status").await;
    let connections = &status["connections"];
    let [open, max] = ["open", "max"].map(|it| connections["without_request"][it].as_u64().unwrap());
    assert!(open <= max && open + 8 >= max, "{connections}");
    assert!(connections["refused"]["without_request"].as_u64().unwrap() > 2500, "{connections}");
    plane.process.line("connections without a request were closed").await.expect("it is logged");
    let said = plane.process.said();
    assert!(said.matches("connections without a request were closed").count() < 4, "logged too often");
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    let ended = plane.job(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    drop(idle);
}

/// Faults: C20, X13.
#[tokio::test]
async fn clients_beyond_their_connections_are_told_and_workers_still_heard() {
    let plane = Plane::start(&["limits.connections_max=4", "limits.streams_max=4"]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(crate::harness::Stream::open(&plane, "?after=0", None).await);
    }
    let refused = plane.request(Method::GET, "/remuda/v1/jobs").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "5");
    assert_eq!(refused.headers()[header::CONNECTION], "close");
    let refused: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(refused["error"]["code"], "connections_full");
    assert_contains_all(refused["error"]["message"].as_str().unwrap(), &["limits.connections_max"]);
    hand.say(&json!([]), &json!([])).await;
    plane.get("/health/ready").await;
    let status = plane.get("/remuda/v1/status").await;
    assert_eq!(status["connections"]["refused"]["clients"], 1, "{status}");
    drop(streams.pop());
    wait_until("there is room again", async || {
        plane.request(Method::GET, "/remuda/v1/jobs").send().await.ok()?.status().is_success().then_some(())
    })
    .await;
}

/// Faults: C20.
#[tokio::test]
async fn plane_recovers_when_file_descriptors_run_out() {
    let mut plane = Plane::plan(&[]).open_files_max(64).start().await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(Raw::open(plane.address).await);
    }
    let noticed = plane.process.line("connections without a request were closed").await;
    noticed.expect("the flood should be noticed");
    let before = plane.process.cpu_ticks();
    sleep_for(Duration::from_secs(1)).await;
    // A hundred ticks are a second: a loop that only fails to accept would take most of one.
    let ticks = plane.process.cpu_ticks() - before;
    assert!(ticks < 30, "{ticks} ticks of 10 ms in a second of waiting");
    drop(flood);
    assert_eq!(plane.job(&job).await["state"], "queued");
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    wait_until("it is healthy", async || {
        plane.request(Method::GET, "/health/ready").send().await.ok()?.status().is_success().then_some(())
    })
    .await;
    assert_contains_all(plane.job(&job).await["reason"].as_str().unwrap(), &["completed by w"]);
}

/// Faults: C20. The limit is lowered below what is open already, so that every accept fails, and files cannot be opened.
#[tokio::test]
async fn plane_without_a_single_descriptor_waits_without_spinning_and_goes_on() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let pid = Pid::from_raw(plane.process.id().cast_signed());
    let lowered = Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum };
    let usual = prlimit(pid, Resource::Nofile, lowered).unwrap();
    // These are in the listener's queue, and none of them can be taken out of it.
    let address = plane.address;
    let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(Raw::open(address))).collect();
    sleep_for(Duration::from_millis(500)).await;
    let before = plane.process.cpu_ticks();
    sleep_for(Duration::from_secs(2)).await;
    // Two hundred ticks are two seconds: a loop that only fails to accept would take most of them.
    let ticks = plane.process.cpu_ticks() - before;
    assert!(ticks < 40, "{ticks} ticks of 10 ms in two seconds without a descriptor");
    prlimit(pid, Resource::Nofile, usual).unwrap();
    drop(waiting);
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    let ended = plane.job(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    plane.get("/health/ready").await;
}
