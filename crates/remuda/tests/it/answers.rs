//! Definite answers to repeated, racing and late requests.

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gate, Plane, QUICK, ScriptedWorker, Worker, answered, wait_until};

async fn submit(plane: &Plane, body: &Value) -> (StatusCode, Value) {
    plane.post("/remuda/v1/jobs", body).await
}

/// Faults: C17.
#[tokio::test]
async fn idempotency_key_returns_same_job_while_kept() {
    let mut plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let body = json!({ "workflow": { "n": 1 }, "idempotency_key": "k" });
    let others = [
        json!({ "workflow": { "n": 2 }, "idempotency_key": "k" }),
        json!({ "workflow": { "n": 1 }, "idempotency_key": "k", "labels": { "a": "b" } }),
    ];
    let (status, first) = submit(&plane, &body).await;
    assert_eq!((status, &first["created"]), (StatusCode::CREATED, &json!(true)));
    let known = json!({ "id": first["id"], "created": false });
    let is_known = async |plane: &Plane| {
        assert_eq!(submit(plane, &body).await, (StatusCode::OK, known.clone()));
        for other in &others {
            let (status, problem) = submit(plane, other).await;
            assert_eq!((status, &problem["error"]["code"]), (StatusCode::CONFLICT, &json!("key_conflict")));
        }
    };
    is_known(&plane).await;
    let attempt = hand.take().await;
    is_known(&plane).await;
    hand.complete(&attempt, json!("done")).await;
    is_known(&plane).await;
    plane.kill();
    plane.start_again().await;
    is_known(&plane).await;

    // The header says the same as the field, spelling and white space say nothing, another tenant has its own keys.
    let in_header = plane.request(Method::POST, "/remuda/v1/jobs").header("idempotency-key", "k");
    assert_eq!(answered(in_header.body(r#" { "workflow" : {"\u006e": 1.0} } "#)).await.1, known);
    let elsewhere = json!({ "workflow": { "n": 2 }, "idempotency_key": "k", "tenant": "anna" });
    assert_eq!(submit(&plane, &elsewhere).await.0, StatusCode::CREATED);
    assert_eq!(plane.jobs().await.len(), 2);
}

/// Faults: C17.
#[tokio::test]
async fn concurrent_submissions_with_one_key_make_one_job() {
    let plane = Plane::start(&[]).await;
    let body = json!({ "workflow": { "n": 1 }, "idempotency_key": "k" });
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        answers.spawn(answered(plane.request(Method::POST, "/remuda/v1/jobs").json(&body)));
    }
    let answers = answers.join_all().await;
    let created = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    assert_eq!(created, 1, "{answers:?}");
    assert!(answers.iter().all(|(_, answer)| answer["id"] == answers[0].1["id"]), "{answers:?}");
    assert_eq!(plane.jobs().await.len(), 1);
}

/// Faults: A7.
#[tokio::test]
async fn cancel_and_completion_race_has_one_winner() {
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    for n in 0..40 {
        let job = plane.submit(json!({ "n": n })).await;
        let attempt = hand.take().await;
        let (cancel, verdict) = if n % 2 == 0 {
            tokio::join!(plane.cancel(&job), hand.complete(&attempt, json!(n)))
        } else {
            let (verdict, cancel) = tokio::join!(hand.complete(&attempt, json!(n)), plane.cancel(&job));
            (cancel, verdict)
        };
        let ended = plane.job(&job).await;
        let story = (cancel.0, verdict.as_str(), ended["state"].as_str().unwrap());
        let cancel_won = "the job is already cancelled, and an outcome never changes";
        match story {
            (StatusCode::OK, verdict, "cancelled") if verdict == cancel_won => {
                assert!(ended.get("result").is_none(), "{ended}");
            }
            (StatusCode::CONFLICT, "recorded", "completed") => {
                assert_eq!((&ended["result"], &cancel.1["error"]["code"]), (&json!(n), &json!("ended")));
            }
            other => panic!("not one definite answer: {other:?}"),
        }
        assert_eq!(
            plane.cancel(&job).await.0,
            StatusCode::CONFLICT,
            "a second cancel is too late either way"
        );
    }
}

/// Faults: C16.
#[tokio::test]
async fn cancel_does_not_wait_for_unreachable_worker() {
    // A lease that is no help: it is cancelled because it was asked for.
    let plane = Plane::start(&["lease=1h"]).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let worker = Worker::start(&plane, "a", &format!("echo begun > began; {}", gate.wait())).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let began = plane.folder().join("began");
    wait_until("the command has begun", async || began.exists().then_some(())).await;
    worker.process.signal(Signal::STOP);
    assert_eq!(plane.cancel(&job).await.0, StatusCode::OK);
    let ended = plane.job(&job).await;
    assert_eq!(ended["state"], "cancelled");
    worker.process.signal(Signal::CONT);
    wait_until("the worker has let go of it", async || {
        let next = plane.worker("a").await;
        (next["holds"] == json!([]) && next["presence"] == "online").then_some(())
    })
    .await;
    // It has room for the next one: the cancelled command does not hold it up, and the gate is still closed.
    let next = plane.submit(json!({ "n": 2 })).await;
    plane.job_until(&next, "runs", |job| job["state"] == "running").await;
    assert_eq!(plane.job(&job).await, ended, "an outcome never changes");
}

/// Faults: A6.
#[tokio::test]
async fn repeated_completion_is_recorded_once() {
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!("first")).await, "recorded");
    let ended = plane.job(&job).await;
    assert_eq!(hand.complete(&attempt, json!("first")).await, "this outcome is already recorded");
    assert_eq!(hand.complete(&attempt, json!("second thoughts")).await, "this outcome is already recorded");
    assert_eq!(plane.job(&job).await, ended);
    assert_eq!(plane.get("/remuda/v1/status").await["refused"]["already_recorded"], 2);
}
