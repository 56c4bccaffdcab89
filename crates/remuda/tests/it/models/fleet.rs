//! Models on workers of a plane that has none itself: jobs ask for them, and so do OpenAI's clients.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::host::{ended_well, python, script, stand_in};
use crate::harness::{Plane, QUICK, Worker, assert_contains_all, wait_until};

/// A plane, and a worker with both stand-ins.
async fn fleet(name: &str) -> (Plane, Worker) {
    let plane = Plane::start(QUICK).await;
    let worker = join(&plane, name).await;
    (plane, worker)
}

pub(crate) async fn join(plane: &Plane, name: &str) -> Worker {
    stand_in(plane.folder(), "embed.fake");
    let what = ["--model", "embed=embed.fake,copies=2", "--model", "chat=chat.fake"];
    Worker::start_doing(plane, name, &what).await
}

#[tokio::test]
async fn job_selects_model_by_name_or_capability() {
    let (plane, _worker) = fleet("mule").await;
    let by_name = json!({ "workflow": { "model": "embed", "texts": ["one", "two"] }, "service": "embed" });
    let by_kind = json!({
        "workflow": { "capability": "text_to_text", "messages": [{ "role": "user", "content": "hi" }] },
        "service": "text_to_text", "needs": { "labels": { "model.chat": "text_to_text" } },
    });
    let embedded = plane.ended(&plane.submit_as(by_name).await).await;
    assert_eq!(embedded["state"], "completed", "{embedded}");
    let result = &embedded["result"];
    assert_eq!((&result["model"], result["parts"].as_array().unwrap().len()), (&json!("embed"), 2));
    assert!(result["parts"][0]["vector"].as_array().unwrap().len() > 1 && result["prompt_tokens"].is_u64());
    let said = plane.ended(&plane.submit_as(by_kind).await).await;
    assert_eq!(
        (&said["state"], &said["result"]["parts"][0]["finish"]),
        (&json!("completed"), &json!("stop")),
        "{said}"
    );
    let worker = plane.worker("mule").await;
    assert_eq!(worker["slots"], 6, "twice as many as copies: {worker}");
}

/// Faults: T12.
#[tokio::test]
async fn model_failure_cause_decides_retry() {
    let (plane, _worker) = fleet("mule").await;
    let ask = async |workflow: Value| {
        plane.ended(&plane.submit_as(json!({ "workflow": workflow, "service": "embed" })).await).await
    };
    // What would fail everywhere is not tried again.
    for (workflow, told) in [
        (json!({ "model": "embed" }), "texts"),
        (json!({ "texts": ["x"] }), "give a `model`"),
        (json!({ "model": "embed", "capability": "text_to_text" }), "only has the capability"),
        (json!({ "model": "embed", "capability": "juggling" }), "juggling"),
    ] {
        let job = ask(workflow).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("failed"), &json!(1)), "{job}");
        assert_contains_all(job["reason"].as_str().unwrap(), &[told]);
    }
    // What is the engine's fault is tried again, and counts as a mishap.
    let job = ask(json!({ "model": "embed", "texts": ["!fail"] })).await;
    assert_eq!((&job["state"], &job["failures"]), (&json!("failed"), &json!(0)), "{job}");
    assert!(job["infra_failures"].as_u64() > Some(1), "{job}");
}

/// Faults: T11.
#[tokio::test]
async fn cancelled_job_frees_copy_within_a_step() {
    let (plane, _worker) = fleet("mule").await;
    let busy = json!({ "workflow": { "model": "embed", "texts": ["!busy 600000"] }, "service": "embed" });
    let job = plane.submit_as(busy).await;
    plane.runs_on(&job).await;
    let in_flight = async || {
        let status = plane.get("/remuda/v1/models").await;
        let embed =
            status["models"].as_array().unwrap().iter().find(|it| it["id"] == "embed").unwrap().clone();
        let copies = embed["workers"]["mule"]["copies"].as_array().cloned().unwrap_or_default();
        copies.iter().filter_map(|copy| copy["in_flight"].as_u64()).sum::<u64>()
    };
    wait_until("a copy is busy with it", async || (in_flight().await == 1).then_some(())).await;
    plane.cancel(&job).await;
    wait_until("no copy is busy any more", async || (in_flight().await == 0).then_some(())).await;
    assert_eq!(plane.job(&job).await["state"], "cancelled");
}

#[tokio::test]
async fn openai_package_works_through_jobs() {
    let Some(python) = python() else { return };
    let (plane, _worker) = fleet("mule").await;
    let said = ended_well(script(&plane, &python, plane.folder(), "client.py", &["embed", "chat"])).await;
    assert_contains_all(&said, &["models chat embed", "floats equal base64", "streamed", "refused", "done"]);
    let jobs = plane.jobs().await;
    assert!(jobs.len() >= 6 && jobs.iter().all(|job| job["state"] == "completed"), "{jobs:?}");
}

/// Faults: A2.
#[tokio::test]
async fn call_moves_to_another_worker() {
    let (plane, mut first) = fleet("first").await;
    let call = {
        let client = plane.with("");
        tokio::spawn(async move {
            client.post("/v1/embeddings", &json!({ "model": "embed", "input": "!busy 3000" })).await
        })
    };
    let job = wait_until("there is a job", async || plane.jobs().await.pop()).await;
    plane.runs_on(job["id"].as_str().unwrap()).await;
    let _second = join(&plane, "second").await;
    first.process.kill();
    let (status, answer) = call.await.unwrap();
    assert_eq!(status, StatusCode::OK, "{answer}");
    let job = plane.ended(job["id"].as_str().unwrap()).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("completed"), &json!(2)), "{job}");
}

