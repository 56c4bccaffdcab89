//! Clients that bring tests or examples of their own, run as they are published.

use std::path::Path;

use super::fleet::{Fleet, client, client_folder, ended_well};
use super::tools::{comfy_script_source, suites_python};
use crate::harness::{Plane, Process, QUICK, assert_contains_all};

/// One of our scripts, with the addresses of Remuda and of a server behind it.
async fn script(python: &Path, fleet: &Fleet, name: &str) -> String {
    let folder = client_folder(fleet, &[name]);
    let mut command = client(python, fleet, &folder);
    ended_well(Process::start(name, command.args([name, &fleet.url, fleet.server_url()]))).await
}

/// ComfyScript makes a function of every class: the order of `/object_info` is the order of its arguments.
#[tokio::test]
async fn comfyscript_makes_the_same_graph_as_with_the_server_and_runs_it() {
    let Some(python) = suites_python() else { return };
    let fleet = Fleet::start().await;
    let said = script(&python, &fleet, "comfyscript.py").await;
    assert_contains_all(&said, &["same graph", "done"]);
    assert!(!said.contains("Failed to watch"), "{said}");
}

/// Two of its workflows have nodes of custom packs, which neither the stand-in nor a stock ComfyUI has.
#[tokio::test]
async fn comfyscript_passes_its_own_tests() {
    let (Some(python), Some(source)) = (suites_python(), comfy_script_source()) else { return };
    let fleet = Fleet::start().await;
    let folder = client_folder(&fleet, &["comfyscript_server.py"]);
    // Beside its source, which is a node of ComfyUI itself, they are not found without ComfyUI.
    std::os::unix::fs::symlink(source.join("tests"), folder.join("tests")).unwrap();
    let mut command = client(&python, &fleet, &folder);
    command.args([
        "-m",
        "pytest",
        "-v",
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
    ]);
    command.args(["-p", "comfyscript_server", "-k", "not bypass and not SplitSigmasDenoise", "tests"]);
    let said = ended_well(Process::start("pytest", command.env("PYTHONPATH", &folder))).await;
    assert_contains_all(&said, &["test_workflow[default.json-script0] PASSED", "14 passed"]);
}

/// Its only test of its own is of its parser of arguments, and talks to no server. It asserts that one prompt runs at most.
#[tokio::test]
async fn comfyui_utils_runs_prompts_and_its_own_example() {
    let Some(python) = suites_python() else { return };
    let fleet = Fleet::on(Plane::start(&[QUICK, &["comfyui.one_running=true"]].concat()).await).await;
    assert_contains_all(&script(&python, &fleet, "utils.py").await, &["done"]);
    let folder = client_folder(&fleet, &["sdxl.json"]);
    // Where the example looks for it; its own needs models of many gigabytes.
    let workflows = folder.join("examples/workflows");
    std::fs::create_dir_all(&workflows).unwrap();
    std::fs::rename(folder.join("sdxl.json"), workflows.join("sdxl.json")).unwrap();
    let mut command = client(&python.with_file_name("comfy_ui_example_e2e"), &fleet, &folder);
    command.args(["--address", fleet.url.trim_start_matches("http://"), "--output_path", "potato.png"]);
    command.args(["--prompt", "a smiling potato $base_steps=3$refiner_steps=2$seed=7"]);
    let said = ended_well(Process::start("example", &mut command)).await;
    let told =
        ["Queue position: #0", "Base: 5/5", "Refiner: 5/5", "Saving image on backend...", "cached: no"];
    assert_contains_all(&said, &told);
    assert!(std::fs::read(folder.join("potato.png")).unwrap().starts_with(b"\x89PNG"), "{said}");
}

/// Its tests want two files of its repository that are not published: ours are the stock workflow, and the description of
/// the classes as Remuda gives it.
#[tokio::test]
async fn comfy_catapult_passes_its_own_tests() {
    let Some(python) = suites_python() else { return };
    let fleet = Fleet::start().await;
    let folder = client_folder(&fleet, &["default_workflow_api.json"]);
    let data = folder.join("test_data");
    std::fs::create_dir(&data).unwrap();
    std::fs::rename(folder.join("default_workflow_api.json"), data.join("default_workflow_api.json"))
        .unwrap();
    std::fs::write(data.join("object_info.yml"), fleet.get("/object_info").await.to_string()).unwrap();
    let mut command = client(&python, &fleet, &folder);
    command.args(["-m", "unittest", "-v"]).env("COMFY_API_URL", &fleet.url);
    for tests in ["catapult_test", "comfy_schema_test", "remote_file_api_comfy_test", "url_utils_test"] {
        command.arg(format!("comfy_catapult.{tests}"));
    }
    let said = ended_well(Process::start("unittest", &mut command)).await;
    assert_contains_all(&said, &["test_Resume", "test_UploadToTriplet", "test_comfy_schema", "\nOK"]);
}
