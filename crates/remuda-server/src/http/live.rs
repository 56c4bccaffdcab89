//! What a worker tells of an attempt under way. Live only: it is kept in memory, passed on to whoever listens, and gone
//! with the attempt.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use remuda_core::id::WorkerId;
use remuda_core::plane::Plane;
use remuda_core::refusal::Refusal;
use serde_json::{Value, json};

use super::path::Path;
use super::preview::Of;
use super::workers::token;
use super::{ApiError, Context, blobs};
use crate::live::LiveEvent;
use crate::live::LiveUpdate;
use remuda_core::wire::live::LiveReport;

/// A graph of thousands of nodes tells as much in one report; what is larger is no report.
const REPORT_MESSAGES_MAX: usize = 10_000;
const OUTPUTS_MAX: usize = 10_000;

pub(super) async fn put(
    State(context): State<Context>,
    Path(worker): Path<String>,
    of: Result<Query<Of>, QueryRejection>,
    headers: HeaderMap,
    report: Result<Json<LiveReport>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let (Query(Of { job, attempt, .. }), Json(report)) = (of?, report?);
    let token_hash = token(&headers)?;
    let outputs = report.outputs.as_deref().unwrap_or_default();
    if report.messages.len() > REPORT_MESSAGES_MAX || outputs.len() > OUTPUTS_MAX {
        let message =
            format!("a report has at most {REPORT_MESSAGES_MAX} messages and {OUTPUTS_MAX} outputs");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    }
    blobs::want(&context, outputs.iter().map(|output| &**output)).await?;
    let attempts = context.live_attempts.clone();
    // Kept while the plane looks: if the attempt ends a moment later, it is forgotten after it was kept.
    let look = move |plane: &Plane, _| {
        let running = plane.running_job(&worker, token_hash, job, attempt)?;
        let (tenant, metadata) = (running.tenant.clone(), running.metadata());
        attempts.apply(job, attempt, &report);
        Ok::<_, Refusal>(LiveUpdate { job, attempt, tenant, metadata, worker, report })
    };
    let told = context.plane.read(look).await??;
    // Nobody may be listening, which is fine.
    drop(context.events.send(LiveEvent::Update(Arc::new(told))));
    Ok(Json(json!({ "job": job, "attempt": attempt })))
}
