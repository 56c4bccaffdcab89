//! Prompts whose completion is lost, early or repeated: the result is still found.

use remuda_fakes::comfyui::{Fault, Options, Version};
use serde_json::json;

use super::fixture::{
    ComfyFixture, Server, completed_at_once, gave_a_picture, prompt_id, until_idle, until_seen,
};
use super::graph::picture;
use crate::harness::{TestRng, assert_contains_all};

#[tokio::test]
async fn new_workflow_runs_once_and_stores_image() {
    let stage = ComfyFixture::any().await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(0.3, 3).saved()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
}

/// Faults: V1.
#[tokio::test]
async fn cached_workflow_returns_same_image() {
    let stage = ComfyFixture::any().await;
    let workflow = picture(TestRng::new().below(1 << 24)).sleep(0.2, 2).previewed();
    let first = stage.run(workflow.clone()).await;
    let again = stage.submit(workflow).await;
    let second = stage.ended(&again).await;
    completed_at_once(&first);
    completed_at_once(&second);
    gave_a_picture(&stage, &second).await;
    let hash = |job: &serde_json::Value| job["result"]["outputs"][0]["hash"].clone();
    assert_eq!(hash(&first), hash(&second), "it is the same picture");
    stage.ran_once(&again).await;
}

/// Faults: V1, V7, W3.
#[tokio::test]
async fn silent_instant_completion_is_found_after_submission() {
    let stage =
        ComfyFixture::on(Server::fake(Options { speed: f64::INFINITY, ..Options::default() }).await).await;
    for color in 0..20 {
        for fault in [Fault::Cached, Fault::DropAllMessages] {
            stage.server.as_fake().control().strike_next(fault);
        }
        let job = stage.submit(picture(color).saved()).await;
        completed_at_once(&stage.ended(&job).await);
        stage.ran_once(&job).await;
    }
}

/// Faults: W3.
#[tokio::test]
async fn lost_completion_is_found_after_silence() {
    let stage = ComfyFixture::fake().await;
    for fault in ["drop-completion", "drop-all-messages"] {
        let job = stage.submit(picture(1).fault(fault).sleep(0.3, 3).saved()).await;
        let ended = stage.ended(&job).await;
        completed_at_once(&ended);
        gave_a_picture(&stage, &ended).await;
        stage.ran_once(&job).await;
        let attempt = stage.why(&job).await["attempts"][0].clone();
        assert_contains_all(
            attempt["message"].as_str().unwrap(),
            &["completion message was lost", "history"],
        );
        assert_eq!(attempt["service"]["service_status"], "succeeded", "{attempt}");
        let events = stage.history().await.into_iter().filter(|event| event.data["job"] == *job);
        let names: Vec<_> = events.map(|event| event.name).collect();
        assert_eq!(names[names.len() - 2..], ["job:recovered", "job:completed"], "{names:?}");
    }
}

/// Faults: V5, W4.
#[tokio::test]
async fn silent_node_is_probed_and_left_running() {
    let stage = ComfyFixture::any().await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).hold(3.0).saved()).await;
    // Six times the inactivity: history knows nothing of it all that time.
    until_seen(&stage, &job, "running").await;
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
}

/// Faults: V13, V5.
#[tokio::test]
async fn pending_behind_other_prompts_is_not_stuck() {
    let server = Server::fake(Options::default()).await;
    // What does not advance for a second is stuck, and two seconds of others' work come first.
    let stage = ComfyFixture::with(server, &["stuck_after=1s"], &["--set", "agent.inactivity=200ms"]).await;
    let job = stage.submit(picture(1).fault("foreign-prompts").saved()).await;
    until_seen(&stage, &job, "pending").await;
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    assert!(stage.fake_counts().faults.contains_key("foreign-prompts"));
}

/// Faults: V4.
#[tokio::test]
async fn duplicate_prompt_id_is_removed_from_queue() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).fault("duplicate").sleep(1.0, 10).saved()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    until_idle(&stage.server).await;
    let counts = stage.fake_counts();
    assert!(counts.faults.contains_key("duplicate"));
    assert_eq!(counts.executions.get(&prompt_id(&job, 1)), Some(&1), "the copy did not run: {counts:?}");
}

/// Faults: V25.
#[tokio::test]
async fn results_with_nan_are_read() {
    let stage = ComfyFixture::any().await;
    let job = stage.submit(picture(1).add("RemudaNan", json!({})).whole()).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    assert_eq!(ended["result"]["values"], json!([{ "node": "2", "key": "value", "value": [null] }]));
    if let Server::Fake(_) = stage.server {
        let job = stage.submit(picture(2).fault("nan").sleep(0.1, 1).saved()).await;
        let ended = stage.ended(&job).await;
        completed_at_once(&ended);
        gave_a_picture(&stage, &ended).await;
    }
}

#[tokio::test]
async fn non_file_output_becomes_value() {
    let stage = ComfyFixture::any().await;
    let text = format!("a cat, {}", TestRng::new().below(1 << 40));
    let ended = stage.run(picture(1).add("RemudaText", json!({ "text": text })).whole()).await;
    completed_at_once(&ended);
    assert_eq!(ended["result"]["values"][0]["value"], json!([text]), "{ended}");
}

/// Faults: V18.
#[tokio::test]
async fn every_supported_comfyui_version_works() {
    for version in Version::ALL {
        let stage = ComfyFixture::on(Server::fake(Options { version, ..Options::default() }).await).await;
        let workflow = picture(1).sleep(0.2, 4).previewed();
        for _ in 0..2 {
            let ended = stage.run(workflow.clone()).await;
            completed_at_once(&ended);
            gave_a_picture(&stage, &ended).await;
        }
        let failed = stage.run(picture(1).fail("error").saved()).await;
        assert!(
            failed["reason"].as_str().unwrap().starts_with("failed (job): node 2 (RemudaFail)"),
            "{failed}"
        );
        assert_eq!(
            stage.plane.worker(&stage.worker.name).await["metrics"]["comfyui_version"],
            version.name()
        );
    }
}

/// Faults: V15.
#[tokio::test]
async fn slow_server_is_used_last_and_not_interrupted() {
    let fast = Server::fake(Options { speed: 20.0, ..Options::default() }).await;
    let stage = ComfyFixture::with(fast, &["stuck_after=1500ms"], &[]).await;
    let slow = Server::fake(Options::default()).await;
    let slow_worker = super::fixture::worker(&stage, "slow", &slow.url(), &[]).await;
    // Both at once, so that each is known.
    let both = [
        stage.submit(picture(1).sleep(2.0, 20).saved()).await,
        stage.submit(picture(2).sleep(2.0, 20).saved()).await,
    ];
    for job in both {
        completed_at_once(&stage.ended(&job).await);
    }
    assert_eq!(stage.get(&format!("/remuda/v1/workers/{}", slow_worker.name)).await["completed"], 1);
    for color in 3..8 {
        let ended = stage.run(picture(color).sleep(2.0, 20).saved()).await;
        completed_at_once(&ended);
        assert_eq!(ended["worker"], stage.worker.name, "{ended}");
    }
}
