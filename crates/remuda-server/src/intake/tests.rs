use remuda_core::settings::Settings;
use remuda_core::workflow::{JobKeys, WorkflowLimits};
use serde_json::value::RawValue;

use super::*;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;

/// A job with a key whose client disconnected before the plane answered.
async fn submit_and_disconnect(open_jobs_max: usize) -> (PlaneHandle, JobSecrets) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("memory:").await.unwrap();
    let blobs = BlobStore::open(folder.path().join("blobs"), 1000).await.unwrap();
    let settings = Settings { open_jobs_max, ..Settings::default() };
    let effects = EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
    let (plane, event_loop) = EventLoop::start(store.clone(), settings, effects).await.unwrap();
    let secrets = JobSecrets::default();
    let intake = Intake {
        plane: plane.clone(),
        store,
        blobs,
        workflows: WorkflowCache::default(),
        secrets: secrets.clone(),
        webhooks: Policy { allow_private: true },
    };
    let workflow = RawValue::from_string(r#"{"n":1}"#.to_owned()).unwrap();
    let mut keys = JobKeys::default();
    keys.insert("api_key_comfy_org", "k".to_owned());
    let workflow = Workflow::parse(workflow, &WorkflowLimits::default()).unwrap().with_keys(keys);
    let fields = SubmitFields::new("anna".parse().unwrap());
    let client = tokio::spawn(async move { intake.submit(workflow, fields).await });
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
