//! Prompts that the server refuses or that fail: the cause decides what follows.

use std::time::Duration;

use remuda_fakes::comfyui::{Fault, Faults, Options};
use serde_json::{Value, json};

use super::fixture::{
    ComfyFixture, Server, completed_after_a_mishap, completed_at_once, executions, history, prompt_id,
    until_open, verdict, worker,
};
use super::graph::picture;
use crate::harness::{TestRng, assert_contains_all, remuda, wait_until};

/// That the job failed for good, with so many attempts, and what was said about it.
fn failed(job: &Value, attempts: u32) -> &str {
    assert_eq!((&job["state"], &job["attempt"]), (&json!("failed"), &json!(attempts)), "{job}");
    let reason = job["reason"].as_str().unwrap();
    reason.strip_prefix("failed (job): ").unwrap_or_else(|| panic!("it was its own fault: {job}"))
}

/// That the second attempt began as soon as the first had failed (L7).
fn told_at_once(why: &Value) {
    let at = |value: &Value| {
        let time = value.as_str().and_then(|time| humantime::parse_rfc3339(time).ok());
        time.unwrap_or_else(|| panic!("a time: {value} in {why}"))
    };
    for pair in why["attempts"].as_array().unwrap().windows(2) {
        let waited = at(&pair[1]["started_at"]).duration_since(at(&pair[0]["ended_at"])).unwrap();
        assert!(waited < Duration::from_secs(2), "{why}");
    }
}

/// Faults: J7, V10.
#[tokio::test]
async fn node_error_is_told_at_once_with_one_two_and_three_servers() {
    let stage = ComfyFixture::any().await;
    let mut others = Vec::new();
    for servers in 1..=3 {
        let began = std::time::Instant::now();
        let ended = stage.run(picture(TestRng::new().below(1 << 24)).fail("error").saved()).await;
        println!("{servers} servers: told after {:?}", began.elapsed());
        assert_contains_all(failed(&ended, servers.min(2)), &["RemudaFail", "ValueError"]);
        told_at_once(&stage.why(ended["id"].as_str().unwrap()).await);
        // The same workflow again, and another one: no job waits for a block.
        completed_at_once(&stage.run(picture(1).saved()).await);
        let server = Server::fake(Options::default()).await;
        let name = format!("other-{servers}");
        others.push((worker(&stage, &name, &server.url(), &[]).await, server));
    }
}

