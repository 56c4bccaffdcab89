//! Sample records for tests.

use std::sync::Arc;

use remuda_core::cause::Cause;
use remuda_core::document::Document;
use remuda_core::event_kind::EventKind;
use remuda_core::fleet::FleetSettings;
use remuda_core::id::{Attempt, Hash, Incarnation, JobId, Sequence, Shape, Tenant, WorkerId};
use remuda_core::machine::{Presence, WorkerState};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus};
use remuda_core::record::{
    AcceptedJob, BlockRow, IdempotencyKey, JobStatus, JoinedProcess, PastAttempt, QuarantineRow, Record,
    ServiceRow, StateRow, StoredEvent, WorkerRow,
};
use remuda_core::rental::{Rental, RentalEvent};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::service::{FailingNode, ServiceFault, ServiceState};
use remuda_core::time::Timestamp;
use remuda_core::verdict::AttemptVerdict;
use serde_json::value::RawValue;

pub(crate) fn id(n: u128) -> JobId {
    JobId::from_u128(n)
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn worker(name: &str) -> WorkerId {
    name.parse().unwrap()
}

pub(crate) fn tenant(name: &str) -> Tenant {
    name.parse().unwrap()
}

pub(crate) fn shape(n: u8) -> Shape {
    Shape::from_bytes([n; 32])
}

pub(crate) fn body(text: &str) -> Arc<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap().into()
}

/// A job of tenant `a`.
pub(crate) fn job(n: u128) -> AcceptedJob {
    AcceptedJob {
        id: id(n),
        accepted_at: at(1),
        tenant: tenant("a"),
        token: None,
        priority: -3,
        service: "comfyui".parse().unwrap(),
        shape: shape(1),
        workflow_hash: Hash::digest(&n.to_be_bytes()),
        needs: remuda_core::need::Requirements { vram_bytes: 1 << 30, ..Default::default() },
        deadline: Some(Timestamp::NEVER),
        attempts_max: None,
        options: remuda_core::options::JobOptions {
            retry_delay: Some(std::time::Duration::from_millis(1500)),
            ..Default::default()
        },
        key: None,
        labels: [("näme".to_owned(), "\u{1f40e} \"quoted\"".to_owned())].into(),
        metadata: serde_json::Map::from_iter([("n".to_owned(), 1.5.into())]),
    }
}

pub(crate) fn with_tenant(job: AcceptedJob, name: &str) -> AcceptedJob {
    AcceptedJob { tenant: tenant(name), ..job }
}

pub(crate) fn with_key(job: AcceptedJob, key: &str, asked: u128) -> AcceptedJob {
    let fingerprint = Hash::digest(&asked.to_be_bytes());
    AcceptedJob { key: Some(IdempotencyKey { key: key.to_owned(), fingerprint }), ..job }
}

