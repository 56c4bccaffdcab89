//! `/metrics`: what Prometheus reads, checked by its own tool, and numbers that follow what happens to jobs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use remuda_fakes::comfyui::Options;
use reqwest::Method;
use serde_json::json;

use crate::comfyui::fixture::{ComfyFixture, Server, worker};
use crate::comfyui::graph::picture;
use crate::harness::{Client, Gate, Plane, QUICK, Worker, wait_until};

/// Every sample by its name with labels, as it is written.
async fn samples(client: &Client) -> BTreeMap<String, f64> {
    let text = page(client).await;
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line} has no number")))
    });
    samples.collect()
}

async fn page(client: &Client) -> String {
    let answer = client.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    answer.text().await.unwrap()
}

/// The value of a sample; 0 if there is none yet, as Prometheus takes it.
async fn sample(client: &Client, name: &str) -> f64 {
    samples(client).await.get(name).copied().unwrap_or(0.0)
}

/// Waits until a sample has a value: workers report some numbers with their next beat.
async fn sample_until(client: &Client, name: &str, is_so: impl Fn(f64) -> bool) -> f64 {
    let what = format!("{name} is as expected");
    wait_until(&what, async || Some(sample(client, name).await).filter(|value| is_so(*value))).await
}

fn promtool(promtool: &Path, arguments: &[&str], input: &str) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prometheus");
    let mut command = Command::new(promtool);
    command.args(arguments).current_dir(folder);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn assert_accepted(output: &Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
}

#[tokio::test]
async fn prometheus_accepts_the_page() {
    let Some(tool) = remuda_testkit::program("promtool") else { return };
    let plane = Plane::start(&[QUICK, &["attempts_max=1"]].concat()).await;
    let _worker = Worker::start(&plane, "w", "grep -q good && echo 1").await;
    for workflow in [json!({ "is": "good" }), json!({ "is": "bad" })] {
        plane.ended(&plane.submit(workflow).await).await;
    }
    let output = promtool(&tool, &["check", "metrics"], &page(&plane).await);
    assert_accepted(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nor does it advise anything");
}

#[test]
fn prometheus_accepts_the_alert_rules_and_they_fire_when_they_should() {
    let Some(tool) = remuda_testkit::program("promtool") else { return };
    assert_accepted(&promtool(&tool, &["check", "rules", "alerts.yml"], ""));
    assert_accepted(&promtool(&tool, &["test", "rules", "alerts_test.yml"], ""));
}

/// Every query of the dashboard, as a rule that Prometheus can parse.
#[test]
fn prometheus_accepts_the_queries_of_the_dashboard() {
    let Some(tool) = remuda_testkit::program("promtool") else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana/remuda.json");
    let dashboard: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (number, target) in dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| it["targets"].as_array())
        .flatten()
        .enumerate()
    {
        let query =
            target["expr"].as_str().unwrap().replace("$__rate_interval", "5m").replace("$instance", ".*");
        rules.push_str(&format!("      - {{record: 'query:{number}', expr: {}}}\n", json!(query)));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yml");
    std::fs::write(&file, rules).unwrap();
    assert_accepted(&promtool(&tool, &["check", "rules", file.to_str().unwrap()], ""));
}

#[tokio::test]
async fn counters_follow_a_job_that_fails_is_retried_and_completes() {
    let plane = Plane::start(&[QUICK, &["attempts_max=3"]].concat()).await;
    let gate = Gate::closed(plane.folder(), "closed");
    // It fails as long as the gate is closed.
    let command = format!("[ ! -e '{}' ] && echo 1", plane.folder().join("closed").display());
    let _worker = Worker::start(&plane, "w", &command).await;
    let retried = plane.submit_as(json!({ "workflow": { "n": 1 }, "attempts_max": 100 })).await;
    let failed = "remuda_attempts_ended_total{verdict=\"failed\",cause=\"job\"}";
    sample_until(&plane, failed, |failures| failures >= 1.0).await;
    gate.open();
    let job = plane.ended(&retried).await;
    assert_eq!(job["state"], "completed", "{job}");
    let now = samples(&plane).await;
    let failures = job["failures"].as_f64().unwrap();
    assert_eq!(now[failed], failures);
    assert_eq!(now["remuda_attempts_ended_total{verdict=\"completed\",cause=\"none\"}"], 1.0);
    assert_eq!(now["remuda_jobs_ended_total{outcome=\"completed\"}"], 1.0);
    assert_eq!((now["remuda_jobs_submitted_total"], now["remuda_job_wait_seconds_count"]), (1.0, 1.0));
    assert_eq!(now["remuda_job_run_seconds_count"], 1.0, "only the attempt that completed");
    assert_eq!(now["remuda_events_total{kind=\"job:retrying\"}"], failures);
    assert_eq!((now["remuda_jobs{state=\"waiting\"}"], now["remuda_jobs{state=\"running\"}"]), (0.0, 0.0));
    let route = "remuda_http_requests_total{method=\"GET\",route=\"/remuda/v1/jobs/{id}\",status=\"200\"}";
    assert!(now[route] >= 1.0);
    assert!(now["remuda_commit_seconds_count"] >= 3.0 && now["remuda_commit_records_sum"] >= 3.0);

    let expired = plane.submit_as(json!({ "workflow": {}, "service": "none", "deadline_seconds": 1 })).await;
    plane.ended(&expired).await;
    let cancelled = plane.submit_as(json!({ "workflow": {}, "service": "none" })).await;
    plane.cancel(&cancelled).await;
    let now = samples(&plane).await;
    assert_eq!(now["remuda_jobs_ended_total{outcome=\"expired\"}"], 1.0);
    assert_eq!(now["remuda_jobs_ended_total{outcome=\"cancelled\"}"], 1.0);
    let attempts = now.iter().filter(|(name, _)| name.starts_with("remuda_attempts_ended_total"));
    let attempts: f64 = attempts.map(|(_, count)| count).sum();
    assert_eq!(attempts, failures + 1.0, "neither of them ran");
}

#[tokio::test]
async fn counters_follow_a_lost_worker_and_a_late_report() {
    let plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "hold");
    let mut first = Worker::start(&plane, "a", &gate.wait()).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.runs_on(&job).await, "a");
    assert_eq!(sample(&plane, "remuda_jobs{state=\"running\"}").await, 1.0);
    assert_eq!(sample(&plane, "remuda_slots{state=\"busy\"}").await, 1.0);
    first.process.kill();
    let lost = "remuda_attempts_ended_total{verdict=\"worker_silent\",cause=\"worker\"}";
    sample_until(&plane, lost, |count| count == 1.0).await;
    assert_eq!(sample(&plane, "remuda_workers{availability=\"offline\"}").await, 1.0);
    assert_eq!(
        sample(&plane, "remuda_jobs_waiting{reason=\"unavailable\"}").await,
        1.0,
        "its only worker is gone"
    );
    gate.open();
    let _second = Worker::start(&plane, "b", "echo 1").await;
    assert_eq!(plane.ended(&job).await["state"], "completed");
    let now = samples(&plane).await;
    assert_eq!(now["remuda_attempts_ended_total{verdict=\"completed\",cause=\"none\"}"], 1.0);
    assert!(now["remuda_events_total{kind=\"worker:offline\"}"] >= 1.0);
    assert_eq!(now["remuda_workers{availability=\"ready\"}"], 1.0);
}

