//! The client against a fake server that reproduces the observed behaviour of each ComfyUI version and fails on demand.

mod faults;
mod probes;
mod sockets;

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFault, SubmitOutcome};
use remuda_core::workflow::JobKeys;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    ComfyuiClient, ComfyuiError, ComfyuiMessage, ComfyuiSocket, ComfyuiTarget, PreparedPrompt,
    ProgressTracker, PromptDraft, PromptPhase, PromptTag, outputs,
};
use remuda_fakes::comfyui::{Fake, Fault as Struck, Options, Version};
use remuda_net::secret::Secret;

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    fake: Fake,
    target: ComfyuiTarget,
    client: ComfyuiClient,
    worker: WorkerId,
    client_id: String,
}

async fn world(options: Options) -> World {
    let mut target = ComfyuiTarget::new("");
    if let Some(token) = &options.token {
        target.headers.push(("authorization".to_owned(), Secret::new(format!("Bearer {token}"))));
    }
    let fake = Fake::start(options).await.unwrap();
    target.url = fake.url();
    let client = ComfyuiClient::new(&target, Duration::from_secs(5)).unwrap();
    World { fake, target, client, worker: "gpu-1".parse().unwrap(), client_id: "agent-1".to_owned() }
}

fn draft(graph: &Value) -> PromptDraft {
    PromptDraft::read(&to_raw_value(graph).unwrap(), &JobKeys::default()).unwrap()
}

async fn plain() -> World {
    world(Options::default()).await
}

impl World {
    fn prompt(&self, graph: &Value) -> PreparedPrompt {
        self.prompt_with(graph, &BTreeMap::new())
    }

    /// A prompt for a new job.
    fn prompt_with(&self, graph: &Value, placed: &BTreeMap<String, String>) -> PreparedPrompt {
        let job = JobId::from_u128(uuid::Uuid::now_v7().as_u128());
        let tag = PromptTag { worker: self.worker.clone(), job, attempt: Attempt(1) };
        let id = job.service_job_id(Attempt(1));
        draft(graph).prepare(&tag, &id, &self.client_id, placed).unwrap()
    }

    async fn accepted(&self, graph: &Value) -> PreparedPrompt {
        let prompt = self.prompt(graph);
        let submission = self.client.submit(&prompt).await;
        assert!(matches!(submission, SubmitOutcome::Accepted), "{submission:?}");
        prompt
    }

    /// Probes until the prompt has ended.
    async fn ended(&self, prompt: &PreparedPrompt) -> ProbeResult {
        let looking = async {
            loop {
                match self.client.probe(prompt.id(), ProbeTrigger::Recheck).await {
                    ProbeResult::Pending { .. } | ProbeResult::Running => {
                        sleep(Duration::from_millis(5)).await;
                    }
                    seen => return seen,
                }
            }
        };
        timeout(PATIENCE, looking).await.unwrap()
    }

    async fn running(&self, prompt: &PreparedPrompt) {
        let looking = async {
            while !matches!(self.client.probe(prompt.id(), ProbeTrigger::Recheck).await, ProbeResult::Running)
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, looking).await.unwrap();
    }

    async fn socket(&self) -> ComfyuiSocket {
        ComfyuiSocket::connect(&self.target, &self.client_id, PATIENCE).await.unwrap()
    }
}

/// An empty image, inverted and saved.
fn picture(colour: u32) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": colour}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
    })
}

/// The same with another node in the middle.
fn with_node(class: &str, inputs: &Value) -> Value {
    let mut graph = picture(7);
    graph["2"] = json!({"class_type": class, "inputs": inputs});
    graph["2"]["inputs"]["image"] = json!(["1", 0]);
    graph
}

/// Runs until it is interrupted.
fn endless() -> Value {
    with_node("RemudaSleep", &json!({"seconds": 3600.0, "steps": 10_000, "preview": false}))
}

/// Receives all messages up to the end of the prompt.
async fn listen(socket: &mut ComfyuiSocket, prompt: &PreparedPrompt) -> Vec<ComfyuiMessage> {
    let mut messages = Vec::new();
    let listening = async {
        loop {
            let message = socket.recv_message().await.unwrap();
            let is_end = message.is_end_of(prompt.id());
            messages.push(message);
            if is_end {
                break;
            }
        }
    };
    timeout(PATIENCE, listening).await.unwrap();
    messages
}

