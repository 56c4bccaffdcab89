//! What the first page of the dashboard shows, in one answer: the sentence, the four numbers, workers with trouble first,
//! and running jobs. One answer is shared by all callers for a moment, so that a hundred open dashboards cost as much as
//! one; `numbers` has the last hour for the charts.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use remuda_core::id::JobId;
use remuda_core::plane::{Concern, Plane, ShellHealth};
use remuda_core::time::{Timestamp, humanize};
use remuda_core::worker::{Availability, Worker};
use serde_json::{Value, json};

use super::super::{ApiError, Context};
use super::dollars;
use crate::number_history::{KEPT, PlaneNumbers, SAMPLE_EVERY};

/// As many tiles as fit on a large screen; those with trouble come first, and the rest is counted.
const WORKERS_MAX: usize = 500;
/// As many cards as fit on a large screen.
const RUNNING_MAX: usize = 60;
/// Half of the time between two requests of one page, so that no page shows the same moment twice.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// The newest answer.
#[derive(Debug, Default)]
pub(in crate::http) struct OverviewCache(Mutex<Option<(Instant, Bytes)>>);

impl OverviewCache {
    fn fresh(&self) -> Option<Bytes> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().filter(|(at, _)| at.elapsed() < SHARED_FOR).map(|(_, answer)| answer.clone())
    }

    fn keep(&self, answer: Bytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), answer));
    }
}

pub(in crate::http) async fn overview(State(context): State<Context>) -> Result<Response, ApiError> {
    let answer = match context.overview.fresh() {
        Some(answer) => answer,
        None => {
            let answer = Bytes::from(current(&context).await?.to_string());
            context.overview.keep(answer.clone());
            answer
        }
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response())
}

async fn current(context: &Context) -> Result<Value, ApiError> {
    let shell = shell_health(context);
    let mut overview = context.plane.read(move |plane, now| plane_overview(plane, now, &shell)).await?;
    let ended = context.number_history.ended(context.plane.clock.now());
    overview["numbers"]["failed_in_hour"] = ended.failed.into();
    overview["numbers"]["completed_in_hour"] = ended.completed.into();
    for job in overview["running"].as_array_mut().into_iter().flatten() {
        add_live(context, job);
    }
    Ok(overview)
}

/// What the plane's sentence needs from the shell.
pub(in crate::http) fn shell_health(context: &Context) -> ShellHealth {
    ShellHealth { is_disk_full: !context.store.has_reserve(), tasks_down: context.tasks.down() }
}

fn plane_overview(plane: &Plane, now: Timestamp, shell: &ShellHealth) -> Value {
    let numbers = PlaneNumbers::read(plane, now);
    let mut workers: Vec<(Concern, &Worker)> = plane
        .workers()
        .filter(|worker| worker.availability(now) != Availability::Terminated)
        .map(|worker| (plane.worker_concern(now, worker), worker))
        .collect();
    // Trouble first; all others keep their place, whether they are at work or not.
    workers.sort_by_key(|(concern, _)| std::cmp::Reverse((*concern).max(Concern::Working)));
    let count = |wanted: Concern| workers.iter().filter(|(concern, _)| *concern == wanted).count();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": now.to_string(),
        "summary": plane.summary(now, shell),
        "numbers": {
            "waiting": numbers.waiting,
            "oldest": numbers.oldest.map(|(job, waits, reason)| {
                json!({ "job": job, "waits_millis": millis(waits), "reason": reason })
            }),
            "running": numbers.running,
            "per_hour_dollars": dollars(numbers.hourly_price),
            "has_fleets": !plane.settings().fleets.is_empty(),
        },
        "workers": workers.iter().take(WORKERS_MAX).map(|(concern, worker)| tile(now, *concern, worker)).collect::<Vec<_>>(),
        "workers_total": workers.len(),
        "workers_by_concern": {
            "well": count(Concern::Well), "working": count(Concern::Working),
            "handled": count(Concern::Handled), "person": count(Concern::Person),
        },
        "running": running(plane),
        "running_total": numbers.running,
    })
}

fn tile(now: Timestamp, concern: Concern, worker: &Worker) -> Value {
    let holds = worker.assignments.iter().map(|(job, hold)| {
        json!({ "job": job, "attempt": hold.attempt, "progress": hold.progress, "phase": hold.phase })
    });
    json!({
        "id": worker.id,
        "machine": worker.machine,
        "fleet": worker.fleet,
        "concern": concern,
        "availability": worker.availability(now).as_str(),
        "text": describe(now, worker),
        "slots": worker.slots,
        "holds": holds.collect::<Vec<_>>(),
        "seen_at": worker.watch.seen_at().to_string(),
    })
}

/// The worker's state in a few words.
fn describe(now: Timestamp, worker: &Worker) -> String {
    let silent = || humanize(now.since(worker.watch.seen_at()));
    match worker.availability(now) {
        Availability::Ready if worker.assignments.is_empty() => "ready".to_owned(),
        Availability::Ready => "at work".to_owned(),
        Availability::Suspect => format!("silent for {}: it keeps its jobs for now", silent()),
        Availability::Offline => format!("offline, last heard {} ago", silent()),
        Availability::Draining => match worker.assignments.len() {
            0 => "draining: it leaves now".to_owned(),
            held => format!("draining: {held} to finish"),
        },
        Availability::Failed => format!("given up: {}", worker.reason),
        other => other.to_string(),
    }
}

/// Running jobs, those that run longest first: a list in this order does not jump.
fn running(plane: &Plane) -> Vec<Value> {
    let mut held: Vec<_> = plane
        .workers()
        .flat_map(|worker| {
            worker.assignments.iter().map(move |(job, hold)| (hold.assigned_at, *job, worker, hold))
        })
        .collect();
    held.sort_by_key(|(started_at, job, ..)| (*started_at, *job));
    let shown = held.into_iter().take(RUNNING_MAX).map(|(started_at, job, worker, hold)| {
        let tenant = plane.job(job).map(|job| job.tenant.clone());
        json!({
            "id": job,
            "worker": worker.id,
            "attempt": hold.attempt,
            "tenant": tenant,
            "started_at": started_at.to_string(),
            "progress": hold.progress,
            "phase": hold.phase,
        })
    });
    shown.collect()
}

/// Progress as the worker reports it between beats, and whether there is a preview.
fn add_live(context: &Context, shown: &mut Value) {
    let Some(job) = shown["id"].as_str().and_then(|id| id.parse::<JobId>().ok()) else { return };
    if let Some(live) = context.live_attempts.find(job).and_then(|live| live.progress) {
        shown["live"] = json!(live);
    }
    shown["has_preview"] = context.previews.find(job).is_some().into();
}

/// The last hour of the numbers.
pub(in crate::http) async fn numbers(State(context): State<Context>) -> Json<Value> {
    let history = &context.number_history;
    let samples = history.samples().into_iter().map(|sample| {
        json!({
            "at": sample.at.to_string(),
            "waiting": sample.waiting,
            "running": sample.running,
            "oldest_wait_millis": sample.oldest.map_or(0, |(_, waits, _)| millis(waits)),
            "per_hour_dollars": dollars(sample.hourly_price),
        })
    });
    let ends = history.ends().into_iter().map(|(at, counts)| {
        json!({ "at": at.to_string(), "completed": counts.completed, "failed": counts.failed })
    });
    Json(json!({
        "now": context.plane.clock.now().to_string(),
        "every_seconds": SAMPLE_EVERY.as_secs(),
        "kept_seconds": KEPT.as_secs(),
        "samples": samples.collect::<Vec<_>>(),
        "ends": ends.collect::<Vec<_>>(),
    }))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
