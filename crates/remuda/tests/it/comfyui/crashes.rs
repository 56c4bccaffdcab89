//! Agents that are killed, paused or duplicated: their prompts are found, and run only once.

use remuda_fakes::comfyui::Options;
use rustix::process::Signal;
use serde_json::json;

use super::fixture::{
    ComfyFixture, Server, begun, completed_at_once, executions, gave_a_picture, prompt_id, until_idle,
    until_progress, worker,
};
use super::graph::picture;
use crate::harness::{TestRng, assert_contains_all, wait_until};

/// Faults: A1, V2.
#[tokio::test]
async fn restarted_agent_adopts_running_prompt() {
    let mut stage =
        ComfyFixture::with(Server::any().await, &["lease=20s", "beat.stale_after=30s"], &[]).await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(3.0, 30).saved()).await;
    stage.begun(&job, 1).await;
    stage.worker.process.kill();
    stage.start_worker_again(&[]).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
}

/// Faults: J12, A1. With probes out of reach (`inactivity` of ten minutes), only the socket can tell of progress and of the
/// end.
#[tokio::test]
async fn restarted_agent_hears_adopted_prompt() {
    let mut stage =
        ComfyFixture::with(Server::any().await, &["lease=20s", "beat.stale_after=30s"], &[]).await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(8.0, 40).saved()).await;
    stage.begun(&job, 1).await;
    stage.worker.process.kill();
    stage.start_worker_again(&["--set", "agent.inactivity=10m"]).await;
    until_progress(&stage, &job, 0.05).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    stage.ran_once(&job).await;
}

/// Faults: V2, A1.
#[tokio::test]
async fn prompt_that_ended_without_agent_is_found() {
    let mut stage =
        ComfyFixture::with(Server::any().await, &["lease=20s", "beat.stale_after=30s"], &[]).await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(0.5, 5).saved()).await;
    // Killed as soon as the server has it, perhaps before its answer was heard.
    stage.begun(&job, 1).await;
    stage.worker.process.kill();
    until_idle(&stage.server).await;
    stage.start_worker_again(&[]).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
}

/// Faults: A1, V9.
#[tokio::test]
async fn restarted_agent_cancels_lost_attempt() {
    let mut stage = ComfyFixture::fake().await;
    let job = stage.submit(picture(1).sleep(60.0, 600).saved()).await;
    stage.begun(&job, 1).await;
    stage.worker.process.kill();
    stage.job_until(&job, "is given up", |job| job["state"] == "queued").await;
    stage.cancel(&job).await;
    stage.start_worker_again(&[]).await;
    until_idle(&stage.server).await;
    assert_eq!(executions(&[&stage.server], &job), 1);
    completed_at_once(&stage.run(picture(2).saved()).await);
}

/// Faults: A3.
#[tokio::test]
async fn paused_agent_cancels_its_prompt_on_resume() {
    let stage = ComfyFixture::fake().await;
    let other = Server::fake(Options { speed: 100.0, ..Options::default() }).await;
    let job = stage.submit(picture(1).sleep(60.0, 600).saved()).await;
    stage.begun(&job, 1).await;
    until_progress(&stage, &job, 0.0).await;
    let second = worker(&stage, "other", &other.url(), &[]).await;
    stage.worker.process.signal(Signal::STOP);
    begun(&other, &job, 2).await;
    let ended = stage.ended(&job).await;
    assert_eq!((&ended["state"], &ended["worker"]), (&json!("completed"), &json!(second.name)), "{ended}");
    stage.worker.process.signal(Signal::CONT);
    until_idle(&stage.server).await;
    assert_eq!(stage.fake_counts().successes.get(&prompt_id(&job, 1)), None, "it was stopped");
    assert_eq!(stage.job(&job).await, ended, "an outcome never changes");
    wait_until("it is welcome again", async || {
        let worker = stage.plane.worker(&stage.worker.name).await;
        (worker["presence"] == "online" && worker["holds"] == json!([])).then_some(())
    })
    .await;
}

/// Faults: A8.
#[tokio::test]
async fn newer_agent_of_same_name_takes_over_prompt() {
    let mut stage = ComfyFixture::with(Server::fake(Options::default()).await, &["lease=20s"], &[]).await;
    let job = stage.submit(picture(1).sleep(3.0, 30).saved()).await;
    stage.begun(&job, 1).await;
    let newer = worker(&stage, "w", &stage.server.url(), &[]).await;
    assert!(!stage.worker.process.ended().await.success());
    assert_contains_all(&stage.worker.process.said(), &["incarnation"]);
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
    drop(newer);
}

/// Faults: A13.
#[tokio::test]
async fn stopping_agent_finishes_running_prompt() {
    let mut stage = ComfyFixture::any().await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(1.5, 15).saved()).await;
    stage.begun(&job, 1).await;
    stage.worker.process.signal(Signal::TERM);
    assert!(stage.worker.process.ended().await.success(), "{}", stage.worker.process.said());
    completed_at_once(&stage.job(&job).await);
    stage.ran_once(&job).await;
}