/// Faults: V18.
#[tokio::test]
async fn job_runs_from_upload_to_download_on_every_version() {
    for version in Version::ALL {
        let token = Some("secret".to_owned());
        let world =
            world(Options { version, token, base_path: "/comfy".to_owned(), ..Options::default() }).await;
        assert_eq!(world.client.stats().await.unwrap().version, version.name());
        let inventory = world.client.inventory().await.unwrap();
        assert!(inventory.classes.contains("KSampler"));
        assert!(inventory.models.contains("v1-5-pruned-emaonly-fp16.safetensors"));

        let mut socket = world.socket().await;
        let photo = picture_bytes(&world).await;
        let hash = format!("blake3:{}", blake3::hash(&photo).to_hex());
        let mut graph = picture(9);
        graph["1"] = json!({"class_type": "LoadImage", "inputs": {"image": {"__type": "core/ASSET", "info": {"hash": hash, "file_path": "photo.png"}}}});
        let asset = draft(&graph).assets()[0].clone();
        let mut names = Vec::new();
        for _ in 0..2 {
            names.push(
                world.client.upload(&asset.upload_name(), photo.clone(), photo.len() as u64).await.unwrap(),
            );
        }
        assert_eq!(names, [asset.upload_name(), asset.upload_name()]);
        let prompt = world.prompt_with(&graph, &BTreeMap::from([(hash, names.remove(0))]));
        assert!(matches!(world.client.submit(&prompt).await, SubmitOutcome::Accepted));

        let mut progress = ProgressTracker::new(prompt.id(), prompt.nodes());
        let steps: Vec<_> =
            listen(&mut socket, &prompt).await.iter().filter_map(|message| progress.apply(message)).collect();
        assert_eq!(steps.last().map(|step| step.fraction), Some(1.0));
        let ProbeResult::Succeeded { outputs } =
            world.client.probe(prompt.id(), ProbeTrigger::CompletionHint).await
        else {
            panic!()
        };
        let files = outputs::files(&outputs);
        assert!(
            files[0].subfolder.starts_with("remuda/") && files[0].filename.starts_with("x_"),
            "{files:?}"
        );
        assert!(download(&world, &files[0]).await.starts_with(b"\x89PNG"));

        let ours = world.client.tagged_prompts(&world.worker).await.unwrap();
        assert!(ours.iter().any(|it| it.id == prompt.id() && it.phase == PromptPhase::Ended));
        assert!(world.client.tagged_prompts(&"gpu-2".parse().unwrap()).await.unwrap().is_empty());
        world.client.free_memory().await.unwrap();
        socket.close().await;
    }
}

async fn picture_bytes(world: &World) -> Vec<u8> {
    let prompt = world.accepted(&picture(3)).await;
    let ProbeResult::Succeeded { outputs } = world.ended(&prompt).await else { panic!() };
    download(world, &outputs::files(&outputs)[0]).await
}

async fn download(world: &World, file: &outputs::OutputFile) -> Vec<u8> {
    let mut download = world.client.download(file).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(chunk) = download.chunk().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    assert_eq!(download.length, Some(bytes.len() as u64));
    bytes
}

