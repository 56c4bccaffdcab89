//! Shutdown requests: by signal, twice, with a notice, by a file.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::{gated, holder};
use crate::harness::{Gate, Plane, QUICK, Worker, is_running, sleep_for, wait_until};

const SIGNALS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Neither lease nor silence is any help: what happens at once happens because it was said.
const SLOW: &[&str] =
    &["lease=1h", "beat.stale_after=1h", "beat.suspect_after=30m", "retry.base=10ms", "retry.max=20ms"];

async fn drains(plane: &Plane, worker: &str) {
    let what = format!("{worker} drains");
    wait_until(&what, async || (plane.worker(worker).await["state"] == "terminating").then_some(())).await;
}

/// Faults: A13, T11.
#[tokio::test]
async fn each_signal_drains_and_second_forces() {
    let plane = Plane::start(SLOW).await;
    for (n, signal) in SIGNALS.into_iter().enumerate() {
        let gate = Gate::closed(plane.folder(), &format!("gate-{n}"));
        let mut worker = Worker::start(&plane, &format!("w-{n}"), &gated(&gate)).await;
        let job = plane.submit(json!({ "n": n })).await;
        assert_eq!(holder(&plane, &job).await, worker.name);
        worker.process.signal(signal);
        drains(&plane, &worker.name).await;
        gate.open();
        assert!(worker.process.ended().await.success(), "{signal:?}: {}", worker.process.said());
        assert_eq!(plane.job(&job).await["state"], "completed", "{signal:?}: what it held was finished");
        assert_eq!(plane.worker(&worker.name).await["presence"], "offline", "{signal:?}");

        let gate = Gate::closed(plane.folder(), &format!("gate-{n}"));
        let mut worker = Worker::start(&plane, &format!("w-{n}"), &gated(&gate)).await;
        let job = plane.submit(json!({ "n": n })).await;
        assert_eq!(holder(&plane, &job).await, worker.name);
        worker.process.signal(Signal::TERM);
        drains(&plane, &worker.name).await;
        worker.process.signal(signal);
        assert!(worker.process.ended().await.success(), "{signal:?}: {}", worker.process.said());
        assert_eq!(plane.worker(&worker.name).await["presence"], "offline", "{signal:?}: at once");
        plane.job_until(&job, "is handed back", |job| job["state"] == "queued").await;
        plane.cancel(&job).await;
    }
}

/// Faults: A13.
#[tokio::test]
async fn unfinished_work_is_returned_within_notice() {
    let plane = Plane::start(SLOW).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let mut short = Worker::start_with(&plane, "short", &gated(&gate), &["--notice", "4s"]).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(holder(&plane, &job).await, "short");
    let other = Worker::start(&plane, "other", &gated(&gate)).await;
    short.process.signal(Signal::TERM);
    let asked_at = Instant::now();
    drains(&plane, "short").await;
    assert_eq!(plane.job(&job).await["worker"], "short", "it may still finish");
    assert!(short.process.ended().await.success(), "{}", short.process.said());
    // Half of four seconds is kept for handing back; the rest is for busy machines.
    assert!(asked_at.elapsed() < Duration::from_secs(4), "it took {:?}", asked_at.elapsed());
    plane.job_until(&job, "runs elsewhere", |job| job["worker"] == other.name).await;
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["state"], &ended["infra_failures"]), (&json!("completed"), &json!(1)));
}

/// Faults: A13.
#[tokio::test]
async fn notice_file_starts_drain() {
    let plane = Plane::start(SLOW).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let file = plane.folder().join("preempted");
    let more = ["--preempt-file", file.to_str().unwrap()];
    let mut worker = Worker::start_with(&plane, "a", &gated(&gate), &more).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(holder(&plane, &job).await, "a");
    std::fs::write(&file, "").unwrap();
    drains(&plane, "a").await;
    gate.open();
    assert!(worker.process.ended().await.success(), "{}", worker.process.said());
    assert_eq!(plane.job(&job).await["state"], "completed");
}

/// A worker that was asked to stop waits this long for a plane that does not answer.
const DRAIN_SILENCE: Duration = Duration::from_secs(30);
const BUSY_MACHINE: Duration = Duration::from_secs(15);

/// Faults: A13. One signal is enough, also while no plane answers: the worker waits for it for one lease at most, and hands
/// back what it could not report by stopping it.
#[tokio::test]
async fn busy_worker_ends_after_one_signal_while_its_plane_is_away() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let command = format!("echo $$ > running; {}", gated(&gate));
    let mut worker = Worker::start(&plane, "a", &command).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(holder(&plane, &job).await, "a");
    let running = plane.folder().join("running");
    wait_until("the command runs", async || running.exists().then_some(())).await;
    plane.kill();
    worker.process.signal(Signal::TERM);
    let asked_at = Instant::now();
    while !worker.process.has_ended() {
        let (took, said) = (asked_at.elapsed(), worker.process.said());
        assert!(took < DRAIN_SILENCE + BUSY_MACHINE, "it still runs {took:?} after the signal: {said}");
        sleep_for(Duration::from_millis(50)).await;
    }
    assert!(asked_at.elapsed() > DRAIN_SILENCE / 2, "it gave the plane no time: {:?}", asked_at.elapsed());
    let command = std::fs::read_to_string(&running).unwrap();
    wait_until("the command is gone", async || (!is_running(command.trim())).then_some(())).await;
    plane.start_again().await;
    plane.job_until(&job, "waits for another worker", |job| job["state"] == "queued").await;
}
