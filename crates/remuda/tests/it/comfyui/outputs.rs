//! Outputs: every file is stored before a job counts as completed.

use remuda_fakes::comfyui::{Fault, Options};
use serde_json::json;

use super::fixture::{
    ComfyFixture, Server, completed_after_a_mishap, completed_at_once, files, gave_a_picture, history,
    prompt_id, verdict,
};
use super::graph::picture;
use crate::harness::{TestRng, assert_contains_all, wait_until};

/// Faults: V19.
#[tokio::test]
async fn missing_output_file_reruns_job() {
    for (fault, said) in [
        (Fault::MissingOutput, "cannot be fetched"),
        (Fault::ShortOutput, "is truncated"),
        (Fault::EmptyOutputs, "lists no outputs"),
    ] {
        let stage = ComfyFixture::fake().await;
        stage.server.as_fake().control().strike_next(fault);
        let job = stage.submit(picture(1).saved()).await;
        let ended = stage.ended(&job).await;
        completed_after_a_mishap(&ended);
        gave_a_picture(&stage, &ended).await;
        assert_contains_all(&verdict(&stage, &job, 1).await, &[said]);
    }
}

/// Faults: V20.
#[tokio::test]
async fn outputs_of_same_name_do_not_collide() {
    let stage = ComfyFixture::any().await;
    let color = TestRng::new().below(1 << 23);
    let jobs = [stage.submit(picture(color).saved()).await, stage.submit(picture(color + 1).saved()).await];
    let mut places = Vec::new();
    for job in &jobs {
        let ended = stage.ended(job).await;
        gave_a_picture(&stage, &ended).await;
        let seen = history(&stage, &stage.server, &prompt_id(job, 1)).await.unwrap();
        let listed = seen["outputs"]["2"]["images"][0].clone();
        assert_contains_all(listed["subfolder"].as_str().unwrap(), &["remuda/", &job[24..], "-1"]);
        places.push((listed["subfolder"].clone(), files(&stage, &ended).await));
    }
    assert_ne!(places[0], places[1]);
}

/// Faults: V24.
#[tokio::test]
async fn deleted_cached_output_is_made_again() {
    let stage = ComfyFixture::fake().await;
    let workflow = picture(1).saved();
    completed_at_once(&stage.run(workflow.clone()).await);
    stage.server.as_fake().control().delete_outputs();
    let again = stage.run(workflow).await;
    completed_at_once(&again);
    gave_a_picture(&stage, &again).await;
}

/// Faults: V24, V19.
#[tokio::test]
async fn deleted_cached_preview_moves_job() {
    let stage = ComfyFixture::fake().await;
    let workflow = picture(1).previewed();
    // The cache now knows a file that is not there.
    stage.server.as_fake().control().strike_next(Fault::MissingOutput);
    let job = stage.submit(workflow).await;
    let ended = stage.ended(&job).await;
    gave_a_picture(&stage, &ended).await;
    assert_eq!(ended["failures"], 0, "{ended}");
}

/// Faults: V27.
#[tokio::test]
async fn temporary_output_survives_server_restart() {
    let stage = ComfyFixture::fake().await;
    let ended = stage.run(picture(1).previewed()).await;
    completed_at_once(&ended);
    assert_eq!(ended["result"]["outputs"][0]["type"], "temp");
    stage.server.as_fake().restart().await;
    gave_a_picture(&stage, &ended).await;
}

/// Faults: A14.
#[tokio::test]
async fn result_waits_for_absent_plane() {
    let mut stage = ComfyFixture::any().await;
    let job = stage.submit(picture(TestRng::new().below(1 << 24)).sleep(1.0, 10).saved()).await;
    stage.begun(&job, 1).await;
    // Killed in the middle, and away until the server is done.
    stage.plane.kill();
    let id = prompt_id(&job, 1);
    wait_until("the server is done", async || history(&stage.plane, &stage.server, &id).await).await;
    stage.plane.start_again().await;
    let ended = stage.ended(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    gave_a_picture(&stage, &ended).await;
    stage.ran_once(&job).await;
}

/// Faults: C1.
#[tokio::test]
async fn killed_plane_finds_running_prompt() {
    let mut stage = ComfyFixture::with(Server::any().await, &[], &["--slots", "2"]).await;
    let color = TestRng::new().below(1 << 23);
    let mut jobs = Vec::new();
    for n in 0..2 {
        jobs.push(stage.submit(picture(color + n).sleep(1.5, 15).saved()).await);
    }
    stage.begun(&jobs[0], 1).await;
    stage.plane.kill();
    stage.plane.start_again().await;
    for job in &jobs {
        let ended = stage.ended(job).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
        stage.ran_once(job).await;
    }
}

/// Faults: W3, V19.
#[tokio::test]
async fn websocket_images_are_outputs_and_rerun_if_missed() {
    let stage = ComfyFixture::on(Server::fake(Options::default()).await).await;
    let mut workflow = picture(1).sleep(0.2, 2).previewed();
    workflow["3"] = json!({ "class_type": "SaveImageWebsocket", "inputs": { "images": ["2", 0] } });
    let ended = stage.run(workflow.clone()).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    stage.server.as_fake().control().strike_next(Fault::DropAllMessages);
    let again = stage.run(workflow).await;
    completed_after_a_mishap(&again);
    gave_a_picture(&stage, &again).await;
}

/// The folders of attempts below a server's output folder.
fn left_on(server_folder: &std::path::Path) -> usize {
    std::fs::read_dir(server_folder.join("remuda")).map_or(0, Iterator::count)
}

/// Every output is stored on the plane; a second copy on the server would fill its disk.
#[tokio::test]
async fn copies_on_a_server_of_this_machine_are_removed_once_they_are_stored() {
    for (setting, kept) in [("agent.keep_server_copies=false", 0), ("agent.keep_server_copies=true", 2)] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.png"), "of somebody else").unwrap();
        let options = Options { output_directory: Some(folder.path().to_owned()), ..Options::default() };
        let stage = ComfyFixture::with(Server::fake(options).await, &[], &["--set", setting]).await;
        for color in [60, 61] {
            let ended = stage.run(picture(color).saved()).await;
            assert_eq!(ended["state"], "completed", "{ended}");
            assert_eq!(files(&stage, &ended).await.len(), 1);
        }
        // A third one, so that the second was settled and its copies are looked after.
        let hold = stage.submit(picture(62).sleep(600.0, 6000).saved()).await;
        stage.begun(&hold, 1).await;
        wait_until("they are as they should be", async || (left_on(folder.path()) == kept).then_some(()))
            .await;
        assert!(folder.path().join("mine.png").exists());
    }
}
