//! `GET /v1/models`: what can be asked; and for operators how its copies are, `GET /remuda/v1/models`.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::routing::{Offered, offered, unknown};
use remuda_core::wire::metric::MODELS_METRIC;

pub(super) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let data: Vec<_> = offered(&context).await?.iter().map(|(name, offered)| shown(name, offered)).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(super) async fn one(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let known = offered(&context).await?;
    match known.get(&id) {
        Some(offered) => Ok(Json(shown(&id, offered))),
        None => Err(unknown(&id, &known.into_keys().collect::<Vec<_>>())),
    }
}

/// As OpenAI's clients read it, and what it does. When a model was made nobody here knows.
fn shown(name: &str, offered: &Offered) -> Value {
    json!({
        "id": name, "object": "model", "created": 0, "owned_by": "remuda",
        "capability": offered.capability.name(), "ready": offered.is_own || !offered.workers.is_empty(),
    })
}

/// Every model with whoever has it, copy by copy: this process, and workers as their last beat said.
pub(super) async fn status(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let known = offered(&context).await?;
    let mut seen = context
        .plane
        .read(|plane, _| {
            let told = plane.workers().filter_map(|worker| {
                Some((worker.id.to_string(), worker.metrics.get(MODELS_METRIC)?.as_object()?.clone()))
            });
            told.collect::<Vec<(String, Map<String, Value>)>>()
        })
        .await?;
    let own = context.models.own().map(remuda_models::status::status).unwrap_or_default();
    let models: Vec<_> = known
        .iter()
        .map(|(name, offered)| {
            let workers: Map<_, _> = seen
                .iter_mut()
                .filter_map(|(worker, models)| Some((worker.clone(), models.remove(name)?)))
                .collect();
            json!({
                "id": name, "capability": offered.capability.name(), "here": own.get(name), "workers": workers,
                "ready_workers": offered.workers,
            })
        })
        .collect();
    Ok(Json(json!({ "models": models })))
}
