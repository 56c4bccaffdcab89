//! Workers that are killed, paused, stopped and duplicated.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;

use crate::harness::{
    Gate, Plane, Process, QUICK, ScriptedWorker, Worker, answered, assert_contains_all, is_running, remuda,
    sleep_for, wait_until,
};

/// Two workers of one kind: the one that runs the job, and the other.
async fn two_workers(plane: &Plane, command: &str) -> (String, Worker, Worker) {
    let a = Worker::start(plane, "a", command).await;
    let b = Worker::start(plane, "b", command).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let (holder, other) = if plane.runs_on(&job).await == "a" { (a, b) } else { (b, a) };
    is_named(plane, &holder, &job).await;
    (job, holder, other)
}

/// Waits until the plane has heard from the worker itself that it holds the job.
async fn is_named(plane: &Plane, worker: &Worker, job: &str) {
    wait_until("the attempt is under way", async || {
        let worker = plane.worker(&worker.name).await;
        let hold = worker["holds"].as_array().unwrap().iter().find(|hold| hold["job"] == job)?.clone();
        (hold["phase"] == "begun").then_some(())
    })
    .await;
}

/// Reports that it has begun, waits at the gate, and prints its attempt number.
fn gated(gate: &Gate) -> String {
    format!("echo begun >&2; {}; echo $REMUDA_ATTEMPT", gate.wait())
}

/// Faults: A2, M1.
#[tokio::test]
async fn killed_workers_job_moves_within_lease() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let (job, mut holder, other) = two_workers(&plane, &gated(&gate)).await;
    holder.process.kill();
    let killed_at = Instant::now();
    plane.job_until(&job, "runs elsewhere", |job| job["worker"] == other.name).await;
    // The lease is 2 s, the wait before the retry at most 0.2 s; the rest is for busy machines.
    assert!(killed_at.elapsed() < Duration::from_secs(6), "it took {:?}", killed_at.elapsed());
    let why = plane.why(&job).await;
    let verdict = format!("worker {} fell silent: no beat for", holder.name);
    assert_contains_all(why["attempts"][0]["message"].as_str().unwrap(), &[&verdict]);
    assert_eq!(plane.worker(&holder.name).await["presence"], "offline");
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!(
        (&ended["state"], &ended["result"], &ended["infra_failures"]),
        (&json!("completed"), &json!(2), &json!(1))
    );
}

/// Faults: A3, A4, A15, N2.
#[tokio::test]
async fn worker_paused_past_lease_is_refused() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let (job, holder, other) = two_workers(&plane, &gated(&gate)).await;
    holder.process.signal(Signal::STOP);
    plane.job_until(&job, "runs elsewhere", |job| job["worker"] == other.name).await;
    // Both commands end: the paused worker has a result of a lost attempt.
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["worker"], &ended["result"]), (&json!(other.name), &json!(2)));
    assert_eq!(plane.get("/remuda/v1/status").await["refused"]["stale_attempts"], 0);
    holder.process.signal(Signal::CONT);
    wait_until("the late result is refused", async || {
        (plane.get("/remuda/v1/status").await["refused"]["stale_attempts"] == 1).then_some(())
    })
    .await;
    assert_eq!(plane.job(&job).await, ended, "an outcome never changes");
    wait_until("it is welcome again, and holds nothing", async || {
        let worker = plane.worker(&holder.name).await;
        (worker["presence"] == "online" && worker["holds"] == json!([])).then_some(())
    })
    .await;
}

/// Faults: A13.
#[tokio::test]
async fn stopping_worker_finishes_its_attempts() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut worker = Worker::start(&plane, "a", &gated(&gate)).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    is_named(&plane, &worker, &job).await;
    worker.process.signal(Signal::TERM);
    wait_until("the plane knows", async || (plane.worker("a").await["state"] == "terminating").then_some(()))
        .await;
    let later = plane.submit(json!({ "n": 2 })).await;
    gate.open();
    assert!(worker.process.ended().await.success(), "{}", worker.process.said());
    let ended = plane.job(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(1)));
    assert_eq!(plane.worker("a").await["presence"], "offline", "it left");
    assert_eq!(plane.job(&later).await["state"], "queued", "it took on nothing more");
}

/// Faults: A13.
#[tokio::test]
async fn second_signal_kills_worker_and_children() {
    // The lease is too long to help: the job moves at once only because the worker said that it leaves.
    let plane = Plane::start(&["lease=1h", "retry.base=10ms", "retry.max=20ms"]).await;
    let gate = Gate::closed(plane.folder(), "gate");
    // Ignores SIGTERM, like its child; both end with the gate if nothing kills them before.
    let child = format!("({}) & echo $! > $REMUDA_ATTEMPT.pid", gate.wait());
    let stubborn = format!("trap '' TERM; {child}; {}", gated(&gate));
    let (job, mut holder, other) = two_workers(&plane, &stubborn).await;
    let child = std::fs::read_to_string(plane.folder().join("1.pid")).unwrap();
    holder.process.signal(Signal::TERM);
    wait_until("it drains", async || {
        (plane.worker(&holder.name).await["state"] == "terminating").then_some(())
    })
    .await;
    holder.process.signal(Signal::TERM);
    assert!(holder.process.ended().await.success(), "{}", holder.process.said());
    assert_eq!(plane.worker(&holder.name).await["presence"], "offline", "offline now, not after a lease");
    plane.job_until(&job, "is taken elsewhere", |job| job["worker"] == other.name).await;
    wait_until("the command's own child is gone", async || (!is_running(child.trim())).then_some(())).await;
    let why = plane.why(&job).await;
    assert_contains_all(why["attempts"][0]["message"].as_str().unwrap(), &["left: it was asked to stop"]);
}

