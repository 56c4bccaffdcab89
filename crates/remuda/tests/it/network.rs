//! Networks that are cut, lose messages, or come back for everyone at once (rows N5 to N7, C8), between real processes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gate, Line, LineState, Plane, Process, remuda, sleep_for, wait_until};

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

struct Fleet {
    plane: Plane,
    line: Line,
    gate: Gate,
    _workers: Vec<Process>,
}

impl Fleet {
    /// Workers that reach their plane only over the line.
    async fn start(count: usize) -> Fleet {
        let plane = Plane::start(TENTH).await;
        let line = Line::to(plane.address).await;
        let gate = Gate::closed(plane.folder(), "gate");
        let command = format!("echo begun >&2; {}; echo $REMUDA_ATTEMPT", gate.wait());
        let mut workers = Vec::new();
        for n in 0..count {
            let mut worker = remuda(plane.folder());
            let (name, machine) = (format!("w{n}"), format!("box-{n}"));
            worker.args(["worker", "--url", &line.url, "--name", &name, "--machine", &machine]);
            workers.push(Process::start(&name, worker.args(["--exec", &command])));
        }
        wait_until("all workers are online", async || {
            let shown = plane.get("/remuda/v1/workers").await;
            let online = shown["workers"].as_array()?.iter().filter(|it| it["presence"] == "online").count();
            (online == count).then_some(())
        })
        .await;
        Fleet { plane, line, gate, _workers: workers }
    }

    /// A job for each of so many workers; all of them are under way.
    async fn submit(&self, count: usize) -> Vec<String> {
        let mut jobs = Vec::new();
        for n in 0..count {
            jobs.push(self.plane.submit(json!({ "n": n })).await);
        }
        for job in &jobs {
            self.plane.runs_on(job).await;
        }
        jobs
    }

    /// What each job returned: the number of its attempt.
    async fn attempts(&self, jobs: &[String]) -> Vec<Value> {
        let mut attempts = Vec::new();
        for job in jobs {
            attempts.push(self.plane.ended(job).await["result"].clone());
        }
        attempts
    }

    async fn told(&self, names: &[&str]) -> Vec<String> {
        let history = self.plane.history().await.into_iter().map(|event| event.name);
        history.filter(|name| names.contains(&name.as_str())).collect()
    }
}

/// Faults: N5. The plane's own link drops every packet for two leases; its workers and their work are well.
#[tokio::test]
async fn cut_link_of_the_plane_moves_no_job() {
    let fleet = Fleet::start(4).await;
    let jobs = fleet.submit(4).await;
    fleet.line.set(LineState::Cut);
    wait_until("the brake is on", async || {
        let status = fleet.plane.get("/remuda/v1/status").await;
        (status["brakes"][0]["kind"] == "mass_loss").then_some(())
    })
    .await;
    sleep_for(Duration::from_secs(3)).await;
    for job in &jobs {
        assert_eq!(fleet.plane.job(job).await["state"], "running", "nothing is requeued");
    }
    fleet.line.set(LineState::Open);
    wait_until("the brake is off", async || {
        let status = fleet.plane.get("/remuda/v1/status").await;
        status["brakes"].as_array()?.is_empty().then_some(())
    })
    .await;
    fleet.gate.open();
    assert_eq!(fleet.attempts(&jobs).await, vec![json!(1); 4], "nothing was run twice");
    assert_eq!(fleet.told(&["job:retrying", "job:failed"]).await, [""; 0]);
}

const CROWD: usize = 8;
/// Longer than the first five waits of a worker that finds no plane.
const OUTAGE: Duration = Duration::from_secs(6);
const WINDOW: Duration = Duration::from_secs(8);

/// Faults: N6, C8. The plane is away for twice its lease, and all workers lose it at the same moment.
#[tokio::test]
async fn crowd_that_lost_its_plane_returns_spread_out_and_calls_as_before() {
    let mut fleet = Fleet::start(CROWD).await;
    let jobs = fleet.submit(CROWD).await;
    let before = Instant::now();
    sleep_for(WINDOW).await;
    let normal = fleet.line.requests_since(before).len();

    let killed_at = Instant::now();
    fleet.plane.kill();
    sleep_for(OUTAGE).await;
    // Each waits 0.1 s at first and twice as long every time, of which at least half: at most nine calls in six seconds.
    let in_vain = fleet.line.requests_since(killed_at).len();
    assert!(in_vain <= CROWD * 9, "{in_vain} calls to a plane that is away");
    fleet.plane.start_again().await;
    let back_at = Instant::now();
    sleep_for(WINDOW).await;
    let calls = fleet.line.requests_since(back_at);
    // Two calls for a return: the one that finds the new plane, and the beat under its term.
    let most = 2 * normal + 2 * CROWD;
    assert!(calls.len() <= most, "{} calls after the return, {normal} in the same time before", calls.len());
    let tenths: BTreeSet<_> = calls.iter().take(CROWD).map(|at| at.as_millis() / 100).collect();
    assert!(tenths.len() >= CROWD / 2, "{CROWD} workers came back in {} tenths of a second", tenths.len());
    fleet.gate.open();
    assert_eq!(fleet.attempts(&jobs).await, vec![json!(1); CROWD], "nothing was run twice");
}

/// Faults: N7. Three of ten messages are lost, each way, and the others take a fifth of a second: a tenth of two seconds.
#[tokio::test]
async fn lossy_network_kills_no_worker_and_loses_no_job() {
    let fleet = Fleet::start(2).await;
    fleet.line.set(LineState::Lossy { percent: 30, delay: Duration::from_millis(200) });
    fleet.gate.open();
    let mut jobs = Vec::new();
    for n in 0..12 {
        jobs.push(fleet.plane.submit(json!({ "n": n })).await);
    }
    for job in &jobs {
        let ended = fleet.plane.ended(job).await;
        assert_eq!(ended["state"], "completed", "{ended}");
    }
    assert!(fleet.line.lost() >= 10, "only {} messages were lost", fleet.line.lost());
    assert_eq!(fleet.told(&["worker:offline", "fleet:brake", "job:failed"]).await, [""; 0]);
    let ends = fleet.told(&["job:completed"]).await;
    assert_eq!(ends.len(), jobs.len(), "each job ended once");
}
