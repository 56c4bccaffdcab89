//! Blocks over HTTP: workflows and shapes that a worker is not given for a while.

use axum::Json;
use axum::extract::State;
use remuda_core::id::{Shape, WorkerId};
use remuda_core::plane::PlaneEvent;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let blocks = context.plane.read(|plane, _| {
        let blocks = plane.blocks().iter().map(|(worker, scope, block)| {
            json!({
                "worker": worker,
                "scope": scope.name(),
                "shape": block.shape,
                "failures": block.failures(),
                "is_blocked": block.is_blocked(),
                "until": block.until().to_string(),
                "cooldown_seconds": block.cooldown.as_secs_f64(),
                "workflow_hash": block.workflow_hash,
                "tenant": block.tenant,
                "cause": block.cause,
                "reason": block.reason,
            })
        });
        blocks.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "blocks": blocks.await? })))
}

pub(in crate::http) async fn lift(
    State(context): State<Context>,
    Path((worker, shape)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let (worker, shape): (WorkerId, Shape) = (worker.parse()?, shape.parse()?);
    context.plane.request(PlaneEvent::LiftBlock { worker: worker.clone(), hash: shape }).await?;
    Ok(Json(json!({ "worker": worker, "shape": shape, "lifted": true })))
}
