//! The dashboard in a real browser: every page, live updates, every button, roles, a restart of the plane, and a store with
//! a hundred thousand jobs. `scenarios.mjs` is what people do and see; here is the world around it.
//!
//! Pictures of every page are left in `screenshots` of the test tools, for people to look at.

mod many_jobs;

use std::path::{Path, PathBuf};
use std::process::Command;

use remuda_testkit::program;
use serde_json::{Value, json};

use crate::access::{client_of, closed};
use crate::clients::tools::{Tools, screenshots};
use crate::harness::{Gate, Plane, Process, QUICK, ScriptedWorker, Worker, wait_until};

/// A browser that plays a scenario.
struct Story {
    script: Process,
    folder: PathBuf,
}

impl Story {
    /// `None` if there is no browser or no Node here: the test is skipped.
    fn begin(plane: &Plane, scenario: &str, arguments: &[&str]) -> Option<Story> {
        let (tools, chromium) = (Tools::find()?, program("chromium")?);
        let folder = plane.folder().join("browser");
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["browser.mjs", "scenarios.mjs"] {
            let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/dashboard").join(file);
            std::fs::copy(ours, folder.join(file)).unwrap();
        }
        std::os::unix::fs::symlink(&tools.modules, folder.join("node_modules")).unwrap();
        let mut command = Command::new(&tools.node);
        command.env("NO_PROXY", "127.0.0.1").current_dir(&folder);
        command.args(["scenarios.mjs", scenario, &plane.url]).arg(&chromium).args(arguments);
        Some(Story { script: Process::start(scenario, &mut command), folder })
    }

    /// Waits until the browser says that it is this far.
    async fn reaches(&mut self, step: &str) -> String {
        let line = self.script.line(step).await;
        self.keep_pictures();
        line.unwrap_or_else(|| panic!("it should have come to {step:?}: {}", self.script.said()))
    }

    /// Waits until the browser has ended, and well.
    async fn ends(mut self) -> String {
        let status = self.script.ended().await;
        self.keep_pictures();
        assert!(status.success(), "{status}: {}", self.script.said());
        self.script.said()
    }

    fn keep_pictures(&self) {
        for entry in std::fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "png") {
                let name = format!("dashboard-{}", path.file_name().unwrap().to_str().unwrap());
                std::fs::copy(&path, screenshots().join(name)).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn dashboard_of_an_empty_plane_teaches_and_is_accessible() {
    let plane = Plane::start(&[]).await;
    let Some(mut story) = Story::begin(&plane, "empty", &[]) else { return };
    for look in ["looked light", "looked dark", "looked phone"] {
        story.reaches(look).await;
    }
    story.ends().await;
}

#[tokio::test]
async fn dashboard_of_a_busy_plane_opens_every_page_without_errors() {
    let plane = Plane::start(&[]).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let command = format!(
        "read workflow; case $workflow in *slow*) {};; *bad*) echo broken >&2; exit 3;; esac; echo '{{}}'",
        gate.wait()
    );
    let worker = Worker::start(&plane, "gpu-1", &command).await;
    let completed = plane.submit(json!({ "scene": "a wild horse" })).await;
    plane.ended(&completed).await;
    let failed = plane.submit_as(json!({ "workflow": { "scene": "bad" }, "attempts_max": 1 })).await;
    plane.ended(&failed).await;
    let running = plane.submit(json!({ "scene": "slow" })).await;
    plane.job_until(&running, "it runs", |job| job["state"] == "running").await;
    let waiting = plane.submit(json!({ "scene": "another" })).await;
    let cancelled = plane.submit(json!({ "scene": "unwanted" })).await;
    plane.cancel(&cancelled).await;
    let arguments = [&failed, &completed, &waiting, &running, &worker.name].map(String::as_str);
    let Some(mut story) = Story::begin(&plane, "busy", &arguments) else { return };
    for look in ["looked light", "looked dark", "looked phone"] {
        story.reaches(look).await;
    }
    story.ends().await;
}

#[tokio::test]
async fn killed_worker_is_shown_without_a_reload() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut one = Worker::start(&plane, "gpu-1", &gate.wait()).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.runs_on(&job).await, "gpu-1");
    let two = Worker::start(&plane, "gpu-2", &gate.wait()).await;
    let Some(mut story) = Story::begin(&plane, "live", &[&one.name, &two.name, &job]) else { return };
    story.reaches("watching").await;
    one.process.kill();
    story.reaches("done").await;
    story.ends().await;
}

#[tokio::test]
async fn page_goes_on_after_the_plane_restarts() {
    let mut plane = Plane::start(QUICK).await;
    let _worker = Worker::start(&plane, "gpu-1", "cat").await;
    let job = plane.submit_as(json!({ "workflow": { "n": 1 }, "needs": { "labels": { "never": "there" } }, "wait_for_capability": true })).await;
    let Some(mut story) = Story::begin(&plane, "reconnect", &[]) else { return };
    story.reaches("watching").await;
    plane.kill();
    story.reaches("lost").await;
    plane.start_again().await;
    story.reaches("back").await;
    let path = format!("/remuda/v1/jobs/{job}/cancel");
    plane.post(&path, &json!({ "reason": "after the restart" })).await;
    story.ends().await;
}

