//! A thousand jobs on servers on which everything goes wrong all the time.
//!
//! Every prompt meets every fault with a chance of one in twenty: three in four meet at least one, and nearly half are lost
//! through it. Each job still ends once, correctly, and nothing runs again without need.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_fakes::comfyui::{Control, Counts, Fake, Fault, Faults, Options};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::cached::all_ended;
use super::fixture::{files, prompt_id};
use super::graph::picture;
use crate::harness::{Client, Plane, QUICK, TestRng, Worker, remuda, sleep_for, wait_until};

const JOBS: u64 = 1_000;
const SERVERS: usize = 8;
const CHANCE: f64 = 0.05;
/// Of a hundred executions so many may have been for nothing.
const WASTE_MAX_PERCENT: usize = 2;
/// By then the agent has repaired most of what it can.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2500);
/// More than `infra_failures_max` and the job's own attempts together.
const ATTEMPTS_MAX: u32 = 103;

/// Nothing is rare here, so no verdict may rest on rarity.
const STORM: &[&str] = &[
    "lease=15s",
    "beat.suspect_after=10s",
    "beat.stale_after=20s",
    "stuck_after=1200ms",
    "infra_failures_max=100",
    "poison_after=100",
    "suspect_shape_after=100",
    "probation_after=1000",
    "block.cooldown=50ms",
    "block.cooldown_max=50ms",
];
const AGENT: &[&str] = &[
    "agent.inactivity=300ms",
    "agent.unknown_recheck=300ms",
    "agent.cancel_timeout=500ms",
    "agent.queue_stall_max=5s",
    "agent.self_test_timeout=1s",
    "agent.given_up_recheck=300ms",
];

/// Faults after which the server has no result of the prompt that anybody could fetch.
const SPOILS: &[Fault] = &[
    Fault::Hang,
    Fault::Die,
    Fault::Restart,
    Fault::EmptyOutputs,
    Fault::Oom,
    Fault::Cuda,
    Fault::Disk,
    Fault::ExecutorDead,
    Fault::InterruptedBySomeone,
    Fault::HistoryCleared,
    Fault::MissingOutput,
    Fault::ShortOutput,
];

/// What a job asks for, and so how it must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Its picture has this colour, which no other has.
    Good(u64),
    /// A node of it fails wherever it runs.
    Fails,
    /// No server takes it.
    Wrong,
}

impl Kind {
    fn of(number: u64) -> Kind {
        match number % 40 {
            7 => Kind::Fails,
            23 => Kind::Wrong,
            _ => Kind::Good(number),
        }
    }

    fn workflow(self, number: u64) -> Value {
        let slow = picture(number).sleep(0.4, 4);
        match self {
            Kind::Good(_) => slow.saved(),
            Kind::Fails => slow.fail("error").saved(),
            // A custom node: only its server knows what it accepts.
            Kind::Wrong => picture(number).sleep(0.4, 0).saved(),
        }
    }
}

/// Faults: V1, V3, V8, V11, V19, W1, W3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_end_once_and_rightly_whatever_goes_wrong() {
    let seed = TestRng::new().below(u64::MAX);
    let plane = Plane::start(&[QUICK, STORM].concat()).await;
    let fakes = servers(seed).await;
    let _supervisor = supervise(plane.folder(), &fakes);
    let worker = worker(&plane, &fakes).await;
    let _person = look_after(Client::clone(&plane), &fakes);
    let every = Fault::ALL.iter().fold(Faults::none(), |faults, (fault, ..)| faults.with(*fault, CHANCE));
    fakes.iter().for_each(|fake| fake.control().set_faults(every.clone()));
    let began = Instant::now();
    let jobs = submit(&plane).await;
    all_ended(&plane).await;
    let took = began.elapsed();
    fakes.iter().for_each(|fake| fake.control().set_faults(Faults::none()));
    let counts: Vec<Counts> = fakes.iter().map(Fake::counts).collect();
    for (job, kind) in &jobs {
        ended_rightly(&plane, &counts, job, *kind).await;
    }
    let struck: u64 = counts.iter().flat_map(|counts| counts.faults.values()).sum();
    let (executions, wasted) = waste(&counts, &jobs);
    eprintln!(
        "{JOBS} jobs took {took:?}: {struck} faults struck, {executions} executions, {} of them for nothing",
        wasted.len()
    );
    for (job, attempt) in &wasted {
        eprintln!(
            "for nothing: attempt {attempt} of {job}: {}",
            plane.why(job).await["attempts"][*attempt as usize - 1]
        );
    }
    assert!(struck > JOBS, "hardly a storm");
    assert!(
        wasted.len() * 100 <= executions * WASTE_MAX_PERCENT,
        "{} of {executions} for nothing",
        wasted.len()
    );
    drop(worker);
}

