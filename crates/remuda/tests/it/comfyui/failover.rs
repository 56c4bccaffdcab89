//! Failover as its users know it: blocks that come and go when they should, retries, pins, preferences, limits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use remuda_fakes::comfyui::Options;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::fixture::{ComfyFixture, Server, begun, completed_at_once, executions, gave_a_picture, worker};
use super::graph::{loaded, picture};
use crate::harness::{
    Plane, QUICK, Stream, Worker, answered, assert_contains_all, assert_stays_open, remuda,
};

/// Nodes that take no time at all.
async fn instant_server() -> Server {
    Server::fake(Options { speed: f64::INFINITY, ..Options::default() }).await
}

/// A plane with workers on as many servers.
async fn fleet(settings: &[&str], names: &[&str]) -> (Plane, Vec<Server>, Vec<Worker>) {
    let plane = Plane::start(&[QUICK, settings].concat()).await;
    let (mut servers, mut workers) = (Vec::new(), Vec::new());
    for name in names {
        let server = Server::fake(Options::default()).await;
        workers.push(worker(&plane, name, &server.url(), &[]).await);
        servers.push(server);
    }
    (plane, servers, workers)
}

/// Faults: C13.
#[tokio::test]
async fn third_failure_blocks_at_threshold_three() {
    let settings = ["max_failures_before_block=3", "block.cooldown=1h", "block.cooldown_max=1h"];
    let stage = ComfyFixture::with(instant_server().await, &settings, &[]).await;
    let mut events = Stream::open(&stage, "?after=0&metadata.user=anna", None).await;
    let workflow = picture(1).fail("error").saved();
    let submission = json!({ "workflow": workflow, "metadata": { "user": "anna" }, "attempts_max": 3 });
    let job = stage.submit_as(submission).await;
    let mut names = Vec::new();
    let blocked = loop {
        let event = events.next().await;
        names.push(event.name.clone());
        if event.name == "client:blocked_workflow" {
            break event;
        }
    };
    names.retain(|name| name == "job:started" || name == "job:retrying");
    let tried = ["job:started", "job:retrying", "job:started", "job:retrying", "job:started"];
    assert_eq!(names, tried, "not with the first, nor with the second");
    let (detail, accepted) = (&blocked.data["detail"], stage.job(&job).await);
    assert_eq!((&blocked.data["job"], &blocked.data["metadata"]["user"]), (&json!(job), &json!("anna")));
    assert_eq!((&blocked.data["worker"], &detail["failures"]), (&json!(stage.worker.name), &json!(3)));
    assert_eq!(
        (&detail["shape"], &detail["workflow_hash"]),
        (&accepted["shape"], &accepted["workflow_hash"])
    );
    assert!(detail["until"].is_string(), "{detail}");
    // No other worker could take it: the block ends at once, and nothing waits for it.
    assert_eq!(stage.ended(&job).await["state"], "failed");
    assert_eq!(stage.get("/remuda/v1/blocks").await["blocks"], json!([]));
    completed_at_once(&stage.run(picture(2).saved()).await);
}

/// Faults: C14.
#[tokio::test]
async fn block_ends_after_cooldown_without_submission() {
    let stage =
        ComfyFixture::with(instant_server().await, &["attempts_max=1", "block.cooldown=1s"], &[]).await;
    let mut events = Stream::open(&stage, "?after=0&name=client", None).await;
    let job = stage.submit(picture(1).fail("error").saved()).await;
    events.until("client:blocked_workflow").await;
    assert_eq!(stage.ended(&job).await["state"], "failed");
    let unblocked = events.until("client:unblocked_workflow").await;
    assert_eq!(unblocked.data["worker"], stage.worker.name);
    assert_eq!(unblocked.data["detail"]["failures"], 1);
}

/// Faults: J7.
#[tokio::test]
async fn retries_that_a_job_asks_for_wait_for_no_block() {
    for exempt in ["true", "false"] {
        let exempt = format!("block.exempt_sole_worker={exempt}");
        let settings = ["block.cooldown=1h", "block.cooldown_max=1h", &exempt];
        let stage = ComfyFixture::with(instant_server().await, &settings, &[]).await;
        let submission = json!({ "workflow": picture(1).fail("error").saved(), "attempts_max": 3 });
        let ended = stage.ended(&stage.submit_as(submission).await).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("failed"), &json!(3)), "{ended}");
    }
}

