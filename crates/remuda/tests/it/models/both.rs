//! A model that the plane has in its own process and a worker has as well: one does what the other cannot.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::host::{Host, copies, stand_in};
use crate::harness::{Process, remuda, wait_until};

/// More letters than may wait twice.
fn much() -> Value {
    json!({ "model": "embed", "input": vec!["x".repeat(1000); 600] })
}

/// A worker of its own process with a model of the same name, and its own file.
async fn mule(host: &Host) -> Process {
    std::fs::copy(stand_in(host.folder(), "embed.fake"), host.folder().join("mule.fake")).unwrap();
    let mut worker = remuda(host.folder());
    worker.args(["worker", "--url", &host.url, "--name", "mule", "--model", "embed=mule.fake"]);
    let process = Process::start("mule", &mut worker);
    wait_until("mule has it", async || {
        let model = host.model("embed").await;
        model["ready_workers"].as_array().unwrap().contains(&json!("mule")).then_some(())
    })
    .await;
    process
}

/// The only job there is, done by the mule.
async fn was_mules(host: &Host) {
    let jobs = host.jobs().await;
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((&job["state"], &job["worker"]), (&json!("completed"), &json!("mule")), "{job}");
}

#[tokio::test]
async fn full_local_queue_falls_back_to_worker() {
    let host = Host::up(&["embed=embed.fake"]).await;
    let ask = |body: Value| {
        let client = host.with("");
        tokio::spawn(async move { client.post("/v1/embeddings", &body).await })
    };
    let busy = ask(json!({ "model": "embed", "input": "!busy 600000" }));
    wait_until("the copy is busy", async || {
        (copies(&host.model("embed").await)[0]["state"] == "busy").then_some(())
    })
    .await;
    let waiting = ask(much());
    wait_until("a call waits", async || {
        (host.model("embed").await["here"]["queue_parts"] == 600).then_some(())
    })
    .await;
    let (status, answer) = host.post("/v1/embeddings", &much()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "no worker is there: {answer}");
    assert_eq!(
        host.jobs().await.len(),
        0,
        "nor is it given to the worker beside the plane, which has the same pool"
    );
    let _mule = mule(&host).await;
    let (status, answer) = host.post("/v1/embeddings", &much()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["data"].as_array().unwrap().len(), 600);
    was_mules(&host).await;
    busy.abort();
    waiting.abort();
}

/// Faults: T10.
#[tokio::test]
async fn dead_local_model_falls_back_to_worker() {
    let host = Host::up(&["embed=embed.fake"]).await;
    let _mule = mule(&host).await;
    let broken = "text_embedding\nfailing_loads = 1000000";
    std::fs::write(host.folder().join("embed.fake"), broken).unwrap();
    let (status, answer) = host.post("/v1/embeddings", &json!({ "model": "embed", "input": "!panic" })).await;
    assert!(status.is_server_error(), "{answer}");
    wait_until("no copy is left here", async || {
        (host.model("embed").await["here"]["given_up"] == 1).then_some(())
    })
    .await;
    let (status, answer) = host.post("/v1/embeddings", &json!({ "model": "embed", "input": "x" })).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    was_mules(&host).await;
}
