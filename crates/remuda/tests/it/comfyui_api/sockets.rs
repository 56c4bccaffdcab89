//! Delivery to websockets: several clients, several sockets, reconnects, slow readers.

use std::time::Duration;

use super::ws_client::{Heard, WsClient, is_end_of, kinds};
use super::*;
use crate::comfyui::fixture::{until_progress, worker};
use crate::comfyui::graph::picture;

/// Faults: X16.
#[tokio::test]
async fn clients_do_not_receive_messages_of_other_clients() {
    let stage = ComfyFixture::fake().await;
    let (mut anna, mut bert) =
        (WsClient::open(&stage.plane, "anna").await, WsClient::open(&stage.plane, "bert").await);
    let annas = prompt(&stage, "anna", &picture(20).saved()).await;
    let berts = prompt(&stage, "bert", &picture(21).saved()).await;
    for (client, own, other) in [(&mut anna, &annas, &berts), (&mut bert, &berts, &annas)] {
        let heard = client.until_done(own).await;
        assert!(heard.iter().all(|it| it["data"]["prompt_id"] != **other), "{heard:?}");
    }
}

#[tokio::test]
async fn reconnecting_client_receives_a_missed_end_once() {
    let stage = ComfyFixture::fake().await;
    let client = WsClient::open(&stage.plane, "anna").await;
    client.close().await;
    let id = prompt(&stage, "anna", &picture(22).saved()).await;
    let done = wait_until("it is done", async || {
        let history = stage.get(&format!("/history/{id}")).await;
        history[&id].is_object().then_some(history)
    })
    .await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    assert_eq!(client.greeted_with, 0);
    let heard = client.until_done(&id).await;
    let executed = heard.iter().find(|it| it["type"] == "executed").unwrap();
    assert_eq!(executed["data"]["output"], done[&id]["outputs"]["2"], "{heard:?}");
    assert!(kinds(&heard).ends_with(&["executed", "execution_success", "executing"]), "{heard:?}");
    let mut again = WsClient::open(&stage.plane, "anna").await;
    again.introduce().await;
    let heard = again.next_within(Duration::from_millis(300)).await;
    assert!(heard.is_none(), "it was told already: {heard:?}");
}

/// More than one queue holds: each end has five messages and the queue a thousand.
#[tokio::test]
async fn reconnecting_client_receives_every_missed_end() {
    let stage = ComfyFixture::fake().await;
    let mut ids = std::collections::BTreeSet::new();
    for seed in 0..260 {
        ids.insert(prompt(&stage, "anna", &picture(1000 + seed).saved()).await);
    }
    wait_until("all are done", async || {
        (stage.get("/prompt").await["exec_info"]["queue_remaining"] == 0).then_some(())
    })
    .await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    while !ids.is_empty() {
        let message = client.text().await;
        ids.retain(|id| !is_end_of(&message, id));
    }
}

#[tokio::test]
async fn client_that_reconnects_during_a_run_receives_the_executing_node() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(23).sleep(3.0, 30).saved()).await;
    client.until("progress").await;
    client.close().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    assert_eq!(client.greeted_with, 1);
    let first = client.text().await;
    assert_eq!((&first["type"], &first["data"]["node"]), (&json!("executing"), &json!("2")), "{first}");
    assert_eq!(first["data"]["prompt_id"], *id);
    let heard = client.until_done(&id).await;
    let ends = heard.iter().filter(|it| it["type"] == "execution_success").count();
    assert_eq!(ends, 1, "{heard:?}");
}

#[tokio::test]
async fn both_sockets_of_a_client_receive_and_one_may_close() {
    let stage = ComfyFixture::fake().await;
    let mut older = WsClient::open(&stage.plane, "anna").await;
    let mut newer = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(24).saved()).await;
    older.until_done(&id).await;
    newer.until_done(&id).await;
    older.close().await;
    let id = prompt(&stage, "anna", &picture(25).saved()).await;
    newer.until_done(&id).await;
}

