//! `remuda run`: workflow changes, progress, saved outputs, exit codes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gate, Plane, Process, QUICK, Worker, assert_contains_all, remuda, wait_until};

const GRAPH: &str = r#"{
    "3": {"class_type": "KSampler", "inputs": {"seed": 1, "steps": 20}},
    "6": {"class_type": "Text", "inputs": {"text": "a dog", "image": "x.png"}, "_meta": {"title": "Positive"}}}"#;

/// Runs `remuda run` to its end.
async fn run(folder: &Path, url: &str, arguments: &[&str]) -> Ran {
    let mut command = remuda(folder);
    command.arg("run").args(arguments).args(["--url", url]);
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ended = tokio::time::timeout(crate::harness::WAIT_MAX, ended).await.expect("it should end");
    let Output { status, stdout, stderr } = ended.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
}

#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    /// Each line of standard output, which is JSON and nothing else.
    fn jobs(&self) -> Vec<Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn write(plane: &Plane, name: &str, text: &str) {
    std::fs::write(plane.folder().join(name), text).unwrap();
}

#[tokio::test]
async fn usage_error_suggests_fix_before_any_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("graph.json"), GRAPH).unwrap();
    std::fs::write(at("other.json"), r#"{"scene": "a horse"}"#).unwrap();
    std::fs::write(at("web.json"), r#"{"nodes": [], "links": []}"#).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["graph.json", "--set", "3.sed=4"],
            &["--set 3.sed", "did you mean \"seed\"", "It has seed, steps"],
        ),
        (
            &["graph.json", "--set", "Positiv.text=x"],
            &["did you mean \"Positive\"", "3 (KSampler), 6 (Positive)"],
        ),
        (&["graph.json", "--set", "text"], &["NODE.INPUT=VALUE"]),
        (&["graph.json", "--input", "6.image=none.png"], &["--input 6.image", "cannot read none.png"]),
        (&["graph.json", "--input", "6.picture=graph.json"], &["no input \"picture\"", "image, text"]),
        (&["other.json", "--set", "1.seed=4"], &["is not a graph"]),
        (&["web.json"], &["Export (API)"]),
        (&["graph.json", "--meta", "x"], &["NAME=VALUE"]),
        (&["graph.json", "-n", "0"], &["1..=1000"]),
        (&["graph.json", "-n", "2", "--key", "k"], &["--key", "cannot be used with"]),
        (&["graph.json", "--preview", "nowhere/now.jpg"], &["there is no folder nowhere"]),
    ];
    for (arguments, words) in cases {
        let ran = run(folder.path(), "http://127.0.0.1:1", arguments).await;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert_contains_all(&ran.err, words);
    }
    let ran = run(folder.path(), "http://127.0.0.1:1", &["graph.json", "--set", "3.seed=4"]).await;
    assert_eq!(ran.code, 3, "{ran:?}");
    let ran =
        run(folder.path(), "http://127.0.0.1:1", &["graph.json", "--input", "6.image=graph.json"]).await;
    assert_eq!(ran.code, 3, "{ran:?}");
}

#[tokio::test]
async fn copies_differ_only_in_unset_seeds() {
    let plane = Plane::start(QUICK).await;
    let _worker = Worker::start_with(&plane, "a", "cat", &["--slots", "3"]).await;
    write(&plane, "graph.json", GRAPH);
    let arguments = ["graph.json", "--service", "exec", "--set", "Positive.text=a cat", "--json"];
    let once = run(plane.folder(), &plane.url, &arguments).await;
    assert_eq!(once.code, 0, "{once:?}");
    let ran = run(plane.folder(), &plane.url, &[&arguments[..], &["-n", "3"]].concat()).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let [single] = once.jobs().try_into().unwrap();
    assert_eq!(single["result"]["3"]["inputs"]["seed"], 1, "without -n nothing is drawn");
    let copies = ran.jobs();
    let seeds: BTreeSet<_> = copies.iter().map(|job| job["result"]["3"]["inputs"]["seed"].as_u64()).collect();
    assert_eq!((copies.len(), seeds.len()), (3, 3), "{ran:?}");
    for mut job in copies.into_iter().chain([single]) {
        job["result"]["3"]["inputs"]["seed"] = 1.into();
        let mut expected: Value = serde_json::from_str(GRAPH).unwrap();
        expected["6"]["inputs"]["text"] = "a cat".into();
        assert_eq!(job["result"], expected);
    }
}

