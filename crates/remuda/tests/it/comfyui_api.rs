//! The ComfyUI-compatible API: real planes and workers, fake ComfyUI servers, and clients that talk to the plane as they would
//! to a ComfyUI server.

mod differential;
mod files;
mod lists;
mod masks;
mod messages;
mod names;
mod prompts;
mod recorded;
mod runs;
mod sockets;
mod ui;
mod validation;
mod ws_client;

use remuda_fakes::comfyui::Options;
use reqwest::StatusCode;
use serde_json::{Value, json};

use self::ws_client::WsClient;
use crate::comfyui::fixture::{ComfyFixture, Server};
use crate::harness::{Client, wait_until};

/// Submits a prompt for a client id and returns the prompt id.
async fn prompt(plane: &Client, client: &str, graph: &Value) -> String {
    let (status, answer) = plane.post("/prompt", &json!({ "prompt": graph, "client_id": client })).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["node_errors"], json!({}), "{answer}");
    answer["prompt_id"].as_str().unwrap().to_owned()
}

/// The history entry of a prompt, which must exist.
async fn entry(plane: &Client, id: &str) -> Value {
    let mut history = plane.get(&format!("/history/{id}")).await;
    assert!(history[id].is_object(), "the history should have {id}: {history}");
    history[id].take()
}

/// Requests `/view` for a file named by a history entry or an `executed` message.
async fn view(plane: &Client, file: &Value) -> reqwest::Response {
    let part = |key: &str| file[key].as_str().unwrap().to_owned();
    let asked = [("filename", part("filename")), ("subfolder", part("subfolder")), ("type", part("type"))];
    plane.request(reqwest::Method::GET, "/view").query(&asked).send().await.unwrap()
}
