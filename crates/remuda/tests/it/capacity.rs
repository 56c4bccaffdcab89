//! Limits of jobs, connections and file descriptors.

use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use serde_json::json;

use crate::harness::{
    Plane, Raw, ScriptedWorker, answered, assert_contains_all, assert_stays_open, sleep_for, wait_until,
};

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

/// Faults: C20, X13.
#[tokio::test]
async fn connections_beyond_limit_wait() {
    let plane = Plane::start(&["limits.connections_max=8", "limits.streams_max=4"]).await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(Raw::open(plane.address).await);
    }
    let request = plane.request(Method::GET, "/health/live").send();
    tokio::pin!(request);
    assert_stays_open(Duration::from_millis(300), &mut request).await;
    drop(idle.pop());
    assert_eq!(request.await.unwrap().status(), StatusCode::OK);
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
    plane.process.line("accepting a connection failed").await.expect("the flood should be noticed");
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
