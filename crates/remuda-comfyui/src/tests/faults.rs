//! The client while the server is slow, crashing, silent or refusing.

use std::time::Duration;

use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFault, SubmitOutcome};
use serde_json::json;
use tokio::time::timeout;

use super::{PATIENCE, endless, listen, picture, plain, with_node, world};
use crate::{
    ComfyuiClient, ComfyuiError, ComfyuiMessage, ComfyuiSocket, ComfyuiTarget, SelfTestError, SocketClosed,
};
use remuda_fakes::comfyui::{Fault as Struck, Options};

/// Faults: V3.
#[tokio::test]
async fn lost_answer_is_unknown_outcome() {
    let world = plain().await;
    for (struck, is_taken) in [(Struck::LostSubmitAnswer, true), (Struck::RefuseSubmit, false)] {
        world.fake.control().strike_next(struck);
        let prompt = world.prompt(&picture(5));
        let submission = world.client.submit(&prompt).await;
        assert!(matches!(submission, SubmitOutcome::Unconfirmed(_)), "{submission:?}");
        assert_eq!(matches!(world.ended(&prompt).await, ProbeResult::Succeeded { .. }), is_taken);
    }
}

/// Faults: V14.
#[tokio::test]
async fn slow_answer_is_no_verdict_and_refused_connection_is_gone() {
    let world = plain().await;
    let prompt = world.accepted(&picture(5)).await;
    world.ended(&prompt).await;
    let hasty = ComfyuiClient::new(&world.target, Duration::from_millis(100)).unwrap();
    world.fake.control().slow_http(Duration::from_secs(60));
    for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint] {
        let seen = hasty.probe(prompt.id(), trigger).await;
        assert!(matches!(&seen, ProbeResult::NoAnswer(why) if why.contains("within 100ms")), "{seen:?}");
    }
    assert!(matches!(hasty.submit(&world.prompt(&picture(6))).await, SubmitOutcome::Unconfirmed(_)));
    world.fake.kill().await;
    assert!(matches!(world.client.probe(prompt.id(), ProbeTrigger::Silence).await, ProbeResult::Gone(_)));
    let unsure = world.client.submit(&prompt).await;
    assert!(matches!(&unsure, SubmitOutcome::Unconfirmed(why) if why.contains("refused")), "{unsure:?}");
    let refused = ComfyuiSocket::connect(&world.target, "x", PATIENCE).await.unwrap_err();
    assert!(matches!(&refused, ComfyuiError::Gone(_)) && refused.is_unsent(), "{refused:?}");
}

/// Faults: V8.
#[tokio::test]
async fn restart_is_detected_by_the_missing_anchor() {
    let world = plain().await;
    let canary = world.client.self_test_prompt(&world.worker, &world.client_id);
    world.client.run_self_test(&canary, PATIENCE).await.unwrap();
    assert!(world.client.is_in_history(canary.id()).await.unwrap());
    let prompt = world.accepted(&endless()).await;
    let mut socket = world.socket().await;
    world.fake.restart().await;
    let closed = timeout(PATIENCE, async { while socket.recv_message().await.is_ok() {} }).await;
    assert!(closed.is_ok());
    assert!(!world.client.is_in_history(canary.id()).await.unwrap());
    assert!(matches!(
        world.client.probe(prompt.id(), ProbeTrigger::SocketClosed).await,
        ProbeResult::Unknown
    ));
}

/// Faults: V11.
#[tokio::test]
async fn dead_executor_fails_the_self_test() {
    let world = plain().await;
    world.fake.control().strike_next(Struck::ExecutorDead);
    let canary = world.client.self_test_prompt(&world.worker, &world.client_id);
    let late = world.client.run_self_test(&canary, Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(late, SelfTestError::TimedOut { .. }), "{late}");
    world.fake.restart().await;
    world.fake.control().strike_next(Struck::Cuda);
    let canary = world.client.self_test_prompt(&world.worker, &world.client_id);
    let failed = world.client.run_self_test(&canary, PATIENCE).await.unwrap_err();
    assert!(
        matches!(&failed, SelfTestError::Failed(failure) if failure.fault == ServiceFault::Device),
        "{failed}"
    );
}

/// Faults: W9, W10.
#[tokio::test]
async fn malformed_frames_and_huge_previews_keep_the_socket_open() {
    let world = plain().await;
    let mut socket = world.socket().await;
    let graph = with_node("RemudaSleep", &json!({"seconds": 0.01, "steps": 2, "preview": true}));
    world.fake.control().strike_next(Struck::GarbageFrames);
    world.fake.control().strike_next(Struck::HugePreview);
    let prompt = world.accepted(&graph).await;
    let messages = listen(&mut socket, &prompt).await;
    let previews = messages.iter().filter(|message| matches!(message, ComfyuiMessage::Preview { .. }));
    assert!(
        previews.clone().count() > 0 && previews.clone().all(|message| message.prompt() == Some(prompt.id()))
    );
    assert!(messages.iter().any(|message| matches!(message, ComfyuiMessage::Malformed)), "{messages:?}");
    assert_eq!(socket.dropped(), 1);
    assert!(matches!(
        world.client.probe(prompt.id(), ProbeTrigger::CompletionHint).await,
        ProbeResult::Succeeded { .. }
    ));
}

/// Faults: W2, W4.
#[tokio::test]
async fn half_open_socket_is_detected_and_a_quiet_one_stays_open() {
    let world = plain().await;
    let every = Duration::from_millis(100);
    let mut socket = ComfyuiSocket::open(&world.target, &world.client_id, every).await.unwrap();
    let quiet = timeout(10 * every, async { while socket.recv_message().await.is_ok() {} }).await;
    assert!(quiet.is_err(), "a socket whose pings are answered was given up");
    world.fake.control().half_open_sockets();
    let closed = timeout(PATIENCE, async {
        loop {
            if let Err(closed) = socket.recv_message().await {
                return closed;
            }
        }
    });
    assert_eq!(closed.await.unwrap(), SocketClosed::Silent);
}

#[tokio::test]
async fn rejected_credentials_are_reported() {
    let world = world(Options { token: Some("secret".to_owned()), ..Options::default() }).await;
    let prompt = world.prompt(&picture(1));
    for (url, status) in
        [(world.target.url.clone(), 401), (format!("{}/nothing/here", world.target.url), 404)]
    {
        let mut target = ComfyuiTarget::new(url);
        if status == 404 {
            target.headers.clone_from(&world.target.headers);
        }
        let stranger = ComfyuiClient::new(&target, PATIENCE).unwrap();
        let error = stranger.stats().await.unwrap_err();
        assert!(matches!(&error, ComfyuiError::Status { status: it, .. } if *it == status), "{error}");
        assert!(matches!(stranger.probe(prompt.id(), ProbeTrigger::Recheck).await, ProbeResult::NoAnswer(_)));
        let SubmitOutcome::Refused(failure) = stranger.submit(&prompt).await else { panic!("{status}") };
        assert_eq!(failure.fault, ServiceFault::Lost);
        let refused = ComfyuiSocket::connect(&target, "x", PATIENCE).await.unwrap_err();
        assert!(matches!(&refused, ComfyuiError::Status { status: it, .. } if *it == status), "{refused}");
    }
}
