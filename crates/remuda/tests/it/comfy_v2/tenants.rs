//! Whose: what belongs to another is answered as if it were not there.

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
async fn what_is_anothers_is_not_there() {
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
    // Who sends the same is not told that somebody else did.
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
    // A key is anybody's own.
    for api in [&anna, &bert] {
        let workflow = json!({ "workflow": picture(1).saved() });
        let request = api.request(Method::POST, "/jobs").header("idempotency-key", "k").json(&workflow);
        api.send(request).await.of(201);
    }
}

#[tokio::test]
async fn whoever_is_turned_away_is_told_so_in_the_form_of_this_surface() {
    let plane = Plane::start(QUICK).await;
    let admin = token(&plane, json!({ "role": "admin", "name": "root" })).await;
    let worker = Api::new(&token(&admin, json!({ "role": "worker", "name": "w" })).await);
    let nobody = Api::new(&plane);
    let workflow = json!({ "workflow": picture(1).saved() });
    let answer = nobody.post("/jobs", &workflow).await;
    answer.is_error(401, "unauthorized");
    assert!(answer.headers.contains_key("www-authenticate"));
    nobody.send(nobody.upload(b"x", &[])).await.is_error(401, "unauthorized");
    worker.post("/jobs", &workflow).await.is_error(403, "forbidden");
    worker.get("/jobs/0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11").await.is_error(403, "forbidden");
    Api::new(&admin).post("/jobs", &workflow).await.of(201);
}