#[tokio::test]
async fn cancelled_job_never_runs() {
    let stage = ComfyFixture::fake().await;
    let busy = stage.submit(picture(0).sleep(60.0, 60).saved()).await;
    stage.begun(&busy, 1).await;
    let mut waiting = Vec::new();
    for color in 1..=20 {
        waiting.push(stage.submit(picture(color).saved()).await);
    }
    for job in waiting.iter().chain([&busy]) {
        assert_eq!(stage.cancel(job).await.0, StatusCode::OK);
    }
    // Whatever was left over would come before this one.
    let last = stage.run(picture(99).saved()).await;
    assert_eq!(last["state"], "completed");
    for job in &waiting {
        assert_eq!(executions(&[&stage.server], job), 0, "{job} was cancelled before anyone had it");
        assert_eq!(stage.job(job).await["state"], "cancelled");
    }
    assert_eq!(executions(&[&stage.server], &busy), 1);
}

#[tokio::test]
async fn pinned_jobs_do_not_delay_other_workers() {
    let (plane, servers, workers) = fleet(&[], &["busy", "idle"]).await;
    let pinned = |color, seconds| json!({ "workflow": picture(color).sleep(seconds, 10).saved(), "needs": { "pin": workers[0].name } });
    let long = plane.submit_as(pinned(0, 60.0)).await;
    begun(&servers[0], &long, 1).await;
    for color in 1..=150 {
        plane.submit_as(pinned(color, 0.1)).await;
    }
    let asked_at = Instant::now();
    let free = plane.submit(picture(999).saved()).await;
    let ended = plane.ended(&free).await;
    assert_eq!((&ended["state"], &ended["worker"]), (&json!("completed"), &json!(workers[1].name)));
    assert!(asked_at.elapsed() < Duration::from_secs(20), "{:?}", asked_at.elapsed());
    assert_eq!(plane.job(&long).await["state"], "running");
    assert_eq!(plane.get("/remuda/v1/status").await["ready_jobs"], 150);
}

#[tokio::test]
async fn two_hundred_instant_jobs_complete_exactly_once() {
    let plane = Plane::start(QUICK).await;
    let servers = [instant_server().await, instant_server().await];
    let _workers = [
        worker(&plane, "a", &servers[0].url(), &["--slots", "4"]).await,
        worker(&plane, "b", &servers[1].url(), &["--slots", "4"]).await,
    ];
    let mut events = Stream::open(&plane, "?after=0&name=job:completed", None).await;
    let mut jobs = BTreeSet::new();
    for color in 0..200 {
        jobs.insert(plane.submit(picture(color).previewed()).await);
    }
    let mut told = BTreeSet::new();
    while told.len() < jobs.len() {
        let event = events.next().await;
        if event.name == "job:completed" {
            let job = event.data["job"].as_str().unwrap().to_owned();
            assert!(told.insert(job), "{event:?} came twice");
        }
    }
    assert_eq!(told, jobs);
    for job in &jobs {
        let is = plane.job(job).await;
        assert_eq!((&is["state"], &is["attempt"]), (&json!("completed"), &json!(1)), "{is}");
        assert_eq!(executions(&[&servers[0], &servers[1]], job), 1, "{job}");
    }
    assert_stays_open(Duration::from_millis(300), events.until("job:completed")).await;
}

#[tokio::test]
async fn preferred_workers_are_chosen_and_excluded_never() {
    let (plane, servers, workers) = fleet(&[], &["a", "b", "c"]).await;
    let names: Vec<_> = workers.iter().map(|worker| worker.name.clone()).collect();
    let as_wished = |color: u64, wish: Value| {
        let mut submission = json!({ "workflow": picture(color).sleep(30.0, 30).saved() });
        submission.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
        submission
    };
    let first = plane.submit_as(as_wished(1, json!({ "preferred": [names[2]] }))).await;
    assert_eq!(plane.runs_on(&first).await, names[2]);
    let second = plane.submit_as(as_wished(2, json!({ "preferred": [names[2]] }))).await;
    assert_ne!(plane.runs_on(&second).await, names[2], "a preference, not a pin");
    begun(&servers[2], &first, 1).await;
    let third = plane.submit_as(as_wished(3, json!({ "needs": { "excluded": [names[0], names[1]] } }))).await;
    let why = plane.why(&third).await;
    let against: Vec<_> =
        why["candidates"].as_array().unwrap().iter().map(|it| it["passed_over"].as_str().unwrap()).collect();
    assert_eq!(against, ["is excluded by the job", "is excluded by the job", "is busy (1 of 1 slots)"]);
}

