//! Malformed graphs: the plane answers as the server behind it does, on every surface, and runs the half that is valid.
#![expect(clippy::needless_pass_by_value, reason = "graphs are written where they are used")]

use serde_json::Map;

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

fn node(class: &str, inputs: Value) -> Value {
    json!({ "class_type": class, "inputs": inputs })
}

fn save(from: &str) -> Value {
    node("SaveImage", json!({ "images": [from, 0], "filename_prefix": "x" }))
}

fn empty(change: Value) -> Value {
    let mut inputs = json!({ "width": 64, "height": 64, "batch_size": 1, "color": 255 });
    inputs.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    node("EmptyImage", inputs)
}

fn saved(first: Value) -> Value {
    json!({ "1": first, "3": save("1") })
}

fn blend(change: Value) -> Value {
    let mut inputs =
        json!({ "image1": ["1", 0], "image2": ["1", 0], "blend_factor": 0.5, "blend_mode": "normal" });
    inputs.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!({ "1": empty(json!({})), "2": node("ImageBlend", inputs), "3": save("2") })
}

/// Valid, odd and broken graphs of classes that every server has.
#[expect(clippy::too_many_lines, reason = "one row for each graph")]
fn graphs() -> Vec<(&'static str, Value)> {
    let checkpoint = |name: Value| {
        json!({ "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": name })),
            "2": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
            "4": node("VAEDecode", json!({ "samples": ["2", 0], "vae": ["1", 2] })), "3": save("4") })
    };
    let images = |value: Value| {
        json!({ "1": empty(json!({})),
            "3": node("SaveImage", json!({ "images": value, "filename_prefix": "x" })) })
    };
    let load = |image: Value| saved(node("LoadImage", json!({ "image": image })));
    let invert = |from: &str| node("ImageInvert", json!({ "image": [from, 0] }));
    let sampler = json!({ "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": "none.safetensors" })),
        "2": node("KSampler", json!({ "model": ["1", 0], "seed": -1, "steps": 0, "cfg": 101, "sampler_name": "no",
            "scheduler": 3, "positive": ["1", 1], "negative": ["1", 1], "latent_image": ["1", 2], "denoise": 2 })),
        "4": node("VAEDecode", json!({ "samples": ["2", 0], "vae": ["1", 2] })), "3": save("4") });
    vec![
        ("valid", saved(empty(json!({})))),
        ("number as text", saved(empty(json!({ "width": "64" })))),
        ("number as fraction", saved(empty(json!({ "width": 64.9 })))),
        ("wrapped number", saved(empty(json!({ "width": { "__value__": 64 } })))),
        ("unknown input", saved(empty(json!({ "bogus": [1, 2, 3] })))),
        ("not a number", saved(empty(json!({ "width": "wide" })))),
        ("null for a number", saved(empty(json!({ "width": null })))),
        ("object for a number", saved(empty(json!({ "width": { "a": 1 } })))),
        ("below the minimum", saved(empty(json!({ "batch_size": 0 })))),
        ("true below the minimum", saved(empty(json!({ "batch_size": false })))),
        ("above the maximum", saved(empty(json!({ "batch_size": 4097 })))),
        ("two errors in one node", saved(empty(json!({ "batch_size": 0, "width": "wide" })))),
        ("fraction above the maximum", blend(json!({ "blend_factor": 2 }))),
        ("not a fraction", blend(json!({ "blend_factor": "half" }))),
        ("null for a fraction", blend(json!({ "blend_factor": null }))),
        ("word not in the list", blend(json!({ "blend_mode": "mix" }))),
        ("null not in the list", blend(json!({ "blend_mode": null }))),
        ("number not in the list", blend(json!({ "blend_mode": 7 }))),
        ("link for a word", blend(json!({ "blend_mode": ["1", 0] }))),
        (
            "required input missing",
            json!({ "1": empty(json!({})), "3": node("SaveImage", json!({ "filename_prefix": "x" })) }),
        ),
        ("all inputs missing", saved(node("ImageInvert", json!({})))),
        ("no inputs at the output", json!({ "3": { "class_type": "SaveImage" } })),
        ("no inputs behind the output", saved(json!({ "class_type": "ImageInvert" }))),
        ("model missing", checkpoint(json!("v1-5.safetensors"))),
        ("null for a model", checkpoint(json!(null))),
        ("many errors", sampler),
        ("file missing", load(json!("nobody-has-this.png"))),
        ("null for a file", load(json!(null))),
        (
            "wrong type",
            saved(node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 }))),
        ),
        ("link of three", images(json!(["1", 0, 0]))),
        ("empty list for a link", images(json!([]))),
        ("slot out of range", images(json!(["1", 7]))),
        ("negative slot", images(json!(["1", -1]))),
        ("slot as text", images(json!(["1", "0"]))),
        ("link by number", images(json!([1, 0]))),
        ("link to null", images(json!([null, 0]))),
        ("link by list", images(json!([["1"], 0]))),
        ("link to nothing", images(json!(["99", 0]))),
        ("link to nothing behind the output", saved(invert("99"))),
        ("cycle", json!({ "1": invert("2"), "2": invert("1"), "3": save("2") })),
        ("node that feeds itself", saved(invert("1"))),
        ("unknown class", saved(node("NoSuchNode", json!({})))),
        (
            "unknown class that nothing needs",
            json!({ "1": empty(json!({})), "3": save("1"), "7": node("NoSuchNode", json!({})) }),
        ),
        ("no class", saved(json!({ "inputs": {} }))),
        ("no output", json!({ "1": empty(json!({})) })),
        (
            "half is valid",
            json!({ "1": empty(json!({})), "2": save("1"), "3": node("SaveImage", json!({ "filename_prefix": "x" })) }),
        ),
        (
            "half is valid, the rest loops",
            json!({ "1": empty(json!({})), "2": save("1"), "4": invert("5"), "5": invert("4"), "6": save("5") }),
        ),
        ("loose node that is wrong", json!({ "1": empty(json!({})), "3": save("1"), "5": invert("99") })),
    ]
}

