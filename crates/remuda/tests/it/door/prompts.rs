//! What `POST /prompt` takes, and in which words it refuses the rest.

use super::*;
use crate::comfyui::graph::picture;

#[tokio::test]
async fn what_cannot_run_is_refused_in_comfyuis_own_words() {
    let stage = Stage::fake().await;
    let good = picture(1).saved();
    for (body, kind) in [
        (json!({}), "no_prompt"),
        (json!({ "prompt": {} }), "prompt_no_outputs"),
        (json!({ "prompt": [] }), "prompt_no_outputs"),
        (json!({ "prompt": picture(1).whole() }), "prompt_no_outputs"),
        (json!({ "prompt": { "1": { "inputs": {} } } }), "invalid_prompt"),
        (json!({ "prompt": { "1": { "class_type": "NoSuchNode", "inputs": {} } } }), "invalid_prompt"),
        (json!({ "prompt": good, "prompt_id": "42" }), "invalid_prompt_id"),
        (json!({ "prompt": good, "prompt_id": "0A000000-0000-4000-8000-000000000000" }), "invalid_prompt_id"),
        (json!({ "prompt": good, "client_id": ["a"] }), "invalid_prompt"),
        (json!({ "prompt": good, "extra_data": 3 }), "invalid_prompt"),
        (json!({ "prompt": good, "partial_execution_targets": [] }), "prompt_no_outputs"),
        (json!({ "prompt": good, "partial_execution_targets": ["1"] }), "prompt_no_outputs"),
        (
            json!({ "prompt": { "1": { "class_type": "SaveImage", "inputs": { "images": ["9", 0] } } } }),
            "prompt_outputs_failed_validation",
        ),
    ] {
        let (status, answer) = stage.post("/prompt", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
        assert_eq!(answer["error"]["type"], kind, "{body}: {answer}");
        assert_eq!(answer["node_errors"], json!({}), "{body}: {answer}");
    }
    assert_eq!(stage.get("/prompt").await, json!({ "exec_info": { "queue_remaining": 0 } }));
}