#[tokio::test]
async fn input_file_is_uploaded_and_referenced() {
    let plane = Plane::start(QUICK).await;
    let _worker = Worker::start(&plane, "a", "cat").await;
    write(&plane, "graph.json", GRAPH);
    write(&plane, "photo.png", "a picture");
    let arguments = ["graph.json", "--service", "exec", "--input", "6.image=./photo.png", "--json"];
    let ran = run(plane.folder(), &plane.url, &arguments).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let asset = &ran.jobs()[0]["result"]["6"]["inputs"]["image"];
    assert_eq!((&asset["__type"], &asset["info"]["file_path"]), (&json!("core/ASSET"), &json!("photo.png")));
    let hash = asset["info"]["hash"].as_str().unwrap();
    let blob = plane.request(Method::GET, &format!("/remuda/v1/blobs/{hash}")).send().await.unwrap();
    assert_eq!(blob.text().await.unwrap(), "a picture");
}

/// Stores a blob and makes a worker that gives it, under a name.
async fn gives(plane: &Plane, files: &[(&str, &str)]) -> Worker {
    let mut outputs = Vec::new();
    for (name, content) in files {
        let request = plane.request(Method::POST, "/remuda/v1/blobs").body((*content).to_owned());
        let (_, stored) = crate::harness::answered(request).await;
        outputs.push(
            json!({ "node": "9", "key": "images", "name": name, "hash": stored["hash"], "size_bytes": 1 }),
        );
    }
    let values = json!([{ "node": "5", "key": "text", "value": ["a cat"] }]);
    write(plane, "result.json", &json!({ "outputs": outputs, "values": values }).to_string());
    Worker::start(plane, "giver", &format!("cat '{}'", plane.folder().join("result.json").display())).await
}