/// Faults: T10.
#[tokio::test]
async fn closed_connection_cancels_and_missing_model_is_reported_at_once() {
    let (plane, mut worker) = fleet("mule").await;
    let ask = json!({ "model": "embed", "input": "!busy 600000" });
    let call = {
        let (client, ask) = (plane.with(""), ask.clone());
        tokio::spawn(async move { client.post("/v1/embeddings", &ask).await })
    };
    let job = wait_until("there is a job", async || plane.jobs().await.pop()).await;
    plane.runs_on(job["id"].as_str().unwrap()).await;
    call.abort();
    let job = plane.ended(job["id"].as_str().unwrap()).await;
    assert_eq!(job["state"], "cancelled", "{job}");
    assert_contains_all(job["reason"].as_str().unwrap(), &["disconnected"]);
    worker.process.kill();
    plane.worker_until_offline("mule").await;
    let (status, answer) = plane.post("/v1/embeddings", &ask).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("model_unavailable")),
        "{answer}"
    );
    let models = plane.get("/v1/models").await;
    assert_eq!(models["data"][0]["ready"], false, "{models}");
}

/// A draining worker finishes what it holds and takes nothing new: a call must not wait for it until the deadline.
///
/// Faults: T10.
#[tokio::test]
async fn model_of_a_draining_worker_is_not_ready_and_calls_fail_at_once() {
    let (plane, _worker) = fleet("mule").await;
    let call = {
        let client = plane.with("");
        tokio::spawn(async move {
            client.post("/v1/embeddings", &json!({ "model": "embed", "input": "!busy 600000" })).await
        })
    };
    let job = wait_until("there is a job", async || plane.jobs().await.pop()).await;
    plane.runs_on(job["id"].as_str().unwrap()).await;
    let (status, answer) = plane.post("/remuda/v1/workers/mule/drain", &json!({})).await;
    assert!(status.is_success(), "{answer}");
    let models = plane.get("/v1/models").await;
    assert!(models["data"].as_array().unwrap().iter().all(|it| it["ready"] == false), "{models}");
    let (status, answer) = plane.post("/v1/embeddings", &json!({ "model": "embed", "input": "x" })).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("model_unavailable")),
        "{answer}"
    );
    call.abort();
}

/// A model that its pool gave up is not offered; a worker without any model takes no work.
///
/// Faults: T2, T6.
#[tokio::test]
async fn model_that_never_loads_is_withdrawn() {
    let plane = Plane::start(QUICK).await;
    stand_in(plane.folder(), "broken.fake");
    let both = ["--model", "embed=embed.fake", "--model", "broken=broken.fake"];
    let _mule = Worker::start_doing(&plane, "mule", &both).await;
    let ready = async |model: &str| plane.get(&format!("/v1/models/{model}")).await["ready"].clone();
    wait_until("broken is offered no more", async || (ready("broken").await == false).then_some(())).await;
    let ask =
        async |model: &str| plane.post("/v1/embeddings", &json!({ "model": model, "input": "x" })).await;
    let (status, answer) = ask("broken").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("model_unavailable")),
        "{answer}"
    );
    assert_eq!(ask("embed").await.0, StatusCode::OK);
    let _ox = Worker::start_doing(&plane, "ox", &["--model", "broken=broken.fake"]).await;
    let closed = wait_until("ox takes no work", async || {
        let worker = plane.worker("ox").await;
        worker["unavailable_reason"].as_str().filter(|why| !why.is_empty()).map(str::to_owned)
    })
    .await;
    assert_contains_all(&closed, &["broken", "deaths in a row"]);
    assert!(plane.worker("mule").await["unavailable_reason"].is_null(), "the other model goes on");
}

/// Vectors that are many come as one blob, and pictures as one each.
#[tokio::test]
async fn large_results_are_blobs() {
    let Some(python) = python() else { return };
    let plane = Plane::start(QUICK).await;
    stand_in(plane.folder(), "draw.fake");
    let both = ["--model", "embed=embed.fake", "--model", "draw=draw.fake"];
    let _mule = Worker::start_doing(&plane, "mule", &both).await;
    let texts: Vec<_> = (0..2100).map(|number| number.to_string()).collect();
    let embed = json!({ "service": "embed", "workflow": { "model": "embed", "texts": texts } });
    let job = plane.ended(&plane.submit_as(embed).await).await;
    assert_eq!(job["state"], "completed", "{job}");
    let (parts, outputs) = (&job["result"]["parts"], job["result"]["outputs"].as_array().unwrap());
    assert_eq!((parts.as_array().unwrap().len(), outputs.len()), (2100, 1));
    assert_eq!(
        (&parts[7]["output"], &parts[7]["from"], &parts[7]["count"]),
        (&json!(0), &json!(56), &json!(8))
    );
    assert_eq!(outputs[0]["size_bytes"], 2100 * 8 * 4);
    assert_contains_all(
        &ended_well(script(&plane, &python, plane.folder(), "pictures.py", &["draw"])).await,
        &["done"],
    );
}