#[tokio::test]
async fn filters_and_search_are_in_the_address() {
    let plane = Plane::start(QUICK).await;
    let _worker = Worker::start(&plane, "gpu-1", "grep -v bad").await;
    let labelled = json!({ "workflow": { "n": 1 }, "labels": { "customer": "Anna" } });
    let labelled = plane.submit_as(labelled).await;
    let failed = plane.submit_as(json!({ "workflow": { "n": "bad" }, "attempts_max": 1 })).await;
    let other = plane.submit(json!({ "n": 3 })).await;
    for job in [&labelled, &failed, &other] {
        plane.ended(job).await;
    }
    let Some(story) = Story::begin(&plane, "filters", &[&failed, &labelled, "3"]) else { return };
    story.ends().await;
}

/// A lease that no slow browser outlasts: the worker that fails is a scripted one, which sends no beats by itself.
const PATIENT: &[&str] = &[
    "lease=10m",
    "beat.suspect_after=9m",
    "beat.stale_after=20m",
    "block.cooldown=20m",
    "block.cooldown_max=1h",
];

#[tokio::test]
async fn buttons_cancel_retry_lift_and_drain() {
    let plane = Plane::start(PATIENT).await;
    let mut flaky = ScriptedWorker::join(&plane, "flaky", 1).await;
    let blocked = plane.submit(json!({ "scene": "blocked" })).await;
    let attempt = flaky.take().await;
    let gate = Gate::closed(plane.folder(), "gate");
    let worker = Worker::start(&plane, "gpu-1", &gate.wait()).await;
    let mut finished = attempt.clone();
    (finished["outcome"], finished["cause"], finished["message"]) =
        (json!("failed"), json!("service"), json!("the service went away"));
    flaky.say(&json!([]), &json!([finished])).await;
    let has_block =
        async || plane.get("/remuda/v1/blocks").await["blocks"].as_array().is_some_and(|all| !all.is_empty());
    wait_until("there is a block", async || has_block().await.then_some(())).await;
    let running = blocked;
    plane.job_until(&running, "it runs elsewhere", |job| job["worker"] == "gpu-1").await;
    let Some(mut story) = Story::begin(&plane, "actions", &[&running, &worker.name, "flaky"]) else { return };
    story.reaches("cancelled").await;
    let job = plane.ended(&running).await;
    assert_eq!(job["state"], "cancelled");
    let line = story.reaches("again ").await;
    let again = line.split("again ").nth(1).unwrap();
    assert_eq!(plane.job(again).await["options"]["retry_of"], Value::from(running));
    story.reaches("lifted").await;
    assert!(!has_block().await);
    // What it holds may finish first.
    gate.open();
    story.ends().await;
    let audited = std::fs::read_to_string(plane.folder().join("data/audit.jsonl")).unwrap();
    for action in ["job.cancel", "job.retry", "block.lift", "worker.drain"] {
        assert!(audited.contains(action), "{action} is not in the audit log: {audited}");
    }
}

#[tokio::test]
async fn token_decides_what_the_dashboard_shows() {
    let (plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let bob = client_of(&admin, "bob").await;
    let own = anna.submit_as(json!({ "workflow": { "n": 1 } })).await;
    let foreign = bob.submit_as(json!({ "workflow": { "n": 2 } })).await;
    let Some(story) = Story::begin(&plane, "roles", &[&admin.token, &anna.token, &own, &foreign]) else {
        return;
    };
    story.ends().await;
}

/// Where `--ui` serves ComfyUI's page at `/`, the dashboard stays at `/remuda/`.
#[tokio::test]
async fn dashboard_is_at_the_root_unless_another_page_is() {
    let page = async |plane: &Plane, path: &str| {
        let answer = plane.request(reqwest::Method::GET, path).send().await.unwrap();
        let policy = answer.headers().get("content-security-policy").cloned();
        (policy.is_some(), answer.text().await.unwrap())
    };
    let plane = Plane::start(&[]).await;
    let (has_policy, dashboard) = page(&plane, "/remuda/").await;
    assert!(has_policy && dashboard.contains("/remuda/assets/"), "{dashboard}");
    assert_eq!(page(&plane, "/").await.1, dashboard);
    assert_eq!(page(&plane, "/remuda").await.1, dashboard);
    let ui = tempfile::tempdir().unwrap();
    std::fs::write(ui.path().join("index.html"), "ComfyUI").unwrap();
    let plane = Plane::plan(&[]).arguments(&["--ui", ui.path().to_str().unwrap()]).start().await;
    assert_eq!(page(&plane, "/").await.1, "ComfyUI");
    assert_eq!(page(&plane, "/remuda/").await.1, dashboard);
}
