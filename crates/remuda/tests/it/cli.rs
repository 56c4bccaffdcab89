//! What people type: exit codes, help, shortened ids, addresses, advice, completions, and the live list of jobs.

use std::path::Path;
use std::process::Command;

use remuda_fakes::comfyui::{Fake, Options as FakeOptions};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Gate, Plane, Process, QUICK, ScriptedWorker, Worker, assert_contains_all, free_address, remuda,
    wait_until,
};
use crate::start::run;

#[tokio::test]
async fn file_that_is_missing_or_no_workflow_is_a_usage_error() {
    let plane = Plane::start(&[]).await;
    let write = |name: &str, text: &str| std::fs::write(plane.folder().join(name), text).unwrap();
    write("text.json", "a wild horse");
    write("list.json", "[1, 2]");
    write("number.json", "7");
    write("loop.json", r#"{"1": {"class_type": "A", "inputs": {"x": ["1", 0]}}}"#);
    for (file, words) in [
        ("nothing.json", &["cannot read the workflow from nothing.json"][..]),
        (".", &["cannot read the workflow from ."]),
        ("text.json", &["text.json is no workflow", "JSON"]),
        ("list.json", &["list.json is no workflow", "a JSON object"]),
        ("number.json", &["number.json is no workflow"]),
        ("loop.json", &["the workflow cannot be taken"]),
    ] {
        let (code, said) = run(plane.folder(), &["run", file, "--url", &plane.url]).await;
        assert_eq!(code, 2, "{file}: {said}");
        assert_contains_all(&said, words);
    }
    let (code, said) =
        run(plane.folder(), &["affinities", "set", "text.json", "--prefer", "a", "--url", &plane.url]).await;
    assert_eq!(code, 2, "{said}");
    assert_eq!(plane.jobs().await.len(), 0);
}

#[tokio::test]
async fn help_of_a_worker_names_only_flags_of_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    for command in [&["worker", "--help"][..], &["models", "get", "--help"], &["audit", "--help"]] {
        let (code, said) = run(folder.path(), command).await;
        assert_eq!(code, 0, "{said}");
        assert_contains_all(&said, &["--data", "--config"]);
        for flag in ["--listen", "--store", "--tls-cert", "--tls-key", "--insecure"] {
            assert!(!said.contains(flag), "{command:?} lists {flag}: {said}");
        }
    }
    let (_, said) = run(folder.path(), &["serve", "--help"]).await;
    assert_contains_all(&said, &["--data", "--config", "--listen", "--store", "--tls-cert", "--insecure"]);
}

#[tokio::test]
async fn unknown_variable_is_a_warning_with_the_nearest_name() {
    let warning =
        "unknown variable REMUDA_LISTN in the environment is ignored: did you mean `REMUDA_LISTEN`?";
    let plane = Plane::plan(&[]).variable("REMUDA_LISTN", "127.0.0.1:1").start().await;
    assert_contains_all(&plane.process.said(), &[warning]);
    let mut jobs = remuda(plane.folder());
    jobs.args(["jobs", "--json", "--url", &plane.url]).env("REMUDA_URLL", "http://127.0.0.1:1");
    let ended = jobs.output().unwrap();
    assert!(ended.status.success());
    assert_contains_all(
        &String::from_utf8_lossy(&ended.stderr),
        &["REMUDA_URLL", "did you mean `REMUDA_URL`?"],
    );
    assert!(serde_json::from_slice::<Value>(&ended.stdout).is_ok(), "the answer stays readable");
    let mut quiet = remuda(plane.folder());
    // What a worker sets for its commands, and what Kubernetes sets for a service of this name.
    let known = ["REMUDA_JOB", "REMUDA_ATTEMPT", "REMUDA_SERVICE_JOB_ID", "REMUDA_SERVICE_HOST"];
    quiet.args(["jobs", "--url", &plane.url]).envs(known.map(|name| (name, "1")));
    assert_eq!(String::from_utf8_lossy(&quiet.output().unwrap().stderr), "");
}

