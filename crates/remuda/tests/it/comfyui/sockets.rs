//! Sockets that close, go deaf, or say nonsense: all they say is a hint, so nothing is lost with them.

use remuda_comfyui::{Socket, Target};
use remuda_fakes::comfyui::Options;
use serde_json::{Value, json};

use super::graph::picture;
use super::stage::{Server, Stage, completed_at_once, gave_a_picture, prompt_id, until_progress};
use crate::harness::{Stream, answered, wait_until};

/// Faults: W1.
#[tokio::test]
async fn a_socket_that_closes_in_the_middle_is_opened_again_and_nothing_is_lost() {
    let stage = Stage::fake().await;
    let before = stage.fake_counts().sockets_opened;
    let job = stage.submit(picture(1).fault("drop-sockets").sleep(1.0, 10).saved()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
    assert!(stage.fake_counts().sockets_opened > before);
    super::stage::until_open(&stage, &stage.worker, true).await;
}

/// Faults: W1, W3.
#[tokio::test]
async fn work_that_ends_while_there_is_no_socket_is_found_when_there_is_one() {
    // An inactivity that is no help: it is found because the socket closes, and opens.
    let server = Server::fake(Options::default()).await;
    let stage = Stage::with(server, &[], &["--set", "agent.inactivity=1h"]).await;
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
async fn a_socket_that_is_open_and_silent_is_opened_anew() {
    let stage = Stage::fake().await;
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
async fn a_socket_that_went_deaf_because_another_has_its_id_costs_nothing() {
    let stage = Stage::fake().await;
    let job = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&job, 1).await;
    let http = remuda_net::http_client::client().build().unwrap();
    let (_, queue) = answered(http.get(format!("{}/queue", stage.server.url()))).await;
    let client_id = queue["queue_running"][0][3]["client_id"].as_str().unwrap().to_owned();
    // Of two sockets with one id only the newer hears anything.
    let target = Target::new(stage.server.url());
    let thief = Socket::connect(&target, &client_id, crate::harness::PATIENCE).await.unwrap();
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    drop(thief);
}

/// Faults: W8.
#[tokio::test]
async fn messages_that_somebody_else_holds_up_are_not_waited_for() {
    let stage = Stage::fake().await;
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
async fn progress_only_rises_and_is_nobody_elses() {
    let stage = Stage::fake().await;
    let mut events = Stream::open(&stage, "", None).await;
    // Somebody else's prompt runs first; without a client its progress is told to everyone.
    let foreign = json!({ "prompt": picture(9).sleep(1.0, 10).saved() });
    let http = remuda_net::http_client::client().build().unwrap();
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
async fn a_huge_preview_is_dropped_and_what_matters_is_heard() {
    let stage = Stage::fake().await;
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

fn memory(stage: &Stage) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stage.worker.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Faults: W10.
#[tokio::test]
async fn frames_that_make_no_sense_are_ignored_and_too_many_close_the_socket() {
    let stage = Stage::fake().await;
    for color in 0..6 {
        let job = stage.submit(picture(color).fault("garbage-frames").sleep(0.3, 3).saved()).await;
        let ended = stage.ended(&job).await;
        completed_at_once(&ended);
        gave_a_picture(&stage, &ended).await;
        stage.ran_once(&job).await;
    }
    assert!(stage.fake_counts().sockets_opened > 1, "after so many it was closed and opened anew");
}

#[tokio::test]
async fn previews_and_progress_are_told_while_it_runs() {
    let stage = Stage::any().await;
    let mut events = Stream::open(&stage, "", None).await;
    let color = crate::harness::Luck::new().below(1 << 24);
    let graph = picture(color).then("RemudaSleep", json!({ "seconds": 2.0, "steps": 10, "preview": true }));
    let job = stage.submit(graph.saved()).await;
    let told = events.until("job:progress").await;
    assert_eq!(told.data["job"], Value::String(job.clone()));
    until_progress(&stage, &job, 0.3).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
}
