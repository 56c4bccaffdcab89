//! Jobs, once they are there: how one stands, what it ran, and its end.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use remuda_core::id::JobId;
use remuda_core::plane::Event;
use remuda_core::record::Accepted;
use remuda_core::refusal::Refusal;
use remuda_store::Filter;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::job::{self, Status, missing};
use super::links::Links;
use super::validate;
use crate::plane_handle::PlaneError;

const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

pub(super) async fn one(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let seen = job::find(&context, &caller, &id).await?;
    Ok(Json(seen.shown(&context, &links)))
}

pub(super) async fn workflow(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let seen = job::find(&context, &caller, &id).await?;
    let workflow = context.store.workflow(seen.id).await?.ok_or_else(missing)?;
    Ok(Json(json!({ "workflow": validate::bare(&workflow), "format": "api" })))
}

/// Also of one that has ended, which stays as it is.
pub(super) async fn cancel(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let seen = job::find(&context, &caller, &id).await?;
    let job = seen.id;
    if !seen.status.is_over() {
        match context.plane.request(Event::Cancel { job, message: "cancelled on request".to_owned() }).await {
            Ok(_) | Err(PlaneError::Refused(Refusal::Ended { .. } | Refusal::UnknownJob(_))) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let seen = job::look(&context, job).await?.ok_or_else(missing)?;
    Ok(Json(seen.shown(&context, &links)))
}

const PAGE: usize = 20;
const PAGE_MAX: usize = 100;
/// Jobs looked at for one page, of which few may have the metadata that was asked for.
const LOOKED_AT_MAX: usize = 5000;

/// What is wanted of a listing.
#[derive(Debug, Default)]
struct Listing {
    limit: usize,
    before: Option<JobId>,
    metadata: Vec<(String, String)>,
}

impl Listing {
    fn read(pairs: Vec<(String, String)>) -> Result<Listing, ApiError> {
        let mut listing = Listing { limit: PAGE, ..Listing::default() };
        for (name, value) in pairs {
            if let Some(key) = name.strip_prefix("metadata") {
                let key = key.strip_prefix('[').and_then(|key| key.strip_suffix(']'));
                let key = key.filter(|key| !key.is_empty()).ok_or_else(|| {
                    ApiError::new(UNPROCESSABLE, "invalid_metadata_filter", "write metadata[key]=value")
                })?;
                listing.metadata.push((key.to_owned(), value));
                continue;
            }
            let bad = || ApiError::invalid(format!("{name} has no meaning here, or not with this value"));
            match name.as_str() {
                "limit" => {
                    let limit = value.parse::<usize>().ok().filter(|limit| *limit > 0);
                    listing.limit = limit.ok_or_else(bad)?.min(PAGE_MAX);
                }
                "cursor" => {
                    let strange =
                        |_| ApiError::new(UNPROCESSABLE, "invalid_cursor", "the cursor is none of ours");
                    listing.before = Some(value.parse().map_err(strange)?);
                }
                _ => return Err(bad()),
            }
        }
        Ok(listing)
    }

    fn is_met(&self, accepted: &Accepted) -> bool {
        self.metadata.iter().all(|(key, value)| accepted.metadata.get(key).is_some_and(|has| *has == **value))
    }
}

/// Newest first. Not in the contract, but asked for by its clients.
pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(pairs) = query?;
    let listing = Listing::read(pairs)?;
    let filter = Filter { state: None, tenant: caller.only().cloned() };
    let (mut jobs, mut before, mut looked_at) = (Vec::new(), listing.before, 0);
    loop {
        let page = context.store.jobs(filter.clone(), before, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        looked_at += page.len();
        for (accepted, life) in page {
            before = Some(accepted.id);
            if listing.is_met(&accepted) {
                jobs.push(json!({
                    "id": accepted.id.to_string(),
                    "status": Status::of(accepted.deadline, &life).as_str(),
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
        if looked_at >= LOOKED_AT_MAX {
            return Ok(Json(json!({ "jobs": jobs, "next_cursor": before.map(|before| before.to_string()) })));
        }
    }
}
