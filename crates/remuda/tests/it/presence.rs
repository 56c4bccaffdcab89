//! Presence of workers that are killed, paused, stopped, retired or forgotten.

mod losses;
mod readiness;
mod signals;
mod without_plane;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gate, Plane, QUICK, ScriptedWorker, Worker, assert_contains_all, remuda, wait_until};

/// A lease that silence alone would take long to show: what is noticed before was noticed because a line dropped.
const PATIENT: &[&str] = &[
    "lease=6s",
    "beat.busy=500ms",
    "beat.suspect_after=5s",
    "beat.idle=20s",
    "beat.stale_after=60s",
    "retry.base=50ms",
    "retry.max=200ms",
];

/// Says that it begun, waits at the gate, and tells which attempt it was.
fn gated(gate: &Gate) -> String {
    format!("echo begun >&2; {}; echo $REMUDA_ATTEMPT", gate.wait())
}

/// Waits until the plane has heard from a worker that it holds the job, and tells which.
async fn holder(plane: &Plane, job: &str) -> String {
    let name = plane.runs_on(job).await;
    wait_until("the attempt is under way", async || {
        let worker = plane.worker(&name).await;
        let holds =
            worker["holds"].as_array()?.iter().any(|hold| hold["job"] == job && hold["phase"] == "begun");
        holds.then_some(())
    })
    .await;
    name
}

async fn machine(plane: &Plane, name: &str) -> Value {
    let machines = plane.get("/remuda/v1/machines").await;
    machines["machines"].as_array().unwrap().iter().find(|it| it["machine"] == name).unwrap().clone()
}

async fn presence_is(plane: &Plane, worker: &str, presence: &str) -> Duration {
    let began = Instant::now();
    let what = format!("{worker} is {presence}");
    wait_until(&what, async || (plane.worker(worker).await["presence"] == presence).then_some(())).await;
    began.elapsed()
}

/// Faults: A2, M1.
#[tokio::test]
async fn killed_worker_is_suspect_at_once_and_job_moves() {
    let plane = Plane::start(PATIENT).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(
            Worker::start_with(&plane, name, &gated(&gate), &["--machine", &format!("box-{name}")]).await,
        );
    }
    let job = plane.submit(json!({ "n": 1 })).await;
    let name = holder(&plane, &job).await;
    let killed = workers.iter_mut().find(|worker| worker.name == name).unwrap();
    killed.process.kill();
    let took = presence_is(&plane, &name, "suspect").await;
    assert!(took < Duration::from_secs(3), "by silence it would have been 5 s: {took:?}");
    assert_eq!(plane.job(&job).await["worker"], *name, "suspicion takes nothing away");
    let seen_at = plane.worker(&name).await["seen_at"].clone();
    plane.job_until(&job, "runs elsewhere", |job| job["worker"] != *name).await;
    let gone = plane.worker(&name).await;
    assert_eq!((&gone["presence"], &gone["went_stale"]), (&json!("offline"), &json!(1)));
    assert_eq!(gone["seen_at"], seen_at, "a verdict is no sign of life");
    assert_eq!(
        machine(&plane, &format!("box-{name}")).await["presence"],
        "offline",
        "it was the last one there"
    );
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(2)));
}

/// Faults: A2, M1.
#[tokio::test]
async fn killed_idle_worker_is_stale_after_its_own_limit() {
    let plane = Plane::start(PATIENT).await;
    let on_box = ["--machine", "box", "--stale-after", "3s"];
    let mut first = Worker::start_with(&plane, "a", "true", &on_box).await;
    let mut second = Worker::start_with(&plane, "b", "true", &on_box).await;
    assert_eq!(plane.worker("a").await["stale_after_seconds"], 3.0);
    first.process.kill();
    let began = Instant::now();
    presence_is(&plane, "a", "suspect").await;
    presence_is(&plane, "a", "offline").await;
    assert!(began.elapsed() < Duration::from_secs(12), "3 s, not 60: {:?}", began.elapsed());
    assert_eq!(machine(&plane, "box").await["presence"], "online", "b is still there");
    second.process.kill();
    presence_is(&plane, "b", "offline").await;
    let left = machine(&plane, "box").await;
    assert_eq!(
        (&left["presence"], &left["reliability"]["hour"]["went_stale"]),
        (&json!("offline"), &json!(1))
    );
}

