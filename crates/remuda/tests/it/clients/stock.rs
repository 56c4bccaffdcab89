//! Third-party libraries for ComfyUI's own API.

use super::fleet::{Fleet, ended_well, script};
use super::tools::Tools;
use crate::harness::assert_contains_all;

/// Faults: V8.
#[tokio::test]
async fn comfy_api_simplified_gets_image_although_server_dies() {
    let Some(tools) = Tools::find() else { return };
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, "simplified.py", &[&fleet.url, "."]);
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    assert_contains_all(&ended_well(script).await, &["saved"]);
    fleet.was_done_elsewhere(&job).await;
}

/// Faults: V8.
#[tokio::test]
async fn npm_clients_get_images_although_server_dies() {
    let Some(tools) = Tools::find() else { return };
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, "stock.mjs", &[&fleet.url, "."]);
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    assert_contains_all(&ended_well(script).await, &["stable-canvas has it", "comfy-ui-client has it"]);
    fleet.was_done_elsewhere(&job).await;
}
