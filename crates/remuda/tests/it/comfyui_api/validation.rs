//! Malformed graphs on every surface, and what workers have. `differential` compares the answers with those of a server.
#![expect(clippy::needless_pass_by_value, reason = "graphs are written where they are used")]

use super::differential::cases::{empty, node};
use super::*;
use crate::comfyui::fixture::worker;
use crate::comfyui::graph::picture;
use crate::harness::{Plane, QUICK, remuda};

async fn ready(stage: &ComfyFixture) {
    wait_until("the classes are known", async || {
        stage.get("/object_info").await["SaveImage"].is_object().then_some(())
    })
    .await;
}

fn save(from: &str) -> Value {
    node("SaveImage", json!({ "images": [from, 0], "filename_prefix": "x" }))
}

fn saved(first: Value) -> Value {
    json!({ "1": first, "3": save("1") })
}

/// Clients that take inputs by position would make another picture.
#[tokio::test]
async fn object_info_of_one_server_is_passed_on_byte_for_byte() {
    let stage = ComfyFixture::any().await;
    ready(&stage).await;
    let text = async |url: &str| stage.http.get(url).send().await.unwrap().text().await.unwrap();
    for class in ["KSampler", "SaveImage", "ImageBlend"] {
        let path = format!("/object_info/{class}");
        let shown = text(&format!("{}{path}", stage.url)).await;
        assert_eq!(shown, text(&format!("{}{path}", stage.server.url())).await);
    }
    let keys = |text: &str| -> Vec<String> {
        let members: remuda_comfyui::json::JsonMembers<serde::de::IgnoredAny> =
            serde_json::from_str(text).unwrap();
        members.0.into_iter().map(|(name, _)| name).collect()
    };
    let (shown, told) = (
        text(&format!("{}/object_info", stage.url)).await,
        text(&format!("{}/object_info", stage.server.url())).await,
    );
    assert_eq!(keys(&shown), keys(&told));
}

/// One valid and one invalid output.
fn half(color: u64) -> Value {
    let mut graph = picture(color).saved();
    graph["7"] = node("SaveImage", json!({ "filename_prefix": "x" }));
    graph
}

#[tokio::test]
async fn valid_half_of_a_graph_runs_on_every_surface() {
    let stage = ComfyFixture::fake().await;
    ready(&stage).await;
    let (status, answer) = stage.post("/remuda/v1/jobs", &json!({ "workflow": half(1) })).await;
    assert_eq!(
        (status, &answer["node_errors"]["7"]["errors"][0]["type"]),
        (StatusCode::CREATED, &json!("required_input_missing"))
    );
    let native = answer["id"].as_str().unwrap().to_owned();
    let (status, answer) = stage.post("/api/v2/jobs", &json!({ "workflow": half(2) })).await;
    assert_eq!(
        (status, &answer["node_errors"]["7"][0]["reason"]),
        (StatusCode::CREATED, &json!("missing_input")),
        "{answer}"
    );
    let v2 = answer["id"].as_str().unwrap().to_owned();
    let (status, answer) = stage.post("/prompt", &json!({ "prompt": half(3) })).await;
    assert_eq!((status, answer["node_errors"]["7"].is_object()), (StatusCode::OK, true), "{answer}");
    for job in [&native, &v2, answer["prompt_id"].as_str().unwrap()] {
        let ended = stage.ended(job).await;
        assert_eq!(ended["state"], "completed", "{ended}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("half.json"), half(4).to_string()).unwrap();
    let run = remuda(folder.path()).args(["run", "half.json", "--url", &stage.url]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    assert!(said.contains("not run: node \"7\" (SaveImage): Required input is missing: images"), "{said}");
}

#[tokio::test]
async fn invalid_graph_is_refused_on_every_surface() {
    let stage = ComfyFixture::fake().await;
    ready(&stage).await;
    let wrong = saved(empty(json!({ "batch_size": 0 })));
    let (status, answer) = stage.post("/remuda/v1/jobs", &json!({ "workflow": wrong })).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid_workflow"))
    );
    let error = &answer["error"]["detail"]["node_errors"]["1"]["errors"][0];
    assert_eq!(error["type"], "value_smaller_than_min", "{answer}");
    let (status, answer) = stage.post("/api/v2/jobs", &json!({ "workflow": wrong })).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid_workflow"))
    );
    let error = &answer["error"]["details"]["node_errors"]["1"][0];
    assert_eq!((&error["field"], &error["reason"]), (&json!("batch_size"), &json!("value_smaller_than_min")));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("wrong.json"), wrong.to_string()).unwrap();
    let run = remuda(folder.path()).args(["run", "wrong.json", "--url", &stage.url]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && said.contains("Value 0 smaller than min of 1: batch_size"), "{said}");
    // Jobs for other services are no prompts.
    let (status, answer) =
        stage.post("/remuda/v1/jobs", &json!({ "workflow": wrong, "service": "exec" })).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

/// A graph that needs this file.
fn loads(model: &str) -> Value {
    json!({ "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": model })),
        "2": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
        "4": node("VAEDecode", json!({ "samples": ["2", 0], "vae": ["1", 2] })), "5": save("4") })
}

