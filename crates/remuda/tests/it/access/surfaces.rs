//! The compatible APIs enforce the same access rules.

use reqwest::Method;
use serde_json::json;

use super::{client_of, closed};
use crate::harness::answered;

fn graph() -> serde_json::Value {
    let image = json!({ "width": 64, "height": 64, "batch_size": 1, "color": 1 });
    json!({
        "1": { "class_type": "EmptyImage", "inputs": image },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "a" } },
    })
}

/// Faults: X16.
#[tokio::test]
async fn comfy_v2_separates_tenants() {
    let (plane, admin) = closed(&[]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let (status, refused) = plane.post("/api/v2/jobs", &json!({ "workflow": graph() })).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (401, &json!("unauthorized")), "{refused}");
    // As the fleet's own routes take it, so that no server has to know the classes of the graph.
    let job = anna.submit_as(json!({ "workflow": graph() })).await;
    for (method, rest) in
        [(Method::GET, ""), (Method::GET, "/workflow"), (Method::GET, "/events"), (Method::POST, "/cancel")]
    {
        let path = format!("/api/v2/jobs/{job}{rest}");
        let (status, refused) = answered(ben.request(method, &path)).await;
        assert_eq!((status.as_u16(), &refused["error"]["code"]), (404, &json!("not_found")), "{path}");
    }
    assert_eq!(anna.get(&format!("/api/v2/jobs/{job}")).await["id"], job);
    let jobs = async |client: &crate::harness::Client| {
        client.get("/api/v2/jobs").await["jobs"].as_array().map(Vec::len)
    };
    assert_eq!((jobs(&anna).await, jobs(&ben).await), (Some(1), Some(0)));
    let form = reqwest::multipart::Part::bytes(b"secret".to_vec()).file_name("a.png");
    let form = reqwest::multipart::Form::new()
        .text("content_type", "image/png")
        .text("file_path", "a.png")
        .part("file", form);
    let (status, asset) = answered(anna.request(Method::POST, "/api/v2/assets").multipart(form)).await;
    assert_eq!(status.as_u16(), 201, "{asset}");
    let id = asset["id"].as_str().unwrap();
    for (method, rest) in [(Method::GET, ""), (Method::GET, "/content"), (Method::DELETE, "")] {
        let (status, _) = answered(ben.request(method, &format!("/api/v2/assets/{id}{rest}"))).await;
        assert_eq!(status.as_u16(), 404, "{rest}");
    }
    // Knowing the hash of what another sent is not having it.
    let hash = asset["hash"].as_str().unwrap();
    let (status, _) = answered(ben.request(Method::HEAD, &format!("/api/v2/assets/by-hash/{hash}"))).await;
    assert_eq!(status.as_u16(), 404);
}

/// Faults: X16.
#[tokio::test]
async fn comfyui_api_separates_tenants() {
    let (plane, admin) = closed(&[]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let job = anna.submit_as(json!({ "workflow": graph() })).await;
    for path in ["/queue", "/history", "/prompt", "/api/queue", "/object_info", "/view?filename=a.png"] {
        assert_eq!(answered(plane.request(Method::GET, path)).await.0.as_u16(), 401, "{path}");
    }
    let waiting = async |client: &crate::harness::Client| {
        client.get("/queue").await["queue_pending"].as_array().map(Vec::len)
    };
    assert_eq!((waiting(&anna).await, waiting(&ben).await), (Some(1), Some(0)));
    ben.post("/queue", &json!({ "delete": [job] })).await;
    ben.post("/queue", &json!({ "clear": true })).await;
    ben.post("/interrupt", &json!({ "prompt_id": job })).await;
    assert_eq!(anna.job(&job).await["state"], "queued");
    anna.post("/queue", &json!({ "delete": [job] })).await;
    assert_eq!(anna.ended(&job).await["state"], "cancelled");
}