#[tokio::test]
async fn affinities_survive_crash_and_route_shape() {
    let (mut plane, _servers, workers) = fleet(&[], &["a", "b"]).await;
    let (a, b) = (workers[0].name.clone(), workers[1].name.clone());
    let done = plane.submit(picture(1).saved()).await;
    let shape = plane.ended(&done).await["shape"].as_str().unwrap().to_owned();
    let path = format!("/remuda/v1/affinities/{shape}");
    let set = async |plane: &Plane, affinity: Value| {
        answered(plane.request(Method::PUT, &path).json(&affinity)).await
    };
    let (status, answer) = set(&plane, json!({ "preferred": [b], "excluded": [a, b] })).await;
    assert_eq!((status, &answer["excluded"]), (StatusCode::OK, &json!([a, b])), "{answer}");
    assert_eq!(set(&plane, json!({})).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(set(&plane, json!({ "prefered": [] })).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let job = plane.submit(picture(2).saved()).await;
    plane.kill();
    plane.start_again().await;
    // A worker that has run something since the restart has also beaten since.
    for (color, worker) in [(3, &a), (4, &b)] {
        let other = json!({ "workflow": picture(color).previewed(), "needs": { "pin": worker } });
        let other = plane.submit_as(other).await;
        completed_at_once(&plane.ended(&other).await);
    }
    let excluded = "unschedulable: an affinity excludes every matching worker for its shape";
    assert_eq!(plane.why(&job).await["reason"], excluded);
    assert_eq!(plane.get(&path).await["preferred"], json!([b]));
    set(&plane, json!({ "preferred": [b] })).await;
    assert_eq!(plane.ended(&job).await["worker"], b);
    assert_eq!(answered(plane.request(Method::DELETE, &path)).await.0, StatusCode::OK);
    assert_eq!(answered(plane.request(Method::DELETE, &path)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(plane.get("/remuda/v1/affinities").await, json!({ "affinities": [] }));
}

#[tokio::test]
async fn start_limit_moves_job_to_another_worker() {
    let (plane, servers, workers) = fleet(&[], &["full", "free"]).await;
    // Another user's prompt keeps the server busy.
    let foreign = json!({ "prompt": picture(7).sleep(600.0, 600).saved(), "client_id": "another-user" });
    let (status, answer) =
        answered(plane.http.post(format!("{}/prompt", servers[0].url())).json(&foreign)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let job = plane
        .submit_as(json!({
            "workflow": picture(1).saved(), "preferred": [workers[0].name], "start_limit_seconds": 2,
            "retry_delay_seconds": 0,
        }))
        .await;
    let ended = plane.ended(&job).await;
    assert_eq!(
        (&ended["state"], &ended["worker"]),
        (&json!("completed"), &json!(workers[1].name)),
        "{ended}"
    );
    let first = plane.why(&job).await["attempts"][0].clone();
    assert_eq!((&first["worker"], &first["cause"]), (&json!(workers[0].name), &json!("service")), "{first}");
    assert!(
        first["message"].as_str().unwrap().starts_with("not started within its start limit of 2 s"),
        "{first}"
    );
    assert_eq!(plane.get("/remuda/v1/blocks").await["blocks"], json!([]), "it says nothing of the pair");
}

#[tokio::test]
async fn node_limit_fails_attempt_without_progress() {
    let stage = ComfyFixture::fake().await;
    // One that goes on for longer than that, and says so, is left alone.
    let long = stage
        .submit_as(json!({ "workflow": picture(2).sleep(9.0, 90).saved(), "node_limit_seconds": 6 }))
        .await;
    completed_at_once(&stage.ended(&long).await);
    let job = stage
        .submit_as(json!({
            "workflow": picture(1).hold(60.0).saved(), "node_limit_seconds": 1, "attempts_max": 1,
        }))
        .await;
    let ended = stage.ended(&job).await;
    assert_eq!((&ended["state"], &ended["failures"]), (&json!("failed"), &json!(1)), "{ended}");
    assert!(
        ended["reason"].as_str().unwrap().contains("no progress within its node limit of 1 s"),
        "{ended}"
    );
}

#[tokio::test]
async fn attachment_replaces_its_name_in_graph() {
    let stage = ComfyFixture::fake().await;
    let drawn = stage.run(picture(5).saved()).await;
    let hash = drawn["result"]["outputs"][0]["hash"].clone();
    let attached =
        |name: &str| json!({ "workflow": loaded(&json!("photo.png")), "attachments": { name: hash } });
    let job = stage.submit_as(attached("photo.png")).await;
    let ended = stage.ended(&job).await;
    completed_at_once(&ended);
    gave_a_picture(&stage, &ended).await;
    let workflow = stage.get(&format!("/remuda/v1/jobs/{job}/workflow")).await;
    assert_eq!(workflow["1"]["inputs"]["image"]["info"]["hash"], hash, "{workflow}");
    let (status, answer) = stage.post("/remuda/v1/jobs", &attached("other.png")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["error"]["message"].as_str().unwrap().contains("\"other.png\": no input"), "{answer}");
}

/// What an operator types, and what is said to it.
async fn typed(plane: &Plane, arguments: &[&str]) -> String {
    let mut command = remuda(plane.folder());
    command.args(arguments).args(["--url", &plane.url]);
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(ended.status.success(), "{arguments:?}: {}", text(ended.stderr));
    text(ended.stdout)
}

#[tokio::test]
async fn commands_list_and_lift_blocks_and_affinities() {
    let settings = ["block.cooldown=1h", "block.cooldown_max=1h"];
    let other = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, &settings, &[]).await;
    let name = stage.worker.name.as_str();
    // The file is on the other server only: the shape completes there, and then that server is busy.
    let (_, content) = super::fixture::files(&stage, &stage.run(picture(7).saved()).await).await.remove(0);
    super::inputs::upload(&other.url(), "only-there.png", &content).await;
    let second = worker(&stage, "other", &other.url(), &[]).await;
    std::fs::write(stage.folder().join("bad.json"), loaded(&json!("only-there.png")).to_string()).unwrap();
    let done = typed(&stage, &["run", "bad.json", "--detach", "--pin", &second.name]).await.trim().to_owned();
    assert_eq!(stage.ended(&done).await["state"], "completed");
    let busy = json!({ "workflow": picture(8).sleep(600.0, 6000).saved(), "needs": { "pin": second.name } });
    let busy = stage.submit_as(busy).await;
    begun(&other, &busy, 1).await;
    let typed_run = ["run", "bad.json", "--detach", "--prefer", name, "--retry-delay", "0"];
    let job = typed(&stage, &typed_run).await.trim().to_owned();
    let waiting =
        stage.job_until(&job, "is blocked", |it| it["reason"].as_str().unwrap().contains("blocked")).await;
    assert_eq!(waiting["options"], json!({ "retry_delay_seconds": 0.0, "preferred": [name] }));
    let shape = waiting["shape"].as_str().unwrap();
    assert_contains_all(
        &typed(&stage, &["blocks"]).await,
        &["BLOCKED", name, &shape[..12], "only-there.png"],
    );
    let lift = format!("`remuda blocks lift {name} {}` ends a block at once", &shape[..12]);
    assert_contains_all(&typed(&stage, &["why", &job]).await, &["is blocked for it until", &lift]);
    // Excluded before the block is lifted: it waits for another worker.
    let set = typed(&stage, &["affinities", "set", "bad.json", "--exclude", name]).await;
    assert_contains_all(&set, &["EXCLUDED", &shape[..12], name]);
    assert_contains_all(&typed(&stage, &["blocks", "lift", name, &shape[..12]]).await, &["may run", "again"]);
    assert_contains_all(&typed(&stage, &["blocks"]).await, &["no blocks"]);
    let listed: Value = serde_json::from_str(&typed(&stage, &["affinities", "--json"]).await).unwrap();
    assert_eq!(listed["affinities"][0], json!({ "shape": shape, "preferred": [], "excluded": [name] }));
    assert_contains_all(&typed(&stage, &["why", &job]).await, &["is excluded for this shape by an affinity"]);
    assert_contains_all(
        &typed(&stage, &["affinities", "remove", &shape[..8]]).await,
        &["may run anywhere again"],
    );
    stage.cancel(&busy).await;
    assert_eq!(stage.ended(&job).await["state"], "completed");
    let events = ["events", "--once", "--worker", name, "--name", "client", "--json"];
    assert_contains_all(
        &typed(&stage, &events).await,
        &["client:blocked_workflow", "client:unblocked_workflow", "client:state"],
    );
}
