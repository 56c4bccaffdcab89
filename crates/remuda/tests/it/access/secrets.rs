//! Secrets appear nowhere.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{client_of, token};
use crate::harness::{Plane, Process, ScriptedWorker, answered, remuda, wait_until};
use crate::start::{run, run_as};

/// A job id that does not exist.
const UNKNOWN_JOB: &str = "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11";
/// Every route that can be looked at without knowing anything.
const LOOKS: &[&str] = &[
    "/remuda/v1/status",
    "/remuda/v1/workers",
    "/remuda/v1/workers/a",
    "/remuda/v1/machines",
    "/remuda/v1/blocks",
    "/remuda/v1/quarantine",
    "/remuda/v1/cycles",
    "/remuda/v1/plan",
    "/remuda/v1/tokens",
    "/remuda/v1/jobs",
    "/remuda/v1/views/orchestrator_status",
    "/remuda/v1/views/active_workers_health",
    "/remuda/v1/views/worker_performance",
    "/health/live",
    "/health/ready",
    "/metrics",
];

/// Faults: X10.
#[tokio::test]
async fn prompt_keys_reach_worker_and_are_never_stored() {
    const CANARY: &str = "canary-beside-a-prompt";
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "a", 1).await;
    let keys = json!({ "api_key_comfy_org": CANARY, "auth_token_comfy_org": CANARY });
    let graph = json!({ "1": { "class_type": "A", "inputs": {} } });
    let workflow = json!({ "prompt": graph, "extra_data": keys });
    let job = plane.submit_as(json!({ "workflow": workflow, "service": "exec" })).await;
    let order = wait_until("there is an order", async || {
        hand.say(&json!([]), &json!([])).await["start"].get(0).cloned()
    })
    .await;
    assert_eq!((&order["workflow"], &order["keys"]), (&json!({ "prompt": graph }), &keys));
    assert_eq!(plane.get(&format!("/remuda/v1/jobs/{job}/workflow")).await, json!({ "prompt": graph }));
    for file in ["remuda.sqlite", "remuda.sqlite-wal"] {
        let stored = std::fs::read(plane.store().with_file_name(file)).unwrap_or_default();
        let has_it = stored.windows(CANARY.len()).any(|piece| piece == CANARY.as_bytes());
        assert!(!has_it, "{file} has the key in it");
    }
}