pub(crate) fn accepted(job: AcceptedJob, status: JobStatus) -> Record {
    let workflow = body(&format!(r#"{{"job":"{}"}}"#, job.id));
    Record::JobAccepted { job: job.into(), status, workflow }
}

fn status(state: StateRow, attempt: u32, changed_at: u64) -> JobStatus {
    JobStatus {
        state,
        attempt: Attempt(attempt),
        failures: 0,
        infra_failures: 0,
        crashed_workers: [].into(),
        attempts: vec![],
        changed_at: at(changed_at),
    }
}

pub(crate) fn queued(millis: u64) -> JobStatus {
    status(StateRow::Queued { not_before: at(millis) }, 0, millis)
}

pub(crate) fn running(millis: u64, attempt: u32) -> JobStatus {
    let tried = PastAttempt {
        out_of_memory: Some(8 << 30),
        requested_memory: Some(300 << 30),
        verdict: Some(AttemptVerdict::Failed),
        fault: Some(ServiceFault::Memory),
        node: Some(Box::new(FailingNode {
            id: "7".to_owned(),
            class: Some("KSampler".to_owned()),
            exception: Some("ValueError".to_owned()),
        })),
        price: Some(Money::from_micros(690_000)),
        service: Some(Box::new(ServiceRow {
            service_job_id: "p".to_owned(),
            service_submitted_at: Some(Timestamp::from_millis(5)),
            last_service_check: None,
            service_status: ServiceState::Running,
        })),
        ..PastAttempt::new(Attempt(attempt), worker("gpu-1"), at(millis))
    };
    let state =
        StateRow::Running { worker: worker("gpu-1"), incarnation: Incarnation(1), started_at: at(millis) };
    JobStatus { attempts: vec![tried], ..status(state, attempt, millis) }
}

pub(crate) fn completed(millis: u64, attempt: u32) -> JobStatus {
    status(StateRow::Completed { worker: worker("gpu-1") }, attempt, millis)
}

pub(crate) fn failed(millis: u64) -> JobStatus {
    let state =
        StateRow::Failed { cause: Cause::Job, message: "node 7: \"no\"\n".to_owned(), was_stopped: true };
    JobStatus { failures: 3, crashed_workers: [worker("gpu-9")].into(), ..status(state, 3, millis) }
}

pub(crate) fn cancelled(millis: u64) -> JobStatus {
    status(StateRow::Cancelled { message: "by its owner".to_owned() }, 0, millis)
}

pub(crate) fn event(seq: u64, millis: u64, kind: EventKind, job: Option<u128>) -> Record {
    Record::Event(Arc::new(StoredEvent {
        seq: Sequence(seq),
        at: at(millis),
        kind,
        job: job.map(id),
        worker: None,
        tenant: Some(tenant("a")),
        metadata: serde_json::Map::new(),
        detail: serde_json::Map::from_iter([("text".to_owned(), "a line\nand another".into())]),
    }))
}

pub(crate) fn worker_row(name: &str, state: WorkerState) -> WorkerRow {
    WorkerRow {
        unavailable_reason: None,
        id: worker(name),
        machine: "machine-1".parse().unwrap(),
        fleet: None,
        incarnation: Incarnation(1),
        token_hash: Hash::digest(b"secret"),
        state: state.to_owned(),
        presence: Presence::Online,
        services: ["comfyui".parse().unwrap()].into(),
        slots: 2,
        slots_max: 2,
        offer: Default::default(),
        joined_at: at(1),
        seen_at: at(1),
        changed_at: at(1),
        reason: String::new(),
        completed: 0,
        failed: 0,
        lost: 0,
        busy_millis: 0,
        went_stale: 0,
        probation: Default::default(),
        stale_after_millis: None,
        join_nonces: vec!["b7".to_owned()],
        joined_processes: vec![JoinedProcess { process: "c4".to_owned(), join_number: 2 }],
        reliability: None,
        metrics: serde_json::Map::new(),
        metrics_at: None,
        check: None,
        drain_until: None,
    }
}

/// Six workers, one of them with statistics and metrics.
pub(crate) fn fleet() -> impl Iterator<Item = WorkerRow> {
    let reading = [("vram_used_bytes", 1024), ("vram_total_bytes", 4096)];
    let busy = WorkerRow {
        completed: 6,
        failed: 1,
        lost: 1,
        busy_millis: 15_000,
        metrics: reading.iter().map(|(name, bytes)| ((*name).to_owned(), (*bytes).into())).collect(),
        // In the far future, so that the metrics are fresh whenever the test runs.
        metrics_at: Some(Timestamp::NEVER),
        check: None,
        drain_until: Some(Timestamp::NEVER),
        ..worker_row("gpu-1", WorkerState::Active)
    };
    let gone = WorkerRow { changed_at: at(901), ..worker_row("gpu-6", WorkerState::Terminated) };
    let with = |row: WorkerRow, presence| WorkerRow { presence, ..row };
    [
        busy,
        with(worker_row("gpu-2", WorkerState::Active), Presence::Suspect),
        with(worker_row("gpu-3", WorkerState::Spawning), Presence::Offline),
        worker_row("gpu-4", WorkerState::Terminating),
        with(worker_row("gpu-5", WorkerState::Error), Presence::Offline),
        with(gone, Presence::Offline),
    ]
    .into_iter()
}

/// A running pod.
pub(crate) fn pod() -> Pod {
    Pod {
        id: "pod-1".parse().unwrap(),
        tag: "remuda-x-gpus-1".to_owned(),
        status: PodStatus::Running,
        kind: String::new(),
        place: String::new(),
        host: None,
        price: None,
        ssh: None,
        started: String::new(),
    }
}

/// The document of a rented machine.
pub(crate) fn machine(name: &str, events: &[RentalEvent<'_>]) -> Arc<Document> {
    let fleet = FleetSettings::new("gpus".parse().unwrap(), true);
    let (machine, tag) = (name.parse().unwrap(), format!("remuda-x-{name}"));
    let mut rental = Rental::wanted(at(1), machine, tag, "any".to_owned(), &fleet);
    for event in events {
        rental.apply(at(2), *event, String::new());
    }
    rental.document().unwrap()
}

pub(crate) fn block(name: &str, n: u8, failures: u32) -> BlockRow {
    BlockRow {
        worker: worker(name),
        scope: BlockScope::Shape(shape(n)),
        shape: shape(n),
        failures,
        until: Timestamp::NEVER,
        cooldown_millis: 30_000,
        has_ended: false,
        reason: "it failed".to_owned(),
        cause: Cause::Service,
        workflow_hash: Hash::digest(&[n]),
        tenant: "t".parse().unwrap(),
    }
}

pub(crate) fn quarantine_row(n: u8, trials_failed: u32) -> QuarantineRow {
    QuarantineRow {
        jobs: TenantShape { shape: shape(n), tenant: "t".parse().unwrap() },
        failed_on: [worker("gpu-1")].into(),
        trial_at: Some(at(90)),
        trials_failed,
        reason: "it fails everywhere".to_owned(),
    }
}
