//! Start-up errors: exit codes and messages.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::{Plane, Process, Worker, assert_contains_all, remuda, wait_until};

/// Runs to its end; the code it ends with, and what it said.
pub(crate) async fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut process = Process::start("remuda", remuda(folder).args(arguments));
    let status = process.ended().await;
    (status.code().unwrap(), process.said())
}

/// As `run`, with this token in the environment.
pub(crate) async fn run_as(token: &str, folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut process = Process::start("remuda", remuda(folder).args(arguments).env("REMUDA_TOKEN", token));
    let status = process.ended().await;
    (status.code().unwrap(), process.said())
}

/// That a start ends with this code and says this.
async fn check(arguments: &[&str], code: i32, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (ended, said) = run(folder.path(), arguments).await;
    assert_eq!(ended, code, "remuda {}: {said}", arguments.join(" "));
    assert_contains_all(&said, words);
}

#[tokio::test]
async fn second_plane_on_folder_names_owner() {
    let plane = Plane::start(&[]).await;
    let data = plane.store().parent().unwrap().display().to_string();
    let (code, said) = run(plane.folder(), &["serve", "--data", &data, "--listen", "127.0.0.1:0"]).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(
        &said,
        &["remuda.sqlite is in use by process", &plane.process.id().to_string(), "stop that process first"],
    );
    plane.submit(json!({ "n": 1 })).await;
}

#[tokio::test]
async fn port_in_use_explains_what_to_do() {
    let plane = Plane::start(&[]).await;
    let address = plane.address.to_string();
    check(
        &["serve", "--data", "other", "--listen", &address],
        1,
        &["cannot listen on", &address, "--listen"],
    )
    .await;
}

/// Faults: X1.
#[tokio::test]
async fn non_loopback_needs_tls_unless_insecure() {
    check(&["serve", "--listen", "0.0.0.0:0"], 1, &["open to other machines", "--insecure"]).await;
    check(&["serve", "--listen", "[::]:0"], 1, &["open to other machines", "--insecure"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut serve = remuda(folder.path());
    let mut plane = Process::start("the plane", serve.args(["serve", "--listen", "0.0.0.0:0", "--insecure"]));
    assert!(plane.line("serves on").await.is_some(), "{}", plane.said());
    assert_contains_all(&plane.said(), &["WARN", "everyone who reaches this address"]);
}

/// Faults: D7.
#[tokio::test]
async fn unreadable_store_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("remuda.sqlite");
    let garbage = "no database ".repeat(1000);
    std::fs::write(&store, &garbage).unwrap();
    let data = folder.path().display().to_string();
    let (code, said) = run(folder.path(), &["serve", "--data", &data, "--listen", "127.0.0.1:0"]).await;
    assert_eq!(code, 1);
    assert_contains_all(
        &said,
        &["cannot open the store", "remuda.sqlite cannot be read", "Nothing was changed", "Restore a backup"],
    );
    assert_eq!(std::fs::read_to_string(&store).unwrap(), garbage);
}

/// Faults: D7.
#[tokio::test]
async fn store_without_its_log_is_refused() {
    let mut plane = Plane::start(&[]).await;
    plane.submit(json!({ "n": 1 })).await;
    plane.kill();
    std::fs::remove_file(plane.store().with_extension("sqlite-wal")).unwrap();
    plane.spawn_again();
    assert_eq!(plane.process.ended().await.code(), Some(1), "{}", plane.process.said());
    assert_contains_all(&plane.process.said(), &["cannot be read as a Remuda store", "Restore a backup"]);
}

#[tokio::test]
async fn mistyped_setting_gets_suggestion() {
    check(&["serve", "--set", "leese=2s"], 1, &["unknown key `leese`", "`lease`"]).await;
    check(&["serve", "--set", "lease"], 1, &["KEY=VALUE"]).await;
    check(
        &["serve", "--set", "lease=1s", "--set", "beat.busy=2s"],
        1,
        &["`beat.busy` must be less than half of `lease`"],
    )
    .await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("remuda.toml"), "lease = \"30s\"\n[beat]\nbussy = \"5s\"\n").unwrap();
    let (code, said) = run(folder.path(), &["serve"]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["beat.bussy", "line 3", "`beat.busy`"]);
}

#[tokio::test]
async fn exit_codes_tell_what_went_wrong() {
    let closed_port = "http://127.0.0.1:1";
    check(&["jobs", "--url", closed_port], 3, &["cannot reach the plane at http://127.0.0.1:1", "--url"])
        .await;
    check(&["workers", "--url", closed_port], 3, &["remuda serve"]).await;
    check(&["run", "nothing.json", "--url", closed_port], 2, &["cannot read the workflow from nothing.json"])
        .await;
    check(&["frobnicate"], 2, &["unrecognized subcommand"]).await;
    check(&["serve", "--lisen", "127.0.0.1:0"], 2, &["--listen"]).await;
    check(&["worker"], 2, &["--exec"]).await;
    check(&[], 2, &["Usage"]).await;
    check(&["--version"], 0, &[env!("CARGO_PKG_VERSION")]).await;
}

