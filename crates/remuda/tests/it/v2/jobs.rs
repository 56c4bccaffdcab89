//! Jobs: submitted, looked at, cancelled.

use serde_json::json;

use super::api::{Api, named};
use crate::comfyui::graph::{loaded, picture};
use crate::comfyui::stage::{Stage, files};
use crate::harness::Luck;

/// A picture of a colour of its own.
pub(super) async fn some_picture(stage: &Stage) -> Vec<u8> {
    let ended = stage.run(picture(Luck::new().below(1 << 24)).saved()).await;
    files(stage, &ended).await.remove(0).1
}

#[tokio::test]
async fn a_picture_goes_up_through_a_workflow_and_comes_down() {
    let stage = Stage::any().await;
    let api = Api::new(&stage);
    let asset = api.picture(&some_picture(&stage).await).await;
    let job = api.submit(&loaded(&named(&asset))).await;
    let ended = api.ended(&job).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let outputs = ended["outputs"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[0]["type"]), (1, &json!("image")), "{ended}");
    let content = api.content(&outputs[0]).await;
    assert_eq!(outputs[0]["size_bytes"], content.len());
    assert!(content.starts_with(b"\x89PNG") && content.ends_with(b"IEND\xaeB`\x82"));
}
