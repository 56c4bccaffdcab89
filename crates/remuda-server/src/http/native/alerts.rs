//! Alerts over HTTP: their state, and a test of their channels.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::Value;

use super::super::path::Path;
use super::super::{ApiError, Context};

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    context.alerts.list().await.map(Json).ok_or_else(task_is_down)
}

pub(in crate::http) async fn test(
    State(context): State<Context>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let answer = context.alerts.test(name.clone()).await.ok_or_else(task_is_down)?;
    answer.map(Json).ok_or_else(|| {
        ApiError::not_found(format!("no alert is called {name:?}: `remuda alerts` lists them"))
    })
}

fn task_is_down() -> ApiError {
    let message = "the task of the alerts does not answer; see /health/ready, and try again";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message).with_retry_after(5)
}
