//! How often the plane reads a workflow between its submission over HTTP and the order to its worker.

use remuda_core::workflow::reads;
use serde_json::{Value, json};

use super::*;

/// A plane with one worker that takes everything.
struct Story {
    serving: Serving,
    http: reqwest::Client,
    joined: Value,
    seq: u64,
    _folder: tempfile::TempDir,
}

impl Story {
    async fn begin() -> Story {
        let (folder, serving) = start().await;
        let http = remuda_net::http_client::client_builder().build().unwrap();
        let mut story = Story { serving, http, joined: Value::Null, seq: 0, _folder: folder };
        let join = json!({ "worker": "w", "services": ["comfyui", "exec"], "slots": 64 });
        story.joined = story.post("/remuda/v1/workers", join).await;
        story
    }

    async fn send(
        &self,
        path: &str,
        change: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Value {
        let request = self.http.post(format!("{}{path}", self.serving.url()));
        let response = change(request).send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.send(path, |request| request.json(&body)).await
    }

    /// Each part is what follows `name=` and its content.
    async fn upload(&self, path: &str, parts: &[(&str, &str)]) -> Value {
        let part = |(name, content): &(&str, &str)| {
            format!("--x\r\ncontent-disposition: form-data; name={name}\r\n\r\n{content}\r\n")
        };
        let body = parts.iter().map(part).collect::<String>() + "--x--\r\n";
        let kind = "multipart/form-data; boundary=x";
        self.send(path, |request| request.header("content-type", kind).body(body)).await
    }

    /// The order for this job, as its worker gets it.
    async fn order(&mut self, job: &Value) -> Value {
        for _ in 0..100 {
            self.seq += 1;
            let (incarnation, term) = (&self.joined["incarnation"], &self.joined["term"]);
            let beat = json!({ "incarnation": incarnation, "term": term, "seq": self.seq });
            let token = self.joined["token"].as_str().unwrap();
            let reply = self.send("/remuda/v1/workers/w/beat", |it| it.bearer_auth(token).json(&beat)).await;
            let mut orders = reply["start"].as_array().into_iter().flatten();
            if let Some(order) = orders.find(|order| order["job"] == *job) {
                return order.clone();
            }
        }
        panic!("the worker gets no order for job {job}");
    }

    /// Submits, and returns the order and how often the plane read the workflow until then.
    async fn reads(&mut self, path: &str, body: Value) -> (u64, Value) {
        let before = reads();
        let answer = self.post(path, body).await;
        let job = ["id", "prompt_id"].iter().map(|name| &answer[name]).find(|it| it.is_string()).unwrap();
        let order = self.order(job).await;
        (reads() - before, order)
    }
}

fn graph(image: impl Into<Value>) -> Value {
    let image = image.into();
    json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": image, "note": "\u{e9}" } },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "x" } },
    })
}

const KEY: &str = "api_key_comfy_org";

#[tokio::test]
async fn native_workflow_is_read_once() {
    let mut story = Story::begin().await;
    for workflow in [graph("a.png"), json!({ "prompt": graph("a.png") }), json!({ "n": 1 })] {
        let (reads, order) = story.reads("/remuda/v1/jobs", json!({ "workflow": workflow })).await;
        assert_eq!((reads, &order["workflow"]), (1, &workflow));
    }
}

#[tokio::test]
async fn native_workflow_that_is_changed_is_read_twice() {
    let mut story = Story::begin().await;
    let wrapped = json!({ "prompt": graph("a.png"), "extra_data": { KEY: "secret", "a": 1 } });
    let (reads, order) = story.reads("/remuda/v1/jobs", json!({ "workflow": wrapped })).await;
    let without = json!({ "prompt": graph("a.png"), "extra_data": { "a": 1 } });
    assert_eq!((reads, &order["workflow"]), (2, &without));
    assert_eq!(order["keys"], json!({ KEY: "secret" }));

    let blob = story.send("/remuda/v1/blobs", |request| request.body("content")).await;
    let body = json!({ "workflow": graph("a.png"), "attachments": { "a.png": blob["hash"] } });
    let (reads, order) = story.reads("/remuda/v1/jobs", body).await;
    let asset = &order["workflow"]["1"]["inputs"]["image"];
    assert_eq!((reads, &asset["info"]["hash"]), (2, &blob["hash"]), "{order}");
}

#[tokio::test]
async fn comfyui_prompt_is_read_twice() {
    let mut story = Story::begin().await;
    story.upload("/upload/image", &[("image; filename=a.png", "content")]).await;
    let prompt = json!({ "prompt": graph("a.png"), "extra_data": { KEY: "secret" }, "client_id": "me" });
    let (reads, order) = story.reads("/prompt", prompt).await;
    assert_eq!((reads, &order["keys"]), (2, &json!({ KEY: "secret" })));
    let asset = &order["workflow"]["prompt"]["1"]["inputs"]["image"];
    assert_eq!(asset["info"]["name"], "a.png", "{order}");
}

#[tokio::test]
async fn comfy_v2_workflow_is_read_twice() {
    let mut story = Story::begin().await;
    let body = json!({ "workflow": graph("a.png"), "extra_data": { KEY: "secret" } });
    let (reads, order) = story.reads("/api/v2/jobs", body).await;
    assert_eq!((reads, &order["workflow"]), (2, &graph("a.png")));
    assert_eq!(order["keys"], json!({ KEY: "secret" }));

    let parts = [("file; filename=a.png", "content"), ("content_type", "image/png"), ("file_path", "a.png")];
    let uploaded = story.upload("/api/v2/assets", &parts).await;
    let asset = json!({ "__type": "core/ASSET", "info": { "id": uploaded["id"] } });
    let (reads, order) = story.reads("/api/v2/jobs", json!({ "workflow": graph(asset) })).await;
    let asset = &order["workflow"]["1"]["inputs"]["image"];
    assert!(asset["info"]["hash"].is_string() && reads == 2, "{reads} {order}");
}
