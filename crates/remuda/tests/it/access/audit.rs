//! The audit log.

use reqwest::Method;
use serde_json::{Value, json};

use super::{client_of, closed, code, token};
use crate::harness::{Plane, ScriptedWorker, answered, assert_contains_all};
use crate::start::run;

/// What `remuda audit` says with these arguments, and its exit code.
async fn audit(plane: &Plane, arguments: &[&str]) -> (i32, Value) {
    let data = plane.store().parent().unwrap().display().to_string();
    let (code, said) =
        run(plane.folder(), &[&["audit", "--data", &data, "--json"], arguments].concat()).await;
    (code, serde_json::from_str(&said).unwrap_or(Value::String(said)))
}

/// Faults: X3, X20.
#[tokio::test]
async fn audit_log_names_actor_of_every_change() {
    let (plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let worker = token(&admin, &json!({ "role": "worker", "name": "gpus" })).await;
    ScriptedWorker::join(&plane.with(&worker), "gpu-7", 1).await;
    let job = anna.submit_as(json!({ "workflow": { "n": 1 }, "service": "no-such-service" })).await;
    admin.cancel(&job).await;
    let own = anna.submit_as(json!({ "workflow": { "n": 2 }, "service": "no-such-service" })).await;
    anna.cancel(&own).await;
    answered(admin.request(Method::POST, "/remuda/v1/workers/gpu-7/drain")).await;
    admin.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/status").await.0, 403);
    assert_eq!(code(&plane, Method::GET, "/remuda/v1/jobs").await.0, 401);
    code(&admin, Method::DELETE, "/remuda/v1/tokens/gpus").await;
    let (code, said) = audit(&plane, &[]).await;
    assert_eq!(code, 0, "{said}");
    let lines: Vec<_> = said["newest"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            assert!(line["at"].as_str().unwrap().ends_with('Z') && line["from"] == "127.0.0.1", "{line}");
            let name = line["who"].as_str().unwrap().split(" (").next().unwrap();
            let outcome = line["outcome"].as_str().unwrap();
            format!("{name}: {} {outcome}", line["what"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        lines,
        [
            "anyone: token.create done",
            "root: token.create done",
            "root: token.create done",
            "gpus: worker.join done",
            "root: job.cancel done",
            "root: worker.drain done",
            "root: settings.reload done",
            "anna's laptop: access.refused forbidden",
            "anyone: access.refused no_token",
            "root: token.revoke done",
        ]
    );
    assert_contains_all(&said["newest"][3]["on"].to_string(), &["gpu-7"]);
    assert_contains_all(&said["newest"][9]["on"].to_string(), &["gpus (worker "]);
}

/// Faults: X20, C1.
#[tokio::test]
async fn audit_log_survives_crash_and_detects_tampering() {
    let (mut plane, admin) = closed(&[]).await;
    for n in 0..5 {
        token(&admin, &json!({ "role": "admin", "name": format!("admin {n}") })).await;
    }
    plane.kill();
    let path = plane.store().parent().unwrap().join("audit.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    assert_eq!(whole.lines().count(), 6, "what was answered was written: {whole}");
    // As if the power had gone in the middle of a line.
    std::fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    plane.start_again().await;
    token(&admin, &json!({ "role": "admin" })).await;
    let (code, said) = audit(&plane, &["--verify"]).await;
    assert_eq!((code, &said["torn"], &said["broken"]), (0, &json!(1), &json!([])), "{said}");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, whole.replacen("admin 1", "changed", 1)).unwrap();
    let (code, said) = audit(&plane, &["--verify"]).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said["broken"].to_string(), &["does not follow"]);
}

/// Faults: X15. A class that a tenant may not use is refused on every surface, before any worker hears of it, and noted.
#[tokio::test]
async fn forbidden_node_class_is_refused_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let rules =
        "[[tenant]]\nname = 'anna'\ndenied_classes = ['EmptyImage']\nworker_labels = { pool = 'a' }\n";
    std::fs::write(&file, rules).unwrap();
    let plane = Plane::plan(&[]).variable("REMUDA_CONFIG", file.to_str().unwrap()).start().await;
    let admin = plane.with(&token(&plane, &json!({ "role": "admin", "name": "root" })).await);
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let image = json!({ "width": 64, "height": 64, "batch_size": 1, "color": 1 });
    let graph = json!({
        "1": { "class_type": "EmptyImage", "inputs": image },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "a" } },
    });
    for (path, body) in [
        ("/remuda/v1/jobs", json!({ "workflow": graph })),
        ("/api/v2/jobs", json!({ "workflow": graph })),
        ("/prompt", json!({ "prompt": graph })),
    ] {
        let (status, refused) = anna.post(path, &body).await;
        assert_eq!(status.as_u16(), 403, "{path}: {refused}");
        assert_contains_all(&refused.to_string(), &["anna", "EmptyImage"]);
        let (status, taken) = ben.post(path, &body).await;
        assert!(status.is_success(), "{path}: {taken}");
    }
    let elsewhere = json!({ "workflow": { "n": 1 }, "needs": { "labels": { "pool": "b" } } });
    assert_eq!(anna.post("/remuda/v1/jobs", &elsewhere).await.0.as_u16(), 403);
    assert_eq!(anna.jobs().await.len(), 0);
    let own = anna.submit(json!({ "n": 1 })).await;
    assert_eq!(anna.job(&own).await["needs"]["labels"]["pool"], "a");
    let (_, said) = audit(&plane, &[]).await;
    let lines = said["newest"].as_array().unwrap();
    let refused: Vec<_> = lines.iter().filter(|line| line["what"] == "job.refused").collect();
    assert_eq!(refused.len(), 4, "{said}");
    assert_contains_all(&refused[0].to_string(), &["anna's laptop", "EmptyImage", "POST /remuda/v1/jobs"]);
}
