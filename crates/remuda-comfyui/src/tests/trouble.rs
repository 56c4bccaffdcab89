//! The client while the server is slow, dying, deaf or shut.

use std::time::Duration;

use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFault, SubmitOutcome};
use serde_json::json;
use tokio::time::timeout;

use super::{PATIENCE, endless, listen, picture, plain, with_node, world};
use crate::{Client, Closed, Error, Message, Sick, Socket, Target};
use remuda_fakes::comfyui::{Fault as Struck, Options};

/// Faults: V3.
#[tokio::test]
async fn a_lost_answer_is_unsure_whether_or_not_the_prompt_was_taken() {
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
async fn a_slow_answer_says_nothing_and_a_refused_connection_says_gone() {
    let world = plain().await;
    let prompt = world.accepted(&picture(5)).await;
    world.ended(&prompt).await;
    let hasty = Client::new(&world.target, Duration::from_millis(100)).unwrap();
    world.fake.control().slow_http(Duration::from_secs(60));
    for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint] {
        let seen = hasty.look(prompt.id(), trigger).await;
        assert!(matches!(&seen, ProbeResult::NoAnswer(why) if why.contains("within 100ms")), "{seen:?}");
    }
    assert!(matches!(hasty.submit(&world.prompt(&picture(6))).await, SubmitOutcome::Unconfirmed(_)));
    world.fake.kill().await;
    assert!(matches!(world.client.look(prompt.id(), ProbeTrigger::Silence).await, ProbeResult::Gone(_)));
    let unsure = world.client.submit(&prompt).await;
    assert!(matches!(&unsure, SubmitOutcome::Unconfirmed(why) if why.contains("refused")), "{unsure:?}");
    let refused = Socket::connect(&world.target, "x", PATIENCE).await.unwrap_err();
    assert!(matches!(&refused, Error::Gone(_)) && refused.is_unsent(), "{refused:?}");
}

/// Faults: V8.
#[tokio::test]
async fn a_restart_is_known_by_the_anchor_it_forgot() {
    let world = plain().await;
    let canary = world.client.canary(&world.worker, &world.client_id);
    world.client.sing(&canary, PATIENCE).await.unwrap();
    assert!(world.client.knows(canary.id()).await.unwrap());
    let prompt = world.accepted(&endless()).await;
    let mut socket = world.socket().await;
    world.fake.restart().await;
    let closed = timeout(PATIENCE, async { while socket.next().await.is_ok() {} }).await;
    assert!(closed.is_ok());
    assert!(!world.client.knows(canary.id()).await.unwrap());
    assert!(matches!(world.client.look(prompt.id(), ProbeTrigger::SocketClosed).await, ProbeResult::Unknown));
}

/// Faults: V11.
#[tokio::test]
async fn a_server_whose_executor_is_dead_does_not_pass() {
    let world = plain().await;
    world.fake.control().strike_next(Struck::ExecutorDead);
    let canary = world.client.canary(&world.worker, &world.client_id);
    let late = world.client.sing(&canary, Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(late, Sick::Late { .. }), "{late}");
    world.fake.restart().await;
    world.fake.control().strike_next(Struck::Cuda);
    let canary = world.client.canary(&world.worker, &world.client_id);
    let failed = world.client.sing(&canary, PATIENCE).await.unwrap_err();
    assert!(matches!(&failed, Sick::Failed(failure) if failure.fault == ServiceFault::Device), "{failed}");
}

/// Faults: W9, W10.
#[tokio::test]
async fn garbage_and_huge_previews_do_not_end_the_socket() {
    let world = plain().await;
    let mut socket = world.socket().await;
    let graph = with_node("RemudaSleep", &json!({"seconds": 0.01, "steps": 2, "preview": true}));
    world.fake.control().strike_next(Struck::GarbageFrames);
    world.fake.control().strike_next(Struck::HugePreview);
    let prompt = world.accepted(&graph).await;
    let heard = listen(&mut socket, &prompt).await;
    let previews = heard.iter().filter(|said| matches!(said, Message::Preview { .. }));
    assert!(previews.clone().count() > 0 && previews.clone().all(|said| said.prompt() == Some(prompt.id())));
    assert!(heard.iter().any(|said| matches!(said, Message::Malformed)), "{heard:?}");
    assert_eq!(socket.dropped(), 1);
    assert!(matches!(
        world.client.look(prompt.id(), ProbeTrigger::CompletionHint).await,
        ProbeResult::Succeeded { .. }
    ));
}

/// Faults: W2, W4.
#[tokio::test]
async fn a_socket_that_only_seems_open_is_found_out_and_a_quiet_one_is_kept() {
    let world = plain().await;
    let every = Duration::from_millis(100);
    let mut socket = Socket::open(&world.target, &world.client_id, every).await.unwrap();
    let quiet = timeout(10 * every, async { while socket.next().await.is_ok() {} }).await;
    assert!(quiet.is_err(), "a socket whose pings are answered was given up");
    world.fake.control().half_open_sockets();
    let closed = timeout(PATIENCE, async {
        loop {
            if let Err(closed) = socket.next().await {
                return closed;
            }
        }
    });
    assert_eq!(closed.await.unwrap(), Closed::Silent);
}

#[tokio::test]
async fn a_door_that_stays_shut_is_named() {
    let world = world(Options { token: Some("secret".to_owned()), ..Options::default() }).await;
    let prompt = world.prompt(&picture(1));
    for (url, status) in
        [(world.target.url.clone(), 401), (format!("{}/nothing/here", world.target.url), 404)]
    {
        let mut target = Target::new(url);
        if status == 404 {
            target.headers.clone_from(&world.target.headers);
        }
        let stranger = Client::new(&target, PATIENCE).unwrap();
        let told = stranger.stats().await.unwrap_err();
        assert!(matches!(&told, Error::Status { status: it, .. } if *it == status), "{told}");
        assert!(matches!(stranger.look(prompt.id(), ProbeTrigger::Recheck).await, ProbeResult::NoAnswer(_)));
        let SubmitOutcome::Refused(failure) = stranger.submit(&prompt).await else { panic!("{status}") };
        assert_eq!(failure.fault, ServiceFault::Lost);
        let refused = Socket::connect(&target, "x", PATIENCE).await.unwrap_err();
        assert!(matches!(&refused, Error::Status { status: it, .. } if *it == status), "{refused}");
    }
}