#[tokio::test]
async fn what_no_worker_has_is_refused_unless_the_job_waits_for_it() {
    let stage = ComfyFixture::fake().await;
    ready(&stage).await;
    let bodies = |graph: Value, waits: bool| {
        let with = |mut body: Value| {
            if waits {
                body["wait_for_capability"] = true.into();
            }
            body
        };
        [
            ("/remuda/v1/jobs", with(json!({ "workflow": graph }))),
            ("/api/v2/jobs", with(json!({ "workflow": graph }))),
            ("/prompt", with(json!({ "prompt": graph }))),
        ]
    };
    for graph in [loads("nobody.safetensors"), json!({ "1": node("NoSuchNode", json!({})), "3": save("1") })]
    {
        for (path, body) in bodies(graph.clone(), false) {
            let (status, answer) = stage.post(path, &body).await;
            assert!(status.is_client_error(), "{path}: {status} {answer}");
            assert!(
                answer.to_string().contains("nobody.safetensors")
                    || answer.to_string().contains("NoSuchNode"),
                "{answer}"
            );
        }
        for (path, body) in bodies(graph, true) {
            let (status, answer) = stage.post(path, &body).await;
            assert!(status.is_success(), "{path}: {status} {answer}");
            let job = ["id", "prompt_id"].iter().find_map(|name| answer[name].as_str()).unwrap();
            let why = stage.job(job).await;
            assert_eq!(why["state"], "queued");
            assert!(why["reason"].as_str().unwrap().contains("no worker has"), "{why}");
            stage.cancel(job).await;
        }
    }
    // A need that no graph shows.
    let (status, answer) = stage
        .post(
            "/remuda/v1/jobs",
            &json!({ "workflow": picture(5).saved(), "needs": { "models": ["x.ckpt"] } }),
        )
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("no_capability"))
    );
    assert_eq!(answer["error"]["detail"]["models"], json!(["x.ckpt"]), "{answer}");
}

/// What any worker accepts is accepted, and goes to that worker.
#[tokio::test]
async fn model_of_one_of_two_workers_is_accepted_and_runs_there() {
    let with = |model: &str| Options { models: vec![model.to_owned()], ..Options::default() };
    let plane = Plane::start(QUICK).await;
    let servers = [Server::fake(with("a.safetensors")).await, Server::fake(with("b.safetensors")).await];
    let _workers = [
        worker(&plane, "a", &servers[0].url(), &[]).await,
        worker(&plane, "b", &servers[1].url(), &[]).await,
    ];
    wait_until("both servers are described", async || {
        let info = plane.get("/object_info/CheckpointLoaderSimple").await;
        let choices = info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0].as_array()?.len();
        (choices == 2).then_some(())
    })
    .await;
    for (model, is_taken) in [("a.safetensors", true), ("b.safetensors", true), ("c.safetensors", false)] {
        let (status, answer) = plane.post("/prompt", &json!({ "prompt": loads(model) })).await;
        assert_eq!(status.is_success(), is_taken, "{model}: {answer}");
        if is_taken {
            let ended = plane.ended(answer["prompt_id"].as_str().unwrap()).await;
            assert_eq!(ended["state"], "completed", "{ended}");
        }
    }
}

/// A plane without workers knows nothing of classes, and accepts.
#[tokio::test]
async fn plane_without_workers_accepts_any_class() {
    let plane = Plane::start(QUICK).await;
    let (status, answer) = plane.post("/prompt", &json!({ "prompt": loads("nobody.safetensors") })).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}
