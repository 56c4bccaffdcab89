//! A prompt from submission to image.

use super::*;
use crate::comfyui::graph::picture;

use super::ws_client::{kinds, remaining};

#[tokio::test]
async fn prompt_runs_and_its_image_is_shown() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    assert_eq!((&*client.sid, client.greeted_with), ("anna", 0));
    let id = prompt(&stage, "anna", &picture(1).saved()).await;
    let heard = client.until_done(&id).await;
    let kinds = kinds(&heard);
    assert_eq!(kinds.first(), Some(&"execution_start"), "{heard:?}");
    assert!(kinds.ends_with(&["execution_success", "executing"]), "{heard:?}");
    let executed = heard.iter().find(|it| it["type"] == "executed").unwrap();
    let file = &executed["data"]["output"]["images"][0];
    // When the end is published, the history already has it, under the same names.
    let entry = entry(&stage, &id).await;
    assert_eq!(entry["outputs"]["2"]["images"][0], *file, "{entry}");
    assert_eq!(entry["status"]["completed"], true, "{entry}");
    let answer = view(&stage, file).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "image/png");
    assert!(answer.bytes().await.unwrap().starts_with(b"\x89PNG"));
    let left: Vec<u64> = heard.iter().filter(|it| it["type"] == "status").map(remaining).collect();
    assert_eq!((left.first(), left.last()), (Some(&1), Some(&0)), "{heard:?}");
}
