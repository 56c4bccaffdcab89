use remuda_core::settings::Settings;

use super::*;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;

/// A job with a key whose client hung up before the plane had answered.
async fn hung_up(open_jobs_max: usize) -> (PlaneHandle, JobSecrets) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("memory:").await.unwrap();
    let blobs = Blobs::open(folder.path().join("blobs"), 1000).await.unwrap();
    let settings = Settings { open_jobs_max, ..Settings::default() };
    let carry_out = EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
    let (plane, drive) = EventLoop::start(store.clone(), settings, carry_out).await.unwrap();
    let secrets = JobSecrets::default();
    let intake = Intake {
        plane: plane.clone(),
        store,
        blobs,
        workflows: WorkflowCache::default(),
        secrets: secrets.clone(),
        limits: WorkflowLimits::default(),
        webhooks: Policy { allow_private: true },
    };
    let workflow = RawValue::from_string(r#"{"n":1}"#.to_owned()).unwrap();
    let mut request = Request::new(Arc::from(workflow), "anna".parse().unwrap());
    request.keys.insert("api_key_comfy_org".to_owned(), "k".to_owned());
    let client = tokio::spawn(async move { intake.take(request).await });
    until(async || !secrets.is_empty()).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    tokio::spawn(drive.run());
    (plane, secrets)
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it should come to be so");
}

/// Faults: X10.
#[tokio::test]
async fn the_keys_of_a_job_that_was_refused_after_its_client_hung_up_are_forgotten() {
    let (_plane, secrets) = hung_up(0).await;
    until(async || secrets.is_empty()).await;
}

#[tokio::test]
async fn the_keys_of_a_job_that_was_taken_after_its_client_hung_up_are_kept() {
    let (plane, secrets) = hung_up(1).await;
    until(async || plane.read(|plane, _| plane.open_jobs()).await.unwrap() == 1).await;
    assert!(!secrets.is_empty());
}
