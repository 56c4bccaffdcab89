//! Messages that a client of one ComfyUI server gets and a client of a fleet must get too: texts of nodes, every preview, and
//! states of nodes between the other messages.

use std::time::Duration;

use super::recorded::recorded_messages;
use super::ws_client::{Heard, WsClient, is_end_of};
use super::*;
use crate::comfyui::graph::picture;

/// Kind and node of each message without statuses; of counters that follow each other only the last is sent.
fn sequence(heard: &[Value]) -> Vec<(String, Value)> {
    let told = heard.iter().filter(|it| it["type"] != "status");
    let mut told: Vec<_> =
        told.map(|it| (it["type"].as_str().unwrap().to_owned(), it["data"]["node"].clone())).collect();
    told.dedup_by(|after, before| after == before && after.0.starts_with("progress"));
    told
}

#[tokio::test]
async fn states_of_nodes_come_where_comfyui_sends_them() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(11).then("ImageInvert", json!({})).saved()).await;
    let heard = client.until_done(&id).await;
    assert_eq!(sequence(&heard), sequence(&recorded_messages("ws-normal-run", 0)), "{heard:#?}");
}

/// All messages and frames of a prompt, in order.
async fn everything(client: &mut WsClient, id: &str) -> Vec<Heard> {
    let mut heard = Vec::new();
    loop {
        let next = client.next().await;
        let is_end = matches!(&next, Heard::Text(message) if is_end_of(message, id));
        assert!(!matches!(next, Heard::Closed), "the socket was closed");
        heard.push(next);
        if is_end {
            return heard;
        }
    }
}

#[tokio::test]
async fn text_of_a_node_is_passed_on_while_the_node_runs() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let text = "höhe: 2492\nand a second line";
    let graph = picture(12).then("RemudaProgressText", json!({ "text": text })).saved();
    let id = prompt(&stage, "anna", &graph).await;
    let heard = everything(&mut client, &id).await;
    let mut node = Value::Null;
    let mut texts = Vec::new();
    for it in &heard {
        match it {
            Heard::Text(message) if message["type"] == "executing" => node = message["data"]["node"].clone(),
            Heard::Binary(bytes) => texts.push((node.clone(), bytes.clone())),
            Heard::Text(_) | Heard::Closed => {}
        }
    }
    let frame = [&[0, 0, 0, 3, 0, 0, 0, 1][..], b"2", text.as_bytes()].concat();
    assert_eq!(texts, [(json!("2"), frame)], "as in the recording: type, length, node, text");
}

#[tokio::test]
async fn every_preview_reaches_a_client_that_watches() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    client.introduce().await;
    let sleep = json!({ "seconds": 0.6, "steps": 3, "preview": true });
    let id = prompt(&stage, "anna", &picture(13).then("RemudaSleep", sleep).saved()).await;
    let heard = everything(&mut client, &id).await;
    let previews = heard.iter().filter(|it| matches!(it, Heard::Binary(bytes) if bytes[..4] == [0, 0, 0, 4]));
    assert_eq!(previews.count(), 3, "one for each step");
}

/// Clients that know no metadata take the node of a preview from the last `progress`, and some fail without one.
#[tokio::test]
async fn preview_follows_the_progress_of_its_step() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let sleep = json!({ "seconds": 0.1, "steps": 5, "preview": true });
    let id = prompt(&stage, "anna", &picture(14).then("RemudaSleep", sleep).saved()).await;
    let mut last = Value::Null;
    let mut steps = Vec::new();
    for it in everything(&mut client, &id).await {
        match it {
            Heard::Text(message) if message["type"] == "progress" => last = message["data"]["value"].clone(),
            Heard::Binary(_) => steps.push(last.as_f64().expect("a progress before its preview")),
            Heard::Text(_) | Heard::Closed => {}
        }
    }
    let is_in_order = steps.iter().enumerate().all(|(at, step)| *step > at as f64);
    assert!(steps.len() == 5 && is_in_order && steps.is_sorted(), "{steps:?}");
}

/// The worker asks after half a second of silence, and the server's history has the failure before its socket.
#[tokio::test]
async fn error_has_its_traceback_although_the_socket_is_late() {
    let late = Options { trouble: Duration::from_millis(900), ..Options::default() };
    let stage = ComfyFixture::on(Server::fake(late).await).await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(15).fault("slow-reader").fail("error").saved()).await;
    let heard = client.until_done(&id).await;
    let error =
        heard.iter().find(|it| it["type"] == "execution_error").unwrap_or_else(|| panic!("{heard:?}"));
    assert_eq!(error["data"]["exception_type"], "ValueError", "{error}");
    assert!(!error["data"]["traceback"].as_array().unwrap().is_empty(), "{error}");
    assert_eq!(entry(&stage, &id).await["status"]["messages"][2][1], error["data"], "at once, and the same");
}
