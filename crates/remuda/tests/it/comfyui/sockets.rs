//! Sockets that close, go silent or send garbage: messages are only hints, so nothing is lost.

use remuda_comfyui::{ComfyuiSocket, ComfyuiTarget};
use remuda_fakes::comfyui::Options;
use serde_json::{Value, json};

use super::fixture::{ComfyFixture, Server, completed_at_once, gave_a_picture, prompt_id, until_progress};
use super::graph::picture;
use crate::harness::{Stream, answered, wait_until};

/// Faults: W1.
#[tokio::test]
async fn closed_socket_reopens_without_loss() {
    let stage = ComfyFixture::fake().await;
    let before = stage.fake_counts().sockets_opened;
    let job = stage.submit(picture(1).fault("drop-sockets").sleep(1.0, 10).saved()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
    assert!(stage.fake_counts().sockets_opened > before);
    super::fixture::until_open(&stage, &stage.worker, true).await;
}

/// Faults: W1, W3.
#[tokio::test]
async fn completion_without_socket_is_found_on_reconnect() {
    // An inactivity that is no help: it is found because the socket closes, and opens.
    let server = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(server, &[], &["--set", "agent.inactivity=1h"]).await;
    let job = stage.submit(picture(1).fault("drop-completion").sleep(0.5, 5).saved()).await;
    wait_until("the server is done", async || {
        stage.fake_counts().successes.contains_key(&prompt_id(&job, 1)).then_some(())
    })
    .await;
    stage.server.as_fake().control().drop_sockets();
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
}

/// Faults: W2, W7.
#[tokio::test]
async fn half_open_socket_is_replaced() {
    let stage = ComfyFixture::fake().await;
    let before = stage.fake_counts().sockets_opened;
    stage.server.as_fake().control().half_open_sockets();
    let job = stage.submit(picture(1).sleep(3.0, 30).saved()).await;
    wait_until("another socket is opened", async || {
        (stage.fake_counts().sockets_opened > before).then_some(())
    })
    .await;
    // Over the new one progress is heard again.
    until_progress(&stage, &job, 0.1).await;
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
}

/// Faults: W7.
#[tokio::test]
async fn duplicate_client_id_loses_nothing() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&job, 1).await;
    let http = remuda_net::http_client::client_builder().build().unwrap();
    let (_, queue) = answered(http.get(format!("{}/queue", stage.server.url()))).await;
    let client_id = queue["queue_running"][0][3]["client_id"].as_str().unwrap().to_owned();
    // Of two sockets with one id only the newer hears anything.
    let target = ComfyuiTarget::new(stage.server.url());
    let thief = ComfyuiSocket::connect(&target, &client_id, crate::harness::WAIT_MAX).await.unwrap();
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    drop(thief);
}

/// Faults: W8.
#[tokio::test]
async fn blocked_messages_do_not_delay_job() {
    let stage = ComfyFixture::fake().await;
    stage.server.as_fake().control().hold_messages(true);
    let job = stage.submit(picture(1).sleep(0.5, 5).saved()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    stage.ran_once(&job).await;
    stage.server.as_fake().control().hold_messages(false);
    // What comes late now changes nothing.
    completed_at_once(&stage.run(picture(2).saved()).await);
    assert_eq!(stage.job(&job).await, ended);
}

/// Faults: W5, W6.
#[tokio::test]
async fn progress_is_monotonic_and_own() {
    let stage = ComfyFixture::fake().await;
    let mut events = Stream::open(&stage, "", None).await;
    // Another user's prompt runs first; without a client id its progress is sent to every socket.
    let foreign = json!({ "prompt": picture(9).sleep(1.0, 10).saved() });
    let http = remuda_net::http_client::client_builder().build().unwrap();
    let (status, answer) = answered(http.post(format!("{}/prompt", stage.server.url())).json(&foreign)).await;
    assert!(status.is_success(), "{answer}");
    let job = stage.submit(picture(1).fault("duplicate").sleep(1.5, 15).saved()).await;
    let (mut last, mut seen) = (0.0, 0);
    loop {
        let event = events.next().await;
        match event.name.as_str() {
            "job:progress" => {
                let progress = event.data["progress"].as_f64().unwrap();
                assert!(progress >= last, "{progress} after {last}");
                let has_begun = stage.fake_counts().executions.contains_key(&prompt_id(&job, 1));
                assert!(has_begun || progress == 0.0, "{progress} before it began");
                (last, seen) = (progress, seen + 1);
            }
            "job:completed" => break,
            _ => {}
        }
    }
    assert!(seen > 0, "it was heard of");
    completed_at_once(&stage.job(&job).await);
}

/// Faults: W9.
#[tokio::test]
async fn huge_preview_is_dropped() {
    let stage = ComfyFixture::fake().await;
    let before = memory(&stage);
    for color in 0..5 {
        let job = stage.submit(picture(color).fault("huge-preview").sleep(0.3, 3).saved()).await;
        completed_at_once(&stage.ended(&job).await);
        stage.ran_once(&job).await;
    }
    assert_eq!(stage.fake_counts().sockets_opened, 1, "the socket was kept");
    let grown = memory(&stage).saturating_sub(before);
    assert!(grown < 64 << 20, "the worker grew by {grown} bytes");
}

fn memory(stage: &ComfyFixture) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stage.worker.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Faults: W10.
#[tokio::test]
async fn malformed_frames_are_ignored_then_close_socket() {
    let stage = ComfyFixture::fake().await;
    for color in 0..6 {
        let job = stage.submit(picture(color).fault("garbage-frames").sleep(0.3, 3).saved()).await;
        let ended = stage.ended(&job).await;
        completed_at_once(&ended);
        gave_a_picture(&stage, &ended).await;
        stage.ran_once(&job).await;
    }
    assert!(stage.fake_counts().sockets_opened > 1, "after so many it was closed and reopened");
}

#[tokio::test]
async fn previews_and_progress_are_live() {
    let stage = ComfyFixture::any().await;
    let mut events = Stream::open(&stage, "", None).await;
    let color = crate::harness::TestRng::new().below(1 << 24);
    let graph = picture(color).then("RemudaSleep", json!({ "seconds": 2.0, "steps": 10, "preview": true }));
    let job = stage.submit(graph.saved()).await;
    let told = events.until("job:progress").await;
    assert_eq!(told.data["job"], Value::String(job.clone()));
    until_progress(&stage, &job, 0.3).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
}
