//! What is reported of a running job: progress, messages of its server, outputs so far.

use remuda_config::{self as config, ConfigFlag};
use remuda_core::event_kind::EventKind;
use remuda_fakes::comfyui::{Fake, Options};
use remuda_server::live::LiveEvent;
use remuda_server::serve::Serving;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::fixture::{ComfyFixture, prompt_id};
use super::graph::{Graph, picture};
use crate::harness::{Client, Process, WAIT_MAX, remuda, wait_until};

/// Puts a picture out at once and another one after `seconds`.
pub(crate) fn two_pictures(color: u64, seconds: f64) -> Value {
    let first = picture(color).add("SaveImage", json!({ "images": ["1", 0], "filename_prefix": "first" }));
    let slow = json!({ "image": ["1", 0], "seconds": seconds, "steps": 20, "preview": true });
    first.add("RemudaSleep", slow).saved()
}

#[tokio::test]
async fn early_output_is_available_and_fetched_once() {
    let stage = ComfyFixture::fake().await;
    let job = stage.submit(two_pictures(1, 3.0)).await;
    let view = stage.job_until(&job, "has put something out", |job| !job["outputs"].is_null()).await;
    assert_eq!((&view["state"], view["outputs"].as_array().unwrap().len()), (&json!("running"), 1), "{view}");
    let early = view["outputs"][0].clone();
    let path = format!("/remuda/v1/blobs/{}", early["hash"].as_str().unwrap());
    let there = stage.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(there.content_length(), early["size_bytes"].as_u64());

    let view = stage.job_until(&job, "is in its steps", |job| job["progress"]["step"].is_u64()).await;
    let progress = &view["progress"];
    let known = ["current_node", "current_node_class", "nodes_total", "steps"].map(|key| &progress[key]);
    assert_eq!(known, [&json!("3"), &json!("RemudaSleep"), &json!(4), &json!(20)], "{view}");
    assert_eq!(progress["nodes_done"], 2, "{view}");
    let share = progress["value"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{view}");

    let ended = stage.ended(&job).await;
    let outputs = ended["result"]["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 2, "{ended}");
    assert!(outputs.contains(&early), "{ended}");
    assert_eq!((&ended["progress"], &ended["outputs"]), (&Value::Null, &Value::Null), "it went with the run");
    assert_eq!(stage.fake_counts().requests["GET /view"], 2, "each was fetched once");
}

#[tokio::test]
async fn only_included_outputs_are_stored() {
    let stage = ComfyFixture::fake().await;
    let submission = json!({ "workflow": two_pictures(7, 1.0), "include_outputs": ["4"] });
    let ended = stage.ended(&stage.submit_as(submission).await).await;
    let outputs = ended["result"]["outputs"].as_array().unwrap();
    assert_eq!(outputs.iter().map(|it| &it["node"]).collect::<Vec<_>>(), ["4"], "{ended}");
    assert_eq!(stage.fake_counts().requests["GET /view"], 1, "the other one was not fetched");
}

#[tokio::test]
async fn live_report_is_dropped_with_its_attempt() {
    let mut stage = ComfyFixture::fake().await;
    let job = stage.submit(two_pictures(2, 30.0)).await;
    stage.job_until(&job, "has put something out", |job| !job["outputs"].is_null()).await;
    stage.worker.process.kill();
    let gone = |job: &Value| job["outputs"].is_null() && job["progress"].is_null();
    let view = stage.job_until(&job, "is of another attempt", gone).await;
    assert_ne!((&view["state"], &view["attempt"]), (&json!("running"), &json!(1)), "{view}");
    stage.cancel(&job).await;
}

/// A plane in this process, whose followers hear what no route tells, and a worker on a server.
struct Followed {
    serving: Serving,
    client: Client,
    news: broadcast::Receiver<LiveEvent>,
    server: Fake,
    worker: Process,
    _folder: tempfile::TempDir,
}

/// What was told of a job and how it ended, in the order in which it was heard.
#[derive(Debug, Default)]
struct Story {
    messages: Vec<Value>,
    reports: usize,
    end: String,
}

impl Story {
    fn kinds(&self) -> Vec<&str> {
        self.messages.iter().map(|message| message["type"].as_str().unwrap()).collect()
    }
}

impl Followed {
    async fn start(options: Options) -> Followed {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("plane").display().to_string();
        let flags = [("data", data.as_str()), ("listen", "127.0.0.1:0"), ("store", "memory:")]
            .map(|(key, value)| ConfigFlag { key, value, name: key });
        let serving = Serving::start(&config::load(None, [], &flags).unwrap()).await.unwrap();
        let client = Client::new(format!("http://{}", serving.address));
        let news = serving.context.events.subscribe();
        let server = Fake::start(options).await.unwrap();
        let mut worker = remuda(folder.path());
        worker.args(["worker", "--url", &client.url, "--name", "w", "--comfyui", &server.url()]);
        let worker = Process::start("w", &mut worker);
        wait_until("the worker is there", async || {
            (client.get("/remuda/v1/workers").await["workers"][0]["presence"] == "online").then_some(())
        })
        .await;
        Followed { serving, client, news, server, worker, _folder: folder }
    }

    /// All that is heard of a job that is submitted now, up to its end.
    async fn story(&mut self, workflow: Value) -> (String, Story) {
        let job = self.client.submit_as(json!({ "workflow": workflow, "attempts_max": 1 })).await;
        let mut story = Story::default();
        while story.end.is_empty() {
            let news = tokio::time::timeout(WAIT_MAX, self.news.recv()).await.expect("the job should end");
            match news.unwrap() {
                LiveEvent::Update(told) if told.job.to_string() == job => {
                    story.reports += 1;
                    let messages =
                        told.report.messages.iter().map(|raw| serde_json::from_str(raw.get()).unwrap());
                    story.messages.extend(messages);
                }
                LiveEvent::Stored(it) if it.job.is_some_and(|it| it.to_string() == job) => {
                    let is_end = matches!(it.kind, EventKind::JobCompleted | EventKind::JobFailed);
                    story.end = if is_end { it.kind.to_string() } else { String::new() };
                }
                _ => {}
            }
        }
        (job, story)
    }

    async fn stop(mut self) {
        self.worker.kill();
        self.server.stop().await;
        self.serving.stop().await.unwrap();
    }
}

#[tokio::test]
async fn service_messages_arrive_in_order_before_end() {
    let mut followed = Followed::start(Options::default()).await;
    let (job, story) = followed.story(picture(3).sleep(4.0, 400).saved()).await;
    assert_eq!(story.end, "job:completed");
    let mut kinds = story.kinds();
    kinds.retain(|kind| !kind.starts_with("progress"));
    let around = ["execution_start", "execution_cached", "executing", "executing", "executing", "executed"];
    assert_eq!(kinds, [&around[..], &["execution_success", "executing"]].concat(), "{:?}", story.messages);
    let id = prompt_id(&job, 1);
    assert!(story.messages.iter().all(|message| message["data"]["prompt_id"] == id.as_str()));
    let steps: Vec<_> = story.messages.iter().filter(|it| it["type"] == "progress").collect();
    assert!(steps.len() > 2, "it was told while it went on: {steps:?}");
    assert!(steps.len() < 200, "not every step was told: {} steps in {} reports", steps.len(), story.reports);
    assert_eq!(steps.last().unwrap()["data"]["value"], 400);
    followed.stop().await;
}

#[tokio::test]
async fn cached_run_is_reported_before_its_end() {
    let mut followed = Followed::start(Options { speed: f64::INFINITY, ..Options::default() }).await;
    let workflow = || picture(4).previewed();
    followed.story(workflow()).await;
    let (_, story) = followed.story(workflow()).await;
    assert_eq!((story.end.as_str(), story.reports), ("job:completed", 1), "{story:?}");
    let kinds = ["execution_start", "execution_cached", "executed", "execution_success", "executing"];
    let mut told = story.kinds();
    told.retain(|kind| !kind.starts_with("progress"));
    assert_eq!(told, kinds, "{story:?}");
    followed.stop().await;
}

/// Faults: V25.
#[tokio::test]
async fn nan_messages_and_errors_are_reported_as_json() {
    let mut followed = Followed::start(Options::default()).await;
    let nan = Graph::default().add("RemudaNan", json!({})).whole();
    let (_, story) = followed.story(nan).await;
    assert!(story.kinds().contains(&"executed"), "{story:?}");
    let (_, story) = followed.story(picture(5).fail("error").saved()).await;
    assert_eq!(story.end, "job:failed");
    assert!(story.kinds().contains(&"execution_error"), "{story:?}");
    followed.stop().await;
}