#[tokio::test]
async fn recovered_completion_and_probes_are_counted() {
    let stage = ComfyFixture::on(Server::fake(Options::default()).await).await;
    let job = stage.run(picture(1).fault("drop-completion").sleep(0.5, 5).saved()).await;
    assert_eq!(job["state"], "completed", "{job}");
    assert_eq!(sample(&stage, "remuda_recovered_completions_total").await, 1.0);
    sample_until(&stage, "remuda_probes_total{result=\"succeeded\"}", |count| count >= 1.0).await;
    let before = sample(&stage, "remuda_probes_total{result=\"succeeded\"}").await;
    // A second worker counts for itself, and adds to the sum.
    let other = Server::fake(Options::default()).await;
    let _other = worker(&stage, "other", &other.url(), &[]).await;
    for color in 2..6 {
        stage.run(picture(color).saved()).await;
    }
    sample_until(&stage, "remuda_probes_total{result=\"succeeded\"}", |count| count >= before + 4.0).await;
    assert_eq!(sample(&stage, "remuda_recovered_completions_total").await, 1.0);
}

#[tokio::test]
async fn restarted_plane_counts_from_zero_and_knows_what_runs() {
    let mut plane = Plane::start(QUICK).await;
    let gate = Gate::closed(plane.folder(), "hold");
    let _worker = Worker::start(&plane, "a", &format!("{}; echo 1", gate.wait())).await;
    plane
        .ended(&{
            let cancelled = plane.submit_as(json!({ "workflow": {}, "service": "none" })).await;
            plane.cancel(&cancelled).await;
            cancelled
        })
        .await;
    let running = plane.submit(json!({ "n": 1 })).await;
    plane.runs_on(&running).await;
    let waiting = plane.submit(json!({ "n": 2 })).await;
    let before = samples(&plane).await;
    assert_eq!((before["remuda_jobs_submitted_total"], before["remuda_plane_term"]), (3.0, 1.0));
    plane.kill();
    plane.start_again().await;
    let after = samples(&plane).await;
    assert_eq!(
        (after["remuda_jobs{state=\"running\"}"], after["remuda_jobs{state=\"waiting\"}"]),
        (1.0, 1.0)
    );
    assert_eq!((after["remuda_jobs_submitted_total"], after["remuda_plane_term"]), (0.0, 2.0));
    assert_eq!(after["remuda_jobs_ended_total{outcome=\"cancelled\"}"], 0.0);
    assert_eq!(after["remuda_job_wait_seconds_count"], 0.0, "the running job did not start again");
    gate.open();
    for job in [&running, &waiting] {
        assert_eq!(plane.ended(job).await["state"], "completed");
    }
    let end = samples(&plane).await;
    assert_eq!(end["remuda_jobs_ended_total{outcome=\"completed\"}"], 2.0);
    assert_eq!((end["remuda_jobs{state=\"running\"}"], end["remuda_jobs{state=\"waiting\"}"]), (0.0, 0.0));
}

