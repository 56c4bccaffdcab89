//! The official SDKs for the Comfy API v2, in the way their documentation uses them.

use super::fleet::{Fleet, ended_well, script};
use super::tools::Tools;
use crate::harness::{Plane, QUICK, has_all};

/// Runs an SDK's script and kills the server with its job half-way through.
async fn runs_while_a_server_dies(name: &str) {
    let tools = Tools::ready();
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, name, &["."]);
    let submitted = script.line("submitted ").await.unwrap_or_else(|| panic!("{}", script.said()));
    let job = submitted.split(' ').nth(1).unwrap().to_owned();
    fleet.kill_the_server_of(&job).await;
    has_all(&ended_well(script).await, &["progress", "output picture_", "status succeeded", "done"]);
    fleet.was_done_elsewhere(&job).await;
}

/// Faults: V8.
#[tokio::test]
async fn the_python_sdk_gets_its_picture_though_the_server_dies() {
    runs_while_a_server_dies("sdk.py").await;
}

/// Faults: V8.
#[tokio::test]
async fn the_typescript_sdk_gets_its_picture_though_the_server_dies() {
    runs_while_a_server_dies("sdk.mjs").await;
}

/// Faults: B4.
#[tokio::test]
async fn the_python_sdk_names_every_refusal() {
    let tools = Tools::ready();
    // A job that fails for good is soon tried for the last time.
    let no_waits = ["block.cooldown=10ms", "block.cooldown_max=20ms"];
    let fleet = Fleet::on(Plane::start(&[QUICK, &no_waits].concat()).await).await;
    let said = ended_well(script(&tools, &fleet, "refusals.py", &["."])).await;
    has_all(
        &said,
        &["NotFound", "InvalidWorkflow", "MissingAsset", "IdempotencyKeyReuse", "JobFailed", "done"],
    );
}
