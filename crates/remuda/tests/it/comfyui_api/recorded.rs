//! Messages of a run match those recorded from a real ComfyUI server.

use serde_json::Value;

use super::ws_client::WsClient;
use super::*;
use crate::comfyui::graph::picture;

/// Messages after a `POST /prompt` of a recording, up to the end of the prompt: kind and node.
fn recorded(name: &str, prompt: usize) -> Vec<(String, Value)> {
    told(&recorded_messages(name, prompt))
}

/// Messages after a `POST /prompt` of a recording, up to the end of the prompt.
pub(super) fn recorded_messages(name: &str, prompt: usize) -> Vec<Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../remuda-fakes/tests/transcripts/recorded");
    let text = std::fs::read_to_string(format!("{folder}/{name}.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_prompt = |line: &Value| line["method"] == "POST" && line["path"] == "/prompt";
    let start = lines.iter().enumerate().filter(|(_, line)| is_prompt(line)).nth(prompt).unwrap().0;
    let said = lines[start..].iter().filter(|line| line["dir"] == "server>client" && line["ch"] != "http");
    let mut heard = Vec::new();
    for line in said {
        let message = &line["json"];
        heard.push(message.clone());
        if message["type"] == "executing" && message["data"]["node"].is_null() {
            break;
        }
    }
    heard
}

/// Kind and node of each message. Progress arrives as often as time allows.
fn told(heard: &[Value]) -> Vec<(String, Value)> {
    let wanted =
        heard.iter().filter(|it| !matches!(it["type"].as_str(), Some("progress" | "progress_state")));
    wanted.map(|it| (it["type"].as_str().unwrap().to_owned(), it["data"]["node"].clone())).collect()
}

/// Without messages that recordings leave out.
fn without_status(told: Vec<(String, Value)>) -> Vec<(String, Value)> {
    told.into_iter().filter(|(kind, _)| kind != "status").collect()
}

#[tokio::test]
async fn messages_of_fresh_run_match_comfyui() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(7).then("ImageInvert", json!({})).saved()).await;
    let heard = client.until_done(&id).await;
    assert_eq!(told(&heard), recorded("ws-normal-run", 0), "{heard:#?}");
    for message in heard.iter().filter(|it| it["type"] != "status") {
        assert_eq!(message["data"]["prompt_id"], *id, "the client knows it by no other id: {message}");
    }
}

/// A saved image is written again each time; a preview comes from the cache with everything before it.
#[tokio::test]
async fn messages_of_cached_run_match_comfyui() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let graph = picture(8).then("ImageInvert", json!({})).previewed();
    let first = prompt(&stage, "anna", &graph).await;
    client.until_done(&first).await;
    let again = prompt(&stage, "anna", &graph).await;
    assert_ne!(first, again);
    let heard = client.until_done(&again).await;
    assert_eq!(told(&heard), recorded("ws-cached-run", 0), "{heard:#?}");
    let cached = heard.iter().find(|it| it["type"] == "execution_cached").unwrap();
    assert_eq!(cached["data"]["nodes"].as_array().unwrap().len(), 3, "{cached}");
    let file = entry(&stage, &again).await["outputs"]["3"]["images"][0].clone();
    assert_eq!((&file["type"], view(&stage, &file).await.status()), (&json!("temp"), StatusCode::OK));
}

#[tokio::test]
async fn failed_run_ends_once_with_its_error() {
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, &["attempts_max=1"], &[]).await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(9).fail("error").saved()).await;
    let heard = client.until_done(&id).await;
    // In the recording the first node was cached, and statuses were left out.
    let expected = recorded("ws-error-run", 2);
    let said: Vec<_> =
        without_status(told(&heard)).into_iter().filter(|(_, node)| *node != json!("1")).collect();
    assert_eq!(said, expected, "{heard:#?}");
    let error = heard.iter().find(|it| it["type"] == "execution_error").unwrap();
    assert_eq!(error["data"]["node_id"], "2", "{error}");
    assert!(error["data"]["traceback"].is_array(), "{error}");
    let entry = entry(&stage, &id).await;
    assert_eq!(
        (&entry["status"]["status_str"], &entry["status"]["completed"]),
        (&json!("error"), &json!(false))
    );
    let last = entry["status"]["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last, &json!(["execution_error", error["data"]]));
}

#[tokio::test]
async fn interrupted_run_ends_as_interrupted() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(10).sleep(600.0, 6000).saved()).await;
    let mut heard = client.until("progress").await;
    let (status, _) = stage.post("/interrupt", &json!({ "prompt_id": "someone-else" })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(stage.get("/queue").await["queue_running"][0][1], *id, "that named another");
    let (status, _) = stage.post("/interrupt", &json!({ "prompt_id": id })).await;
    assert_eq!(status, StatusCode::OK);
    heard.extend(client.until_done(&id).await);
    let said: Vec<_> = told(&heard).into_iter().filter(|(_, node)| *node != json!("1")).collect();
    assert_eq!(said, recorded("ws-interrupted-run", 0), "{heard:#?}");
    let entry = entry(&stage, &id).await;
    let last = entry["status"]["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last[0], &last[1]["node_id"]), (&json!("execution_interrupted"), &json!("2")), "{entry}");
    assert_eq!(last[1]["node_type"], "RemudaSleep", "{entry}");
}
