//! A plane that is killed again and again under load: nothing that was acknowledged is lost, nothing is doubled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Client, Plane, ScriptedWorker, TestRng, WAIT_MAX, sleep_for};

const KILLS: usize = 100;
const CLIENTS: u64 = 3;
const WORKERS: u64 = 3;
const SLOTS: u32 = 4;
/// Clients hold back when so many jobs wait: the storm is to hit beginnings and ends as often as submissions.
const WAITING_MAX: usize = 100;

/// What those outside know to be true, whatever became of the plane meanwhile.
#[derive(Debug, Default)]
struct Known {
    /// Jobs that were acknowledged, and the number each was given.
    accepted: BTreeMap<String, u64>,
    /// Every time a worker began something: job, attempt, worker.
    begun: Vec<(String, u64, String)>,
}

#[derive(Clone, Debug)]
struct Storm {
    client: Client,
    known: Arc<Mutex<Known>>,
    /// No more submissions.
    is_calm: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

/// Faults: C1, D4, D5, A6, C17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plane_killed_hundred_times_loses_and_duplicates_nothing() {
    let mut luck = TestRng::new();
    let mut plane = Plane::start(&["plane_stall_max=5s"]).await;
    let storm = Storm::new(&plane);
    let mut clients = JoinSet::new();
    let mut workers = JoinSet::new();
    for n in 0..CLIENTS {
        clients.spawn(storm.clone().submit(n));
    }
    for n in 0..WORKERS {
        let hand = ScriptedWorker::join(&storm.client, &format!("w{n}"), SLOTS).await;
        workers.spawn(storm.clone().work(hand));
    }
    for _ in 0..KILLS {
        sleep_for(luck.millis(30, 200)).await;
        plane.kill();
        // Now and then it is killed before it has even begun to serve.
        if luck.below(4) == 0 { plane.spawn_again() } else { plane.start_again().await }
    }
    plane.kill();
    plane.start_again().await;
    storm.is_calm.store(true, Ordering::Relaxed);
    clients.join_all().await;
    let accepted = storm.known.lock().unwrap().accepted.len();
    eprintln!("{accepted} jobs were accepted; now {}", plane.get("/remuda/v1/status").await);
    all_ended(&plane).await;
    storm.is_over.store(true, Ordering::Relaxed);
    workers.join_all().await;
    let known = std::mem::take(&mut *storm.known.lock().unwrap());
    assert!(known.accepted.len() > KILLS, "only {} jobs: hardly a load", known.accepted.len());
    check_jobs(&storm.client, &known).await;
    check_begun(&known);
    check_history(&plane, &known).await;
}

/// Waits until nothing is open any more; what stays open is told with its whole story.
async fn all_ended(plane: &Plane) {
    let deadline = Instant::now() + WAIT_MAX;
    while plane.get("/remuda/v1/status").await["open_jobs"] != 0 {
        if Instant::now() > deadline {
            for job in plane.jobs().await.iter().filter(|job| job["state"] != "completed") {
                eprintln!("{}", plane.why(job["id"].as_str().unwrap()).await);
            }
            panic!(
                "not every job has ended: {} {}",
                plane.get("/remuda/v1/status").await,
                plane.get("/remuda/v1/workers").await
            );
        }
        sleep_for(Duration::from_millis(50)).await;
    }
}

impl Storm {
    fn new(plane: &Plane) -> Storm {
        // Kept connections: those that break with the plane are part of the storm.
        let http = remuda_net::http_client::client_builder().timeout(Duration::from_secs(5)).build().unwrap();
        let client = Client { http, url: plane.url.clone(), token: String::new() };
        Storm { client, known: Arc::default(), is_calm: Arc::default(), is_over: Arc::default() }
    }

