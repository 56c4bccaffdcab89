//! `GET /v1/models`: available models; `GET /remuda/v1/models`: the copies of each, for operators.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::routing::{OfferedModel, list_models, unknown_model};
use remuda_core::wire::metric::MODELS_METRIC;

pub(super) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let data: Vec<_> =
        list_models(&context).await?.iter().map(|(name, offered)| model_json(name, offered)).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(super) async fn show(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let known = list_models(&context).await?;
    match known.get(&id) {
        Some(offered) => Ok(Json(model_json(&id, offered))),
        None => Err(unknown_model(&id, &known.into_keys().collect::<Vec<_>>())),
    }
}

/// A model in OpenAI's format, with its capability. The creation time is unknown.
fn model_json(name: &str, offered: &OfferedModel) -> Value {
    json!({
        "id": name, "object": "model", "created": 0, "owned_by": "remuda",
        "capability": offered.capability.name(), "ready": offered.is_local || !offered.workers.is_empty(),
    })
}

/// Every model with its copies: in this process, and on workers as of their last beat.
pub(in crate::http) async fn status(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let known = list_models(&context).await?;
    let mut workers_seen = context
        .plane
        .read(|plane, _| {
            let reported = plane.workers().filter_map(|worker| {
                Some((worker.id.to_string(), worker.metrics.get(MODELS_METRIC)?.as_object()?.clone()))
            });
            reported.collect::<Vec<(String, Map<String, Value>)>>()
        })
        .await?;
    let own = context.models.pool().map(remuda_models::status::status).unwrap_or_default();
    let models: Vec<_> = known
        .iter()
        .map(|(name, offered)| {
            let workers: Map<_, _> = workers_seen
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
