//! Validation of `POST /prompt` and the format of its errors.

use super::*;
use crate::comfyui::graph::picture;

#[tokio::test]
async fn invalid_prompt_is_refused_in_comfyui_format() {
    let stage = ComfyFixture::fake().await;
    wait_until("the classes are known", async || {
        stage.get("/object_info").await["SaveImage"].is_object().then_some(())
    })
    .await;
    let good = picture(1).saved();
    for (body, kind) in [
        (json!({}), "no_prompt"),
        (json!({ "prompt": {} }), "prompt_no_outputs"),
        (json!({ "prompt": [] }), "prompt_no_outputs"),
        (json!({ "prompt": picture(1).whole() }), "prompt_no_outputs"),
        (json!({ "prompt": { "1": { "inputs": {} } } }), "missing_node_type"),
        (json!({ "prompt": { "1": { "class_type": "NoSuchNode", "inputs": {} } } }), "missing_node_type"),
        (json!({ "prompt": good, "prompt_id": "42" }), "invalid_prompt_id"),
        (json!({ "prompt": good, "prompt_id": "0A000000-0000-4000-8000-000000000000" }), "invalid_prompt_id"),
        (json!({ "prompt": good, "client_id": ["a"] }), "invalid_prompt"),
        (json!({ "prompt": good, "extra_data": 3 }), "invalid_prompt"),
        (
            json!({ "prompt": good, "extra_data": { "api_key_comfy_org": "k".repeat(5000) } }),
            "invalid_prompt",
        ),
        (json!({ "prompt": good, "partial_execution_targets": [] }), "prompt_no_outputs"),
        (json!({ "prompt": good, "partial_execution_targets": ["1"] }), "prompt_no_outputs"),
    ] {
        let (status, answer) = stage.post("/prompt", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
        assert_eq!(answer["error"]["type"], kind, "{body}: {answer}");
        assert_eq!(answer["node_errors"], json!({}), "{body}: {answer}");
    }
    assert_eq!(stage.get("/prompt").await, json!({ "exec_info": { "queue_remaining": 0 } }));
}

/// Faults: X7.
#[tokio::test]
async fn graph_with_too_many_nodes_is_refused_before_its_nodes_are_checked() {
    let stage = ComfyFixture::fake().await;
    wait_until("the classes are known", async || {
        stage.get("/object_info").await["SaveImage"].is_object().then_some(())
    })
    .await;
    let node = || json!({ "class_type": "SaveImage", "inputs": {} });
    let graph: Value =
        (0..10_001).map(|id: u32| (id.to_string(), node())).collect::<serde_json::Map<_, _>>().into();
    let (status, answer) = stage.post("/prompt", &json!({ "prompt": graph })).await;
    assert_eq!((status, &answer["node_errors"]), (StatusCode::BAD_REQUEST, &json!({})));
    assert!(
        answer["error"]["details"].as_str().unwrap().contains("more than 10000 nodes"),
        "{}",
        answer["error"]
    );
}

#[tokio::test]
async fn invalid_nodes_are_reported_and_valid_outputs_run() {
    let stage = ComfyFixture::fake().await;
    wait_until("the classes are known", async || {
        stage.get("/object_info").await["SaveImage"].is_object().then_some(())
    })
    .await;
    let mut graph = picture(90).then("ImageInvert", json!({})).saved();
    graph["2"]["inputs"] = json!({});
    let (status, answer) = stage.post("/prompt", &json!({ "prompt": graph })).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (StatusCode::BAD_REQUEST, &json!("prompt_outputs_failed_validation"))
    );
    let errors = &answer["node_errors"]["2"];
    assert_eq!(errors["errors"][0]["type"], "required_input_missing", "{answer}");
    assert_eq!((&errors["dependent_outputs"], &errors["class_type"]), (&json!(["3"]), &json!("ImageInvert")));
    graph["4"] =
        json!({ "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "good" } });
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let (status, answer) = stage.post("/prompt", &json!({ "prompt": graph, "client_id": "anna" })).await;
    assert_eq!((status, answer["node_errors"]["2"].is_object()), (StatusCode::OK, true), "{answer}");
    let id = answer["prompt_id"].as_str().unwrap();
    client.until_done(id).await;
    let entry = entry(&stage, id).await;
    assert_eq!(
        (&entry["status"]["status_str"], entry["outputs"]["4"].is_object()),
        (&json!("success"), true),
        "{entry}"
    );
}

/// Faults: X10.
#[tokio::test]
async fn key_is_neither_stored_nor_shown() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let secret = "comfyui-canary-4711";
    let extra = json!({ "api_key_comfy_org": secret, "auth_token_comfy_org": secret, "extra_pnginfo": { "workflow": {} } });
    let body = json!({ "prompt": picture(91).saved(), "client_id": "anna", "extra_data": extra });
    let (_, answer) = stage.post("/prompt", &body).await;
    let id = answer["prompt_id"].as_str().unwrap().to_owned();
    let heard = client.until_done(&id).await;
    let told =
        [entry(&stage, &id).await, json!(heard), stage.get("/history").await, json!(stage.jobs().await)];
    assert!(!json!(told).to_string().contains(secret));
    assert_eq!(told[0]["prompt"][3]["extra_pnginfo"], json!({ "workflow": {} }), "the rest is kept");
    let stored = std::fs::read(stage.plane.store()).unwrap();
    let wal = std::fs::read(stage.plane.store().with_extension("sqlite-wal")).unwrap_or_default();
    let has = |bytes: &[u8]| bytes.windows(secret.len()).any(|it| it == secret.as_bytes());
    assert!(!has(&stored) && !has(&wal), "the key is in the store");
}