#[tokio::test]
async fn job_may_be_named_by_the_beginning_of_its_id() {
    let plane = Plane::start(&[]).await;
    let one = plane.submit(json!({ "n": 1 })).await;
    let other = plane.submit(json!({ "n": 2 })).await;
    let url = ["--url", &plane.url];
    let shared: String = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    assert!(shared.len() >= 4, "both were submitted in one minute: {one} {other}");
    let unique = &one[..=shared.len()];

    let (code, said) = run(plane.folder(), &[&["why", unique], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["queued"]);
    // Capital letters and missing hyphens are fine.
    let typed = unique.replace('-', "").to_uppercase();
    let (code, said) = run(plane.folder(), &[&["why", &typed], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");

    let (code, said) = run(plane.folder(), &[&["cancel", &shared], &url[..]].concat()).await;
    assert_eq!(code, 2, "{said}");
    assert_contains_all(&said, &["several jobs begin with", &one, &other, "type more of it"]);
    let (code, said) = run(plane.folder(), &[&["cancel", unique], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &[&one, "cancelled"]);
    assert_eq!(
        (plane.job(&one).await["state"].clone(), plane.job(&other).await["state"].clone()),
        (json!("cancelled"), json!("queued"))
    );
    let (code, said) = run(plane.folder(), &[&["jobs", "retry", unique], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["runs again as"]);
    let events = ["events", "--once", "--name", "job:queued", "--json", "--job", unique];
    let (code, said) = run(plane.folder(), &[&events[..], &url[..]].concat()).await;
    assert_eq!((code, said.lines().count()), (0, 1), "{said}");

    for (typed, code, words) in [
        ("ffff", 1, &["no job begins with ffff"][..]),
        ("0", 2, &["at least 4 digits"]),
        ("xyz9", 2, &["xyz9"]),
        (&format!("{one}0"), 2, &["job id"]),
    ] {
        let (ended, said) = run(plane.folder(), &[&["why", typed], &url[..]].concat()).await;
        assert_eq!(ended, code, "{typed}: {said}");
        assert_contains_all(&said, words);
    }
}

/// However many jobs a beginning fits, ten are listed.
#[tokio::test]
async fn ambiguous_beginning_lists_ten_candidates() {
    let plane = Plane::start(&[]).await;
    let mut jobs = Vec::new();
    for n in 0..14 {
        jobs.push(plane.submit(json!({ "n": n })).await);
    }
    let (code, said) = run(plane.folder(), &["why", &jobs[0][..4], "--url", &plane.url]).await;
    assert_eq!(code, 2, "{said}");
    assert_contains_all(&said, &["several jobs begin with", "queued", "and more"]);
    assert_eq!(jobs.iter().filter(|job| said.contains(*job)).count(), 10, "{said}");
}

#[tokio::test]
async fn worker_and_machine_may_be_named_by_the_beginning_of_their_names() {
    let plane = Plane::start(&[]).await;
    for name in ["red-1", "red-2", "blue", "blue-2"] {
        ScriptedWorker::join(&plane, name, 1).await;
    }
    let url = ["--url", &plane.url];
    let (code, said) = run(plane.folder(), &[&["drain", "red"], &url[..]].concat()).await;
    assert_eq!(code, 2, "{said}");
    assert_contains_all(&said, &["several", "red-1", "red-2", "type more of it"]);
    let (code, said) = run(plane.folder(), &[&["machines", "red"], &url[..]].concat()).await;
    assert_eq!(code, 2, "{said}");
    assert_contains_all(&said, &["several machines begin with", "red-1", "red-2"]);
    let (code, said) = run(plane.folder(), &[&["machines", "red-2"], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(plane.folder(), &[&["machines", "green"], &url[..]].concat()).await;
    assert_eq!(code, 1, "{said}");
    // A whole name counts, even if another begins with it.
    let (code, said) = run(plane.folder(), &[&["drain", "blue"], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["blue gets no new work"]);
    let (code, said) = run(plane.folder(), &[&["drain", "blue-"], &url[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["blue-2 gets no new work"]);
    assert_eq!(plane.worker("red-1").await["state"], "active");
}

#[tokio::test]
async fn plane_listens_on_localhost_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_address().port();
    let mut serve = remuda(folder.path());
    serve.args(["serve", "--data", "data", "--listen", &format!("localhost:{port}")]);
    let mut plane = Process::start("the plane", &mut serve);
    assert!(plane.line("serves on").await.is_some(), "{}", plane.said());
    let (code, said) = run(folder.path(), &["jobs", "--url", &format!("http://localhost:{port}")]).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(folder.path(), &["serve", "--listen", "example.org:8288"]).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said, &["`localhost:8288`"]);
}

#[tokio::test]
async fn url_that_is_no_plane_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hello.json"), r#"{"text": "hello"}"#).unwrap();
    let comfyui = Fake::start(FakeOptions::default()).await.unwrap();
    let page = axum::Router::new().fallback(async || axum::response::Html("<h1>welcome</h1>"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, page).await });
    for (url, words) in [(comfyui.url(), &["it is ComfyUI", "--comfyui"][..]), (site, &["--url"])] {
        for command in
            [&["jobs"][..], &["workers"], &["run", "hello.json"], &["events", "--once"], &["why", "0193e7a0"]]
        {
            let (code, said) = run(folder.path(), &[command, &["--url", &url]].concat()).await;
            assert_eq!(code, 3, "{command:?}: {said}");
            assert_contains_all(&said, &[&format!("{url} answers, but is no Remuda plane")]);
            assert_contains_all(&said, words);
        }
    }
}

#[tokio::test]
async fn workers_of_a_plane_that_waits_for_its_comfyui_says_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let comfyui = format!("http://{}", free_address());
    let address = free_address().to_string();
    let mut up = remuda(folder.path());
    up.args(["up", "--data", "data", "--listen", &address, "--comfyui", &comfyui]);
    let mut up = Process::start("up", &mut up);
    assert!(up.line("remuda is up").await.is_some(), "{}", up.said());
    let (code, said) = run(folder.path(), &["workers", "--url", &format!("http://{address}")]).await;
    assert_eq!(code, 0, "{said}");
    assert_contains_all(&said, &["no worker has joined yet", &comfyui, "as soon as"]);
    assert!(!said.contains("--exec"), "{said}");
    up.signal(Signal::TERM);
    up.ended().await;
}

#[tokio::test]
async fn completions_are_valid_for_each_shell() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, check) in [("bash", Some("bash")), ("zsh", None), ("fish", None)] {
        let mut completions = remuda(folder.path());
        let ended = completions.args(["completions", shell]).output().unwrap();
        assert!(ended.status.success());
        let script = String::from_utf8(ended.stdout).unwrap();
        assert_contains_all(&script, &["remuda", "workers", "affinities"]);
        assert!(!script.contains("pool-copy"), "hidden commands are not offered");
        if let Some(shell) = check.and_then(remuda_testkit::program) {
            let file = folder.path().join("completions");
            std::fs::write(&file, &script).unwrap();
            assert!(Command::new(shell).arg("-n").arg(&file).status().unwrap().success());
        }
    }
    let (code, said) = run(folder.path(), &["completions", "tcsh"]).await;
    assert_eq!(code, 2, "{said}");
    assert_contains_all(&said, &["bash, ", "zsh", "fish"]);
}

fn watch(folder: &Path, arguments: &[&str]) -> Process {
    Process::start("the watch", remuda(folder).args(["jobs", "--watch"]).args(arguments))
}

/// The states of a job in the lines of `--json`, in order.
fn states(process: &Process, job: &str) -> Vec<String> {
    let lines = process.said();
    let jobs =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let of_job = jobs.filter(|seen| seen["id"] == job);
    of_job.map(|seen| seen["state"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn watched_jobs_are_printed_as_they_change() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let before = plane.submit(json!({ "n": 1 })).await;
    let mut json_lines = watch(plane.folder(), &["--json", "--url", &plane.url]);
    let mut lines = watch(plane.folder(), &["--url", &plane.url]);
    let mut failed = watch(plane.folder(), &["--json", "--state", "failed", "--url", &plane.url]);
    json_lines.line(&before).await.expect("jobs that are there are shown first");
    lines.line(&before).await.unwrap();
    let _worker = Worker::start(&plane, "a", &format!("{}; echo '{{}}'", gate.wait())).await;
    wait_until("it runs", async || {
        states(&json_lines, &before).contains(&"running".to_owned()).then_some(())
    })
    .await;
    let after = plane.submit(json!({ "n": 2 })).await;
    json_lines.line(&after).await.unwrap();
    gate.open();
    for job in [&before, &after] {
        wait_until("its end is shown", async || {
            states(&json_lines, job).contains(&"completed".to_owned()).then_some(())
        })
        .await;
        wait_until("its end is shown", async || {
            let lines = lines.said();
            lines.lines().any(|line| line.contains(job) && line.contains("completed")).then_some(())
        })
        .await;
    }
    assert_eq!(states(&json_lines, &before).first().map(String::as_str), Some("queued"));
    assert!(lines.said().starts_with("ID "), "{}", lines.said());
    assert!(!lines.said().contains('\u{1b}'), "without a terminal nothing is redrawn");
    assert_eq!(failed.said(), "");
    for process in [&mut json_lines, &mut lines, &mut failed] {
        process.signal(Signal::INT);
        assert_eq!(process.ended().await.code(), Some(0), "{}", process.said());
    }
}

/// Neither a restart of the plane nor many jobs at once hide a change.
#[tokio::test]
async fn watch_goes_on_when_the_plane_restarts() {
    let mut plane = Plane::start(QUICK).await;
    let mut watch = watch(plane.folder(), &["--json", "--url", &plane.url]);
    let first = plane.submit(json!({ "n": 1 })).await;
    watch.line(&first).await.unwrap();
    plane.kill();
    plane.start_again().await;
    let _worker = Worker::start_with(&plane, "a", "cat", &["--slots", "8"]).await;
    let mut jobs = vec![first];
    for n in 0..60 {
        jobs.push(plane.submit(json!({ "n": n + 2 })).await);
    }
    for job in &jobs {
        wait_until("each end is shown", async || {
            let said = watch.said();
            said.lines()
                .any(|line| line.contains(job.as_str()) && line.contains("\"completed\""))
                .then_some(())
        })
        .await;
    }
    watch.signal(Signal::TERM);
    watch.ended().await;
}
