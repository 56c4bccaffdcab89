//! Limits: foreign origins, guessed tokens, floods, too many connections.

use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use serde_json::json;

use super::{client_of, closed, code, token};
use crate::harness::{Client, Plane, Raw, ScriptedWorker, Stream, answered, assert_contains_all, wait_until};
use remuda_tidy::source::{rust_files, workspace_root};

/// What a request with these headers is answered.
async fn asked(client: &Client, method: Method, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = client.request(method, "/remuda/v1/jobs").json(&json!({ "workflow": { "n": 1 } }));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (status, body) = answered(request).await;
    (status.as_u16(), body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Faults: X8.
#[tokio::test]
async fn foreign_origin_is_refused_on_loopback() {
    let plane = Plane::start(&["http.allowed_origins=https://app.example.org"]).await;
    let own = plane.url.clone();
    let foreign = (403, "origin_not_allowed".to_owned());
    for method in [Method::GET, Method::POST] {
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            assert_eq!(asked(&plane, method.clone(), &[("origin", origin)]).await, foreign, "{origin}");
        }
        assert!(asked(&plane, method.clone(), &[("origin", &own)]).await.0 < 300);
    }
    assert_eq!(asked(&plane, Method::POST, &[("sec-fetch-site", "cross-site")]).await, foreign);
    // A name of theirs that was turned to our address.
    let turned = [("host", "rebound.evil.example")];
    assert_eq!(asked(&plane, Method::GET, &turned).await, (403, "host_not_allowed".to_owned()));
    // A socket, wherever it is opened.
    for path in ["/ws", "/remuda/v1/events", "/anything"] {
        let mut raw = Raw::open(plane.address).await;
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\norigin: https://evil.example\r\n", plane.address);
        raw.send(&head).await;
        raw.send("connection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n").await;
        raw.send("sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").await;
        let (status, error) = raw.refusal().await;
        assert_eq!((status, &error["code"]), (403, &json!("origin_not_allowed")), "{path}");
    }
    // One that was allowed is told so, and asked beforehand as browsers do.
    let ask = plane.request(Method::OPTIONS, "/remuda/v1/jobs").header("origin", "https://app.example.org");
    let answer = ask.header("access-control-request-method", "POST").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://app.example.org");
    let ask = plane.request(Method::GET, "/remuda/v1/jobs").header("origin", "https://app.example.org");
    let answer = ask.send().await.unwrap();
    assert_eq!(answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://app.example.org");
}

/// Faults: B10.
#[tokio::test]
async fn rate_limit_applies_to_one_token_only() {
    let (_plane, admin) = closed(&["limits.requests_per_second=4"]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let mut held_back = None;
    for n in 0..100 {
        let submission = json!({ "workflow": { "n": n } });
        let answer = anna.request(Method::POST, "/remuda/v1/jobs").json(&submission).send().await.unwrap();
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            held_back = Some((n, answer));
            break;
        }
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    let (taken, answer) = held_back.expect("a flood should be held back");
    assert!(taken >= 20, "five seconds' worth may come at once: {taken}");
    let wait: u64 = answer.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert_eq!(wait, 1);
    ben.submit(json!({ "n": 1 })).await;
    wait_until("anna is heard again", async || (asked(&anna, Method::GET, &[]).await.0 == 200).then_some(()))
        .await;
    // Workers are never turned away for beating.
    let mut hand = ScriptedWorker::join(&admin, "a", 1).await;
    for _ in 0..50 {
        hand.say(&json!([]), &json!([])).await;
    }
}

/// Faults: C18. Priority wins over fairness between tenants, so clients may not choose it freely.
#[tokio::test]
async fn client_priority_is_capped() {
    let (_plane, admin) = closed(&["limits.client_priority_max=3"]).await;
    let anna = client_of(&admin, "anna").await;
    let image = json!({ "width": 64, "height": 64, "batch_size": 1, "color": 1 });
    let graph = json!({
        "1": { "class_type": "EmptyImage", "inputs": image },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "a" } },
    });
    for path in ["/remuda/v1/jobs", "/api/v2/jobs"] {
        let (status, refused) = anna.post(path, &json!({ "workflow": graph, "priority": 4 })).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {refused}");
        let words = ["priority 4", "3 is the most", "limits.client_priority_max"];
        assert_contains_all(refused["error"]["message"].as_str().unwrap(), &words);
        let (status, taken) = anna.post(path, &json!({ "workflow": graph, "priority": 3 })).await;
        assert_eq!(status, StatusCode::CREATED, "{path}: {taken}");
    }
    let (status, taken) = anna.post("/prompt", &json!({ "prompt": graph, "front": true })).await;
    assert_eq!(status, StatusCode::OK, "{taken}");
    let asked: Vec<_> = anna.jobs().await.iter().map(|job| job["priority"].clone()).collect();
    assert_eq!(asked, [3, 3, 3]);
    admin.submit_as(json!({ "workflow": graph, "priority": 127 })).await;
}

/// Faults: X9.
#[tokio::test]
async fn token_guessing_locks_out_unknown_tokens_only() {
    let (plane, admin) = closed(&[]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    anna.submit(json!({ "n": 1 })).await;
    // A worker that was not told of its new token asks again and again with the old one.
    let old = plane.with("rmd_0123456789ab_of-yesterday");
    for _ in 0..40 {
        assert_eq!(code(&old, Method::GET, "/remuda/v1/jobs").await, (401, "wrong_token".to_owned()));
    }
    let mut refused = Vec::new();
    for n in 0..25 {
        let guess = plane.with(&format!("rmd_{n:012x}_{}", "0".repeat(64)));
        refused.push(code(&guess, Method::GET, "/remuda/v1/jobs").await.1);
    }
    assert_eq!(refused.iter().filter(|code| *code == "wrong_token").count(), 19);
    assert_eq!(refused.last().unwrap(), "locked_out");
    let answer = ben.request(Method::GET, "/remuda/v1/jobs").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "even a right guess is refused now");
    assert!(answer.headers().contains_key(header::RETRY_AFTER));
    anna.submit(json!({ "n": 2 })).await;
    assert_eq!(code(&admin, Method::GET, "/remuda/v1/status").await.0, 200);
    assert_eq!(code(&plane, Method::GET, "/health/live").await.0, 200);
}

/// Faults: X13.
#[tokio::test]
async fn connections_per_address_are_capped() {
    const LIST: &str = "GET /remuda/v1/jobs HTTP/1.1\r\nhost: localhost\r\n";
    let plane = Plane::start(&["limits.connections_per_address_max=4"]).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::open(plane.address).await;
        raw.send(&format!("{LIST}\r\n")).await;
        assert_contains_all(&raw.head().await, &["200 OK"]);
        idle.push(raw);
    }
    let mut one_more = Raw::open(plane.address).await;
    one_more.send(&format!("{LIST}\r\n")).await;
    let (status, error) = one_more.refusal().await;
    assert_eq!((status, &error["code"]), (429, &json!("too_many_connections")));
    // Workers of the same address are heard, and its health checks answered.
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    hand.say(&json!([]), &json!([])).await;
    plane.get("/health/live").await;
    idle.clear();
    wait_until("there is room again", async || {
        plane.request(Method::GET, "/remuda/v1/jobs").send().await.ok()?.status().is_success().then_some(())
    })
    .await;
}

