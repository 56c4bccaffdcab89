//! Prompts that complete from the cache.

use std::collections::BTreeSet;
use std::time::Instant;

use remuda_fakes::comfyui::Options;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::fixture::{ComfyFixture, Server, prompt_id};
use super::graph::picture;
use crate::harness::{Client, Plane, WAIT_MAX, sleep_for};

const JOBS: usize = 5_000;
const CLIENTS: usize = 8;

/// Faults: V1, V7, V5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_cached_prompts_complete_once_each() {
    let server = Server::fake(Options { speed: f64::INFINITY, ..Options::default() }).await;
    let stage = ComfyFixture::with(server, &[], &["--slots", "8"]).await;
    let workflow = picture(1).previewed();
    // From now on it is cached.
    assert_eq!(stage.run(workflow.clone()).await["state"], "completed");
    let began = Instant::now();
    let jobs = submit(&stage, &workflow).await;
    all_ended(&stage.plane).await;
    eprintln!("{JOBS} cached prompts took {:?}", began.elapsed());
    let counts = stage.fake_counts();
    for job in &jobs {
        assert_eq!(counts.executions.get(&prompt_id(job, 1)), Some(&1), "{job}");
    }
    let listed = stage.jobs().await;
    let completed: BTreeSet<_> = listed
        .iter()
        .filter(|job| (&job["state"], &job["attempt"]) == (&json!("completed"), &json!(1)))
        .map(|job| job["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(completed.len(), JOBS + 1);
    assert!(jobs.is_subset(&completed));
}

async fn submit(client: &Client, workflow: &Value) -> BTreeSet<String> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, workflow) = (client.clone(), workflow.clone());
        clients.spawn(async move {
            let mut jobs = Vec::new();
            for _ in 0..JOBS / CLIENTS {
                jobs.push(client.submit(workflow.clone()).await);
            }
            jobs
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Waits until nothing is open any more, as long as something ends now and then.
pub(super) async fn all_ended(plane: &Plane) {
    let (mut open, mut changed_at) = (u64::MAX, Instant::now());
    while open > 0 {
        let now_open = plane.get("/remuda/v1/status").await["open_jobs"].as_u64().unwrap();
        if now_open < open {
            (open, changed_at) = (now_open, Instant::now());
        }
        if changed_at.elapsed() > WAIT_MAX {
            for job in
                plane.jobs().await.iter().filter(|job| job["state"] == "queued" || job["state"] == "running")
            {
                eprintln!("{}", plane.why(job["id"].as_str().unwrap()).await);
            }
            panic!("{open} jobs are stuck: {}", plane.get("/remuda/v1/workers").await);
        }
        sleep_for(std::time::Duration::from_millis(50)).await;
    }
}
