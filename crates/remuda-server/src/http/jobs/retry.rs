//! Runs an ended job again, as a new job that names the old one. The new one has everything that was submitted except
//! the idempotency key, which belongs to the old one, and keys for paid services, which are not stored.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::JobId;
use remuda_core::options::JobOptions;
use serde_json::json;

use super::super::path::Path;
use super::super::{ApiError, Caller, Context, request_key};
use super::unknown;
use crate::intake::{SubmitFields, Submitted, parse_with_attachments};

pub(in crate::http) async fn retry(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse()?;
    let (old, life) = context.store.job(id).await?.ok_or_else(|| unknown(&context, id))?;
    if life.state.is_open() {
        let message = format!("job {id} is {}: only an ended job can be run again", life.state.name());
        return Err(ApiError::new(StatusCode::CONFLICT, "refused", message));
    }
    let workflow = context.store.workflow(id).await?.ok_or_else(|| unknown(&context, id))?;
    let workflow = parse_with_attachments((*workflow).to_owned(), &BTreeMap::new(), &context.limits, None)?;
    let fields = SubmitFields {
        tenant: old.tenant,
        token: caller.token(),
        priority: old.priority,
        service: Some(old.service),
        needs: old.needs,
        deadline: old.deadline.map(|deadline| deadline.since(old.accepted_at)),
        attempts_max: old.attempts_max,
        options: JobOptions { retry_of: Some(id), ..old.options },
        // A new key, not the one of the old job.
        idempotency_key: request_key::read(&headers)?.map(|key| format!("retry:{key}")),
        labels: old.labels,
        metadata: old.metadata,
    };
    let Submitted { job, created } = context.intake().submit(workflow, fields).await?;
    let location = format!("/remuda/v1/jobs/{job}");
    let answer = Json(json!({ "id": job, "retry_of": id }));
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], answer).into_response())
}
