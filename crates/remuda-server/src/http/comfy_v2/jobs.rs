//! Routes of existing jobs: state, workflow, cancellation, listing.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use remuda_core::id::JobId;
use remuda_core::plane::PlaneEvent;
use remuda_core::record::AcceptedJob;
use remuda_core::refusal::Refusal;
use remuda_store::JobFilter;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::job::{self, ApiStatus, not_found};
use super::links::Links;
use super::validate;
use crate::plane_handle::PlaneError;

const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

pub(super) async fn show(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view = job::find(&context, &caller, &id).await?;
    Ok(Json(view.to_json(&context, &links)))
}

pub(super) async fn workflow(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view = job::find(&context, &caller, &id).await?;
    let workflow = context.store.workflow(view.id).await?.ok_or_else(not_found)?;
    Ok(Json(json!({ "workflow": validate::graph_only(&workflow), "format": "api" })))
}

/// Cancelling an ended job returns it unchanged.
pub(super) async fn cancel(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view = job::find(&context, &caller, &id).await?;
    let job = view.id;
    if !view.status.has_ended() {
        match context
            .plane
            .request(PlaneEvent::Cancel { job, message: "cancelled on request".to_owned() })
            .await
        {
            Ok(_) | Err(PlaneError::Refused(Refusal::Ended { .. } | Refusal::UnknownJob(_))) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let view = job::read(&context, job).await?.ok_or_else(not_found)?;
    Ok(Json(view.to_json(&context, &links)))
}

const PAGE: usize = 20;
const PAGE_MAX: usize = 100;
/// Jobs scanned for one page, few of which may match the metadata filter.
const SCANNED_MAX: usize = 5000;

/// Parameters of a listing.
#[derive(Debug, Default)]
struct ListQuery {
    limit: usize,
    before: Option<JobId>,
    metadata: Vec<(String, String)>,
}

impl ListQuery {
    fn read(pairs: Vec<(String, String)>) -> Result<ListQuery, ApiError> {
        let mut listing = ListQuery { limit: PAGE, ..ListQuery::default() };
        for (name, value) in pairs {
            if let Some(key) = name.strip_prefix("metadata") {
                let key = key.strip_prefix('[').and_then(|key| key.strip_suffix(']'));
                let key = key.filter(|key| !key.is_empty()).ok_or_else(|| {
                    ApiError::new(UNPROCESSABLE, "invalid_metadata_filter", "write metadata[key]=value")
                })?;
                listing.metadata.push((key.to_owned(), value));
                continue;
            }
            let bad = || ApiError::invalid(format!("unknown parameter {name}, or invalid value"));
            match name.as_str() {
                "limit" => {
                    let limit = value.parse::<usize>().ok().filter(|limit| *limit > 0);
                    listing.limit = limit.ok_or_else(bad)?.min(PAGE_MAX);
                }
                "cursor" => {
                    let strange = |_| ApiError::new(UNPROCESSABLE, "invalid_cursor", "the cursor is invalid");
                    listing.before = Some(value.parse().map_err(strange)?);
                }
                _ => return Err(bad()),
            }
        }
        Ok(listing)
    }

    fn matches(&self, accepted: &AcceptedJob) -> bool {
        self.metadata.iter().all(|(key, value)| accepted.metadata.get(key).is_some_and(|has| *has == **value))
    }
}

/// Newest first. Not part of the contract, but used by its clients.
pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(pairs) = query?;
    let listing = ListQuery::read(pairs)?;
    let filter = JobFilter { state: None, tenant: caller.only().cloned() };
    let (mut jobs, mut before, mut looked_at) = (Vec::new(), listing.before, 0);
    loop {
        let page = context.store.jobs(filter.clone(), before, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        looked_at += page.len();
        for (accepted, life) in page {
            before = Some(accepted.id);
            if listing.matches(&accepted) {
                jobs.push(json!({
                    "id": accepted.id.to_string(),
                    "status": ApiStatus::new(&life).as_str(),
                    "create_time": accepted.accepted_at.to_string(),
                    "update_time": life.changed_at.to_string(),
                    "metadata": accepted.metadata,
                }));
            }
            if jobs.len() == listing.limit {
                return Ok(Json(json!({ "jobs": jobs, "next_cursor": accepted.id.to_string() })));
            }
        }
        if is_last {
            return Ok(Json(json!({ "jobs": jobs })));
        }
        if looked_at >= SCANNED_MAX {
            return Ok(Json(json!({ "jobs": jobs, "next_cursor": before.map(|before| before.to_string()) })));
        }
    }
}