/// Faults: X13.
#[tokio::test]
async fn streams_per_token_are_capped() {
    let (_plane, admin) = closed(&["limits.streams_per_token_max=2"]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let first = Stream::open(&anna, "?after=0", None).await;
    let _second = Stream::open(&anna, "?after=0", None).await;
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/events").await, (429, "too_many_streams".to_owned()));
    let _other = Stream::open(&ben, "?after=0", None).await;
    drop(first);
    wait_until("there is room again", async || {
        let stream = anna.request(Method::GET, "/remuda/v1/events").send().await.unwrap();
        stream.status().is_success().then_some(())
    })
    .await;
}

/// Faults: B1, B6. A request without a token is answered before its body is read.
#[tokio::test]
async fn unauthorized_body_is_not_read() {
    let (plane, _admin) = closed(&[]).await;
    for headers in ["content-length: 8000000", "transfer-encoding: chunked"] {
        let raw = Raw::submit(plane.address, headers).await;
        let (status, error) = tokio::time::timeout(Duration::from_secs(5), raw.answer())
            .await
            .expect("it should not wait for a body");
        assert_eq!((status, &error["code"]), (401, &json!("no_token")), "{headers}");
    }
}

/// Faults: X18. A worker may claim progress for ever; a job with a deadline still ends.
#[tokio::test]
async fn worker_without_real_progress_loses_its_job() {
    let (_plane, admin) = closed(&[]).await;
    let mut hand = ScriptedWorker::join(&admin, "liar", 1).await;
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit_as(json!({ "workflow": { "n": 1 }, "deadline_seconds": 2 })).await;
    let attempt = hand.take().await;
    let mut held = attempt;
    let mut step = 0;
    let ended = wait_until("the job ends", async || {
        step += 1;
        (held["step"], held["progress"]) = (json!(step), json!(0.5));
        hand.say(&json!([held]), &json!([])).await;
        Some(anna.job(&job).await).filter(|job| job["state"] != "running" && job["state"] != "queued")
    })
    .await;
    assert_eq!(ended["state"], "failed", "{ended}");
}

/// Faults: X19. What is counted by what others send is hashed with a key of this process, and no pattern is matched
/// against it.
#[test]
fn foreign_input_meets_keyed_hashes_and_no_patterns() {
    let manifest = std::fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
    let dependencies = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap();
    for name in ["regex", "fancy-regex", "fxhash", "rustc-hash", "ahash", "hashbrown", "nohash"] {
        let is_there = dependencies.lines().any(|line| line.starts_with(&format!("{name} ")));
        assert!(!is_there, "{name} hashes without a key, or matches patterns");
    }
    for source in rust_files() {
        for word in [concat!("BuildHasher", "Default"), concat!("with_", "hasher")] {
            let found = source.production_lines().find(|(_, line)| line.contains(word));
            assert!(found.is_none(), "{}: {found:?}", source.name);
        }
    }
}

/// Faults: X5. Only who was named is called, wherever it would send us.
#[tokio::test]
async fn redirects_are_not_followed() {
    let inside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let outside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (inside_at, url) =
        (inside.local_addr().unwrap(), format!("http://{}", outside.local_addr().unwrap()));
    let redirecting = tokio::spawn(async move {
        loop {
            let (stream, _) = outside.accept().await.unwrap();
            let mut raw = Raw(stream);
            raw.head().await;
            let answer = format!("location: http://{inside_at}/latest/meta-data\r\ncontent-length: 0\r\n");
            raw.send(&format!("HTTP/1.1 307 Temporary Redirect\r\n{answer}connection: close\r\n\r\n")).await;
            tokio::spawn(async move { raw.rest().await });
        }
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("w.json"), "{\"n\":1}").unwrap();
    let (code, said) = crate::start::run_as("x", folder.path(), &["run", "w.json", "--url", &url]).await;
    assert_eq!(code, 3, "it is no plane: {said}");
    let (code, said) = crate::start::run(folder.path(), &["blobs", "put", "w.json", "--url", &url]).await;
    assert_eq!(code, 3, "it is no plane: {said}");
    let asked = tokio::time::timeout(Duration::from_millis(200), inside.accept()).await;
    assert!(asked.is_err(), "a redirect was followed");
    redirecting.abort();
}

#[tokio::test]
async fn ambiguous_token_name_is_refused() {
    let (_plane, admin) = closed(&[]).await;
    let wanted = json!({ "role": "worker", "name": "gpu" });
    let (_, second) = (token(&admin, &wanted).await, token(&admin, &wanted).await);
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/gpu").await, (409, "ambiguous".to_owned()));
    let id = second.split('_').nth(1).unwrap();
    assert_eq!(code(&admin, Method::DELETE, &format!("/remuda/v1/tokens/{id}")).await.0, 200);
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/gpu").await.0, 200);
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/gpu").await.0, 404);
}