#[tokio::test]
async fn run_command_runs_job() {
    let no_waits = ["retry.base=10ms", "retry.max=20ms", "block.cooldown=10ms", "block.cooldown_max=20ms"];
    let plane = Plane::start(&no_waits).await;
    let picky = "grep -q sound && echo '{\"x\": 1}' || { echo bad luck >&2; exit 9; }";
    let _worker = Worker::start(&plane, "a", picky).await;
    std::fs::write(plane.folder().join("good.json"), r#"{ "sound": true }"#).unwrap();
    std::fs::write(plane.folder().join("bad.json"), r#"{ "broken": true }"#).unwrap();
    let (code, said) = run(plane.folder(), &["run", "good.json", "--url", &plane.url]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["\"x\": 1"]);
    let (code, said) = run(plane.folder(), &["run", "bad.json", "--url", &plane.url]).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said, &["exit code 9: bad luck", "remuda why"]);
    let job = plane.jobs().await[0]["id"].as_str().unwrap().to_owned();
    let (code, said) = run(plane.folder(), &["why", &job, "--url", &plane.url]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["exit code 9: bad luck", "failures of the job: 1"]);
}

#[tokio::test]
async fn example_python_worker_runs_job() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let Some(python) = remuda_testkit::program("python3") else { return };
    let plane = Plane::start(&[]).await;
    let mut python = Command::new(python);
    python.arg(examples.join("worker.py")).args([&plane.url, "speller"]);
    let mut worker = Process::start("worker.py", &mut python);
    worker.line("joined as speller").await.expect("it should join");
    let job = plane.submit(json!({ "n": 12 })).await;
    assert_eq!(plane.ended(&job).await["result"], json!({ "backwards": "}21 :\"n\"{" }));
    worker.signal(rustix::process::Signal::INT);
    worker.ended().await;
    assert_eq!(plane.worker("speller").await["presence"], "offline");
}

#[tokio::test]
async fn demo_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = remuda(folder.path());
    // Whatever it starts carries this mark in its environment.
    let mark = format!("IT_MARK={}", folder.path().display());
    let mut demo = Process::start(
        "the demo",
        demo.arg("demo").env("IT_MARK", folder.path()).env("TMPDIR", folder.path()),
    );
    let status = demo.ended().await;
    assert!(status.success(), "{}", demo.said());
    assert_contains_all(&demo.said(), &["kill -9", "8 of 8 jobs ended as they should"]);
    wait_until("everything it started has ended", async || marked(&mark).is_empty().then_some(())).await;
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn demo_draws_with_available_model() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("horse.png");
    let mut demo = remuda(folder.path());
    demo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let mut demo = Process::start("the demo", demo.arg("demo").arg("--picture").arg(&picture));
    assert!(demo.ended().await.success(), "{}", demo.said());
    assert_contains_all(&demo.said(), &["is done by pinto", "9 of 9 jobs ended as they should", "kept in"]);
    assert!(std::fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
}

#[tokio::test]
async fn demo_without_model_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = remuda(folder.path());
    let mut demo = Process::start("the demo", demo.args(["demo", "--draw", "nowhere"]));
    assert!(!demo.ended().await.success());
    assert_contains_all(&demo.said(), &["nowhere"]);
}

/// Processes that were started with this in their environment.
fn marked(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let is_marked = |process: &std::path::PathBuf| {
        std::fs::read(process.join("environ")).is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
    };
    processes.filter(is_marked).map(|process| process.display().to_string()).collect()
}

/// Faults: C19.
#[tokio::test]
async fn reload_applies_settings_and_refuses_bad_ones() {
    let plane = Plane::start(&[]).await;
    let lease = async |name: &str| {
        let (_, joined) =
            plane.post("/remuda/v1/workers", &json!({ "worker": name, "services": ["exec"] })).await;
        joined["lease_millis"].as_u64().unwrap()
    };
    assert_eq!(lease("a").await, 30_000);
    let file = plane.folder().join("remuda.toml");
    let reload = ["config", "reload", "--url", &plane.url];
    std::fs::write(&file, "lease = \"25s\"\n").unwrap();
    let (code, said) = run(plane.folder(), &reload).await;
    assert_eq!((code, lease("b").await), (0, 25_000), "{said}");
    for (bad, words) in [
        ("laese = \"20s\"\n", ["laese", "lease"]),
        ("lease = \"soon\"\n", ["lease", "soon"]),
        ("lease = \n", ["remuda.toml", "line 1"]),
    ] {
        std::fs::write(&file, bad).unwrap();
        let (code, said) = run(plane.folder(), &reload).await;
        assert_eq!(code, 1, "{said}");
        assert_contains_all(&said, &["nothing was changed"]);
        assert_contains_all(&said, &words);
        assert_eq!(lease("c").await, 25_000, "the old settings stay");
    }
}