    /// Asks until there is an answer that says yes; the same question may be asked many times.
    async fn insist(&self, path: &str, body: &Value) -> Value {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            assert!(Instant::now() < deadline, "no answer for {WAIT_MAX:?}");
            if let Some(answer) = heard(self.client.request(Method::POST, path).json(body)).await {
                return answer;
            }
        }
    }

    async fn submit(self, client: u64) {
        let mut luck = TestRng::new();
        for n in 0.. {
            if self.is_calm.load(Ordering::Relaxed) {
                return;
            }
            if self.waiting() > WAITING_MAX {
                sleep_for(Duration::from_millis(5)).await;
                continue;
            }
            let number = client * 1_000_000 + n;
            let key = format!("client {client}, job {n}");
            let submission = json!({ "workflow": { "n": number }, "idempotency_key": key });
            let id = self.insist("/remuda/v1/jobs", &submission).await["id"].clone();
            if luck.below(10) == 0 {
                let again = self.insist("/remuda/v1/jobs", &submission).await;
                assert_eq!(again, json!({ "id": id, "created": false }), "{key}");
            }
            self.known.lock().unwrap().accepted.insert(id.as_str().unwrap().to_owned(), number);
        }
    }

    fn waiting(&self) -> usize {
        let known = self.known.lock().unwrap();
        known.accepted.len().saturating_sub(known.begun.len())
    }

    /// Does what it is told to, remembers what it did, and says so until it is heard.
    async fn work(self, mut hand: ScriptedWorker) {
        let mut luck = TestRng::new();
        let mut held: BTreeMap<String, (Instant, Value)> = BTreeMap::new();
        let mut finished: Vec<Value> = Vec::new();
        let mut begun = BTreeSet::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let now = Instant::now();
            let done = held.extract_if(.., |_, (done_at, _)| *done_at <= now);
            finished.extend(done.map(|(_, (_, done))| done));
            let holds: Vec<_> = held.values().map(|(_, done)| attempt_of(done)).collect();
            let wait = if finished.is_empty() { 0.03 } else { 0.0 };
            let beat = hand.beat(&json!(holds), &json!(finished), wait);
            let Some(reply) = heard(beat).await else { continue };
            hand.term = reply["term"].as_u64().unwrap();
            assert!(reply.get("cancel").is_none(), "nothing is given up for an outage of the plane: {reply}");
            for settled in list(&reply["settled"]) {
                finished.retain(|finished| attempt_of(finished) != attempt_of(settled));
            }
            for start in list(&reply["start"]) {
                let (job, attempt) = (start["job"].as_str().unwrap(), start["attempt"].as_u64().unwrap());
                // The same order may come twice, and is the same order.
                if begun.insert((job.to_owned(), attempt)) {
                    let it = (job.to_owned(), attempt, hand.name.clone());
                    self.known.lock().unwrap().begun.push(it);
                    held.insert(job.to_owned(), (now + luck.millis(0, 60), completed(start)));
                }
            }
        }
    }
}

/// None if the plane did not answer or asked to retry.
async fn heard(request: reqwest::RequestBuilder) -> Option<Value> {
    let answer = match request.send().await {
        Ok(answer) => Some((answer.status(), answer.json::<Value>().await)),
        Err(_) => None,
    };
    match answer {
        Some((status, Ok(answer))) if status.is_success() => return Some(answer),
        Some((status, Ok(answer))) => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}"),
        Some((_, Err(_))) | None => {}
    }
    sleep_for(Duration::from_millis(10)).await;
    None
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn attempt_of(it: &Value) -> Value {
    json!({ "job": it["job"], "attempt": it["attempt"] })
}

/// A worker's report on an order; the result tells whose it is.
fn completed(start: &Value) -> Value {
    let number = start["workflow"]["n"].as_u64().unwrap();
    json!({ "job": start["job"], "attempt": start["attempt"], "outcome": "completed", "result": result(number) })
}

fn result(number: u64) -> Value {
    json!({ "square": number * number })
}

/// The store has what was acknowledged and nothing else, each completed once with its own result.
async fn check_jobs(client: &Client, known: &Known) {
    let jobs = client.jobs().await;
    let stored: BTreeSet<_> = jobs.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(stored.len(), jobs.len(), "no job is listed twice");
    assert_eq!(stored, known.accepted.keys().map(String::as_str).collect());
    for job in &jobs {
        assert_eq!((&job["state"], &job["attempt"]), (&json!("completed"), &json!(1)), "{job}");
    }
    for (job, number) in &known.accepted {
        assert_eq!(client.get(&format!("/remuda/v1/jobs/{job}/result")).await, result(*number), "{job}");
    }
}

/// Every job was begun once, by one worker.
fn check_begun(known: &Known) {
    let mut begun: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for (job, attempt, worker) in &known.begun {
        begun.entry(job).or_default().push((*attempt, worker));
    }
    let doubled: Vec<_> = begun.iter().filter(|(_, begun)| begun.len() > 1).collect();
    assert!(doubled.is_empty(), "begun more than once: {doubled:?}");
    assert_eq!(begun.len(), known.accepted.len());
}

/// The events have no gap, and tell of one beginning and one end for each job.
async fn check_history(client: &Client, known: &Known) {
    let history = client.history().await;
    let numbers: Vec<_> = history.iter().map(|event| event.seq.unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "a gap: {numbers:?}");
    for name in ["job:queued", "job:started", "job:completed"] {
        let of_name = history.iter().filter(|event| event.name == name);
        let jobs: Vec<_> = of_name.map(|event| event.data["job"].as_str().unwrap()).collect();
        let distinct: BTreeSet<_> = jobs.iter().copied().collect();
        assert_eq!(jobs.len(), distinct.len(), "{name} was told twice of one job");
        assert_eq!(distinct, known.accepted.keys().map(String::as_str).collect(), "{name}");
    }
    let others = ["job:failed", "job:cancelled", "job:retrying"];
    assert!(history.iter().all(|event| !others.contains(&event.name.as_str())));
}