#[tokio::test]
async fn ended_job_is_run_again_as_a_new_one_that_names_it() {
    let stage = ComfyFixture::fake().await;
    let workflow = picture(3).fail("error").saved();
    let old = stage.submit(workflow.clone()).await;
    failed(&stage.ended(&old).await, 1);
    let (status, answer) = stage.post(&format!("/remuda/v1/jobs/{old}/retry"), &json!({})).await;
    assert_eq!((status.as_u16(), &answer["retry_of"]), (201, &json!(old)), "{answer}");
    let again = stage.ended(answer["id"].as_str().unwrap()).await;
    assert_eq!((&again["state"], &again["options"]["retry_of"]), (&json!("failed"), &json!(old)), "{again}");
    let long = stage.submit(picture(4).sleep(60.0, 600).saved()).await;
    let (status, answer) = stage.post(&format!("/remuda/v1/jobs/{long}/retry"), &json!({})).await;
    assert_eq!(status.as_u16(), 409, "{answer}");
    let typed = |arguments: &[&str]| {
        let output = remuda(stage.folder())
            .args(["jobs", "retry", "--url", &stage.url])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_contains_all(&typed(&[&old]), &[&old, "runs again as"]);
    assert_contains_all(&typed(&["--failed", "--since", "1h"]), &[&old, "runs again as"]);
}

/// Faults: J6.
#[tokio::test]
async fn misspelt_file_of_one_tenant_delays_no_other_tenant() {
    let stage = ComfyFixture::with(
        Server::fake(Options::default()).await,
        &["block.cooldown=1h", "block.cooldown_max=1h"],
        &[],
    )
    .await;
    let picture_file = stage.run(picture(7).saved()).await;
    let (_, content) = super::fixture::files(&stage, &picture_file).await.remove(0);
    super::inputs::upload(&stage.server.url(), "there.png", &content).await;
    let submit = async |tenant: &str, name: &str| {
        let workflow = super::graph::loaded(&json!(name));
        let body = json!({ "workflow": workflow, "service": "comfyui", "tenant": tenant });
        let (_, answer) = stage.post("/remuda/v1/jobs", &body).await;
        answer["id"].as_str().unwrap().to_owned()
    };
    for round in 0..4 {
        let bad = submit("careless", &format!("misspelt-{round}.png")).await;
        let ended = stage.ended(&bad).await;
        assert_contains_all(failed(&ended, 1), &["misspelt"]);
        let good = submit("careful", "there.png").await;
        completed_at_once(&stage.ended(&good).await);
    }
}

/// Faults: V10.
#[tokio::test]
async fn invalid_graph_fails_at_once() {
    let stage = ComfyFixture::any().await;
    // A custom node: only its server knows what it accepts.
    let ended = stage.run(picture(1).sleep(1.0, 0).saved()).await;
    assert_contains_all(failed(&ended, 1), &["node 2", "RemudaSleep", "steps"]);
    if let Server::Fake(fake) = &stage.server {
        assert_eq!(fake.counts().prompts_refused, 1);
    }
}

/// Faults: V23.
#[tokio::test]
async fn half_valid_graph_fails_with_its_error() {
    let stage = ComfyFixture::any().await;
    let mut workflow = picture(TestRng::new().below(1 << 24)).sleep(3.0, 30).saved();
    // A custom node: only its server knows what it accepts.
    let sleep = json!({ "image": ["1", 0], "seconds": 1.0, "steps": 0, "preview": false });
    workflow["8"] = json!({ "class_type": "RemudaSleep", "inputs": sleep });
    workflow["9"] = json!({ "class_type": "PreviewImage", "inputs": { "images": ["8", 0] } });
    let job = stage.submit(workflow).await;
    let ended = stage.ended(&job).await;
    assert_contains_all(failed(&ended, 1), &["node 8", "steps"]);
    wait_until("nothing is left of it", async || {
        let seen = history(&stage, &stage.server, &prompt_id(&job, 1)).await;
        seen.is_none().then_some(())
    })
    .await;
    if let Server::Fake(fake) = &stage.server {
        assert_eq!(
            fake.counts().successes.get(&prompt_id(&job, 1)),
            None,
            "half of it did not run to its end"
        );
    }
}

/// Faults: J14.
#[tokio::test]
async fn workflow_that_blocks_its_outputs_succeeds_without_files() {
    let stage = ComfyFixture::any().await;
    let blocked = picture(TestRng::new().below(1 << 24))
        .then("RemudaBlocker", json!({ "message": "not today" }))
        .saved();
    let ended = stage.run(blocked).await;
    completed_at_once(&ended);
    assert_eq!(ended["result"]["outputs"], json!([]), "{ended}");
}

/// Faults: V10.
#[tokio::test]
async fn out_of_memory_job_waits_for_larger_worker() {
    let large = Server::fake(Options { vram_bytes: 48 << 30, ..Options::default() }).await;
    let stage = ComfyFixture::on(large).await;
    let long = stage.submit(picture(1).sleep(60.0, 600).saved()).await;
    stage.begun(&long, 1).await;
    let small = Server::fake(Options { vram_bytes: 8 << 30, ..Options::default() }).await;
    let _small = worker(&stage, "small", &small.url(), &[]).await;
    small.as_fake().control().set_faults(Faults::none().with(Fault::Oom, 1.0));
    let job = stage.submit(picture(2).saved()).await;
    stage.job_until(&job, "has failed on the small one", |job| job["infra_failures"] == 1).await;
    stage.cancel(&long).await;
    let ended = stage.ended(&job).await;
    completed_after_a_mishap(&ended);
    assert_eq!(ended["worker"], stage.worker.name);
    assert_contains_all(&verdict(&stage, &job, 1).await, &["OutOfMemoryError"]);
    assert!(small.counts().requests_to("/free") > 0, "its caches are emptied");
}

/// Faults: J10.
#[tokio::test]
async fn demand_above_the_largest_card_fails_with_that_sentence() {
    let large = Server::fake(Options { vram_bytes: 140 << 30, ..Options::default() }).await;
    let stage = ComfyFixture::on(large).await;
    let same = Server::fake(Options { vram_bytes: 140 << 30, ..Options::default() }).await;
    let same_size = worker(&stage, "same", &same.url(), &[]).await;
    let small = Server::fake(Options { vram_bytes: 24 << 30, ..Options::default() }).await;
    let too_small = worker(&stage, "small", &small.url(), &[]).await;
    let sentence =
        "it asks for 300.00 GiB of memory at once, and the largest worker that could run it has 140.00 GiB";
    for (preferred, attempts) in [(&too_small, 2), (&same_size, 1)] {
        let body = json!({ "workflow": picture(TestRng::new().below(1 << 24)).fail("huge").saved(), "service": "comfyui",
                           "preferred": [preferred.name] });
        let job = stage.submit_as(body).await;
        let ended = stage.ended(&job).await;
        assert_contains_all(failed(&ended, attempts), &[sentence, "Requested : 300.00 GiB"]);
        // The cards are well, and no job waits.
        completed_at_once(&stage.run(picture(TestRng::new().below(1 << 24)).saved()).await);
    }
}

/// Faults: V16, V10.
#[tokio::test]
async fn worker_with_full_disk_gets_no_work() {
    let full = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(full, &[], &["--set", "agent.given_up_recheck=1h"]).await;
    stage.server.as_fake().control().strike_next(Fault::Disk);
    let job = stage.submit(picture(1).saved()).await;
    let closed = until_open(&stage, &stage.worker, false).await;
    assert_contains_all(&closed, &["disk", "No space left"]);
    // It waits and says why; a worker with room takes it, and everything else.
    stage
        .job_until(&job, "says why", |job| job["reason"].as_str().is_some_and(|why| why.contains("disk")))
        .await;
    let roomy = Server::fake(Options::default()).await;
    let other = worker(&stage, "roomy", &roomy.url(), &[]).await;
    let ended = stage.ended(&job).await;
    completed_after_a_mishap(&ended);
    assert_eq!(ended["worker"], other.name);
    for color in 2..5 {
        assert_eq!(stage.run(picture(color).saved()).await["worker"], other.name);
    }
    assert_eq!(executions(&[&stage.server], &job), 1);
}

/// Faults: V16.
#[tokio::test]
async fn worker_is_used_again_after_disk_was_cleared() {
    let stage = ComfyFixture::fake().await;
    stage.server.as_fake().control().strike_next(Fault::Disk);
    let job = stage.submit(picture(1).saved()).await;
    // It is looked at again and again, and found to work.
    completed_after_a_mishap(&stage.ended(&job).await);
}

/// Faults: V17.
#[tokio::test]
async fn missing_file_blocks_only_that_pair() {
    let without = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(without, &["block.cooldown=1h", "block.cooldown_max=1h"], &[]).await;
    let with = Server::fake(Options::default()).await;
    let picture_file = stage.run(picture(7).saved()).await;
    let (_, content) = super::fixture::files(&stage, &picture_file).await.remove(0);
    super::inputs::upload(&with.url(), "only-here.png", &content).await;
    let workflow = super::graph::loaded(&json!("only-here.png"));
    let alone = stage.run(workflow.clone()).await;
    assert_contains_all(failed(&alone, 1), &["only-here.png"]);
    let other = worker(&stage, "with", &with.url(), &[]).await;
    let ended = stage.run(workflow.clone()).await;
    assert_eq!((&ended["state"], &ended["worker"]), (&json!("completed"), &json!(other.name)), "{ended}");
    // Another shape still runs on the first, while this one keeps away from it.
    let mut other = other;
    other.process.kill();
    assert_eq!(stage.run(picture(8).saved()).await["worker"], stage.worker.name);
}

/// Faults: V22, V18.
#[tokio::test]
async fn deadly_prompt_is_fixed_or_refused_before_submission() {
    let stage = ComfyFixture::fake().await;
    // A loose node without inputs kills the thread that runs prompts; so would a client id that is a list.
    let mut loose = picture(1).saved();
    loose["7"] = json!({ "class_type": "EmptyImage" });
    let wrapped = json!({
        "prompt": picture(2).saved(), "client_id": ["x"], "number": 1, "prompt_id": 42,
        "extra_data": { "client_id": ["x"], "extra_pnginfo": "no object" },
    });
    for workflow in [loose.clone(), wrapped, loose] {
        let (status, answer) =
            stage.post("/remuda/v1/jobs", &json!({ "workflow": workflow, "service": "comfyui" })).await;
        if status.is_success() {
            let ended = stage.ended(answer["id"].as_str().unwrap()).await;
            assert!(ended["state"] == "completed" || ended["state"] == "failed", "{ended}");
            assert_eq!(ended["infra_failures"], 0, "{ended}");
        }
    }
    completed_at_once(&stage.run(picture(3).saved()).await);
    assert_eq!(stage.fake_counts().lives, 1, "it never died");
}
