//! Quarantine over HTTP: shapes that fail on every worker.

use axum::Json;
use axum::extract::State;
use remuda_core::id::Shape;
use remuda_core::plane::PlaneEvent;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let shapes = context.plane.read(|plane, _| {
        let shapes = plane.quarantine().iter().map(|(jobs, suspect)| {
            let row = suspect.row(&jobs);
            json!({
                "shape": jobs.shape,
                "tenant": jobs.tenant,
                "is_quarantined": suspect.is_quarantined(),
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

pub(in crate::http) async fn release(
    State(context): State<Context>,
    Path(shape): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let shape: Shape = shape.parse()?;
    context.plane.request(PlaneEvent::ReleaseShape { shape }).await?;
    Ok(Json(json!({ "shape": shape, "released": true })))
}