async fn servers(seed: u64) -> Vec<Fake> {
    let mut fakes = Vec::new();
    for n in 0..SERVERS {
        let options = Options {
            speed: 20.0,
            seed: seed.wrapping_add(n as u64),
            revive: Some(Duration::from_millis(300)),
            trouble: Duration::from_millis(200),
            ..Options::default()
        };
        fakes.push(Fake::start(options).await.unwrap());
    }
    fakes
}

/// What the worker starts and ends in place of a server: it asks for its life and its death here, by files.
const SERVER: &str = "trap 'echo > stop-$1; while [ -e stop-$1 ]; do sleep 0.02; done; exit 0' TERM
echo > start-$1
while [ -e gate ]; do sleep 1; done
";

/// Servers in this process, so that they can be counted over all their lives; killed and started as processes are.
fn supervise(folder: &Path, fakes: &[Fake]) -> JoinSet<()> {
    std::fs::write(folder.join("gate"), "").unwrap();
    std::fs::write(folder.join("server.sh"), SERVER).unwrap();
    let mut task = JoinSet::new();
    for (n, control) in fakes.iter().map(Fake::control).enumerate() {
        let (stop, start) = (folder.join(format!("stop-{n}")), folder.join(format!("start-{n}")));
        task.spawn(async move {
            loop {
                if stop.exists() {
                    control.kill().await;
                    std::fs::remove_file(&stop).unwrap();
                }
                if start.exists() {
                    control.restart().await;
                    std::fs::remove_file(&start).unwrap();
                }
                sleep_for(Duration::from_millis(10)).await;
            }
        });
    }
    task
}

/// Behind a service that its agent gave up stands the level above, here a person, who restarts what stays closed.
fn look_after(client: Client, fakes: &[Fake]) -> JoinSet<()> {
    let controls: Vec<Control> = fakes.iter().map(Fake::control).collect();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut closed_since: BTreeMap<usize, Instant> = BTreeMap::new();
        loop {
            let workers = client.get("/remuda/v1/workers").await;
            for (n, control) in controls.iter().enumerate() {
                let name = format!("w-{}", n + 1);
                let worker =
                    workers["workers"].as_array().unwrap().iter().find(|worker| worker["id"] == *name);
                if worker.is_none_or(|worker| worker["unavailable_reason"].is_null()) {
                    closed_since.remove(&n);
                } else if closed_since.entry(n).or_insert_with(Instant::now).elapsed() > GIVEN_UP_AFTER {
                    closed_since.remove(&n);
                    control.restart().await;
                }
            }
            sleep_for(Duration::from_millis(200)).await;
        }
    });
    task
}

/// One process with a worker for each server.
async fn worker(plane: &Plane, fakes: &[Fake]) -> Worker {
    let mut command = remuda(plane.folder());
    command.args(["worker", "--url", &plane.url, "--name", "w"]);
    for (n, fake) in fakes.iter().enumerate() {
        command.args(["--comfyui", &fake.url(), "--comfyui-cmd", &format!("sh server.sh {n}")]);
    }
    for setting in AGENT {
        command.args(["--set", setting]);
    }
    let process = crate::harness::Process::start("w", &mut command);
    wait_until("all workers are there", async || {
        let workers = plane.get("/remuda/v1/workers").await;
        (workers["workers"].as_array().unwrap().len() == SERVERS).then_some(())
    })
    .await;
    Worker { name: "w".to_owned(), process }
}

