//! A tenant beyond its quota: 429 with the quota, its limit and its use, in the form of each API; others go on.

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::comfyui::graph::picture;
use crate::harness::{Plane, assert_contains_all};

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
