//! The rest of the fleet over HTTP: blocks, quarantine, views, health; machines, fleets, their costs and the control cycle
//! in files of their own.

pub(super) mod cost;
pub(super) mod cycles;
pub(super) mod fleets;
pub(super) mod machines;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use remuda_core::id::{Shape, WorkerId};
use remuda_core::money::Money;
use remuda_core::plane::PlaneEvent;
use remuda_store::{BadWord, View};
use serde_json::{Value, json};

use super::path::Path;
use super::{ApiError, Context};

/// The loop looks up every second; this long without is not slowness any more.
pub(super) const TICK_AGE_MAX: Duration = Duration::from_secs(30);
/// Enough to see that something is wrong; the lists of workers and machines mark all of them.
const UNRELIABLE_MAX: usize = 100;

/// Money as programs read it: dollars.
#[expect(clippy::cast_precision_loss, reason = "exact up to nine billion dollars")]
fn dollars(money: Money) -> f64 {
    money.as_micros() as f64 / 1e6
}

pub(super) async fn blocks(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let blocks = context.plane.read(|plane, _| {
        let blocks = plane.blocks().iter().map(|(worker, shape, block)| {
            json!({
                "worker": worker,
                "shape": shape,
                "failures": block.failures,
                "is_blocked": block.is_blocked(),
                "until": block.until.to_string(),
                "cooldown_seconds": block.cooldown.as_secs_f64(),
                "workflow_hash": block.workflow_hash,
                "reason": block.reason,
            })
        });
        blocks.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "blocks": blocks.await? })))
}

pub(super) async fn lift(
    State(context): State<Context>,
    Path((worker, shape)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let (worker, shape): (WorkerId, Shape) = (worker.parse()?, shape.parse()?);
    context.plane.request(PlaneEvent::LiftBlock { worker: worker.clone(), shape }).await?;
    Ok(Json(json!({ "worker": worker, "shape": shape, "lifted": true })))
}

pub(super) async fn quarantine(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let shapes = context.plane.read(|plane, _| {
        let shapes = plane.quarantine().iter().map(|(shape, suspicion)| {
            let row = suspicion.row(shape);
            json!({
                "shape": shape,
                "is_quarantined": suspicion.is_quarantined(),
                "failed_on": row.failed_on,
                "trial_at": row.trial_at.map(|at| at.to_string()),
                "trials_failed": row.trials_failed,
                "reason": row.reason,
            })
        });
        shapes.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "shapes": shapes.await? })))
}

pub(super) async fn release(
    State(context): State<Context>,
    Path(shape): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let shape: Shape = shape.parse()?;
    context.plane.request(PlaneEvent::ReleaseShape { shape }).await?;
    Ok(Json(json!({ "shape": shape, "released": true })))
}

pub(super) async fn status(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let status = context.plane.read(|plane, now| {
        let (wake_at, reason) = plane.wake_at();
        let refusals = plane.refusals;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "now": now.to_string(),
            "term": plane.term(),
            "open_jobs": plane.open_jobs(),
            "ready_jobs": plane.ready_jobs(),
            "workers": plane.workers().count(),
            "blocks": plane.blocks().len(),
            "brake": plane.mass_loss().reason(now),
            "unreliable": {
                "workers": plane.unreliable_workers(now).take(UNRELIABLE_MAX).collect::<Vec<_>>(),
                "machines": plane.unreliable_machines(now).take(UNRELIABLE_MAX).collect::<Vec<_>>(),
            },
            "wakes": { "at": wake_at.to_string(), "reason": reason },
            "refused": {
                "stale_attempts": refusals.stale_attempts,
                "already_recorded": refusals.already_recorded,
                "old_beats": refusals.old_beats,
                "old_incarnations": refusals.old_incarnations,
            },
        })
    });
    Ok(Json(status.await?))
}

pub(super) async fn view(
    State(context): State<Context>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view: View = name.parse().map_err(|bad: BadWord| ApiError::not_found(bad.to_string()))?;
    Ok(Json(json!({ view.as_str(): context.store.view(view).await? })))
}

pub(super) async fn live(State(context): State<Context>) -> (StatusCode, Json<Value>) {
    let age = context.plane.tick_age();
    let status = if age < TICK_AGE_MAX { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    (status, Json(json!({ "live": status == StatusCode::OK, "tick_age_millis": age })))
}

pub(super) async fn ready(State(context): State<Context>) -> Result<(StatusCode, Json<Value>), ApiError> {
    let (open_jobs, open_max) =
        context.plane.read(|plane, _| (plane.open_jobs(), plane.settings().open_jobs_max)).await?;
    let has_reserve = context.store.has_reserve();
    let reason = match (open_jobs < open_max, has_reserve) {
        (_, false) => "the disk is full: submissions are refused until there is space",
        (false, true) => "the queue is full",
        (true, true) => "jobs are accepted",
    };
    let is_ready = open_jobs < open_max && has_reserve;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(json!({ "ready": is_ready, "reason": reason, "open_jobs": open_jobs }))))
}
