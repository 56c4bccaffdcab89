use remuda_core::settings::Settings;
use remuda_core::workflow::{JobKeys, WorkflowLimits};
use serde_json::value::RawValue;

use super::*;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;

/// An intake whose event loop does not run yet.
async fn intake(open_jobs_max: usize) -> (Intake, EventLoop) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("memory:").await.unwrap();
    let blobs = BlobStore::open(folder.path().join("blobs"), 1000).await.unwrap();
    let settings = Settings { open_jobs_max, ..Settings::default() };
    let effects = EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
    let (plane, event_loop) = EventLoop::start(store.clone(), settings, effects).await.unwrap();
    let (workflows, secrets) = Default::default();
    let intake = Intake {
        plane,
        store,
        blobs,
        workflows,
        secrets,
        webhooks: Policy::new(&["127.0.0.1".parse().unwrap()]),
    };
    (intake, event_loop)
}

fn workflow(n: usize) -> Workflow {
    let text = RawValue::from_string(format!(r#"{{"n":{n}}}"#)).unwrap();
    Workflow::parse(text, &WorkflowLimits::default()).unwrap()
}

fn fields() -> SubmitFields {
    SubmitFields::new("anna".parse().unwrap())
}

/// A job with a key whose client disconnected before the plane answered.
async fn submit_and_disconnect(open_jobs_max: usize) -> (PlaneHandle, JobSecrets) {
    let (intake, event_loop) = intake(open_jobs_max).await;
    let (plane, secrets) = (intake.plane.clone(), intake.secrets.clone());
    let mut keys = JobKeys::default();
    keys.insert("api_key_comfy_org", "k".to_owned());
    let workflow = workflow(1).with_keys(keys);
    let client = tokio::spawn(async move { intake.submit(workflow, fields()).await });
    until(async || !secrets.is_empty()).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    tokio::spawn(event_loop.run());
    (plane, secrets)
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the condition was not met within 10 s");
}

/// Faults: X10.
#[tokio::test]
async fn keys_of_refused_job_are_forgotten_after_disconnect() {
    let (_plane, secrets) = submit_and_disconnect(0).await;
    until(async || secrets.is_empty()).await;
}

#[tokio::test]
async fn keys_of_accepted_job_are_kept_after_disconnect() {
    let (plane, secrets) = submit_and_disconnect(1).await;
    until(async || plane.read(|plane, _| plane.open_jobs()).await.unwrap() == 1).await;
    assert!(!secrets.is_empty());
}

#[tokio::test]
async fn missing_workflow_is_read_together_with_the_next_ones() {
    let (intake, event_loop) = intake(10).await;
    tokio::spawn(event_loop.run());
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(intake.submit(workflow(n), fields()).await.unwrap().job);
    }
    // As after a restart, or when more jobs wait than fit.
    let cache = WorkflowCache::default();
    let read = cache.read(&intake.store, jobs[1]).await.unwrap();
    assert_eq!(read.unwrap().get(), r#"{"n":1}"#);
    let cached = jobs.iter().map(|job| cache.find(*job).is_some());
    assert_eq!(cached.collect::<Vec<_>>(), [false, true, true], "those that start next, and no earlier one");
}
