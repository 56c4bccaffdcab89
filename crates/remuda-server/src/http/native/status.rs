//! The plane's status over HTTP, and the views that the store computes.

use axum::Json;
use axum::extract::State;
use remuda_store::{StatusView, UnknownName};
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};

/// Enough to notice a problem; the lists of workers and machines mark every unreliable one.
const UNRELIABLE_MAX: usize = 100;

pub(in crate::http) async fn status(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
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
    let mut status = status.await?;
    status["tasks"] = json!(context.tasks.statuses());
    Ok(Json(status))
}

pub(in crate::http) async fn view(
    State(context): State<Context>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view: StatusView = name.parse().map_err(|bad: UnknownName| ApiError::not_found(bad.to_string()))?;
    Ok(Json(json!({ view.as_str(): context.store.view(view).await? })))
}