#[tokio::test]
async fn previews_have_the_format_the_client_supports() {
    let stage = ComfyFixture::fake().await;
    let mut plain = WsClient::open(&stage.plane, "anna").await;
    let mut named = WsClient::open(&stage.plane, "anna").await;
    let flags = named.introduce().await;
    assert_eq!(flags["supports_preview_metadata"], true);
    let sleep = json!({ "seconds": 3.0, "steps": 30, "preview": true });
    let id = prompt(&stage, "anna", &picture(27).then("RemudaSleep", sleep).saved()).await;
    let picture = async |client: &mut WsClient| loop {
        match client.next().await {
            Heard::Binary(bytes) => return bytes,
            Heard::Text(message) => assert!(!is_end_of(&message, &id), "there was no preview"),
            Heard::Closed => panic!("the socket was closed"),
        }
    };
    let bytes = picture(&mut plain).await;
    assert_eq!(&bytes[..8], [0, 0, 0, 1, 0, 0, 0, 1], "a JPEG");
    assert_eq!(&bytes[8..10], b"\xff\xd8");
    let bytes = picture(&mut named).await;
    assert_eq!(&bytes[..4], [0, 0, 0, 4]);
    let length = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let about: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!((&about["prompt_id"], &about["node_id"]), (&json!(id), &json!("2")), "{about}");
    assert_eq!(&bytes[8 + length..8 + length + 2], b"\xff\xd8");
}

/// The web interface connects without an id and uses the one it receives.
#[tokio::test]
async fn client_without_id_receives_one() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::at(&stage.plane, "/api/ws").await;
    let sid = client.sid.clone();
    assert!(sid.len() >= 32, "{sid}");
    let id = prompt(&stage, &sid, &picture(28).saved()).await;
    client.until_done(&id).await;
}

#[tokio::test]
async fn prompt_of_dead_worker_restarts_and_ends_once() {
    let mut stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(29).sleep(4.0, 40).saved()).await;
    let mut heard = client.until("progress").await;
    let job = stage.jobs().await[0]["id"].as_str().unwrap().to_owned();
    until_progress(&stage, &job, 0.1).await;
    stage.worker.process.kill();
    let other = Server::fake(Options::default()).await;
    let _other = worker(&stage, "other", &other.url(), &[]).await;
    heard.extend(client.until_done(&id).await);
    let kinds = kinds(&heard);
    let count = |wanted: &str| kinds.iter().filter(|kind| **kind == wanted).count();
    assert_eq!(
        (count("execution_start"), count("execution_success"), count("execution_error")),
        (2, 1, 0),
        "{kinds:?}"
    );
    let ends = heard.iter().filter(|it| is_end_of(it, &id)).count();
    assert_eq!(ends, 1, "{kinds:?}");
    let left = heard.iter().filter(|it| it["type"] == "status").map(ws_client::remaining);
    let left: Vec<u64> = left.collect();
    let zeros = left.iter().filter(|left| **left == 0).count();
    assert_eq!((zeros, left.last()), (1, Some(&0)), "between two attempts it is still to be done: {left:?}");
}

#[tokio::test]
async fn killed_plane_keeps_history_and_delivers_the_end() {
    let mut stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let before = prompt(&stage, "anna", &picture(30).saved()).await;
    client.until_done(&before).await;
    let told = entry(&stage, &before).await;
    let id = prompt(&stage, "anna", &picture(31).sleep(3.0, 30).saved()).await;
    client.until("progress").await;
    stage.plane.kill();
    stage.plane.start_again().await;
    assert_eq!(entry(&stage, &before).await, told, "a restart changes nothing of what is over");
    let mut client = WsClient::open(&stage.plane, "anna").await;
    assert_eq!(client.greeted_with, 1);
    let heard = client.until_done(&id).await;
    let ends = kinds(&heard).into_iter().filter(|kind| *kind == "execution_success").count();
    assert!(ends >= 1, "{heard:?}");
    assert_eq!(entry(&stage, &id).await["status"]["completed"], true);
}

/// A node that sends its images over the socket alone sends all of them, each after an `executing` message.
#[tokio::test]
async fn result_images_are_sent_completely_and_once() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let graph = picture(32).add("SaveImageWebsocket", json!({ "images": ["1", 0] })).whole();
    let id = prompt(&stage, "anna", &graph).await;
    let (mut node, mut pictures) = (Value::Null, Vec::new());
    loop {
        match client.next().await {
            Heard::Text(message) if is_end_of(&message, &id) => break,
            Heard::Text(message) if message["type"] == "executing" => node = message["data"]["node"].clone(),
            Heard::Text(_) => {}
            Heard::Binary(bytes) => pictures.push((node.clone(), bytes)),
            Heard::Closed => panic!("the socket was closed"),
        }
    }
    assert_eq!(pictures.len(), 1);
    let (node, bytes) = &pictures[0];
    assert_eq!((node, &bytes[..8]), (&json!("2"), &[0, 0, 0, 1, 0, 0, 0, 2][..]));
    assert!(bytes[8..].starts_with(b"\x89PNG") && bytes.ends_with(b"IEND\xaeB`\x82"), "the whole picture");
    assert_eq!(
        entry(&stage, &id).await["outputs"],
        json!({}),
        "as in ComfyUI, the history has nothing of it"
    );
}
