//! The OpenAPI document: valid itself, and true for every answer under a fuzzer that reads it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::NamedTempFile;

use super::fleet::{Fleet, client, folder};
use super::tools::Tools;
use crate::harness::{Plane, Process, QUICK, remuda, wait_until};
use crate::models::host::stand_ins;

/// For each operation and phase; the whole takes two minutes on two cores that are free.
const EXAMPLES_MAX: &str = "10";
/// Past this something hangs: with other tests on two slow cores it took more than five minutes.
const WAIT_MAX: Duration = Duration::from_secs(1200);
/// Of the plane's environment: it is in no list, so that the fuzzer cannot revoke it.
const ADMIN: &str = "an-admin-of-the-fuzzed-plane";

/// It rents nothing, whatever it is told.
const FLEET: &str =
    "[[fleet]]\nname = 'local'\nprovider = 'process'\ncommand = 'true'\nmachines_min = 0\nmachines_max = 0\n";

/// A plane that asks for tokens, two workers with ComfyUI servers, and one with models.
async fn fuzzed_fleet() -> (Fleet, Process, NamedTempFile) {
    // Attempts of the scripted worker are held over pauses of the fuzzer.
    let settings = [QUICK, &["lease=60s", "beat.stale_after=300s"]].concat();
    let config = NamedTempFile::new().unwrap();
    std::fs::write(&config, FLEET).unwrap();
    let plan = Plane::plan(&settings).arguments(&["--config", config.path().to_str().unwrap()]);
    let plane = plan.variable("REMUDA_ADMIN_TOKEN", ADMIN).start().await;
    let admin = plane.with(ADMIN);
    stand_ins(plane.folder());
    let mut worker = remuda(plane.folder());
    worker.args(["worker", "--url", &plane.url, "--name", "mule"]).env("REMUDA_TOKEN", ADMIN);
    for model in ["embed=embed.fake", "chat=chat.fake", "draw=draw.fake"] {
        worker.args(["--model", model]);
    }
    let worker = Process::start("mule", &mut worker);
    let fleet = Fleet::of(plane, &admin, ADMIN).await;
    wait_until("the models are ready", async || {
        let models = admin.get("/v1/models").await;
        let models = models["data"].as_array()?.clone();
        (models.len() == 3 && models.iter().all(|model| model["ready"] == true)).then_some(())
    })
    .await;
    (fleet, worker, config)
}

fn command(program: &Path, fleet: &Fleet, folder: &Path) -> tokio::process::Command {
    let mut command = tokio::process::Command::from(client(program, &fleet.plane, folder));
    command.env("COMFY_API_KEY", ADMIN).env("PYTHONPATH", folder).env("NO_COLOR", "1");
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// What it said, if it ended well.
async fn ended_well(mut command: tokio::process::Command) -> String {
    let output = tokio::time::timeout(WAIT_MAX, command.output());
    let output = output.await.expect("it should come to an end").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said.into_owned()
}

/// Faults: B4, B5.
#[tokio::test]
async fn every_response_matches_openapi_document() {
    let Some(tools) = Tools::find() else { return };
    let (fleet, _worker, _config) = fuzzed_fleet().await;
    let folder = folder(&tools, &fleet, &["fuzz_hooks.py", "fuzz.toml"]);
    let mut command = command(&tools.python.with_file_name("st"), &fleet, &folder);
    command.env("SCHEMATHESIS_HOOKS", "fuzz_hooks").args(["--config-file", "fuzz.toml"]);
    let document = fleet.with(ADMIN).get("/openapi.json").await;
    std::fs::write(folder.join("openapi.json"), document.to_string()).unwrap();
    command.args(["run", "openapi.json", "--url", &fleet.url]);
    command.args(["--max-examples", EXAMPLES_MAX, "--seed", "1", "--request-timeout", "30"]);
    // One thread: the parser of Python 3.11, which Hypothesis uses to describe strategies, fails now and then in two.
    command.args(["--suppress-health-check", "all", "--continue-on-failure", "--workers", "1"]);
    let said = ended_well(command).await;
    assert!(said.contains("Tested: "), "{said}");
}

#[tokio::test]
async fn openapi_document_and_its_examples_are_valid() {
    let Some(tools) = Tools::find() else { return };
    let plane = Plane::start(QUICK).await;
    let folder = folder(&tools, &plane, &["openapi.py"]);
    for path in ["/openapi.json", "/remuda/v1/openapi.json"] {
        let mut command = client(&tools.python, &plane, &folder);
        command.args(["openapi.py", path]).stdin(Stdio::null());
        let said = ended_well(command.into()).await;
        assert!(said.contains("valid: "), "{said}");
    }
}