/// Faults: A3, N2.
#[tokio::test]
async fn paused_worker_is_refused_then_works_again() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let (a, b) =
        (Worker::start(&plane, "a", &gated(&gate)).await, Worker::start(&plane, "b", &gated(&gate)).await);
    let job = plane.submit(json!({ "n": 1 })).await;
    let name = holder(&plane, &job).await;
    let (stopped, other) = if name == "a" { (a, b) } else { (b, a) };
    stopped.process.signal(Signal::STOP);
    plane.job_until(&job, "runs elsewhere", |job| job["worker"] == other.name).await;
    assert_eq!(plane.worker(&name).await["presence"], "offline");
    gate.open();
    let ended = plane.ended(&job).await;
    stopped.process.signal(Signal::CONT);
    wait_until("the late result is refused", async || {
        (plane.get("/remuda/v1/status").await["refused"]["stale_attempts"] == 1).then_some(())
    })
    .await;
    assert_eq!(plane.job(&job).await, ended, "an outcome never changes");
    presence_is(&plane, &name, "online").await;
    drop(other);
    let next = plane.submit_as(json!({ "workflow": { "n": 2 }, "needs": { "pin": name } })).await;
    assert_eq!(plane.ended(&next).await["worker"], *name);
}

/// A scripted worker that joins, beats once, and is silent until it joins again.
async fn go_stale(plane: &Plane, round: u64) {
    let join = json!({ "worker": "w", "machine": "box", "services": ["exec"], "stale_after_millis": 1000 });
    let (_, joined) = plane.post("/remuda/v1/workers", &join).await;
    assert_eq!((&joined["stale_after_millis"], &joined["beat_idle_millis"]), (&json!(1000), &json!(333)));
    let mut hand = ScriptedWorker {
        client: plane.with(""),
        name: "w".to_owned(),
        token: joined["token"].as_str().unwrap().to_owned(),
        incarnation: round,
        term: joined["term"].as_u64().unwrap(),
        seq: 0,
    };
    hand.say(&json!([]), &json!([])).await;
    wait_until("it counts as stale", async || (plane.worker("w").await["went_stale"] == round).then_some(()))
        .await;
}

#[tokio::test]
async fn flapping_worker_is_reported() {
    let mut plane = Plane::start(&[QUICK, &["beat.flaps_before_alert=2"]].concat()).await;
    // Its beats prove that messages arrive.
    let _witness = Worker::start(&plane, "witness", "true").await;
    go_stale(&plane, 1).await;
    assert_eq!(plane.get("/remuda/v1/status").await["unreliable"], json!({ "workers": [], "machines": [] }));
    plane.kill();
    plane.start_again().await;
    go_stale(&plane, 2).await;
    let status = plane.get("/remuda/v1/status").await;
    assert_eq!(status["unreliable"], json!({ "workers": ["w"], "machines": ["box"] }));
    let worker = plane.worker("w").await;
    let hour = &worker["reliability"]["hour"];
    assert_eq!((&worker["unreliable"], &hour["went_stale"]), (&json!(true), &json!(2)));
    assert!(hour["uptime"].as_f64().is_some_and(|share| share < 1.0), "{hour}");
    assert_eq!(machine(&plane, "box").await["unreliable"], true);
    go_stale(&plane, 3).await;
    let told: Vec<_> = plane.history().await.into_iter().map(|event| event.name).collect();
    for name in ["worker:unreliable", "machine:unreliable"] {
        assert_eq!(told.iter().filter(|it| *it == name).count(), 1, "once an hour: {told:?}");
    }
    let listed = remuda(plane.folder()).args(["workers", "--url", &plane.url]).output().unwrap();
    assert_contains_all(
        &String::from_utf8_lossy(&listed.stdout),
        &["UPTIME", "STALE", "3!", "unreliable: went stale 3 times"],
    );
}