/// Faults: X10. Everything is logged that can be, and everything goes wrong that can.
#[tokio::test]
async fn secrets_appear_in_no_log_answer_or_file() {
    let environment = "canary-of-the-environment-0123456789";
    let plan = Plane::plan(&[]).variable("REMUDA_ADMIN_TOKEN", environment).variable("REMUDA_LOG", "trace");
    let mut plane = plan.start().await;
    let admin = plane.with(environment);
    let root = plane.with(&token(&admin, &json!({ "role": "admin" })).await);
    let anna = client_of(&admin, "anna").await;
    let joins = token(&admin, &json!({ "role": "worker" })).await;
    let hand = ScriptedWorker::join(&plane.with(&joins), "a", 1).await;
    let wrong = "rmd_0123456789ab_canary-that-is-wrong".to_owned();
    let canaries = [environment, &root.token, &anna.token, &joins, &hand.token, &wrong].map(str::to_owned);

    let mut seen = String::new();
    for token in &canaries {
        let client = plane.with(token);
        for path in LOOKS {
            let (status, body) = answered(client.request(Method::GET, path)).await;
            seen.push_str(&format!("{status} {body}\n"));
        }
        let (_, body) = client.post("/remuda/v1/jobs", &json!({ "workflow": [] })).await;
        seen.push_str(&body.to_string());
        let basic = plane.request(Method::GET, "/remuda/v1/jobs").basic_auth(token, Some(token));
        seen.push_str(&answered(basic).await.1.to_string());
        let (code, said) = run_as(token, plane.folder(), &["why", UNKNOWN_JOB, "--url", &plane.url]).await;
        assert_eq!(code, 1);
        seen.push_str(&said);
    }
    let mut worker = remuda(plane.folder());
    worker.args(["worker", "--url", &plane.url, "--name", "b", "--exec", "env"]);
    worker.env("REMUDA_TOKEN", &joins).env("REMUDA_LOG", "trace");
    let mut worker = Process::start("the worker", &mut worker);
    assert!(worker.line("joined").await.is_some(), "{}", worker.said());
    let mut shown = remuda(plane.folder());
    shown.args(["config", "show", "--json"]).env("REMUDA_ADMIN_TOKEN", environment);
    let mut shown = Process::start("config show", &mut shown);
    assert!(shown.ended().await.success(), "{}", shown.said());
    seen.push_str(&shown.said());
    worker.signal(rustix::process::Signal::INT);
    worker.ended().await;
    seen.push_str(&worker.said());
    plane.stop().await;
    seen.push_str(&plane.process.said());
    for entry in std::fs::read_dir(plane.store().parent().unwrap()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        seen.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert!(seen.contains("access.refused") && seen.contains("wrong_token"), "the audit log was looked at");
    for canary in &canaries {
        // The part before is no secret: it is how a token is called.
        let hidden = canary.rsplit('_').next().unwrap();
        if let Some(at) = seen.find(hidden) {
            let around: String = seen[at.saturating_sub(200)..].chars().take(300).collect();
            panic!("{hidden} is in what was seen: …{around}");
        }
    }
}

/// Faults: X11. A job runs with what is its own: what its worker joined with is not in its environment.
#[tokio::test]
async fn job_environment_has_no_worker_token() {
    let (plane, admin) = super::closed(&[]).await;
    let joins = token(&admin, &json!({ "role": "worker" })).await;
    let mut worker = remuda(plane.folder());
    let tell = "env | grep -c REMUDA_TOKEN; true";
    worker.args(["worker", "--url", &plane.url, "--name", "a", "--exec", tell]).env("REMUDA_TOKEN", &joins);
    let _worker = Process::start("the worker", &mut worker);
    let anna = client_of(&admin, "anna").await;
    let job = anna.submit(json!({ "n": 1 })).await;
    let ended = anna.ended(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(0)), "{ended}");
}

/// Prints how many secrets are in the command's own environment, and in that of the worker that started it.
const SEARCH: &str = r#"echo "[$(env | grep -cE 'canary|rmd_'), $(tr '\0' '\n' </proc/$PPID/environ | grep -cE 'canary|rmd_')]""#;

/// Faults: X11. Neither its own environment nor its worker's shows a job what opens a door.
#[tokio::test]
async fn job_reads_no_secret_of_its_worker() {
    let (plane, admin) = super::closed(&[]).await;
    let joins = token(&admin, &json!({ "role": "worker" })).await;
    let mut worker = remuda(plane.folder());
    worker.args(["worker", "--url", &plane.url, "--name", "a", "--exec", SEARCH]).env("REMUDA_TOKEN", &joins);
    worker.env("RUNPOD_API_KEY", "canary").env("AWS_SECRET_ACCESS_KEY", "canary").env("HF_TOKEN", "canary");
    worker.env("REMUDA_COMFYUI_HEADER", "Authorization: canary").env("REMUDA_OTHER_TOKEN", "canary");
    let _worker = Process::start("the worker", &mut worker);
    let anna = client_of(&admin, "anna").await;
    let ended = anna.ended(&anna.submit(json!({ "n": 1 })).await).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!([0, 0])), "{ended}");
}

/// Faults: X11. A provider's key is for the plane, not for the jobs that run beside it; what an operator names is passed.
#[tokio::test]
async fn jobs_of_remuda_up_see_no_provider_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = remuda(folder.path());
    let tell = format!("[ \"$MODELS_AT\" = here ] && {SEARCH}");
    up.args(["up", "--data", "data", "--listen", "127.0.0.1:0", "--exec", &tell, "--name", "a"]);
    up.args(["--set", "agent.pass_environment=MODELS_*"])
        .env("MODELS_AT", "here")
        .env("RUNPOD_API_KEY", "canary");
    let mut up = Process::start("remuda up", &mut up);
    let line = up.line("remuda is up on").await.unwrap_or_else(|| panic!("{}", up.said()));
    let url = line.split("up on ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let plane = crate::harness::Client::new(url);
    let ended = plane.ended(&plane.submit(json!({ "n": 1 })).await).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!([0, 0])), "{ended}");
}