/// Faults: V17, V18.
#[tokio::test]
async fn refusal_says_whether_another_server_could_run_it() {
    let no_model = json!({
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "absent.safetensors"}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 2]}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
    });
    let no_image = with_node("LoadImage", &json!({"image": "absent.png"}));
    let mut too_small = picture(1);
    too_small["1"]["inputs"]["width"] = json!(0);
    let cases = [
        (no_model, ServiceFault::Missing, "node 1 (CheckpointLoaderSimple), input ckpt_name"),
        (with_node("NoSuchClass", &json!({})), ServiceFault::Missing, "NoSuchClass"),
        (
            json!({"1": {"class_type": "LoadImage", "inputs": {"image": "absent.png"}}, "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}),
            ServiceFault::Node,
            "absent.png",
        ),
        (too_small, ServiceFault::Graph, "node 1 (EmptyImage), input width"),
        (json!({"1": no_image["1"]}), ServiceFault::Graph, "no outputs"),
    ];
    for version in Version::ALL {
        let world = world(Options { version, ..Options::default() }).await;
        for (graph, fault, word) in &cases {
            match world.client.submit(&world.prompt(graph)).await {
                SubmitOutcome::Refused(failure) => {
                    assert_eq!(failure.fault, *fault, "{}", failure.message);
                    assert!(failure.message.contains(word), "{}", failure.message);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Faults: V23.
#[tokio::test]
async fn partially_valid_prompt_is_withdrawn() {
    let world = plain().await;
    let mut half = picture(1);
    half["4"] = json!({"class_type": "SaveImage", "inputs": {"images": ["99", 0], "filename_prefix": "y"}});
    for is_busy in [false, true] {
        let running = if is_busy { Some(world.accepted(&endless()).await) } else { None };
        let prompt = world.prompt(&half);
        let SubmitOutcome::Refused(failure) = world.client.submit(&prompt).await else { panic!() };
        assert_eq!(failure.fault, ServiceFault::Graph);
        assert!(failure.message.contains("node 4 (SaveImage)"), "{}", failure.message);
        assert!(matches!(world.ended(&prompt).await, ProbeResult::Unknown));
        if let Some(running) = running {
            assert!(matches!(
                world.client.probe(running.id(), ProbeTrigger::Recheck).await,
                ProbeResult::Running
            ));
        }
    }
}

/// Faults: V21.
#[tokio::test]
async fn cancel_affects_only_its_own_prompt() {
    let world = plain().await;
    let (foreign, ours, last) = (
        world.accepted(&endless()).await,
        world.accepted(&endless()).await,
        world.accepted(&picture(2)).await,
    );
    world.running(&foreign).await;
    let ProbeResult::Pending { ahead: Some(_) } =
        world.client.probe(ours.id(), ProbeTrigger::Submitted).await
    else {
        panic!()
    };
    for id in [ours.id(), ours.id(), "00000000-0000-4000-8000-000000000000"] {
        world.client.cancel(id).await.unwrap();
    }
    assert!(matches!(world.client.probe(ours.id(), ProbeTrigger::Cancelled).await, ProbeResult::Unknown));
    assert!(matches!(world.client.probe(foreign.id(), ProbeTrigger::Recheck).await, ProbeResult::Running));
    assert_eq!(world.fake.counts().requests_to("/interrupt"), 0);
    world.client.cancel(foreign.id()).await.unwrap();
    assert!(matches!(world.ended(&foreign).await, ProbeResult::Interrupted));
    assert!(matches!(world.ended(&last).await, ProbeResult::Succeeded { .. }));
    assert_eq!(world.fake.counts().executions.get(ours.id()), None);
}

/// Faults: V4.
#[tokio::test]
async fn cancel_deletes_all_copies_of_a_prompt() {
    let world = plain().await;
    let before = world.accepted(&endless()).await;
    world.running(&before).await;
    world.fake.control().strike_next(Struck::Duplicate);
    let twice = world.accepted(&picture(2)).await;
    world.client.cancel(twice.id()).await.unwrap();
    world.client.cancel(before.id()).await.unwrap();
    world.ended(&before).await;
    assert!(matches!(world.ended(&twice).await, ProbeResult::Unknown));
    assert_eq!(world.fake.counts().executions.get(twice.id()), None);
}

/// Faults: V10.
#[tokio::test]
async fn node_errors_are_classified() {
    let world = plain().await;
    for (kind, fault) in [
        ("error", ServiceFault::Node),
        ("oom", ServiceFault::Memory),
        ("cuda", ServiceFault::Device),
        ("disk", ServiceFault::Disk),
    ] {
        let prompt = world.accepted(&with_node("RemudaFail", &json!({"kind": kind}))).await;
        let ProbeResult::Failed(failure) = world.ended(&prompt).await else { panic!("{kind}") };
        assert_eq!(failure.fault, fault, "{}", failure.message);
        assert!(failure.message.starts_with("node 2 (RemudaFail): "), "{}", failure.message);
    }
}

/// Faults: V25.
#[tokio::test]
async fn result_with_bare_nan_is_read() {
    let world = plain().await;
    let prompt = world.accepted(&json!({"1": {"class_type": "RemudaNan", "inputs": {}}})).await;
    assert!(matches!(world.ended(&prompt).await, ProbeResult::Succeeded { .. }));
    assert!(world.client.is_in_history(prompt.id()).await.unwrap());
    assert_eq!(world.client.tagged_prompts(&world.worker).await.unwrap().len(), 1);
}

#[tokio::test]
async fn blocked_node_is_reported_only_by_the_socket() {
    let world = plain().await;
    let mut socket = world.socket().await;
    let prompt = world.prompt(&with_node("RemudaBlocker", &json!({"message": "not today"})));
    let mut progress = ProgressTracker::new(prompt.id(), prompt.nodes());
    world.client.submit(&prompt).await;
    for message in listen(&mut socket, &prompt).await {
        progress.apply(&message);
    }
    let seen = world.client.probe(prompt.id(), ProbeTrigger::CompletionHint).await;
    assert!(matches!(&seen, ProbeResult::Succeeded { outputs } if outputs::is_empty(outputs)), "{seen:?}");
    assert!(progress.was_blocked());
}

/// Faults: V19, V24.
#[tokio::test]
async fn missing_output_is_distinguished_from_a_failing_server() {
    let world = plain().await;
    let prompt = world.accepted(&picture(5)).await;
    let ProbeResult::Succeeded { outputs } = world.ended(&prompt).await else { panic!() };
    world.fake.control().delete_outputs();
    let file = &outputs::files(&outputs)[0];
    assert!(matches!(world.client.download(file).await, Err(ComfyuiError::NotFound(_))));
    let outside = outputs::OutputFile { subfolder: "../..".to_owned(), ..file.clone() };
    assert!(matches!(
        world.client.download(&outside).await,
        Err(ComfyuiError::Status { .. } | ComfyuiError::NotFound(_))
    ));
}
