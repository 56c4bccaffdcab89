//! Tenants: objects of another tenant are answered as not found.

use reqwest::Method;
use serde_json::{Value, json};

use super::api::{Api, named};
use crate::comfyui::graph::{loaded, picture};
use crate::harness::{Client, Plane, QUICK};

async fn token(admin: &Client, wanted: Value) -> Client {
    let (status, made) = admin.post("/remuda/v1/tokens", &wanted).await;
    assert_eq!(status, 201, "{made}");
    admin.with(made["token"].as_str().unwrap())
}

/// Faults: X16.
#[tokio::test]
async fn objects_of_another_tenant_are_not_found() {
    let plane = Plane::start(QUICK).await;
    let admin = token(&plane, json!({ "role": "admin", "name": "root" })).await;
    let anna = Api::new(&token(&admin, json!({ "role": "client", "tenant": "anna", "name": "a" })).await);
    let bert = Api::new(&token(&admin, json!({ "role": "client", "tenant": "bert", "name": "b" })).await);
    let asset = anna.picture(b"anna's").await;
    let (id, hash) = (asset["id"].as_str().unwrap(), asset["hash"].as_str().unwrap());
    for path in [format!("/assets/{id}"), format!("/assets/{id}/content")] {
        bert.get(&path).await.is_error(404, "not_found");
    }
    bert.send(bert.request(Method::DELETE, &format!("/assets/{id}"))).await.is_error(404, "not_found");
    bert.post("/assets/from-hash", &json!({ "hash": hash })).await.is_error(404, "blob_not_found");
    let by_hash = bert.send(bert.request(Method::HEAD, &format!("/assets/by-hash/{hash}"))).await;
    assert_eq!(by_hash.status, 404);
    bert.post("/jobs", &json!({ "workflow": loaded(&named(&asset)) })).await.is_error(422, "missing_asset");
    // Uploading the same content does not reveal that another tenant has it.
    let same = bert.picture(b"anna's").await;
    assert_eq!((&same["created_new"], &same["hash"]), (&json!(true), &asset["hash"]));
    let job = anna.submit(&loaded(&named(&asset))).await;
    let id = job["id"].as_str().unwrap();
    for path in ["", "/workflow", "/events"] {
        bert.get(&format!("/jobs/{id}{path}")).await.is_error(404, "not_found");
    }
    bert.send(bert.request(Method::POST, &format!("/jobs/{id}/cancel"))).await.is_error(404, "not_found");
    assert_eq!(bert.client.get("/api/v2/jobs").await["jobs"], json!([]));
    assert_eq!(anna.job(id).await["status"], "queued");
    let other = json!({ "workflow": picture(1).saved(), "tenant": "anna" });
    bert.post("/jobs", &other).await.is_error(403, "forbidden");
    // Keys are per tenant.
    for api in [&anna, &bert] {
        let workflow = json!({ "workflow": picture(1).saved() });
        let request = api.request(Method::POST, "/jobs").header("idempotency-key", "k").json(&workflow);
        api.send(request).await.of(201);
    }
}

#[tokio::test]
async fn refused_caller_gets_the_error_format_of_this_api() {
    let plane = Plane::start(QUICK).await;
    let admin = token(&plane, json!({ "role": "admin", "name": "root" })).await;
    let worker = Api::new(&token(&admin, json!({ "role": "worker", "name": "w" })).await);
    let anonymous = Api::new(&plane);
    let workflow = json!({ "workflow": picture(1).saved() });
    let answer = anonymous.post("/jobs", &workflow).await;
    answer.is_error(401, "unauthorized");
    assert!(answer.headers.contains_key("www-authenticate"));
    anonymous.send(anonymous.upload(b"x", &[])).await.is_error(401, "unauthorized");
    worker.post("/jobs", &workflow).await.is_error(403, "forbidden");
    worker.get("/jobs/0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11").await.is_error(403, "forbidden");
    Api::new(&admin).post("/jobs", &workflow).await.of(201);
}