/// Faults: X10, X17.
#[tokio::test]
async fn page_has_no_word_of_a_client_or_a_worker() {
    const CANARY: &str = "canary4711";
    let plane = Plane::start(&[QUICK, &["attempts_max=1"]].concat()).await;
    let name = format!("worker-{CANARY}");
    let command = format!("echo {CANARY} >&2; exit 3");
    let _worker = Worker::start_with(&plane, &name, &command, &["--label", &format!("pool={CANARY}")]).await;
    let submission = json!({
        "workflow": { CANARY: CANARY },
        "tenant": CANARY,
        "labels": { CANARY: CANARY },
        "metadata": { "user": CANARY },
        "idempotency_key": CANARY,
    });
    let job = plane.submit_as(submission).await;
    assert_eq!(plane.ended(&job).await["state"], "failed");
    for path in [format!("/{CANARY}"), format!("/remuda/v1/jobs/{CANARY}"), format!("/metrics?{CANARY}=1")] {
        plane.request(Method::GET, &path).header("User-Agent", CANARY).send().await.unwrap();
    }
    let odd = reqwest::Method::from_bytes(CANARY.as_bytes()).unwrap();
    plane.request(odd, "/metrics").send().await.unwrap();
    let page = page(&plane).await;
    assert!(!page.contains(CANARY) && !page.contains(&job), "{page}");
    let other = "remuda_http_requests_total{method=\"other\",route=\"other\",status=\"404\"}";
    assert!(samples(&plane).await.contains_key(other), "{page}");
}

/// Faults: X17.
#[tokio::test]
async fn metrics_token_reads_metrics_and_nothing_else() {
    let plane = Plane::start(&[]).await;
    assert!(page(&plane).await.contains("remuda_build_info"), "on loopback without any token");
    let (_, made) = plane.post("/remuda/v1/tokens", &json!({ "role": "admin" })).await;
    let admin = plane.with(made["token"].as_str().unwrap());
    let make = async |wanted: serde_json::Value| {
        let (_, made) = admin.post("/remuda/v1/tokens", &wanted).await;
        admin.with(made["token"].as_str().unwrap_or_else(|| panic!("{made}")))
    };
    let metrics = make(json!({ "role": "metrics", "name": "prometheus" })).await;
    let client = make(json!({ "role": "client", "tenant": "anna" })).await;
    let status = async |who: &Client, path: &str| {
        who.request(Method::GET, path).send().await.unwrap().status().as_u16()
    };
    assert_eq!([status(&plane, "/metrics").await, status(&client, "/metrics").await], [401, 403]);
    assert_eq!([status(&metrics, "/metrics").await, status(&admin, "/metrics").await], [200, 200]);
    let blob = format!("/remuda/v1/blobs/blake3:{}", "0".repeat(64));
    for path in
        ["/remuda/v1/status", "/remuda/v1/jobs", "/remuda/v1/openapi.json", "/queue", "/v1/models", &blob]
    {
        assert_eq!(status(&metrics, path).await, 403, "{path}");
    }
}