/// Faults: X10.
#[tokio::test]
async fn token_comes_from_a_file_and_a_worker_takes_none_from_its_command_line() {
    let (plane, admin) = super::closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let typed = ["jobs", "--url", &plane.url];
    let (code, said) = run(plane.folder(), &[&typed[..], &["--token", &anna.token]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let worker = ["worker", "--url", &plane.url, "--exec", "cat", "--token", &anna.token];
    let (code, said) = run(plane.folder(), &worker).await;
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--token-file") && !said.contains(&anna.token), "{said}");
    std::fs::write(plane.folder().join("token"), format!("{}\n", anna.token)).unwrap();
    let (code, said) = run(plane.folder(), &[&typed[..], &["--token-file", "token"]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(plane.folder(), &[&typed[..], &["--token-file", "missing"]].concat()).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("missing (--token-file"), "{said}");
    // A worker too.
    let joins = token(&admin, &json!({ "role": "worker" })).await;
    std::fs::write(plane.folder().join("joins"), &joins).unwrap();
    let mut worker = remuda(plane.folder());
    worker.args(["worker", "--url", &plane.url, "--name", "a", "--exec", "cat", "--token-file", "joins"]);
    let mut worker = Process::start("the worker", &mut worker);
    assert!(worker.line("joined").await.is_some(), "{}", worker.said());
}

/// Faults: X10.
#[tokio::test]
async fn password_of_the_plane_address_is_not_printed() {
    let plane = Plane::start(&[]).await;
    let folder = plane.folder();
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nothing = format!("http://anna:canary@{elsewhere}");
    for url in [nothing.as_str(), "http://anna:canary@127.0.0.1:99999", "http://anna:canary@"] {
        for command in [&["jobs"][..], &["status"], &["worker", "--exec", "cat", "--contact-timeout", "1ms"]]
        {
            let typed = [command, &["--url", url]].concat();
            let (code, said) = run(folder, &typed).await;
            assert_ne!(code, 0, "{said}");
            assert!(!said.contains("canary"), "{}: {said}", typed.join(" "));
        }
    }
}

/// Faults: X12.
#[tokio::test]
async fn control_characters_are_escaped_in_log() {
    let (mut plane, admin) = super::closed(&[]).await;
    let odd = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\n2026-01-01 INFO all is well\u{9b}31m";
    let anna = client_of(&admin, "anna").await;
    let job = anna
        .submit_as(json!({ "workflow": { "n": odd }, "labels": { odd: odd }, "metadata": { "x": odd } }))
        .await;
    let (status, _) = anna.post(&format!("/remuda/v1/jobs/{job}/cancel"), &json!({ "reason": odd })).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = admin.post("/remuda/v1/tokens", &json!({ "role": "admin", "name": odd })).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let request =
        admin.request(Method::POST, "/remuda/v1/workers/no-such-worker/drain").query(&[("reason", odd)]);
    answered(request).await;
    let request = plane.request(Method::GET, "/remuda/v1/%1b%5b2J%0d%0anothing");
    answered(request).await;
    admin.post("/remuda/v1/workers", &json!({ "worker": odd, "services": ["exec"] })).await;
    let (_, said) = run_as(&anna.token, plane.folder(), &["jobs", "--url", &plane.url]).await;
    let (_, why) = run_as(&anna.token, plane.folder(), &["why", &job, "--url", &plane.url]).await;
    plane.stop().await;
    let audit = std::fs::read_to_string(plane.store().parent().unwrap().join("audit.jsonl")).unwrap();
    for (what, text) in [("log", plane.process.said()), ("jobs", said), ("why", why), ("audit", audit)] {
        let found = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(found, None, "in the {what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("2026-01-01 INFO")), "a line of their own: {text}");
    }
}
