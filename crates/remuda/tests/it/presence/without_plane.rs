//! Workers whose plane is gone for good, or has retired them.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{gated, holder};
use crate::harness::{
    Gate, Plane, Process, QUICK, Worker, assert_contains_all, free_address, is_running, remuda, wait_until,
};

/// Faults: P12.
#[tokio::test]
async fn worker_without_plane_stops_with_its_children() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let (child, ended) = (plane.folder().join("child"), plane.folder().join("ended"));
    let command = format!("echo $$ > '{}'; {}", child.display(), gated(&gate));
    let last = format!("echo machine ends; touch '{}'", ended.display());
    let more = ["--contact-timeout", "3s", "--contact-timeout-command", &last];
    let mut worker = Worker::start_with(&plane, "a", &command, &more).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(holder(&plane, &job).await, "a");
    plane.kill();
    let killed_at = Instant::now();
    let status = worker.process.ended().await;
    assert_eq!(status.code(), Some(4), "{}", worker.process.said());
    assert!(killed_at.elapsed() > Duration::from_secs(2), "it gave the plane its time");
    assert_contains_all(
        &worker.process.said(),
        &["this worker was dismissed: no contact with the plane for", "machine ends"],
    );
    assert!(ended.exists());
    let child = std::fs::read_to_string(child).unwrap();
    wait_until("the command is gone", async || (!is_running(child.trim())).then_some(())).await;
}

/// Faults: P12.
#[tokio::test]
async fn worker_continues_when_plane_returns() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let worker = Worker::start_with(&plane, "a", &gated(&gate), &["--contact-timeout", "30s"]).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(holder(&plane, &job).await, worker.name);
    plane.kill();
    plane.start_again().await;
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)));
}

/// Faults: P12.
#[tokio::test]
async fn silent_server_ends_with_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    // No plane was ever there, and what it starts is no ComfyUI.
    let (plane, server) = (format!("http://{}", free_address()), format!("http://{}", free_address()));
    let mut command = remuda(folder.path());
    command.args(["worker", "--url", &plane, "--name", "a", "--fleet", "gpus", "--contact-timeout", "3s"]);
    command.args(["--comfyui", &server, "--comfyui-cmd", "sleep 600", "--data", "data"]);
    let mut worker = Process::start("a", &mut command);
    let marker = folder.path().join("data/workers/a.pid");
    let pid = wait_until("the server is started", async || {
        std::fs::read_to_string(&marker).ok()?.split(' ').next().map(str::to_owned)
    })
    .await;
    assert!(is_running(&pid));
    assert_eq!(worker.ended().await.code(), Some(4), "{}", worker.said());
    wait_until("the server is gone", async || (!is_running(&pid)).then_some(())).await;
}

/// A plane by hand: takes one request after the other, notes path and token, and answers as it was told to.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

async fn answer_all(listener: TcpListener, seen: Seen, answer: impl Fn(&str) -> (u16, Value)) {
    loop {
        let (mut line, _) = listener.accept().await.unwrap();
        let (mut request, mut piece) = (String::new(), [0; 4096]);
        while !is_whole(&request) {
            // A closed connection has no more requests.
            let Ok(read @ 1..) = line.read(&mut piece).await else { break };
            request.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
        if !is_whole(&request) {
            continue;
        }
        let header = request
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("authorization: bearer ").map(str::to_owned));
        let path = request.split(' ').nth(1).unwrap().split('?').next().unwrap();
        seen.0.lock().unwrap().push(format!("{path} {}", header.unwrap_or_default()));
        let (status, body) = answer(request.lines().next().unwrap());
        let body = body.to_string();
        let text = format!(
            "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // It may have been killed meanwhile.
        line.write_all(text.as_bytes()).await.ok();
    }
}

/// Whether the whole body has arrived: closing a connection with unread bytes would discard the answer.
fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

fn rented(folder: &Path, url: &str) -> Command {
    let mut command = remuda(folder);
    command
        .args(["worker", "--exec", "true", "--data", "data"])
        .env("REMUDA_URL", url)
        .env("REMUDA_TOKEN", "rmj_once")
        .env("REMUDA_WORKER", "gpus-1")
        .env("REMUDA_MACHINE", "gpus-1")
        .env("REMUDA_FLEET", "gpus")
        .env("REMUDA_CONTACT_TIMEOUT_COMMAND", "echo machine ends, token ${REMUDA_TOKEN:-hidden}");
    command
}

/// Faults: M4.
#[tokio::test]
async fn retired_machine_ends_itself() {
    for (status, code) in [(410, "machine_retired"), (403, "identity_unproven"), (401, "no_token")] {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let refusal = json!({ "error": { "code": code, "message": "go away" } });
        let plane = tokio::spawn(answer_all(listener, Seen::default(), move |_| (status, refusal.clone())));
        let mut worker = Process::start("gpus-1", &mut rented(folder.path(), &url));
        assert_eq!(worker.ended().await.code(), Some(4), "{code}: {}", worker.said());
        assert_contains_all(
            &worker.said(),
            &["this worker was dismissed: go away", "machine ends, token hidden"],
        );
        plane.abort();
    }
}

/// Faults: A1, X11.
#[tokio::test]
async fn restarted_rented_worker_rejoins_with_credential() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    let joined = json!({
        "worker": "gpus-1", "incarnation": 1, "token": "ticket", "term": 1, "beat_idle_millis": 100,
        "beat_busy_millis": 100, "lease_millis": 1000,
    });
    let answer = move |request: &str| match request.contains("/beat") {
        true => (200, json!({ "term": 1 })),
        false => (201, joined.clone()),
    };
    let plane = tokio::spawn(answer_all(listener, seen.clone(), answer));
    for expected in ["rmj_once", "ticket"] {
        seen.0.lock().unwrap().clear();
        let mut worker = Process::start("gpus-1", &mut rented(folder.path(), &url));
        // What the one before it said last may still come in.
        let join = wait_until("it joins and beats", async || {
            let seen = seen.0.lock().unwrap();
            let joined = seen.iter().position(|it| it.starts_with("/remuda/v1/workers "))?;
            let beats = seen[joined..].iter().any(|it| it == "/remuda/v1/workers/gpus-1/beat ticket");
            beats.then(|| seen[joined].clone())
        })
        .await;
        worker.kill();
        assert_eq!(join, format!("/remuda/v1/workers {expected}"));
    }
    plane.abort();
}
