//! The newest lines of the audit log over HTTP. `remuda audit` reads the whole log and verifies its chain.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiError, Context};

const LIMIT: usize = 100;
const LIMIT_MAX: usize = 500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct AuditQuery {
    limit: Option<usize>,
}

pub(in crate::http) async fn list(
    State(context): State<Context>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let limit = query?.0.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    let lines = context.access.audit.newest(limit).await.map_err(|error| {
        let message = format!("the audit log cannot be read: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    Ok(Json(json!({ "lines": lines })))
}
