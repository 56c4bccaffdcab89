//! The control cycle over HTTP: past reports, a plan, and a run at once.

use axum::Json;
use axum::extract::State;
use remuda_core::plane::{PlaneAnswer, PlaneEvent};
use serde_json::{Value, json};

use super::super::{ApiError, Context, unexpected_answer};

const CYCLES: usize = 50;

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let cycles = context.store.cycles(CYCLES).await?;
    let reports: Vec<_> = cycles.into_iter().map(|(_, report)| report).collect();
    Ok(Json(json!({ "cycles": reports })))
}

pub(in crate::http) async fn plan(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let plan = context.plane.read(|plane, now| plane.plan(now)).await?;
    Ok(Json(json!(plan)))
}

pub(in crate::http) async fn run(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    match context.plane.request(PlaneEvent::RunCycle).await? {
        PlaneAnswer::Cycled(report) => Ok(Json(json!(*report))),
        _ => Err(unexpected_answer()),
    }
}
