//! A plane whose disk is full.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use remuda_testkit::SmallDisk;
use reqwest::{Method, StatusCode, header};
use serde_json::json;

use crate::harness::{Plane, ScriptedWorker, answered, assert_contains_all, wait_until};

/// Writes until nothing more fits.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.path().join("other-file");
    let mut file = File::create(&path).unwrap();
    for piece in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
    path
}

/// Faults: D2, A14.
#[tokio::test]
async fn full_disk_refuses_submissions_and_records_completions() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let mut plane = Plane::plan(&[]).data_in(&disk.path().join("data")).start().await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let mut accepted = Vec::new();
    for n in 0..5 {
        accepted.push(plane.submit(json!({ "n": n })).await);
    }
    let film = fill(&disk);
    let refused = loop {
        let padded = json!({ "workflow": { "n": accepted.len(), "text": "x".repeat(20_000) } });
        let answer = plane.request(Method::POST, "/remuda/v1/jobs").json(&padded).send().await.unwrap();
        if answer.status() != StatusCode::CREATED {
            break answer;
        }
        let answer: serde_json::Value = answer.json().await.unwrap();
        accepted.push(answer["id"].as_str().unwrap().to_owned());
        assert!(accepted.len() < 1000, "the disk is full, and it goes on accepting");
    };
    assert_eq!(refused.status(), StatusCode::INSUFFICIENT_STORAGE);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_contains_all(&refused.text().await.unwrap(), &["store_full", "nothing was stored"]);
    let (status, ready) = answered(plane.request(Method::GET, "/health/ready")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_contains_all(ready["reason"].as_str().unwrap(), &["disk is full"]);

    // The room that is left is for their ends, and not for what clients put down.
    let put = plane.request(Method::POST, "/userdata/a.json").body("{}");
    let (status, answer) = answered(put).await;
    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE, "{answer}");
    let upload = reqwest::multipart::Part::bytes(b"a".to_vec()).file_name("a.png");
    let upload = reqwest::multipart::Form::new().part("image", upload);
    let upload = plane.request(Method::POST, "/upload/image").multipart(upload);
    assert_eq!(answered(upload).await.0, StatusCode::INSUFFICIENT_STORAGE);

    // Everything that was accepted is done, over a restart too; nothing that was refused is there.
    for n in 0..accepted.len() {
        if n == accepted.len() / 2 {
            plane.kill();
            plane.start_again().await;
        }
        let attempt = hand.take().await;
        assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    }
    let jobs = plane.jobs().await;
    assert_eq!(jobs.len(), accepted.len());
    assert!(jobs.iter().all(|job| job["state"] == "completed" && job["attempt"] == 1));
    assert_eq!(
        plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 1 } })).await.0,
        StatusCode::INSUFFICIENT_STORAGE
    );

    std::fs::remove_file(film).unwrap();
    wait_until("there is room again", async || {
        let (status, _) = plane.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 1 } })).await;
        (status == StatusCode::CREATED).then_some(())
    })
    .await;
    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
}

/// Faults: D2, A14, B8.
#[tokio::test]
async fn oversized_blob_leaves_nothing_on_full_disk() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let plane = Plane::plan(&[]).data_in(&disk.path().join("data")).start().await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let film = vec![7; 80 << 20];
    let answer = plane.request(Method::POST, "/remuda/v1/blobs").body(film).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::INSUFFICIENT_STORAGE);
    assert!(answer.headers().contains_key(header::RETRY_AFTER));
    assert_contains_all(
        &answer.text().await.unwrap(),
        &["store_full", "no disk space left in", "nothing was stored"],
    );
    let blobs = disk.path().join("data/blobs");
    assert_eq!(std::fs::read_dir(blobs.join("tmp")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(&blobs).unwrap().count(), 2, "the lock and an empty folder");

    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    let (status, answer) = answered(plane.request(Method::POST, "/remuda/v1/blobs").body("small")).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}
