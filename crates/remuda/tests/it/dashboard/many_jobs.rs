//! A store with a hundred thousand ended jobs, written by the store itself before the plane starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, Hash, JobId};
use remuda_core::record::{AcceptedJob, JobStatus, PastAttempt, Record, StateRow};
use remuda_core::time::Timestamp;
use remuda_core::verdict::AttemptVerdict;
use remuda_store::{RecordBatch, Store};
use serde_json::value::RawValue;

use super::Story;
use crate::clients::tools::screenshots;
use crate::harness::Plane;

const JOBS: u64 = 100_000;
/// Jobs in one commit.
const BATCH: u64 = 5_000;
/// When the first was accepted; the others follow a second apart.
const BEGAN_AT: u64 = 1_790_000_000_000;
/// The only one with the label that is searched for is an old one.
const NEEDLE: u64 = 10_000;

#[tokio::test]
async fn hundred_thousand_jobs_do_not_slow_the_page() {
    let data = tempfile::tempdir().unwrap();
    seed(&data.path().join("remuda.sqlite")).await;
    let plane = Plane::plan(&["retention=3650d"]).data_in(data.path()).start().await;
    let Some(story) = Story::begin(&plane, "many", &[&id(NEEDLE).to_string()]) else { return };
    let said = story.ends().await;
    // For the record: how long each step took.
    std::fs::write(screenshots().join("dashboard-many.txt"), said).unwrap();
}

async fn seed(path: &std::path::Path) {
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    let term = store.take_leadership().await.unwrap();
    for first in (0..JOBS).step_by(BATCH as usize) {
        let records: Vec<_> = (first..first + BATCH).map(record).collect();
        store.commit(term, RecordBatch::from(records)).await.unwrap();
    }
    store.close().await.unwrap();
}

/// Ids begin with the time, as those of real jobs do.
fn id(n: u64) -> JobId {
    let millis = u128::from(BEGAN_AT + 1000 * n);
    JobId::from_u128((millis << 80) | (0x7 << 76) | (0b10 << 62) | u128::from(n))
}

fn record(n: u64) -> Record {
    let at = |seconds: u64| Timestamp::from_millis(BEGAN_AT + 1000 * (n + seconds));
    let worker = format!("gpu-{}", n % 12).parse().unwrap();
    let is_failed = n.is_multiple_of(50);
    let mut attempt = PastAttempt::new(Attempt(1), worker, at(1));
    attempt.ended_at = Some(at(9));
    attempt.verdict = Some(if is_failed { AttemptVerdict::Failed } else { AttemptVerdict::Completed });
    let state = if is_failed {
        let message = "node 3 (KSampler): ValueError: the latent has the wrong size".to_owned();
        StateRow::Failed { cause: Cause::Job, message, was_stopped: false }
    } else {
        StateRow::Completed { worker: attempt.worker.clone() }
    };
    let mut labels = BTreeMap::from([("customer".to_owned(), format!("c{}", n % 100))]);
    if n == NEEDLE {
        labels.insert("order".to_owned(), "4711".to_owned());
    }
    let job = AcceptedJob {
        id: id(n),
        accepted_at: at(0),
        tenant: format!("tenant-{}", n % 20).parse().unwrap(),
        priority: 0,
        service: "comfyui".parse().unwrap(),
        shape: Hash::digest(&(n % 30).to_be_bytes()),
        workflow_hash: Hash::digest(&n.to_be_bytes()),
        needs: remuda_core::need::Requirements::default(),
        deadline: None,
        attempts_max: None,
        options: remuda_core::options::JobOptions::default(),
        key: None,
        labels,
        metadata: serde_json::Map::new(),
    };
    let status = JobStatus {
        state,
        attempt: Attempt(1),
        failures: u8::from(is_failed),
        infra_failures: 0,
        crashed_workers: [].into(),
        attempts: vec![attempt],
        changed_at: at(9),
    };
    let workflow = RawValue::from_string(format!(r#"{{"n":{n}}}"#)).unwrap();
    Record::JobAccepted { job: Arc::new(job), status, workflow: workflow.into() }
}
