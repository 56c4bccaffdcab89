//! Live reports of workers about running attempts. They are in memory only, are passed on to subscribers, and end with the
//! attempt.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use remuda_core::id::WorkerId;
use remuda_core::plane::Plane;
use remuda_core::refusal::Refusal;
use serde_json::{Value, json};

use super::path::Path;
use super::preview::AttemptQuery;
use super::workers::token;
use super::{ApiError, Context, blobs, live_limit};
use crate::live::{LiveEvent, LiveUpdate};
use remuda_core::wire::live::LiveReport;

pub(super) async fn put(
    State(context): State<Context>,
    Path(worker): Path<String>,
    query: Result<Query<AttemptQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let Query(AttemptQuery { job, attempt, .. }) = query?;
    let token_hash = token(&headers)?;
    // Before the report is read: what is too much costs nothing more.
    live_limit::charge(&context, &worker, token_hash, body.len()).await?;
    let Json(report) = Json::<LiveReport>::from_bytes(&body)?;
    report.check()?;
    let outputs = report.outputs.as_deref().unwrap_or_default();
    blobs::touch_named(&context, outputs.iter().map(|output| &**output)).await?;
    let attempts = context.live_attempts.clone();
    // Stored inside the read, which the event loop runs: if the attempt ends later, its state is removed after this.
    let apply = move |plane: &Plane, _| {
        let running = plane.running_job(&worker, token_hash, job, attempt)?;
        let (tenant, metadata) = (running.tenant.clone(), running.metadata());
        attempts.apply(job, attempt, &report);
        Ok::<_, Refusal>(LiveUpdate { job, attempt, tenant, metadata, worker, report })
    };
    let update = context.plane.read(apply).await??;
    // Without subscribers the send fails, which is fine.
    drop(context.events.send(LiveEvent::Update(Arc::new(update))));
    Ok(Json(json!({ "job": job, "attempt": attempt })))
}
