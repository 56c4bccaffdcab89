//! Input files are uploaded to the server that runs the job.

use remuda_fakes::comfyui::Options;
use reqwest::Method;
use serde_json::{Value, json};

use super::fixture::{ComfyFixture, Server, completed_at_once, files, gave_a_picture, worker};
use super::graph::{loaded, picture};
use crate::harness::{Plane, TestRng, answered, assert_contains_all};

/// Puts a file into a server's input folder, as a person does.
pub(super) async fn upload(url: &str, name: &str, content: &[u8]) {
    let boundary = "remuda-test-boundary";
    let mut body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\
         Content-Type: image/png\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(content);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    let http = remuda_net::http_client::client_builder().build().unwrap();
    let request = http
        .request(Method::POST, format!("{url}/upload/image"))
        .header("content-type", format!("multipart/form-data; boundary={boundary}"))
        .body(body);
    let (status, answer) = answered(request).await;
    assert!(status.is_success(), "{answer}");
}

/// A picture as a blob of the plane, and how a workflow names it.
async fn asset(plane: &Plane, content: Vec<u8>) -> Value {
    let (status, answer) = answered(plane.request(Method::POST, "/remuda/v1/blobs").body(content)).await;
    assert!(status.is_success(), "{answer}");
    json!({ "__type": "core/ASSET", "info": { "hash": answer["hash"], "file_path": "mine.png" } })
}

/// A picture of a colour of its own.
async fn some_picture(stage: &ComfyFixture) -> Vec<u8> {
    let ended = stage.run(picture(TestRng::new().below(1 << 24)).saved()).await;
    gave_a_picture(stage, &ended).await;
    files(stage, &ended).await.remove(0).1
}

#[tokio::test]
async fn input_image_is_uploaded_to_its_server() {
    let stage = ComfyFixture::any().await;
    let content = some_picture(&stage).await;
    let asset = asset(&stage, content).await;
    let ended = stage.run(loaded(&asset)).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
}

/// Faults: V8.
#[tokio::test]
async fn input_image_is_uploaded_on_every_attempt() {
    let mut stage = ComfyFixture::fake().await;
    let asset = asset(&stage, some_picture(&stage).await).await;
    completed_at_once(&stage.run(loaded(&asset)).await);
    let other = Server::fake(Options::default()).await;
    let second = worker(&stage, "other", &other.url(), &[]).await;
    stage.worker.process.kill();
    let ended = stage.run(loaded(&asset)).await;
    assert_eq!((&ended["state"], &ended["worker"]), (&json!("completed"), &json!(second.name)), "{ended}");
}

/// Faults: B9.
#[tokio::test]
async fn missing_input_fails_job_with_its_name() {
    let stage = ComfyFixture::any().await;
    let hash = format!("blake3:{}", "ab".repeat(32));
    let asset = json!({ "__type": "core/ASSET", "info": { "hash": hash } });
    let (status, answer) = stage.post("/remuda/v1/jobs", &json!({ "workflow": loaded(&asset) })).await;
    let said = match answer["id"].as_str() {
        Some(job) => stage.ended(job).await["reason"].as_str().unwrap().to_owned(),
        None => format!("{status} {answer}"),
    };
    assert_contains_all(&said, &["abab"]);
}
