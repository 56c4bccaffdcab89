//! The three views of `sqlite/schema.sql` for the memory store: the same columns and the same numbers.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use remuda_core::document::Collection;
use remuda_core::id::WorkerId;
use remuda_core::machine::{Presence, WorkerState};
use remuda_core::record::{StateRow, WorkerRow};
use remuda_core::rental::Rental;
use remuda_core::time::Timestamp;
use serde_json::{Value, json};

use super::Tables;
use crate::{StatusView, ViewRow};

/// As in `schema.sql`: ten beats without metrics.
const METRICS_STALE_MILLIS: u64 = 300_000;

pub(super) fn rows(tables: &Tables, view: StatusView) -> Vec<ViewRow> {
    let now = present(tables.latest);
    let rows: Vec<Value> = match view {
        StatusView::OrchestratorStatus => vec![status(tables, now)],
        StatusView::ActiveWorkersHealth => {
            let running = running(tables);
            let alive = tables.workers.values().filter(|worker| is_alive(worker));
            alive.map(|worker| health(worker, running.get(&worker.id).copied().unwrap_or(0), now)).collect()
        }
        StatusView::WorkerPerformance => {
            tables.workers.values().map(|worker| performance(worker, now)).collect()
        }
    };
    let object = |row| match row {
        Value::Object(row) => row,
        other => ViewRow::from_iter([("value".to_owned(), other)]),
    };
    rows.into_iter().map(object).collect()
}

/// The wall clock, for ages in a view; never before the latest stored time.
fn present(latest: Timestamp) -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    latest.max(Timestamp::ZERO.plus(since_1970))
}

fn is_alive(worker: &WorkerRow) -> bool {
    matches!(worker.state, WorkerState::Spawning | WorkerState::Active | WorkerState::Terminating)
}

fn seconds(now: Timestamp, then: Timestamp) -> f64 {
    now.since(then).as_secs_f64()
}

fn running(tables: &Tables) -> BTreeMap<WorkerId, u64> {
    let mut running = BTreeMap::new();
    for job in tables.jobs.values() {
        if let StateRow::Running { worker, .. } = &job.status.state {
            *running.entry(worker.clone()).or_default() += 1;
        }
    }
    running
}

/// States of rented machines without a known worker: starting, or being returned.
fn without_worker(tables: &Tables) -> Vec<WorkerState> {
    let collection =
        tables.documents.iter().filter(|((collection, _), _)| *collection == Collection::Machine);
    let has_worker = |id: &str| tables.workers.values().any(|worker| worker.machine.as_str() == id);
    let alone = collection.filter(|((_, id), _)| !has_worker(id));
    let rentals = alone.filter_map(|(_, document)| serde_json::from_str::<Rental>(document.body.get()).ok());
    rentals.map(|rental| rental.phase().state()).collect()
}

fn status(tables: &Tables, now: Timestamp) -> Value {
    let without = without_worker(tables);
    let machines = |state: WorkerState| without.iter().filter(|it| **it == state).count();
    let alive_machines = without.iter().filter(|state| **state != WorkerState::Terminated).count();
    let jobs = |state| tables.jobs.values().filter(|job| job.status.state.name() == state).count();
    let workers = |state| tables.workers.values().filter(|worker| worker.state == state).count();
    let alive = || tables.workers.values().filter(|worker| is_alive(worker));
    let present = |presence| alive().filter(|worker| worker.presence == presence).count();
    let active = || tables.workers.values().filter(|worker| worker.state == WorkerState::Active);
    let is_stale = |worker: &&WorkerRow| {
        worker.metrics_at.is_none_or(|at| now.since(at).as_millis() > u128::from(METRICS_STALE_MILLIS))
    };
    json!({
        "queued_tasks": jobs("queued"),
        "running_tasks": jobs("running"),
        "spawning_workers": workers(WorkerState::Spawning) + machines(WorkerState::Spawning),
        "active_workers": workers(WorkerState::Active) + machines(WorkerState::Active),
        "terminating_workers": workers(WorkerState::Terminating) + machines(WorkerState::Terminating),
        "total_workers": alive().count() + alive_machines,
        "error_workers": workers(WorkerState::Error),
        "online_workers": present(Presence::Online),
        "suspect_workers": present(Presence::Suspect),
        "offline_workers": present(Presence::Offline) + alive_machines,
        "stale_workers": active().filter(|worker| worker.presence != Presence::Online).count() + machines(WorkerState::Active),
        "stale_metrics_workers": active().filter(is_stale).count() + machines(WorkerState::Active),
    })
}

fn health(worker: &WorkerRow, running: u64, now: Timestamp) -> Value {
    let metric = |name: &str| worker.metrics.get(name).cloned().unwrap_or(Value::Null);
    let (used, total) = (metric("vram_used_bytes"), metric("vram_total_bytes"));
    let percent = used.as_f64().zip(total.as_f64()).filter(|(_, total)| *total > 0.0);
    json!({
        "worker": worker.id,
        "machine": worker.machine,
        "fleet": worker.fleet,
        "state": worker.state,
        "presence": worker.presence,
        "seen_at": worker.seen_at,
        "silent_seconds": seconds(now, worker.seen_at),
        "slots": worker.slots,
        "running_attempts": running,
        "vram_used_bytes": used,
        "vram_total_bytes": total,
        "vram_percent": percent.map(|(used, total)| 100.0 * used / total),
        "metrics_at": worker.metrics_at,
        "metrics_age_seconds": worker.metrics_at.map(|at| seconds(now, at)),
        "went_stale": worker.went_stale,
        "reason": worker.reason,
    })
}

#[expect(clippy::cast_precision_loss, reason = "rates for people; counts stay far below 2^52")]
fn performance(worker: &WorkerRow, now: Timestamp) -> Value {
    let ended = worker.completed + worker.failed + worker.lost;
    let until = if is_alive(worker) { now } else { worker.changed_at };
    json!({
        "worker": worker.id,
        "machine": worker.machine,
        "fleet": worker.fleet,
        "state": worker.state,
        "completed": worker.completed,
        "failed": worker.failed,
        "lost": worker.lost,
        "success_rate": (ended > 0).then(|| worker.completed as f64 / ended as f64),
        "mean_processing_seconds":
            (worker.completed > 0).then(|| worker.busy_millis as f64 / 1000.0 / worker.completed as f64),
        "uptime_seconds": seconds(until, worker.joined_at),
    })
}
