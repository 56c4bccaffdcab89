//! Workers join with a token and go by what they are given; both end together.

use remuda_fakes::comfyui::Options;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{client_of, closed, code, token};
use crate::comfyui::graph::picture;
use crate::comfyui::stage::{Server, Stage};
use crate::harness::{Hand, Process, QUICK, answered, has_all, remuda};

/// Faults: X2, X11, X15. Whoever has it can do what its worker does and nothing else.
#[tokio::test]
async fn a_workers_token_joins_under_its_name_and_opens_nothing_else() {
    let (plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker", "workers": ["gpu-7"] })).await;
    let worker = plane.with(&secret);
    let join = |name: &str| json!({ "worker": name, "services": ["exec"] });
    let (status, refused) = worker.post("/remuda/v1/workers", &join("gpu-8")).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{refused}");
    let mut hand = Hand::join(&worker, "gpu-7", 1).await;
    hand.say(&json!([]), &json!([])).await;
    let given = plane.with(&hand.token);
    for client in [&worker, &given] {
        for path in [
            "/remuda/v1/jobs",
            "/remuda/v1/workers",
            "/remuda/v1/events",
            "/remuda/v1/tokens",
            "/remuda/v1/status",
        ] {
            let (status, _) = code(client, Method::GET, path).await;
            assert!(status == 401 || status == 403, "{path}: {status}");
        }
        let (status, _) = answered(client.request(Method::POST, "/remuda/v1/workers/gpu-7/drain")).await;
        assert!(status == 401 || status == 403, "{status}");
    }
    let (status, _) = answered(worker.request(Method::DELETE, "/remuda/v1/workers/gpu-7")).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "a token that joins does not speak for who has joined");
    assert_eq!(code(&admin, Method::GET, "/remuda/v1/workers/gpu-7").await.0, 200);
    assert_eq!(answered(admin.request(Method::DELETE, "/remuda/v1/workers/gpu-7")).await.0, StatusCode::OK);
}

/// Who joined while nobody was asked who they are goes on: it is known by what it was given, and brings its files under it.
#[tokio::test]
async fn a_worker_that_joined_an_open_plane_still_brings_its_files_when_it_is_closed() {
    let stage = Stage::with(Server::fake(Options::default()).await, QUICK, &[]).await;
    let admin = stage.plane.with(&token(&stage.plane, &json!({ "role": "admin" })).await);
    let job = admin.submit(picture(1).saved()).await;
    let ended = admin.ended(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    let hash = ended["result"]["outputs"][0]["hash"].as_str().unwrap();
    let path = format!("/remuda/v1/blobs/{hash}");
    // What only looks as if it had been given to a worker opens nothing.
    let forged = stage.plane.with(&format!("rmw_0_{}", "a".repeat(64)));
    for stranger in [&stage.plane.with(""), &forged] {
        assert_eq!(code(stranger, Method::GET, &path).await.0, 401);
    }
    assert_eq!(answered(admin.request(Method::GET, &path)).await.0, StatusCode::OK);
}

/// Faults: X2. The line that is open at that moment ends, too.
#[tokio::test]
async fn a_revoked_workers_token_ends_who_joined_with_it() {
    let (plane, admin) = closed(QUICK).await;
    let secret = token(&admin, &json!({ "role": "worker", "name": "stolen" })).await;
    let mut hand = Hand::join(&plane.with(&secret), "a", 1).await;
    hand.say(&json!([]), &json!([])).await;
    let line = tokio::spawn(answered(hand.beat(&json!([]), &json!([]), 25.0)));
    hand.client = plane.with("");
    crate::harness::wait_until("the line is open", async || {
        let worker = admin.worker("a").await;
        (worker["seen_millis_ago"].as_u64()? < 1000).then_some(())
    })
    .await;
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/stolen").await.0, 200);
    let (status, refused) = line.await.unwrap();
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (401, &json!("wrong_token")), "{refused}");
    let (status, _) = answered(hand.beat(&json!([]), &json!([]), 0.0)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    // Nothing goes to it any more, and nothing that it says is believed.
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit(json!({ "n": 1 })).await;
    admin.worker_until_offline("a").await;
    assert_eq!(anna.job(&job).await["state"], "queued");
}

/// Faults: X2. Somebody else joins under the name: the one that was there is told and stops, and it is noted.
#[tokio::test]
async fn a_second_worker_under_one_name_raises_an_alarm() {
    let (mut plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker", "name": "gpus" })).await;
    let mut first = Hand::join(&plane.with(&secret), "a", 1).await;
    first.say(&json!([]), &json!([])).await;
    let mut thief = Hand::join(&plane.with(&secret), "a", 1).await;
    thief.say(&json!([]), &json!([])).await;
    let (status, refused) = answered(first.beat(&json!([]), &json!([]), 0.0)).await;
    assert!(status == StatusCode::GONE || status == StatusCode::FORBIDDEN, "{status} {refused}");
    plane.process.line("another worker takes the place").await.expect("it should be told");
    let audit = std::fs::read_to_string(plane.store().with_file_name("audit.jsonl")).unwrap();
    let joins: Vec<_> = audit.lines().filter(|line| line.contains("worker.join")).collect();
    assert!(!joins[0].contains("in place of"), "{audit}");
    has_all(joins[1], &["gpus (worker ", "worker a, in place of the one that was online"]);
}

/// Faults: X4.
#[tokio::test]
async fn one_worker_does_not_speak_for_another() {
    let (plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker" })).await;
    let (mut a, b) =
        (Hand::join(&plane.with(&secret), "a", 1).await, Hand::join(&plane.with(&secret), "b", 1).await);
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit(json!({ "n": 1 })).await;
    let attempt = a.take().await;
    let mut forged = attempt.clone();
    (forged["outcome"], forged["result"]) = (json!("completed"), json!({ "forged": true }));
    // With its own token under the other's name, and with the token that both joined with.
    for token in [&b.token, &secret] {
        let mut thief = a.clone();
        thief.token.clone_from(token);
        let (status, refused) = answered(thief.beat(&json!([]), &json!([forged]), 0.0)).await;
        assert!(status.is_client_error(), "{status} {refused}");
    }
    assert_eq!(anna.job(&job).await["state"], "running");
    assert_eq!(a.complete(&attempt, json!({ "x": 1 })).await, "recorded");
    assert_eq!(anna.ended(&job).await["result"], json!({ "x": 1 }));
}

#[tokio::test]
async fn a_real_worker_joins_with_its_token_and_stops_when_that_is_revoked() {
    let (plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker", "name": "gpu" })).await;
    let start = |token: &str| {
        let mut command = remuda(plane.folder());
        command
            .args(["worker", "--url", &plane.url, "--name", "a", "--exec", "cat"])
            .env("REMUDA_TOKEN", token);
        Process::start("the worker", &mut command)
    };
    let mut stranger = start("");
    assert!(!stranger.ended().await.success());
    has_all(&stranger.said(), &["send a token", "remuda token create"]);
    let mut worker = start(&secret);
    assert!(worker.line("joined").await.is_some(), "{}", worker.said());
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit(json!({ "n": 1 })).await;
    assert_eq!(anna.ended(&job).await["result"], json!({ "n": 1 }));
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/gpu").await.0, 200);
    assert!(!worker.ended().await.success());
    has_all(&worker.said(), &["revoked"]);
}
