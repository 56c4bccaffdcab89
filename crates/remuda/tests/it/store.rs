//! A store that loses what was acknowledged, a disk whose sync fails, and a data folder that goes away under the plane.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_testkit::strace;
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::access::{client_of, closed};
use crate::harness::{Plane, ScriptedWorker, Stream, answered, assert_contains_all, wait_until};
use crate::start::run;

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Faults: J20, D7.
#[tokio::test]
async fn plane_refuses_a_cut_log_until_the_loss_is_accepted() {
    let mut plane = Plane::start(&[]).await;
    for n in 0..40 {
        plane.submit(json!({ "n": n })).await;
    }
    let data = plane.store().parent().unwrap().to_str().unwrap().to_owned();
    let (code, said) = run(plane.folder(), &["store", "check", "--data", &data]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["(in use)", "everything that was acknowledged is there", "no damage"]);
    plane.kill();
    let log = with_suffix(&plane.store(), "-wal");
    let half = fs::metadata(&log).unwrap().len() / 2;
    OpenOptions::new().write(true).open(&log).unwrap().set_len(half).unwrap();

    plane.spawn_again();
    assert_eq!(plane.process.ended().await.code(), Some(1));
    assert_contains_all(
        &plane.process.said(),
        &["is not what was acknowledged", "are missing, with events", "remuda store recover --accept-loss"],
    );
    let (code, said) = run(plane.folder(), &["store", "check", "--data", &data, "--json"]).await;
    assert_eq!(code, 1, "{said}");
    let report: Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!((&report["ok"], &report["loss"]["kind"]), (&json!(false), &json!("behind")), "{report}");
    let (code, said) = run(plane.folder(), &["store", "recover", "--data", &data]).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said, &["are missing", "Confirm with --accept-loss"]);

    let (code, said) = run(plane.folder(), &["store", "recover", "--data", &data, "--accept-loss"]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["accepted: commits", "generation  2 since", "before-recovery"]);
    plane.start_again().await;
    let kept = plane.jobs().await.len();
    assert!(kept > 2 && kept < 38, "{kept} jobs are left");
    plane.submit(json!({ "n": 40 })).await;
    let (code, said) = run(plane.folder(), &["store", "recover", "--data", &data]).await;
    assert_eq!((code, said.contains("nothing to recover")), (0, true), "{said}");
}

/// Faults: D3, D6.
#[tokio::test]
async fn failed_sync_is_an_unknown_outcome_and_the_key_tells() {
    let Some(_) = strace() else { return };
    // strace counts per thread: only the writer of the store syncs so often.
    let fail = "inject=fdatasync:error=EIO:when=25+";
    let under = ["strace", "-f", "-e", "trace=fdatasync", "-e", fail, "-o", "/dev/null"];
    let mut plane = Plane::plan(&[]).under(&under).start().await;
    let mut accepted = 0;
    let (refused, key) = loop {
        let key = format!("order-{accepted}");
        let body = json!({ "workflow": { "n": accepted }, "idempotency_key": key });
        let answer = plane.request(Method::POST, "/remuda/v1/jobs").json(&body).send().await.unwrap();
        if answer.status() != StatusCode::CREATED {
            break (answer, key);
        }
        accepted += 1;
        assert!(accepted < 1000, "its disk should have failed");
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    let said: Value = refused.json().await.unwrap();
    assert_eq!(said["error"]["code"], "outcome_unknown", "{said}");
    let message = said["error"]["message"].as_str().unwrap();
    assert_contains_all(message, &["outcome is unknown", "same idempotency key"]);
    assert!(!message.contains("nothing was stored"), "{message}");
    assert_eq!(plane.process.ended().await.code(), Some(1));

    plane.no_longer_under();
    plane.start_again().await;
    let body = json!({ "workflow": { "n": accepted }, "idempotency_key": key });
    let (status, again) = plane.post("/remuda/v1/jobs", &body).await;
    // The failed sync left the job in the file: exactly the case in which "nothing was stored" would be wrong.
    assert_eq!((status, &again["created"]), (StatusCode::OK, &json!(false)), "{again}");
    assert_eq!(plane.jobs().await.len(), accepted + 1);
}

/// Reads one request from a connection; its body as JSON.
fn read_request(stream: &mut std::net::TcpStream) -> Value {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).unwrap();
        text.extend_from_slice(&piece[..read]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((_, body)) = whole.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            return body;
        }
        assert!(read > 0, "the request broke off: {whole}");
    }
}

