//! Many workers that die, are cut off or stand still at once, and a plane that stands still itself.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{gated, presence_is};
use crate::harness::{Gate, Plane, Stream, Worker, assert_contains_all, remuda, sleep_for, wait_until};

/// A tenth of the defaults: beats every half second, a lease of three seconds.
const TENTH: &[&str] = &[
    "lease=3s",
    "order_grace=1s",
    "plane_stall_max=2s",
    "beat.busy=500ms",
    "beat.suspect_after=1500ms",
    "beat.idle=3s",
    "beat.stale_after=9s",
    "retry.base=50ms",
    "retry.max=200ms",
];

/// Tells its progress all the time, so that its agent ends one long poll after the other.
fn talkative(gate: &Gate) -> String {
    let wait = gate.wait().replace("sleep 0.05", "i=$((i+1)); echo step $i >&2; sleep 0.1");
    format!("{wait}; echo $REMUDA_ATTEMPT")
}

async fn start_fleet(plane: &Plane, count: usize, command: &str) -> Vec<Worker> {
    let mut workers = Vec::new();
    for n in 0..count {
        let machine = format!("box-{n}");
        workers.push(Worker::start_with(plane, &format!("w{n}"), command, &["--machine", &machine]).await);
    }
    workers
}

/// A job for each worker, all of them under way.
async fn fill(plane: &Plane, workers: &[Worker]) -> Vec<String> {
    let mut jobs = Vec::new();
    for n in 0..workers.len() {
        jobs.push(plane.submit(json!({ "n": n })).await);
    }
    for worker in workers {
        wait_until("it works", async || {
            let holds = plane.worker(&worker.name).await["holds"].clone();
            holds.as_array()?.iter().any(|hold| hold["phase"] != "").then_some(())
        })
        .await;
    }
    jobs
}

async fn attempts(plane: &Plane, jobs: &[String]) -> Vec<Value> {
    let mut attempts = Vec::new();
    for job in jobs {
        attempts.push(plane.ended(job).await["result"].clone());
    }
    attempts
}

async fn told(plane: &Plane, names: &[&str]) -> Vec<String> {
    let history = plane.history().await.into_iter().map(|event| event.name);
    history.filter(|name| names.contains(&name.as_str())).collect()
}

/// Faults: J1.
#[tokio::test]
async fn workers_that_report_progress_all_the_time_are_never_suspect() {
    let plane = Plane::start(TENTH).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let workers = start_fleet(&plane, 3, &talkative(&gate)).await;
    let jobs = fill(&plane, &workers).await;
    let before = told(&plane, &["client:state"]).await.len();
    // Each of them ends several long polls meanwhile.
    sleep_for(Duration::from_secs(8)).await;
    assert_eq!(told(&plane, &["client:state"]).await.len(), before, "not a single suspicion");
    assert_eq!(told(&plane, &["fleet:brake", "worker:offline"]).await, [""; 0]);
    gate.open();
    assert_eq!(attempts(&plane, &jobs).await, [json!(1), json!(1), json!(1)]);
}

/// Faults: J2.
#[tokio::test]
async fn jobs_of_killed_workers_move_however_many_were_killed() {
    let plane = Plane::start(TENTH).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut workers = start_fleet(&plane, 8, &gated(&gate)).await;
    let jobs = fill(&plane, &workers).await;
    let _rest = Worker::start_with(&plane, "rest", &gated(&gate), &["--slots", "8"]).await;
    for worker in &mut workers[..7] {
        worker.process.kill();
    }
    let dead: Vec<_> = workers[..7].iter().map(|worker| worker.name.clone()).collect();
    for job in &jobs {
        let is_moved =
            |job: &Value| job["worker"].as_str().is_some_and(|name| dead.iter().all(|it| it != name));
        plane.job_until(job, "runs elsewhere", is_moved).await;
    }
    assert_eq!(told(&plane, &["fleet:brake"]).await, [""; 0], "the others were heard");
    gate.open();
    let attempts = attempts(&plane, &jobs).await;
    assert_eq!(attempts.iter().filter(|attempt| **attempt == json!(2)).count(), 7, "{attempts:?}");
}

/// Faults: J2.
#[tokio::test]
async fn fleet_that_was_killed_entirely_is_offline_and_its_jobs_wait_for_the_next_worker() {
    let plane = Plane::start(TENTH).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut workers = start_fleet(&plane, 4, &gated(&gate)).await;
    let jobs = fill(&plane, &workers).await;
    workers.iter_mut().for_each(|worker| worker.process.kill());
    for worker in &workers {
        presence_is(&plane, &worker.name, "offline").await;
    }
    for job in &jobs {
        plane.job_until(job, "waits", |job| job["state"] == "queued").await;
    }
    assert_eq!(told(&plane, &["fleet:brake"]).await, [""; 0]);
    let _next = Worker::start_with(&plane, "next", "echo $REMUDA_ATTEMPT", &["--slots", "4"]).await;
    assert_eq!(attempts(&plane, &jobs).await, vec![json!(2); 4]);
}

