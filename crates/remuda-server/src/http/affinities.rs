//! Affinities over HTTP: the preferred and excluded workers of a shape.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use remuda_core::affinity::Affinity;
use remuda_core::id::Shape;
use remuda_core::plane::PlaneEvent;
use serde_json::{Value, json};

use super::path::Path;
use super::{ApiError, Context};

pub(super) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let affinities = context.plane.read(|plane, _| {
        let affinities = plane.affinities().iter().map(|(shape, affinity)| view(shape, affinity));
        affinities.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "affinities": affinities.await? })))
}

pub(super) async fn one(
    State(context): State<Context>,
    Path(shape): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let shape: Shape = shape.parse()?;
    let look = move |plane: &remuda_core::plane::Plane, _| {
        plane.affinities().get(&shape).map(|affinity| view(&shape, affinity))
    };
    let found = context.plane.read(look).await?;
    found.map(Json).ok_or_else(|| ApiError::not_found(format!("shape {shape} has no affinity")))
}

pub(super) async fn set(
    State(context): State<Context>,
    Path(shape): Path<String>,
    affinity: Result<Json<Affinity>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let shape: Shape = shape.parse()?;
    let Json(affinity) = affinity?;
    if affinity == Affinity::default() {
        return Err(ApiError::invalid(
            "an affinity has \"preferred\" or \"excluded\" workers, or both; DELETE removes it",
        ));
    }
    let answer = view(&shape, &affinity);
    context.plane.request(PlaneEvent::SetAffinity { shape, affinity }).await?;
    Ok(Json(answer))
}

pub(super) async fn remove(
    State(context): State<Context>,
    Path(shape): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let shape: Shape = shape.parse()?;
    context.plane.request(PlaneEvent::RemoveAffinity { shape }).await?;
    Ok(Json(json!({ "shape": shape, "removed": true })))
}

fn view(shape: &Shape, affinity: &Affinity) -> Value {
    json!({ "shape": shape, "preferred": affinity.preferred, "excluded": affinity.excluded })
}
