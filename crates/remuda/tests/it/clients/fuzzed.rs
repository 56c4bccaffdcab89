//! The API under a fuzzer that reads its OpenAPI document.

use std::process::Stdio;
use std::time::Duration;

use super::fleet::{Fleet, client, folder};
use super::tools::Tools;

/// Not checked: that it takes whatever its document allows, for no document can say what a right workflow is; that it
/// refuses what the document forbids, for the hooks may have made it right; that it asks who is there, for on loopback
/// it does not.
const UNCHECKED: &str = "positive_data_acceptance,negative_data_rejection,ignored_auth";
/// For each operation and phase; the whole takes half a minute on two cores.
const EXAMPLES_MAX: &str = "100";
/// Past this something hangs.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Faults: B4, B5.
#[tokio::test]
async fn every_response_matches_openapi_document() {
    let Some(tools) = Tools::find() else { return };
    let fleet = Fleet::start().await;
    let folder = folder(&tools, &fleet, &["fuzz_hooks.py"]);
    let program = tools.python.with_file_name("st");
    let mut command = tokio::process::Command::from(client(&program, &fleet, &folder));
    command.env("SCHEMATHESIS_HOOKS", "fuzz_hooks").env("PYTHONPATH", &folder).env("NO_COLOR", "1");
    command.args(["run", &format!("{}/openapi.json", fleet.url), "--url", &fleet.url]);
    command.args(["--checks", "all", "--exclude-checks", UNCHECKED]);
    command.args(["--max-examples", EXAMPLES_MAX, "--seed", "1", "--request-timeout", "10"]);
    command.args(["--suppress-health-check", "all", "--continue-on-failure", "--workers", "2"]);
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(WAIT_MAX, run).await.expect("it should come to an end").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: "), "{said}");
}
