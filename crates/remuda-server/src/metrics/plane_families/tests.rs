//! The cost of the page with a large fleet and a long queue, and what it shows of waiting jobs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_core::id::{Hash, JobId, Term};
use remuda_core::need::Requirements;
use remuda_core::plane::{JobSubmission, JoinProof, Plane, PlaneEvent};
use remuda_core::record::{AcceptedJob, StoredState};
use remuda_core::settings::Settings;
use remuda_core::settings::quota::TenantQuota;
use remuda_core::time::Timestamp;
use serde_json::json;
use serde_json::value::RawValue;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
/// The promise: with 5,000 workers and a million open jobs.
const PAGE_MAX: Duration = Duration::from_millis(20);
const WORKERS: u32 = 5000;
/// Fewer than a million, because filling the queue would take longer than all other tests here together; the cost does not
/// depend on it. `METRICS_JOBS=1000000` tries the whole promise.
const JOBS: u128 = 100_000;

fn plane() -> Plane {
    let quota = TenantQuota::unlimited();
    let settings = Settings { quota, open_jobs_max: usize::MAX, ..Settings::default() };
    Plane::restore(settings, Term(1), NOW, StoredState::default())
}

fn submit(plane: &mut Plane, number: u128, service: &str, shape: &[u8]) {
    let job = AcceptedJob {
        accepted_at: NOW,
        id: JobId::from_u128(number),
        tenant: "anna".parse().unwrap(),
        priority: 0,
        service: service.parse().unwrap(),
        shape: Hash::digest(shape),
        workflow_hash: Hash::digest(shape),
        needs: Requirements::default(),
        deadline: None,
        attempts_max: None,
        options: Default::default(),
        key: None,
        labels: Default::default(),
        metadata: Default::default(),
    };
    let workflow: Arc<RawValue> = Arc::from(RawValue::from_string("{}".to_owned()).unwrap());
    let submission = JobSubmission { job, deadline: None, known: None, workflow };
    plane.step(NOW, PlaneEvent::Submit(Box::new(submission))).answer.unwrap();
}

fn join(plane: &mut Plane, name: &str) {
    let join = serde_json::from_value(json!({ "worker": name, "services": ["exec"], "slots": 1 })).unwrap();
    let token_hash = Hash::digest(name.as_bytes());
    let event = PlaneEvent::Join { join: Box::new(join), token_hash, proof: JoinProof::JoinToken };
    plane.step(NOW, event).answer.unwrap();
}

fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{sample} is missing in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn page_costs_milliseconds_with_many_workers_and_jobs() {
    let jobs = std::env::var("METRICS_JOBS").map_or(JOBS, |jobs| jobs.parse().unwrap());
    let mut plane = plane();
    (0..WORKERS).for_each(|number| join(&mut plane, &format!("gpu-{number}")));
    // Every job of a kind of its own that no worker can run: the most there is to look at.
    (1..=jobs).for_each(|number| submit(&mut plane, number, "comfyui", &number.to_le_bytes()));
    let took = (0..5).map(|_| {
        let began = Instant::now();
        let text = write_plane(&plane, NOW).into_text();
        let took = began.elapsed();
        assert_eq!(value(&text, "remuda_jobs{state=\"waiting\"}"), jobs as f64);
        took
    });
    let best = took.min().unwrap();
    eprintln!("the page took {best:?} with {WORKERS} workers and {jobs} jobs");
    assert!(best <= PAGE_MAX, "the page took {best:?}");
}

#[test]
fn waiting_jobs_are_counted_by_reason() {
    let mut plane = plane();
    submit(&mut plane, 1, "exec", b"a");
    let text = write_plane(&plane, NOW).into_text();
    assert_eq!(value(&text, "remuda_jobs_waiting{reason=\"no_worker\"}"), 1.0);
    join(&mut plane, "gpu-1");
    (2..=4).for_each(|number| submit(&mut plane, number, "exec", b"a"));
    submit(&mut plane, 5, "comfyui", b"b");
    let text = write_plane(&plane, NOW).into_text();
    assert_eq!(value(&text, "remuda_jobs{state=\"running\"}"), 1.0, "{text}");
    assert_eq!(value(&text, "remuda_jobs_waiting{reason=\"busy\"}"), 3.0);
    assert_eq!(value(&text, "remuda_jobs_waiting{reason=\"unschedulable\"}"), 1.0);
    let sum: f64 = WaitingReason::ALL
        .iter()
        .map(|reason| value(&text, &format!("remuda_jobs_waiting{{reason=\"{}\"}}", reason.as_str())))
        .sum();
    assert_eq!(sum, value(&text, "remuda_jobs{state=\"waiting\"}"), "every waiting job has a reason");
}
