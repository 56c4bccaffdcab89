//! Workers join with a token and get their own credential; both are revoked together.

use remuda_fakes::comfyui::Options;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{client_of, closed, code, token};
use crate::comfyui::fixture::{ComfyFixture, Server};
use crate::comfyui::graph::picture;
use crate::harness::{Process, QUICK, ScriptedWorker, answered, assert_contains_all, remuda};

/// Faults: X2, X11, X15. A stolen token can do what its worker can do and nothing else.
#[tokio::test]
async fn worker_token_allows_join_and_nothing_else() {
    let (plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker", "workers": ["gpu-7"] })).await;
    let worker = plane.with(&secret);
    let join = |name: &str| json!({ "worker": name, "services": ["exec"] });
    let (status, refused) = worker.post("/remuda/v1/workers", &join("gpu-8")).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{refused}");
    let mut hand = ScriptedWorker::join(&worker, "gpu-7", 1).await;
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

/// A worker that joined before the first token keeps working: it is known by its credential, and uploads files with it.
#[tokio::test]
async fn worker_credential_survives_first_token() {
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, QUICK, &[]).await;
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
async fn revoked_worker_token_ends_its_workers() {
    let (plane, admin) = closed(QUICK).await;
    let secret = token(&admin, &json!({ "role": "worker", "name": "stolen" })).await;
    let mut hand = ScriptedWorker::join(&plane.with(&secret), "a", 1).await;
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

/// Faults: X2. Another worker joins under the name: the first one is told to stop, and the audit log has it.
#[tokio::test]
async fn replaced_online_worker_raises_alarm() {
    let (mut plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker", "name": "gpus" })).await;
    let mut first = ScriptedWorker::join(&plane.with(&secret), "a", 1).await;
    first.say(&json!([]), &json!([])).await;
    let mut thief = ScriptedWorker::join(&plane.with(&secret), "a", 1).await;
    thief.say(&json!([]), &json!([])).await;
    let (status, refused) = answered(first.beat(&json!([]), &json!([]), 0.0)).await;
    assert!(status == StatusCode::GONE || status == StatusCode::FORBIDDEN, "{status} {refused}");
    plane.process.line("another worker takes the place").await.expect("it should be told");
    let audit = std::fs::read_to_string(plane.store().with_file_name("audit.jsonl")).unwrap();
    let joins: Vec<_> = audit.lines().filter(|line| line.contains("worker.join")).collect();
    assert!(!joins[0].contains("in place of"), "{audit}");
    assert_contains_all(joins[1], &["gpus (worker ", "worker a, in place of the one that was online"]);
}

/// Faults: X4.
#[tokio::test]
async fn worker_cannot_act_for_another() {
    let (plane, admin) = closed(&[]).await;
    let secret = token(&admin, &json!({ "role": "worker" })).await;
    let (mut a, b) = (
        ScriptedWorker::join(&plane.with(&secret), "a", 1).await,
        ScriptedWorker::join(&plane.with(&secret), "b", 1).await,
    );
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
async fn worker_process_stops_when_its_token_is_revoked() {
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
    assert_contains_all(&stranger.said(), &["send a token", "remuda token create"]);
    let mut worker = start(&secret);
    assert!(worker.line("joined").await.is_some(), "{}", worker.said());
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit(json!({ "n": 1 })).await;
    assert_eq!(anna.ended(&job).await["result"], json!({ "n": 1 }));
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/gpu").await.0, 200);
    assert!(!worker.ended().await.success());
    assert_contains_all(&worker.said(), &["revoked"]);
}