async fn submit(client: &Client) -> BTreeMap<String, Kind> {
    let mut clients = JoinSet::new();
    for first in 0..4 {
        let client = client.clone();
        clients.spawn(async move {
            let mut jobs = Vec::new();
            for number in (first..JOBS).step_by(4) {
                let kind = Kind::of(number);
                jobs.push((client.submit(kind.workflow(number)).await, kind));
            }
            jobs
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// That it ended as its workflow deserves, and with what is its own.
async fn ended_rightly(plane: &Plane, counts: &[Counts], job: &str, kind: Kind) {
    let ended = plane.job(job).await;
    let reason = ended["reason"].as_str().unwrap();
    match kind {
        Kind::Good(color) => {
            assert_eq!(ended["state"], "completed", "{ended}");
            let files = files(plane, &ended).await;
            assert_eq!(files.len(), 1, "{ended}");
            // The server writes into every picture what it was asked for. The worker removes the folder of this attempt from
            // it, and of no other: one that is left is that of another attempt.
            let has = |text: &str| files[0].1.windows(text.len()).any(|piece| piece == text.as_bytes());
            assert!(has(&format!("\"color\":{color},")), "the picture of another job: {ended}");
            assert!(has("\"filename_prefix\":\"picture\"") && !has("remuda/"), "of another attempt: {ended}");
            let attempt = ended["attempt"].as_u64().and_then(|it| u32::try_from(it).ok()).unwrap();
            let id = prompt_id(job, attempt);
            assert!(counts.iter().any(|counts| counts.executions.contains_key(&id)), "it never ran: {ended}");
        }
        Kind::Fails => {
            assert_eq!(ended["state"], "failed", "{ended}");
            assert!((1..=2).contains(&ended["failures"].as_u64().unwrap()), "{ended}");
            assert!(reason.contains("RemudaFail"), "{ended}");
        }
        Kind::Wrong => {
            assert_eq!((&ended["state"], &ended["failures"]), (&json!("failed"), &json!(1)), "{ended}");
            assert!(reason.contains("steps"), "{ended}");
        }
    }
}

/// How often the servers ran something, and which executions were for nothing: a later attempt of the job was run although
/// this one met no fault that spoils its result, so that the server had it still, or had its result. A second execution
/// under one id is for nothing too, unless it was the server that queued it twice.
fn waste(counts: &[Counts], jobs: &BTreeMap<String, Kind>) -> (usize, Vec<(String, u32)>) {
    let mut runs: BTreeMap<&str, (u32, BTreeSet<Fault>)> = BTreeMap::new();
    for counts in counts {
        for (id, times) in &counts.executions {
            let run = runs.entry(id).or_default();
            run.0 += times;
            run.1.extend(counts.drawn.get(id).into_iter().flatten());
        }
    }
    let (mut executions, mut wasted) = (0, Vec::new());
    for (job, kind) in jobs {
        let mut has_later = false;
        for attempt in (1..=ATTEMPTS_MAX).rev() {
            let Some((times, faults)) = runs.get(prompt_id(job, attempt).as_str()) else { continue };
            executions += *times as usize;
            let is_spoilt =
                !matches!(kind, Kind::Good(_)) || faults.iter().any(|fault| SPOILS.contains(fault));
            let is_doubled = *times > 1 && !faults.contains(&Fault::Duplicate);
            if is_doubled || has_later && !is_spoilt {
                eprintln!("attempt {attempt} of {job} ran {times} times and met {faults:?}");
                wasted.push((job.clone(), attempt));
            }
            has_later = true;
        }
    }
    (executions, wasted)
}
