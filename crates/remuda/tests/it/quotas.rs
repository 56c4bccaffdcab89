//! A tenant beyond its quota: 429 with the quota, its limit and its use, in the form of each API; others go on.

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::access::{client_of, closed};
use crate::comfyui::graph::picture;
use crate::harness::{Plane, ScriptedWorker, answered, assert_contains_all, wait_until};

/// One open job for each tenant, and the tenant `default` has it.
async fn full() -> Plane {
    let plane = Plane::start(&["quota.open_jobs_max=1"]).await;
    plane.submit(json!({ "n": 1 })).await;
    plane
}

/// Submits what must be refused; returns the error.
async fn refused(plane: &Plane, path: &str, body: &Value) -> Value {
    let answer = plane.request(Method::POST, path).json(body).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = answer.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!(seconds > 0);
    let error = answer.json::<Value>().await.unwrap()["error"].clone();
    let message = error["message"].as_str().unwrap();
    assert_contains_all(
        message,
        &["tenant default has 1 unfinished jobs and may have 1", "quota.open_jobs_max"],
    );
    error
}

/// Faults: J19.
#[tokio::test]
async fn full_tenant_gets_429_with_its_use_and_others_go_on() {
    let plane = full().await;
    let error = refused(&plane, "/remuda/v1/jobs", &json!({ "workflow": { "n": 2 } })).await;
    let detail = json!({ "quota": "open_jobs", "tenant": "default", "limit": 1, "current": 1 });
    assert_eq!((&error["code"], &error["detail"]), (&json!("quota_exceeded"), &detail));
    let other = json!({ "workflow": { "n": 3 }, "tenant": "anna" });
    assert_eq!(plane.post("/remuda/v1/jobs", &other).await.0, StatusCode::CREATED);
    let status = plane.get("/remuda/v1/status").await;
    let used: Vec<_> = status["tenants"].as_array().unwrap().iter().map(|it| &it["open_jobs"]).collect();
    assert_eq!(used, [1, 1], "{status}");
}

/// Faults: J19. Kept over a restart: the jobs know their token.
#[tokio::test]
async fn full_token_gets_429_and_other_tokens_of_the_tenant_go_on() {
    let (mut plane, admin) = closed(&["quota.token_open_jobs_max=1"]).await;
    let (laptop, server) = (client_of(&admin, "anna").await, client_of(&admin, "anna").await);
    let first = laptop.submit(json!({ "n": 1 })).await;
    plane.kill();
    plane.start_again().await;
    let job = json!({ "workflow": { "n": 2 } });
    let (status, refused) = laptop.post("/remuda/v1/jobs", &job).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{refused}");
    let detail = json!({ "quota": "token_open_jobs", "tenant": "anna", "limit": 1, "current": 1 });
    assert_eq!(refused["error"]["detail"], detail);
    for (path, body) in [
        ("/api/v2/jobs", json!({ "workflow": picture(1).saved() })),
        ("/prompt", json!({ "prompt": picture(1).saved() })),
    ] {
        assert_eq!(laptop.post(path, &body).await.0, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    assert_eq!(server.post("/remuda/v1/jobs", &job).await.0, StatusCode::CREATED);
    laptop.cancel(&first).await;
    assert_eq!(laptop.post("/remuda/v1/jobs", &job).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn comfy_v2_names_the_quota() {
    let plane = full().await;
    let error = refused(&plane, "/api/v2/jobs", &json!({ "workflow": picture(1).saved() })).await;
    assert_eq!((&error["code"], &error["details"]["quota"]), (&json!("rate_limited"), &json!("open_jobs")));
}

#[tokio::test]
async fn comfyui_prompt_names_the_quota() {
    let plane = full().await;
    let error = refused(&plane, "/prompt", &json!({ "prompt": picture(1).saved() })).await;
    assert_eq!(error["code"], "quota_exceeded");
}

#[cfg(feature = "models")]
#[tokio::test]
async fn openai_names_the_quota() {
    let plane = Plane::start(&["quota.open_jobs_max=1"]).await;
    let _worker = crate::models::fleet::join(&plane, "mule").await;
    let needs = json!({ "labels": { "rack": "none" } });
    plane.submit_as(json!({ "workflow": { "n": 1 }, "needs": needs })).await;
    let error = refused(&plane, "/v1/embeddings", &json!({ "model": "embed", "input": "one" })).await;
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));
}

/// Faults: B8, J19. Files, workflows and results count, over a restart too, and no other tenant pays.
#[tokio::test]
async fn tenant_that_has_stored_its_share_is_refused_uploads_and_jobs() {
    let mut plane = Plane::start(&["quota.stored_bytes_max=100KiB", "retention=1h"]).await;
    let upload = async |plane: &Plane, bytes: usize, byte: u8| {
        let request = plane.request(Method::POST, "/remuda/v1/blobs").body(vec![byte; bytes]);
        answered(request).await
    };
    assert_eq!(upload(&plane, 60 << 10, 1).await.0, StatusCode::CREATED);
    let mut worker = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "text": "x".repeat(10 << 10) })).await;
    let attempt = worker.take().await;
    // What a worker brings is never refused, and counts for the job's tenant once its result names it.
    let path = "/remuda/v1/blobs";
    let brought =
        worker.client.request(Method::POST, path).bearer_auth(&worker.token).body(vec![2; 20 << 10]);
    let (status, blob) = answered(brought).await;
    assert_eq!(status, StatusCode::CREATED, "{blob}");
    assert_eq!(worker.complete(&attempt, json!({ "picture": blob["hash"] })).await, "recorded");
    plane.ended(&job).await;
    // The status lists tenants with open jobs.
    plane.submit(json!({ "n": 1 })).await;

    plane.kill();
    plane.start_again().await;
    wait_until("what was stored is counted", async || {
        let stored = plane.get("/remuda/v1/status").await["tenants"][0]["stored_bytes"].as_u64()?;
        (stored > 90 << 10).then_some(())
    })
    .await;
    let (status, refused) = upload(&plane, 15 << 10, 3).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{refused}");
    let refused = &refused["error"];
    assert_eq!(
        (&refused["code"], &refused["detail"]["quota"]),
        (&json!("quota_exceeded"), &json!("stored_bytes"))
    );
    let stored = refused["detail"]["current"].as_u64().unwrap();
    assert!((90 << 10..92 << 10).contains(&stored), "{refused}");
    let large = json!({ "workflow": { "text": "x".repeat(20 << 10) } });
    let (status, refused) = plane.post("/remuda/v1/jobs", &large).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{refused}");
    assert_contains_all(
        refused["error"]["message"].as_str().unwrap(),
        &["may store 102400", "stored_bytes_max"],
    );
    let other = json!({ "workflow": { "text": "x".repeat(20 << 10) }, "tenant": "anna" });
    assert_eq!(plane.post("/remuda/v1/jobs", &other).await.0, StatusCode::CREATED);
    assert_eq!(upload(&plane, 1 << 10, 4).await.0, StatusCode::CREATED, "what fits is accepted");
    // A body without a length is cut off where the room ends.
    let stream = futures_util::stream::iter((0..64).map(|n| Ok::<_, std::io::Error>(vec![n; 1 << 10])));
    let endless = plane.request(Method::POST, path).body(reqwest::Body::wrap_stream(stream));
    let (status, refused) = answered(endless).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("quota_exceeded"))
    );
}