/// Faults: A8, X2.
#[tokio::test]
async fn newer_worker_of_same_name_wins() {
    let plane = Plane::start(QUICK).await;
    let mut older = Worker::start(&plane, "a", "echo older").await;
    let newer = Worker::start(&plane, "a", "echo newer").await;
    let status = older.process.ended().await;
    assert_eq!(status.code(), Some(1));
    assert_contains_all(&older.process.said(), &["remuda: ", "joined"]);
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.ended(&job).await["result"], "newer");
    assert_eq!(plane.worker("a").await["incarnation"], 2);
    drop(newer);
}

/// Faults: A10.
#[tokio::test]
async fn busy_machine_does_not_stop_beats() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let burning =
        format!("echo begun >&2; while [ -e '{}/gate' ]; do :; done; echo done", plane.folder().display());
    let worker = Worker::start_with(&plane, "a", &burning, &["--slots", "4"]).await;
    let mut jobs = Vec::new();
    for n in 0..4 {
        jobs.push(plane.submit(json!({ "n": n })).await);
    }
    for job in &jobs {
        is_named(&plane, &worker, job).await;
    }
    // Two leases under full load.
    sleep_for(Duration::from_secs(4)).await;
    gate.open();
    for job in &jobs {
        let ended = plane.ended(job).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)));
    }
    assert_eq!(plane.worker("a").await["went_stale"], 0);
}

/// Faults: C8.
#[tokio::test]
async fn worker_backs_off_without_plane() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let _worker =
        Process::start("a", remuda(folder.path()).args(["worker", "--url", &url, "--exec", "true"]));
    let mut asked = Vec::new();
    while asked.len() < 8 {
        // Accepted and dropped at once, as if no plane were there.
        drop(listener.accept().await.unwrap());
        asked.push(Instant::now());
    }
    let waits: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // 0.1 s at first, doubled each time, of which at least half is waited: 3.1 s for the first six.
    let whole: Duration = waits.iter().take(6).sum();
    assert!(whole > Duration::from_secs(3), "{waits:?}");
    assert!(waits[6] > waits[0] * 4 && waits[6] < Duration::from_secs(6), "{waits:?}");
}

/// Faults: K3.
#[tokio::test]
async fn slow_worker_clock_keeps_lease() {
    let plane = Plane::start(&[
        "lease=2s",
        "beat.busy=900ms",
        "beat.suspect_after=1200ms",
        "order_grace=1s",
        "plane_stall_max=1500ms",
    ])
    .await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    for _ in 0..6 {
        hand.say(&json!([attempt]), &json!([])).await;
        // What it takes for 900 ms, by a clock that is 5 % slow.
        sleep_for(Duration::from_millis(945)).await;
    }
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    assert_eq!(plane.ended(&job).await["attempt"], 1);
}

/// Faults: K4, N4.
#[tokio::test]
async fn restored_worker_snapshot_is_refused() {
    let mut plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let mut snapshot = hand.clone();
    hand.say(&json!([attempt]), &json!([])).await;
    assert_eq!(hand.complete(&attempt, json!("first")).await, "recorded");
    let ended = plane.job(&job).await;

    let (status, answer) = answered(snapshot.beat(&json!([attempt]), &json!([]), 0.0)).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (409, &json!("stale_beat")));
    snapshot.seq = hand.seq;
    assert_eq!(snapshot.complete(&attempt, json!("second")).await, "this outcome is already recorded");
    assert_eq!(plane.job(&job).await, ended);

    // Every join gets an incarnation that was never used, also after restarts of either side.
    plane.kill();
    plane.start_again().await;
    assert_eq!(ScriptedWorker::join(&plane, "w", 1).await.incarnation, 2);
    plane.kill();
    plane.start_again().await;
    assert_eq!(ScriptedWorker::join(&plane, "w", 1).await.incarnation, 3);
}

/// Faults: A9. The command is stopped, so that it can neither go on nor end; its worker is well and beats all the time.
#[tokio::test]
async fn worker_that_beats_while_its_work_stands_still_loses_the_job() {
    let plane = Plane::start(&[QUICK, &["stuck_after=3s"]].concat()).await;
    let pid = plane.folder().join("pid");
    let command = format!(
        "if [ $REMUDA_ATTEMPT = 1 ]; then echo $$ >'{pid}.new'; mv '{pid}.new' '{pid}'; fi; \
         i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo step $i >&2; sleep 0.1; done; echo $REMUDA_ATTEMPT",
        pid = pid.display()
    );
    let first = Worker::start(&plane, "a", &command).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let stopped = wait_until("the command runs", async || std::fs::read_to_string(&pid).ok()).await;
    let stopped = stopped.trim().to_owned();
    let process = rustix::process::Pid::from_raw(stopped.parse().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let second = Worker::start(&plane, "b", &command).await;
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(2)), "{ended}");
    let why = plane.why(&job).await;
    assert_eq!(why["attempts"][0]["worker"], "a", "{why}");
    assert_contains_all(why["attempts"][0]["message"].as_str().unwrap(), &["stuck: no progress"]);
    for worker in [&first, &second] {
        assert_eq!(plane.worker(&worker.name).await["presence"], "online", "it was heard all the time");
    }
    wait_until("the stopped command is ended", async || (!is_running(&stopped)).then_some(())).await;
}