/// Faults: B9, X6.
#[tokio::test]
async fn outputs_are_saved_safely_without_overwriting() {
    let plane = Plane::start(QUICK).await;
    let _worker = gives(&plane, &[("a.png", "first"), ("../../up.png", "second"), ("a.png", "third")]).await;
    write(&plane, "job.json", r#"{"n": 1}"#);
    let out = plane.folder().join("deep/out");
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("a.png"), "mine").unwrap();
    let ran = run(plane.folder(), &plane.url, &["job.json", "-o", "deep/out"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_contains_all(
        &ran.out,
        &["NODE  OUTPUT  NAME", "deep/out/a-2.png", "deep/out/up.png", "deep/out/a-3.png"],
    );
    assert_contains_all(&ran.out, &["VALUE", "[\"a cat\"]"]);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(["a.png", "a-2.png", "up.png", "a-3.png"].map(read), ["mine", "first", "second", "third"]);
    let mut names: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a-2.png", "a-3.png", "a.png", "up.png"], "nothing half is left");

    let ran = run(plane.folder(), &plane.url, &["job.json"]).await;
    assert_contains_all(&ran.out, &["HASH", "blake3:"]);
    let ran = run(plane.folder(), &plane.url, &["job.json", "-o", "more", "--json"]).await;
    assert_eq!(ran.jobs()[0]["result"]["outputs"][1]["path"], "more/up.png");
}

#[tokio::test]
async fn unfetchable_output_fails_run() {
    let plane = Plane::start(QUICK).await;
    let outputs = json!([{ "name": "a.png", "hash": format!("blake3:{}", "0".repeat(64)) }]);
    let result = json!({ "outputs": outputs }).to_string();
    let _worker = Worker::start(&plane, "a", &format!("echo '{result}'")).await;
    write(&plane, "job.json", r#"{"n": 1}"#);
    let ran = run(plane.folder(), &plane.url, &["job.json", "-o", "out"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_contains_all(&ran.err, &["cannot fetch a.png", "the plane has no blob blake3:"]);
    assert_eq!(std::fs::read_dir(plane.folder().join("out")).unwrap().count(), 0);
}

#[tokio::test]
async fn progress_without_terminal_is_plain_lines() {
    let plane = Plane::start(&[QUICK, &["block.cooldown=10ms", "block.cooldown_max=20ms"]].concat()).await;
    // It fails once, when it was seen to run.
    let gate = Gate::closed(plane.folder(), "gate");
    let once = "if [ -e tried ]; then echo 'progress 0.5 half way' >&2; echo '{\"x\": 1}'; else touch tried; exit 75; fi";
    let _worker = Worker::start(&plane, "a", &format!("{}; {once}", gate.wait())).await;
    write(&plane, "job.json", r#"{"n": 1}"#);
    let mut command = remuda(plane.folder());
    let mut run = Process::start("run", command.args(["run", "job.json", "--url", &plane.url]));
    assert!(run.line(": running on a").await.is_some(), "{}", run.said());
    gate.open();
    assert_eq!(run.ended().await.code(), Some(0), "{}", run.said());
    let said = run.said();
    assert_contains_all(
        &said,
        &[": submitted", ": retrying: ", ": completed by a in attempt 2", "{\n  \"x\": 1\n}"],
    );
    assert!(!said.contains(['\r', '\u{1b}']), "{said:?}");
}

#[tokio::test]
async fn detach_prints_ids_and_exits() {
    let plane = Plane::start(QUICK).await;
    write(&plane, "job.json", r#"{"n": 1}"#);
    let ran = run(plane.folder(), &plane.url, &["job.json", "-n", "2", "--detach"]).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let known: BTreeSet<_> =
        plane.jobs().await.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ran.out.lines().map(str::to_owned).collect::<BTreeSet<_>>(), known);
    assert_eq!(known.len(), 2);
}

/// A plane with a worker that never ends what it runs, and two copies of a job: one runs and one waits.
async fn in_the_middle() -> (Plane, Worker, Gate, Process) {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let worker = Worker::start(&plane, "a", &format!("{}; echo 1", gate.wait())).await;
    write(&plane, "job.json", r#"{"n": 1}"#);
    let mut command = remuda(plane.folder());
    let mut run = Process::start("run", command.args(["run", "job.json", "-n", "2", "--url", &plane.url]));
    assert!(run.line("running on a").await.is_some(), "{}", run.said());
    assert!(run.line("waiting: ").await.is_some(), "{}", run.said());
    (plane, worker, gate, run)
}

#[tokio::test]
async fn first_interrupt_cancels_jobs() {
    let (plane, _worker, _gate, mut run) = in_the_middle().await;
    run.signal(Signal::INT);
    let status = run.ended().await;
    assert_eq!(status.code(), Some(1), "{}", run.said());
    assert_contains_all(
        &run.said(),
        &["cancelling 2 jobs; press Ctrl-C again to exit at once", "cancelled: cancelled with Ctrl-C"],
    );
    for job in plane.jobs().await {
        assert_eq!(job["state"], "cancelled");
    }
}

#[tokio::test]
async fn second_interrupt_exits_at_once() {
    let (mut plane, _worker, _gate, mut run) = in_the_middle().await;
    // The plane does not answer, so that the first interrupt has to wait.
    plane.kill();
    run.signal(Signal::INT);
    assert!(run.line("cancelling 2 jobs").await.is_some(), "{}", run.said());
    run.signal(Signal::INT);
    assert_eq!(run.ended().await.code(), Some(130), "{}", run.said());
    plane.start_again().await;
    for job in plane.jobs().await {
        assert_ne!(job["state"], "cancelled", "the plane was unreachable");
    }
}

#[tokio::test]
async fn run_follows_restarted_plane() {
    let (mut plane, _worker, gate, mut run) = in_the_middle().await;
    plane.kill();
    assert!(run.line("connection to the plane lost").await.is_some(), "{}", run.said());
    plane.start_again().await;
    gate.open();
    assert_eq!(run.ended().await.code(), Some(0), "{}", run.said());
    wait_until("both are done", async || {
        plane.jobs().await.iter().all(|job| job["state"] == "completed").then_some(())
    })
    .await;
}