/// Faults: J3, N5. Stopped processes keep their connections open, as a cut network does.
#[tokio::test]
async fn plane_that_hears_no_worker_keeps_their_jobs_and_says_so() {
    let plane = Plane::start(TENTH).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let workers = start_fleet(&plane, 4, &gated(&gate)).await;
    let jobs = fill(&plane, &workers).await;
    workers.iter().for_each(|worker| worker.process.signal(Signal::STOP));
    for worker in &workers {
        presence_is(&plane, &worker.name, "offline").await;
    }
    let status = plane.get("/remuda/v1/status").await;
    assert_eq!(status["brakes"][0]["kind"], "mass_loss", "{status}");
    assert!(status["brakes"][0]["until"].is_string(), "{status}");
    for command in [&["status"][..], &["workers"], &["jobs"], &["why", &jobs[0]]] {
        let shown = remuda(plane.folder()).args(command).args(["--url", &plane.url]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert_contains_all(&shown, &["mass-loss brake", "4 machines are silent", "at the latest until"]);
    }
    assert_eq!(told(&plane, &["job:retrying"]).await, [""; 0]);
    workers.iter().for_each(|worker| worker.process.signal(Signal::CONT));
    for worker in &workers {
        presence_is(&plane, &worker.name, "online").await;
    }
    gate.open();
    assert_eq!(attempts(&plane, &jobs).await, vec![json!(1); 4], "nothing was run twice");
    assert_eq!(
        told(&plane, &["fleet:brake", "fleet:brake_released"]).await,
        ["fleet:brake", "fleet:brake_released"]
    );
}

/// Faults: J4, C6, K2.
#[tokio::test]
async fn stopped_plane_goes_on_when_it_wakes_and_judges_no_one() {
    let plane = Plane::plan(TENTH).variable("__REMUDA_WATCHDOG_LIMIT_MS", "1500").start().await;
    let gate = Gate::closed(plane.folder(), "gate");
    let workers = start_fleet(&plane, 2, &gated(&gate)).await;
    let jobs = fill(&plane, &workers).await;
    let mut events = Stream::open(&plane, "?after=0", None).await;
    plane.process.signal(Signal::STOP);
    // Longer than the limit of the watchdog and than a lease.
    sleep_for(Duration::from_secs(6)).await;
    plane.process.signal(Signal::CONT);
    events.until("plane:away").await;
    // A lease in which anyone who was blamed would be judged, and in which the watchdog looks again.
    sleep_for(Duration::from_secs(4)).await;
    gate.open();
    assert_eq!(attempts(&plane, &jobs).await, vec![json!(1); 2]);
    let blamed = ["job:retrying", "job:failed", "worker:offline", "fleet:brake"];
    assert_eq!(told(&plane, &blamed).await, [""; 0]);
}

/// Faults: C6.
#[tokio::test]
async fn plane_whose_loop_hangs_ends_itself() {
    let mut plane = Plane::plan(TENTH)
        .variable("__REMUDA_WATCHDOG_LIMIT_MS", "1500")
        .variable("__REMUDA_WATCHDOG_TEST_HANG_MS", "500")
        .start()
        .await;
    assert_eq!(plane.process.ended().await.code(), Some(70));
    assert!(plane.process.said().contains("event loop stuck"), "{}", plane.process.said());
}

/// Faults: C6. Each task of the plane in turn: it is started again, and meanwhile jobs run and workers are heard.
#[tokio::test]
async fn task_that_panics_is_restarted_beside_a_plane_that_works_on() {
    for task in ["webhooks", "retention", "blob_sweep", "folder_watch", "listener_check", "comfyui_publisher"]
    {
        let plane = Plane::plan(TENTH).variable("__REMUDA_TASK_TEST_PANIC", task).start().await;
        let _worker = Worker::start(&plane, "w", "cat").await;
        let job = plane.submit(json!({ "n": 1 })).await;
        assert_eq!(plane.ended(&job).await["state"], "completed", "{task}");
        let row = wait_until("it runs again", async || {
            let status = plane.get("/remuda/v1/status").await;
            let row = status["tasks"].as_array()?.iter().find(|row| row["name"] == task)?.clone();
            (row["state"] == "running" && row["restarts"] == 1).then_some(row)
        })
        .await;
        assert_eq!(row["last_failure"], "panicked: a test asked for it", "{row}");
        plane.get("/health/ready").await;
    }
}