/// Faults: D6.
#[tokio::test]
async fn run_asks_again_with_its_key_when_the_answer_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.json"), r#"{"n": 1}"#).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let plane = std::thread::spawn(move || {
        let mut keys = Vec::new();
        let answers = [
            "",
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n{\"error\":{\"code\":\"outcome_unknown\",\"message\":\"unknown\"}}",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n{\"id\":\"0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11\",\"created\":false}",
        ];
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            keys.push(read_request(&mut stream)["idempotency_key"].as_str().unwrap().to_owned());
            stream.write_all(answer.as_bytes()).unwrap();
        }
        keys
    });
    let (code, said) = run(folder.path(), &["run", "job.json", "--detach", "--url", &url]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["asking again with the key", "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"]);
    let keys = plane.join().unwrap();
    assert!(keys.iter().all(|key| *key == keys[0]) && keys[0].len() > 30, "{keys:?}");
}

/// Faults: J20.
#[tokio::test]
async fn folder_that_goes_away_stops_everything_until_it_is_back() {
    let plane = Plane::start(&[]).await;
    let data = plane.store().parent().unwrap().to_owned();
    let away = plane.folder().join("away");
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let first = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;

    fs::rename(&data, &away).unwrap();
    let moved_at = Instant::now();
    let (status, answer) = plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 2 } })).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "not one job is acknowledged: {answer}");
    let ready = wait_until("it is not ready", async || {
        let (status, ready) = answered(plane.request(Method::GET, "/health/ready")).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(ready)
    })
    .await;
    assert!(moved_at.elapsed() < Duration::from_secs(5), "{:?}", moved_at.elapsed());
    assert_contains_all(ready["reason"].as_str().unwrap(), &["not in its place", "deleted or moved"]);
    let (status, answer) = plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 3 } })).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("store_unavailable"))
    );
    assert_contains_all(answer["error"]["message"].as_str().unwrap(), &["nothing was stored", "Put it back"]);

    fs::rename(&away, &data).unwrap();
    wait_until("it is ready again", async || {
        let (status, _) = answered(plane.request(Method::GET, "/health/ready")).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
    wait_until("jobs are accepted again", async || {
        let (status, _) = plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 4 } })).await;
        (status == StatusCode::CREATED).then_some(())
    })
    .await;
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    assert_eq!(plane.job(&first).await["state"], "completed");
}

/// Faults: J20.
#[tokio::test]
async fn deleted_folder_is_noticed_without_a_submission() {
    let plane = Plane::start(&[]).await;
    fs::remove_dir_all(plane.store().parent().unwrap()).unwrap();
    wait_until("it is not ready", async || {
        let (status, _) = answered(plane.request(Method::GET, "/health/ready")).await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    let (status, _) = plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 1 } })).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

/// Faults: X3.
#[tokio::test]
async fn data_folder_is_for_its_owner_only() {
    let plane = Plane::start(&[]).await;
    plane.submit(json!({ "n": 1 })).await;
    let (status, _) = answered(plane.request(Method::POST, "/remuda/v1/blobs").body("picture")).await;
    assert_eq!(status, StatusCode::CREATED);
    let mut folders = vec![plane.store().parent().unwrap().to_owned()];
    while let Some(folder) = folders.pop() {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
            }
        }
    }
}

/// Puts a copy of the store back, as an operator who accepts what it lacks.
async fn restore(plane: &mut Plane, backup: Vec<u8>) {
    plane.stop().await;
    fs::write(plane.store(), backup).unwrap();
    for suffix in ["-wal", "-shm", ".lock"] {
        fs::remove_file(with_suffix(&plane.store(), suffix)).ok();
    }
    let data = plane.store().parent().unwrap().to_str().unwrap().to_owned();
    let (code, said) = run(plane.folder(), &["store", "recover", "--data", &data, "--accept-loss"]).await;
    assert_eq!(code, 0, "{said}");
    plane.start_again().await;
}

