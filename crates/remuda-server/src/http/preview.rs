//! Previews over HTTP: a worker publishes a preview of its attempt, and clients fetch it. In memory only: a newer one
//! replaces it, and it ends with the attempt. The answer tells the worker whether a ComfyUI client watches the attempt, who
//! wants every preview.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::{Attempt, JobId, WorkerId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::path::Path;
use super::workers::token;
use super::{ApiError, Context, live_limit};
use crate::live::{LiveEvent, PreviewUpdate};
use crate::previews::Preview;
use remuda_core::wire::preview::{PREVIEW_BYTES_MAX, PreviewFormat};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttemptQuery {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    /// The node it shows.
    pub(super) node: Option<String>,
}

pub(super) async fn put(
    State(context): State<Context>,
    Path(worker): Path<String>,
    query: Result<Query<AttemptQuery>, QueryRejection>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Json<Value>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let Query(AttemptQuery { job, attempt, node }) = query?;
    let token_hash = token(&headers)?;
    if bytes.len() > PREVIEW_BYTES_MAX {
        let message = format!("a preview has at most {PREVIEW_BYTES_MAX} bytes, not {}", bytes.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    }
    live_limit::charge(&context, &worker, token_hash, bytes.len()).await?;
    let media = PreviewFormat::detect(&bytes)
        .ok_or_else(|| ApiError::invalid("a preview is a picture: JPEG, PNG or WebP, and nothing else"))?;
    // Copied: the body is part of a larger buffer, which would stay in memory with it.
    let preview = Preview { attempt, media, bytes: Bytes::copy_from_slice(&bytes), node: node.clone() };
    let (previews, size_bytes) = (context.previews.clone(), bytes.len());
    // Stored inside the read, which the event loop runs: if the attempt ends later, it is removed after this.
    let insert = move |plane: &remuda_core::plane::Plane, _| {
        let running = plane.running_job(&worker, token_hash, job, attempt)?;
        let (tenant, metadata) = (running.tenant.clone(), running.metadata());
        let number = previews.insert(job, preview);
        Ok::<_, remuda_core::refusal::Refusal>(PreviewUpdate {
            job,
            number,
            tenant,
            metadata,
            worker,
            attempt,
            media,
            size_bytes,
            node,
        })
    };
    let update = context.plane.read(insert).await??;
    // Without subscribers the send fails, which is fine.
    drop(context.events.send(LiveEvent::Preview(Arc::new(update))));
    let is_watched = context.comfyui.is_watched(job);
    Ok(Json(json!({ "job": job, "attempt": attempt, "size_bytes": size_bytes, "watched": is_watched })))
}

pub(super) async fn get(
    State(context): State<Context>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    let job: JobId = job.parse()?;
    let preview = context.previews.find(job).ok_or_else(|| {
        ApiError::not_found(format!(
            "there is no preview of job {job}: only running jobs have one, if their worker publishes any"
        ))
    })?;
    let headers = [
        (header::CONTENT_TYPE, preview.media.as_str().to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{}\"", preview.media.file_name())),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox".to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((headers, preview.bytes).into_response())
}

/// Where a preview can be fetched.
pub(super) fn url(job: JobId) -> String {
    format!("/remuda/v1/jobs/{job}/preview")
}
