//! Operations: machines, fleets, costs, drains and cycles, over HTTP and from the command line.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::process_fleet::ProcessFleet;
use crate::harness::{
    Client, Gate, Plane, QUICK, ScriptedWorker, Worker, answered, assert_contains_all, wait_until,
};
use crate::start::run;

/// Runs a command against the plane: its exit code and what it said.
async fn remuda(plane: &Plane, arguments: &[&str]) -> (i32, String) {
    run(plane.folder(), &[arguments, &["--url", &plane.url]].concat()).await
}

/// As `remuda`, for one that does as it is told.
async fn done(plane: &Plane, arguments: &[&str]) -> String {
    let (code, said) = remuda(plane, arguments).await;
    assert_eq!(code, 0, "remuda {}: {said}", arguments.join(" "));
    said
}

async fn as_json(plane: &Plane, arguments: &[&str]) -> Value {
    let said = done(plane, &[arguments, &["--json"]].concat()).await;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

async fn code(client: &Client, method: Method, path: &str, body: &Value) -> (StatusCode, String) {
    let (status, answer) = answered(client.request(method, path).json(body)).await;
    (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
}

fn dollars(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no money"))
}

#[tokio::test]
async fn rented_machine_shows_details_and_cost() {
    // A hundred dollars an hour: a second is nearly three cents.
    let yard = ProcessFleet::start(
        "machines_min = 1\nmachines_max = 1\nprice = 100\nidle_timeout = '1h'\n",
        None,
        "sleep 0.5; echo '{}'",
    )
    .await;
    let name = yard.until_active(1).await.remove(0);
    let machine = yard.get(&format!("/remuda/v1/machines/{name}")).await;
    assert_eq!(
        (&machine["is_rented"], &machine["fleet"], &machine["phase"]),
        (&json!(true), &json!("local"), &json!("up"))
    );
    assert_eq!((&machine["state"], &machine["presence"]), (&json!("active"), &json!("online")));
    assert_eq!((&machine["workers"], &machine["waiting"]), (&json!([name]), &Value::Null));
    assert_eq!(dollars(&machine["price_dollars"]), 100.0);
    assert!(dollars(&machine["cost_dollars"]) > 0.0 && machine["pod"].is_string(), "{machine}");
    let listed = yard.get("/remuda/v1/machines").await;
    assert_eq!(listed["machines"][0]["pod"], machine["pod"]);
    assert_contains_all(&done(&yard, &["machines"]).await, &["PER HOUR", &name, "up", "online", "$100.00"]);
    assert_contains_all(
        &done(&yard, &["machines", &name]).await,
        &["tag       remuda-", "costs     $100.00 an hour", "so far"],
    );
    assert_eq!(as_json(&yard, &["machines", &name]).await["machine"], json!(name));

    // A worker that joined by hand is shown too, and costs nothing.
    ScriptedWorker::join(&yard, "tower", 2).await;
    let tower = yard.get("/remuda/v1/machines/tower").await;
    assert_eq!(
        (&tower["is_rented"], &tower["state"], &tower["price_dollars"]),
        (&json!(false), &json!("active"), &Value::Null)
    );
    let (exit, said) = remuda(&yard, &["machines", "nowhere"]).await;
    assert_eq!(exit, 1);
    assert_contains_all(&said, &["there is no machine nowhere", "remuda machines"]);

    let views = yard.get("/remuda/v1/views/active_workers_health").await;
    let rows = views["active_workers_health"].as_array().unwrap();
    let row = rows.iter().find(|row| row["worker"] == *name).unwrap();
    assert_eq!(
        (&row["fleet"], &row["state"], &row["machine"]),
        (&json!("local"), &json!("active"), &json!(name))
    );
}

#[tokio::test]
async fn cost_is_split_by_fleet_tenant_job_and_hour() {
    let yard = ProcessFleet::start(
        "machines_min = 1\nmachines_max = 1\nprice = 100\nidle_timeout = '1h'\n",
        None,
        "sleep 0.5; echo '{}'",
    )
    .await;
    yard.until_active(1).await;
    let job = yard.submit_as(json!({ "workflow": { "n": 1 }, "tenant": "anna" })).await;
    yard.until_done(std::slice::from_ref(&job)).await;
    let by = async |by: &str| yard.get(&format!("/remuda/v1/cost?by={by}")).await;

    let fleets = by("fleet").await;
    let (spent, row) = (dollars(&fleets["spent_dollars"]), &fleets["fleets"][0]);
    assert_eq!((&row["fleet"], &row["machines"]), (&json!("local"), &json!(1)));
    assert_eq!((dollars(&row["per_hour_dollars"]), dollars(&fleets["per_hour_dollars"])), (100.0, 100.0));
    assert_eq!(dollars(&row["spent_dollars"]), spent);

    let jobs = by("job").await;
    let cost = dollars(&jobs["jobs"][0]["cost_dollars"]);
    assert_eq!((&jobs["jobs"][0]["job"], &jobs["jobs"][0]["tenant"]), (&json!(job), &json!("anna")));
    // Half a second of work is 1.4 cents at least.
    assert!(cost >= 0.0138 && cost < spent, "{jobs} of {spent}");
    let tenants = by("tenant").await;
    assert_eq!(tenants["tenants"], json!([{ "tenant": "anna", "jobs": 1, "cost_dollars": cost }]));
    let left = dollars(&tenants["spent_dollars"]) - cost;
    assert!((dollars(&tenants["unattributed_dollars"]) - left).abs() < 1e-5, "{tenants}");
    assert_eq!(tenants["is_cut"], json!(false));
    let hours = by("hour").await;
    let sum: f64 =
        hours["hours"].as_array().unwrap().iter().map(|hour| dollars(&hour["spent_dollars"])).sum();
    assert!(sum >= spent && hours["hours"].as_array().unwrap().len() == 25, "{hours}");

    // Machines that are gone still count as spent.
    done(&yard, &["fleet", "scale", "local", "0"]).await;
    wait_until("it is gone", async || {
        (yard.get("/remuda/v1/machines").await["machines"] == json!([])).then_some(())
    })
    .await;
    let after = by("fleet").await;
    assert_eq!((dollars(&after["per_hour_dollars"]), &after["fleets"][0]["machines"]), (0.0, &json!(0)));
    assert!(dollars(&after["spent_dollars"]) > spent, "{after}");
    let again = by("hour").await;
    let sum: f64 =
        again["hours"].as_array().unwrap().iter().map(|hour| dollars(&hour["spent_dollars"])).sum();
    assert!((sum - dollars(&again["spent_dollars"])).abs() < 1e-4, "{again}");

    assert_contains_all(&done(&yard, &["cost"]).await, &["FLEET", "local", "$0.00 an hour now"]);
    assert_contains_all(
        &done(&yard, &["cost", "--by", "tenant", "--since", "1h"]).await,
        &["anna", "for jobs", "machines"],
    );
    assert_contains_all(&done(&yard, &["cost", "--by", "job"]).await, &[&job, "anna"]);
    assert_contains_all(&done(&yard, &["cost", "--by", "hour"]).await, &["HOUR (UTC)"]);
    for (query, word) in
        [("by=colour", "by"), ("from=9999999999999999", "before it begins"), ("since=1", "since")]
    {
        let (status, message) =
            code(&yard, Method::GET, &format!("/remuda/v1/cost?{query}"), &json!({})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert_contains_all(&message, &[word]);
    }
    let (exit, said) = remuda(&yard, &["cost", "--by", "colour"]).await;
    assert_eq!(exit, 2);
    assert_contains_all(&said, &["fleet, tenant, job, hour"]);
}

#[tokio::test]
async fn fleet_commands_pause_resume_and_scale() {
    let yard = ProcessFleet::start(
        "machines_min = 0\nmachines_max = 3\njobs_per_worker = 1\n",
        Some("gate"),
        "echo '{}'",
    )
    .await;
    assert_contains_all(
        &done(&yard, &["fleet", "pause", "local", "--reason", "a bad day"]).await,
        &["local does not scale"],
    );
    let jobs = yard.submit_many(2).await;
    let cycle = done(&yard, &["cycle"]).await;
    assert_contains_all(&cycle, &["a cycle ran", "local: 2 wanted", "the fleet is paused: a bad day"]);
    assert_eq!(yard.starts(), Vec::<String>::new(), "nothing is rented for a paused fleet");
    assert_contains_all(&done(&yard, &["fleet"]).await, &["local", "queue 1", "paused: a bad day"]);
    let fleet = yard.get("/remuda/v1/fleets/local").await;
    assert_eq!((&fleet["machines_wanted"], &fleet["machines_total"]), (&json!(2), &json!(0)));
    assert_eq!((&fleet["queued_jobs"], &fleet["paused"]), (&json!(2), &json!("a bad day")));

    done(&yard, &["fleet", "resume", "local"]).await;
    yard.until_active(2).await;
    assert_eq!(yard.get("/remuda/v1/fleets/local").await["paused"], Value::Null);
    assert_contains_all(
        &done(&yard, &["fleet", "scale", "local", "9"]).await,
        &["9 machines", "maximum of 3 still applies"],
    );
    yard.until_active(3).await;
    assert_contains_all(
        &done(&yard, &["fleet", "show", "local"]).await,
        &["wanted      3 of 0 to 3; fixed at 9", "limits"],
    );
    yard.open("gate");
    yard.until_done(&jobs).await;
    done(&yard, &["fleet", "scale", "local", "1"]).await;
    yard.until_left(1).await;
    let answer = as_json(&yard, &["fleet", "scale", "local", "auto"]).await;
    assert_eq!((&answer["fleet"], &answer["machines_set"]), (&json!("local"), &Value::Null));
    yard.until_left(0).await;
    assert_contains_all(
        &done(&yard, &["fleet", "reset-brake", "local"]).await,
        &["may create machines again"],
    );

    for order in ["show", "pause", "resume", "reset-brake"] {
        let (exit, said) = remuda(&yard, &["fleet", order, "other"]).await;
        assert_eq!(exit, 1, "{said}");
        assert_contains_all(&said, &["there is no fleet other", "[[fleet]]"]);
    }
    let (exit, said) = remuda(&yard, &["fleet", "scale", "local", "many"]).await;
    assert_eq!(exit, 2);
    assert_contains_all(&said, &["not a number of machines", "auto"]);
    let (status, message) =
        code(&yard, Method::POST, "/remuda/v1/fleets/local/scale", &json!({ "size": 3 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_contains_all(&message, &["{\"machines\": 4}"]);

    let data = yard.store().parent().unwrap().display().to_string();
    let (_, log) = run(yard.folder(), &["audit", "--data", &data, "--json"]).await;
    assert_contains_all(
        &log,
        &["fleet.pause", "fleet.resume", "fleet.scale", "fleet.reset_brake", "cycle.run"],
    );
}

#[tokio::test]
async fn dry_run_changes_nothing() {
    let plane = Plane::start(&[QUICK, &["cycle_every=1h"]].concat()).await;
    plane.submit(json!({ "n": 1 })).await;
    let cycles = async || plane.get("/remuda/v1/cycles").await["cycles"].as_array().unwrap().len();
    // What happens to jobs and workers; a busy machine may keep the plane itself from its work.
    let history = async || {
        let events = plane.history().await;
        events.iter().filter(|event| !event.name.starts_with("plane:")).count()
    };
    let (before, happened) = (cycles().await, history().await);
    for _ in 0..3 {
        let said = done(&plane, &["cycle", "--dry-run"]).await;
        assert_contains_all(
            &said,
            &["a cycle now would do this", "queued_tasks 1", "held back", "no provider to rent from"],
        );
    }
    assert_eq!(as_json(&plane, &["cycle", "--dry-run"]).await["status"]["queued_tasks"], 1);
    assert_eq!(cycles().await, before);
    assert_eq!(history().await, happened + 2, "the mark of the first history, and nothing else");
    assert_contains_all(&done(&plane, &["cycle"]).await, &["a cycle ran", "no provider to rent from"]);
    assert_eq!(cycles().await, before + 1);
    let told = as_json(&plane, &["cycle", "--last", "1"]).await;
    assert_eq!(told["cycles"][0]["status"]["queued_tasks"], 1);
    assert_contains_all(&done(&plane, &["machines"]).await, &["no machines", "[[fleet]]"]);
    assert_contains_all(&done(&plane, &["fleet"]).await, &["no fleets", "[[fleet]]"]);
    assert_contains_all(&done(&plane, &["cost"]).await, &["nothing is rented"]);
}

#[tokio::test]
async fn drain_has_deadline_and_unambiguous_name() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "gate");
    let slow = Worker::start(&plane, "slow", &format!("{}; echo 1", gate.wait())).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.runs_on(&job).await, "slow");
    assert_contains_all(
        &done(&plane, &["drain", "slow", "--deadline", "1s", "--wait"]).await,
        &["worker slow", "1 s at the latest", "is gone"],
    );
    let back = plane.job_until(&job, "is taken from it", |job| job["state"] == "queued").await;
    assert_eq!(back["infra_failures"], json!(1), "{back}");
    let why = plane.why(&job).await;
    assert_contains_all(
        why["attempts"][0]["message"].as_str().unwrap(),
        &["still had work 1 s after its drain began"],
    );
    drop(slow);

    // `tower` is both a worker and a machine with another worker: the operator has to choose.
    let tower = Worker::start_with(&plane, "tower", "cat", &["--machine", "tower"]).await;
    let other = Worker::start_with(&plane, "other", "cat", &["--machine", "tower"]).await;
    let (exit, said) = remuda(&plane, &["drain", "tower"]).await;
    assert_eq!(exit, 2);
    assert_contains_all(
        &said,
        &["tower is a worker on machine tower and a machine with other, tower", "--worker or --machine"],
    );
    assert_contains_all(
        &done(&plane, &["drain", "tower", "--machine", "--wait", "--reason", "dust"]).await,
        &["machine tower", "is gone"],
    );
    assert_eq!(plane.worker("other").await["state"], "terminated");
    drop((tower, other));
    for (name, exit, words) in [
        ("no-such-name", 1, ["there is no worker or machine no-such-name", "remuda machines"]),
        ("../jobs", 2, ["not a valid name of a worker", "machine"]),
    ] {
        let (ended, said) = remuda(&plane, &["drain", name]).await;
        assert_eq!(ended, exit, "{said}");
        assert_contains_all(&said, &words);
    }
    let (status, message) =
        code(&plane, Method::POST, "/remuda/v1/workers/other/drain", &json!({ "deadline_seconds": -1 }))
            .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_contains_all(&message, &["from 0 to 2592000 (30 days)"]);
}

#[tokio::test]
async fn drained_machine_is_returned_and_replaced() {
    let yard = ProcessFleet::start(
        "machines_min = 1\nmachines_max = 2\nidle_timeout = '1h'\n",
        Some("gate"),
        "echo '{}'",
    )
    .await;
    let name = yard.until_active(1).await.remove(0);
    let job = yard.submit(json!({ "n": 1 })).await;
    assert_eq!(yard.runs_on(&job).await, name);
    assert_contains_all(&done(&yard, &["drain", &name]).await, &[&format!("machine {name}")]);
    let draining = yard.get(&format!("/remuda/v1/machines/{name}")).await;
    assert_eq!((&draining["phase"], &draining["state"]), (&json!("draining"), &json!("terminating")));
    assert_contains_all(draining["waiting"]["text"].as_str().unwrap(), &["drain, ", " of 10 min"]);
    let (exit, said) = remuda(&yard, &["drain", &name]).await;
    assert_eq!(exit, 1);
    assert_contains_all(&said, &["is already leaving"]);
    yard.open("gate");
    yard.until_done(&[job]).await;
    wait_until("it is returned", async || {
        let path = format!("/remuda/v1/machines/{name}");
        let (status, _) = answered(yard.request(Method::GET, &path)).await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    assert_ne!(yard.until_active(1).await.remove(0), name, "the minimum is kept");
}