/// The id of a new asset.
async fn upload_asset(plane: &Plane) -> String {
    let form = reqwest::multipart::Form::new()
        .part("file", reqwest::multipart::Part::bytes(b"picture".to_vec()).file_name("a.png"));
    let (status, asset) = answered(plane.request(Method::POST, "/api/v2/assets").multipart(form)).await;
    assert_eq!(status, StatusCode::CREATED, "{asset}");
    asset["id"].as_str().unwrap().to_owned()
}

/// Faults: J20, D16. A token that was made after the backup says so, and so does a worker's credential of it.
#[tokio::test]
async fn restored_copy_names_tokens_that_it_lost() {
    let (mut plane, admin) = closed(&[]).await;
    plane.stop().await;
    let backup = fs::read(plane.store()).unwrap();
    plane.start_again().await;
    let late = client_of(&admin, "anna").await;
    assert_eq!(late.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 1 } })).await.0, StatusCode::CREATED);
    restore(&mut plane, backup).await;
    let (status, lost) = late.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 1 } })).await;
    assert_eq!((status, &lost["error"]["code"]), (StatusCode::GONE, &json!("lost_in_restore")), "{lost}");
    assert_contains_all(
        &lost["error"]["message"].to_string(),
        &["this token is lost", "remuda token create"],
    );
    assert_eq!(
        admin.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 2 } })).await.0,
        StatusCode::CREATED
    );
    let made_up = plane.with(&format!("rmd_{}_{}", "0".repeat(24), "b".repeat(64)));
    assert_eq!(made_up.post("/remuda/v1/jobs", &json!({})).await.0, StatusCode::UNAUTHORIZED);
}

/// Faults: J20, D16.
#[tokio::test]
async fn restored_copy_marks_what_it_lost() {
    let mut plane = Plane::start(&[]).await;
    let before = plane.submit(json!({ "n": 1 })).await;
    plane.stop().await;
    let backup = fs::read(plane.store()).unwrap();
    plane.start_again().await;
    let after = plane.submit(json!({ "n": 2 })).await;
    plane.cancel(&after).await;
    let asset = upload_asset(&plane).await;
    let newest = plane.history().await.iter().filter_map(|event| event.seq).max().unwrap();
    restore(&mut plane, backup).await;

    let mut stream = Stream::open(&plane, "", Some(newest)).await;
    let gap = stream.until("gap").await;
    assert_eq!(gap.data["generation"], 2, "{gap:?}");
    let (status, lost) = answered(plane.request(Method::GET, &format!("/remuda/v1/jobs/{after}"))).await;
    assert_eq!((status, &lost["error"]["code"]), (StatusCode::GONE, &json!("lost_in_restore")), "{lost}");
    for path in [
        format!("/api/v2/jobs/{after}"),
        format!("/api/v2/assets/{asset}"),
        format!("/api/v2/assets/{asset}/content"),
        format!("/history/{after}"),
        format!("/api/jobs/{after}"),
        format!("/view?filename=a.png&subfolder={after}/9"),
    ] {
        let (status, lost) = answered(plane.request(Method::GET, &path)).await;
        assert_eq!(status, StatusCode::GONE, "{path}: {lost}");
        assert_contains_all(&lost["error"]["message"].to_string(), &["is lost", "restored as of", "again"]);
    }
    assert_eq!(plane.job(&before).await["state"], "queued");
    let made_up = "00000000-0000-7000-8000-000000000000";
    let (status, _) = answered(plane.request(Method::GET, &format!("/remuda/v1/jobs/{made_up}"))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let new = plane.submit(json!({ "n": 3 })).await;
    let queued = stream.until("job:queued").await;
    assert_eq!(queued.data["job"], new.as_str());
    assert!(queued.seq.unwrap() > newest, "no number is used twice: {queued:?}");
}
