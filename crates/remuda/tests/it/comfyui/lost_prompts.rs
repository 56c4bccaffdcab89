//! Prompts that the server lost, forgot or never got: run again only on evidence.

use std::time::Duration;

use remuda_fakes::comfyui::{Fault, Options};
use serde_json::json;

use super::fixture::{
    ComfyFixture, Server, completed_after_a_mishap, completed_at_once, executions, gave_a_picture, prompt_id,
    until_idle, until_open, until_seen, verdict,
};
use super::graph::picture;
use crate::harness::{assert_contains_all, wait_until};

/// Faults: V3.
#[tokio::test]
async fn lost_submit_answer_is_probed_not_resent() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).fault("lost-submit-answer").sleep(0.5, 5).saved()).await;
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    let counts = stage.fake_counts();
    assert!(counts.faults.contains_key("lost-submit-answer"));
    assert_eq!(counts.prompts_accepted, 2, "the check before it joined, and this one once");
}

/// Faults: V3.
#[tokio::test]
async fn unreceived_submission_is_resent_with_same_id() {
    let stage = ComfyFixture::fake().await;
    stage.server.as_fake().control().strike_next(Fault::RefuseSubmit);
    let job = stage.submit(picture(1).saved()).await;
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    assert_eq!(stage.fake_counts().faults.get("refuse-submit"), Some(&1));
}

/// Faults: V3, V14.
#[tokio::test]
async fn late_submit_answer_runs_once() {
    let stage = ComfyFixture::fake().await;
    let control = stage.server.as_fake().control();
    // Longer than anybody waits for an answer, which says nothing about whether it was heard.
    control.slow_http(Duration::from_secs(6));
    let job = stage.submit(picture(1).sleep(0.2, 2).saved()).await;
    until_seen(&stage, &job, "no_answer").await;
    control.slow_http(Duration::ZERO);
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
}

/// Faults: V8, V26.
#[tokio::test]
async fn server_restart_requeues_its_job() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&job, 1).await;
    stage.server.as_fake().restart().await;
    let ended = stage.ended(&job).await;
    completed_after_a_mishap(&ended);
    gave_a_picture(&stage, &ended).await;
    let why = stage.why(&job).await;
    assert_eq!(why["attempts"][0]["cause"], "service", "{why}");
    let counts = stage.fake_counts();
    assert_eq!(counts.ran_twice(), Vec::<&str>::new(), "each attempt has an id of its own");
    assert_eq!((counts.lives, executions(&[&stage.server], &job)), (2, 2));
}

/// Faults: V8.
#[tokio::test]
async fn returning_server_is_checked_before_work() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&job, 1).await;
    stage.server.as_fake().kill().await;
    assert_contains_all(&until_open(&stage, &stage.worker, false).await, &["no connection to the service"]);
    stage.job_until(&job, "waits", |job| job["state"] == "queued").await;
    stage.server.as_fake().restart().await;
    completed_after_a_mishap(&stage.ended(&job).await);
    until_open(&stage, &stage.worker, true).await;
}

/// Faults: J13. Jobs that only this server may run, and a block that would outlast the test.
#[tokio::test]
async fn restarted_server_goes_on_with_its_pinned_jobs_at_once() {
    let server = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(server, &["block.cooldown=1h", "block.cooldown_max=1h"], &[]).await;
    let other = Server::fake(Options::default()).await;
    let _other = super::fixture::worker(&stage, "other", &other.url(), &[]).await;
    let mut jobs = Vec::new();
    for color in 0..10 {
        let body = json!({ "workflow": picture(color).sleep(0.5, 5).saved(), "service": "comfyui",
                           "needs": { "pin": stage.worker.name } });
        jobs.push(stage.submit_as(body).await);
    }
    stage.begun(&jobs[0], 1).await;
    stage.server.as_fake().restart().await;
    for job in &jobs {
        let ended = stage.ended(job).await;
        assert_eq!(
            (&ended["state"], &ended["worker"]),
            (&json!("completed"), &json!(stage.worker.name)),
            "{ended}"
        );
    }
}

