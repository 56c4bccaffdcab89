//! Libraries that others wrote for ComfyUI's own API, and that never heard of a fleet.

use super::fleet::{Fleet, ended_well, script};
use super::tools::Tools;
use crate::harness::has_all;

/// Faults: V8.
#[tokio::test]
async fn comfy_api_simplified_gets_its_picture_though_the_server_dies() {
    let Some(tools) = Tools::find() else { return };
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, "simplified.py", &[&fleet.url, "."]);
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    has_all(&ended_well(script).await, &["saved"]);
    fleet.was_done_elsewhere(&job).await;
}

/// Faults: V8.
#[tokio::test]
async fn two_npm_clients_get_their_pictures_though_a_server_dies() {
    let Some(tools) = Tools::find() else { return };
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, "stock.mjs", &[&fleet.url, "."]);
    let job = fleet.first_job(&mut script).await;
    fleet.kill_the_server_of(&job).await;
    has_all(&ended_well(script).await, &["stable-canvas has it", "comfy-ui-client has it"]);
    fleet.was_done_elsewhere(&job).await;
}
