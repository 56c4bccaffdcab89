//! The official SDKs for the Comfy API v2, in the way their documentation uses them.

use serde_json::{Value, json};

use super::fleet::{Fleet, client, ended_well, folder, script};
use super::tools::Tools;
use crate::harness::{Client, Plane, Process, QUICK, assert_contains_all, wait_until};

/// Runs an SDK's script and kills the server with its job half-way through.
async fn runs_while_a_server_dies(name: &str) {
    let Some(tools) = Tools::find() else { return };
    let mut fleet = Fleet::start().await;
    let mut script = script(&tools, &fleet, name, &["."]);
    let submitted = script.line("submitted ").await.unwrap_or_else(|| panic!("{}", script.said()));
    let job = submitted.split(' ').nth(1).unwrap().to_owned();
    fleet.kill_the_server_of(&job).await;
    assert_contains_all(
        &ended_well(script).await,
        &["progress", "output picture_", "status succeeded", "done"],
    );
    fleet.was_done_elsewhere(&job).await;
}

/// Faults: V8.
#[tokio::test]
async fn python_sdk_gets_image_although_server_dies() {
    runs_while_a_server_dies("sdk.py").await;
}

/// Faults: V8.
#[tokio::test]
async fn typescript_sdk_gets_image_although_server_dies() {
    runs_while_a_server_dies("sdk.mjs").await;
}

/// The SDK's own test of a server, as it is published with the SDK's source.
#[tokio::test]
async fn python_sdk_passes_its_own_end_to_end_suite() {
    let (Some(tools), Some(suite)) = (Tools::find(), Tools::sdk_tests()) else { return };
    let plane = Plane::start(QUICK).await;
    let (_, made) = plane.post("/remuda/v1/tokens", &json!({ "role": "admin" })).await;
    let admin = plane.with(made["token"].as_str().unwrap());
    let token = async |wanted: Value| {
        let (_, made) = admin.post("/remuda/v1/tokens", &wanted).await;
        made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    let worker = token(json!({ "role": "worker" })).await;
    let key = token(json!({ "role": "client", "tenant": "anna" })).await;
    let fleet = Fleet::of(plane, &admin, &worker).await;
    let folder = folder(&tools, &fleet.plane, &[]);
    // Twice: the second run finds its upload by its hash.
    for run in ["first", "second"] {
        let mut command = client(&tools.python, &fleet.plane, &folder);
        // Its settings are for plugins that only its other tests need.
        command.args(["-m", "pytest", "-v", "-c", "/dev/null", "-p", "no:cacheprovider"]);
        command.arg(&suite).env("COMFY_API_KEY", &key);
        let pytest = Process::start(run, &mut command);
        // Its tests run jobs one after the other: each has a wait of its own.
        for done in ["[ 25%]", "[ 50%]", "[ 75%]", "[100%]"] {
            wait_until(done, async || pytest.said().contains(done).then_some(())).await;
        }
        let said = ended_well(pytest).await;
        assert_contains_all(&said, &["test_image_edit_by_name PASSED", "3 passed", "1 xpassed"]);
    }
}

/// Faults: B4.
#[tokio::test]
async fn python_sdk_raises_typed_errors() {
    let Some(tools) = Tools::find() else { return };
    // A job that fails for good is soon tried for the last time.
    let no_waits = ["block.cooldown=10ms", "block.cooldown_max=20ms"];
    let fleet = Fleet::on(Plane::start(&[QUICK, &no_waits].concat()).await).await;
    let said = ended_well(script(&tools, &fleet, "refusals.py", &["."])).await;
    assert_contains_all(
        &said,
        &["NotFound", "InvalidWorkflow", "MissingAsset", "IdempotencyKeyReuse", "JobFailed", "done"],
    );
}

/// Faults: X16.
#[tokio::test]
async fn python_sdk_sends_api_key() {
    let Some(tools) = Tools::find() else { return };
    let plane = Plane::start(QUICK).await;
    let token = async |by: &Client, wanted: Value| {
        let (_, made) = by.post("/remuda/v1/tokens", &wanted).await;
        made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    // From the first one on the plane asks.
    let admin = plane.with(&token(&plane, json!({ "role": "admin" })).await);
    let worker = token(&admin, json!({ "role": "worker" })).await;
    let mine = token(&admin, json!({ "role": "client", "tenant": "anna" })).await;
    let theirs = token(&admin, json!({ "role": "client", "tenant": "ben" })).await;
    let fleet = Fleet::of(plane, &admin, &worker).await;
    let said = ended_well(script(&tools, &fleet, "tokens.py", &[".", &mine, &theirs])).await;
    assert_contains_all(&said, &["Unauthorized", "NotFound", "done"]);
}