/// An answer without what differs from run to run, and without the order that ComfyUI draws at random.
fn comparable(mut answer: Value) -> Value {
    let fields = answer.as_object_mut().unwrap();
    fields.remove("prompt_id");
    fields.remove("number");
    if let Some(details) = answer["error"]["details"].as_str() {
        let mut lines: Vec<String> = details.lines().map(str::to_owned).collect();
        lines.sort();
        answer["error"]["details"] = lines.join("\n").into();
    }
    for node in answer["node_errors"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        let errors = node["errors"].as_array_mut().unwrap();
        for error in errors.iter_mut().filter(|error| error["extra_info"]["traceback"].is_array()) {
            error["extra_info"]["traceback"] = json!([]);
        }
        errors.sort_by_key(Value::to_string);
    }
    answer
}

/// On a real server, if there is one.
#[tokio::test]
async fn malformed_graphs_are_answered_as_by_the_server_itself() {
    let stage = ComfyFixture::any().await;
    ready(&stage).await;
    let server = Client::new(stage.server.url());
    let version = server.get("/system_stats").await["system"]["comfyui_version"].clone();
    let mut different = Vec::new();
    for (name, graph) in graphs() {
        let (expected, its_answer) = server.post("/prompt", &json!({ "prompt": graph })).await;
        let (status, answer) = stage.post("/prompt", &json!({ "prompt": graph })).await;
        // Older servers have other words for classes that are missing, for cycles and for values that are not texts.
        let is_reworded =
            ["class", "cycle", "itself", "loops", "in the list", "null for a model", "many errors"];
        let is_compared = version == "0.30.0" || !is_reworded.iter().any(|word| name.contains(word));
        let (answer, its_answer) = (comparable(answer), comparable(its_answer));
        if status != expected || (is_compared && answer != its_answer) {
            different.push(format!("{name}: {status} {answer}\n  instead of {expected} {its_answer}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
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