/// Faults: V9.
#[tokio::test]
async fn cleared_history_reruns_job_after_recheck() {
    let stage = ComfyFixture::fake().await;
    stage.server.as_fake().control().strike_next(Fault::HistoryCleared);
    let job = stage.submit(picture(1).sleep(0.3, 3).saved()).await;
    let ended = stage.ended(&job).await;
    completed_after_a_mishap(&ended);
    gave_a_picture(&stage, &ended).await;
    let told = verdict(&stage, &job, 1).await;
    assert_contains_all(&told, &["the service does not know it", ", and again ", "another client probably"]);
    let why = stage.why(&job).await;
    assert_eq!(why["attempts"][0]["cause"], "service", "{why}");
}

/// Faults: V9.
#[tokio::test]
async fn job_removed_from_server_queue_reruns() {
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, &[], &["--slots", "2"]).await;
    let first = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&first, 1).await;
    let second = stage.submit(picture(2).saved()).await;
    until_seen(&stage, &second, "pending").await;
    stage.server.as_fake().control().clear_queue();
    completed_after_a_mishap(&stage.ended(&second).await);
    completed_at_once(&stage.ended(&first).await);
}

/// Faults: V12.
#[tokio::test]
async fn foreign_interrupt_reruns_job_without_blame() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).sleep(2.0, 20).saved()).await;
    stage.begun(&job, 1).await;
    stage.server.as_fake().control().interrupt();
    completed_after_a_mishap(&stage.ended(&job).await);
    assert_contains_all(&verdict(&stage, &job, 1).await, &["another client interrupted it"]);
    let why = stage.why(&job).await;
    assert_eq!(why["attempts"][0]["cause"], "service", "{why}");
}

/// Faults: V14.
#[tokio::test]
async fn unresponsive_server_keeps_job_and_gets_no_more() {
    let stage = ComfyFixture::fake().await;
    let control = stage.server.as_fake().control();
    let job = stage.submit(picture(1).fault("drop-all-messages").hold(3.0).saved()).await;
    stage.begun(&job, 1).await;
    control.slow_http(Duration::from_secs(6));
    assert_contains_all(&until_open(&stage, &stage.worker, false).await, &["does not answer"]);
    let held = stage.job(&job).await;
    assert_eq!((&held["state"], &held["attempt"]), (&json!("running"), &json!(1)), "{held}");
    control.slow_http(Duration::ZERO);
    completed_at_once(&stage.ended(&job).await);
    stage.ran_once(&job).await;
    until_open(&stage, &stage.worker, true).await;
}

/// Faults: V21.
#[tokio::test]
async fn cancel_affects_only_its_job() {
    let stage = ComfyFixture::with(Server::any().await, &[], &["--slots", "3"]).await;
    let color = crate::harness::TestRng::new().below(1 << 24);
    let first = stage.submit(picture(color).sleep(2.5, 25).saved()).await;
    stage.begun(&first, 1).await;
    let second = stage.submit(picture(color + 1).sleep(1.0, 10).saved()).await;
    let third = stage.submit(picture(color + 2).sleep(1.0, 10).saved()).await;
    for job in [&second, &third] {
        until_seen(&stage, job, "pending").await;
    }
    stage.cancel(&second).await;
    completed_at_once(&stage.ended(&first).await);
    completed_at_once(&stage.ended(&third).await);
    assert_eq!(stage.ended(&second).await["state"], "cancelled");
    if let Server::Fake(fake) = &stage.server {
        assert_eq!(fake.counts().executions.get(&prompt_id(&second, 1)), None, "it never began");
    }
}

/// Faults: V21.
#[tokio::test]
async fn cancel_interrupts_running_prompt() {
    let stage = ComfyFixture::any().await;
    let color = crate::harness::TestRng::new().below(1 << 24);
    let job = stage.submit(picture(color).sleep(60.0, 600).saved()).await;
    stage.begun(&job, 1).await;
    stage.cancel(&job).await;
    assert_eq!(stage.ended(&job).await["state"], "cancelled");
    until_idle(&stage.server).await;
    wait_until("the worker is free", async || {
        (stage.plane.worker(&stage.worker.name).await["holds"] == json!([])).then_some(())
    })
    .await;
    completed_at_once(&stage.run(picture(color + 1).saved()).await);
}
