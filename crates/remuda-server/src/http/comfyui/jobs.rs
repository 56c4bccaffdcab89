//! `/api/jobs`: queue and history in one list, as newer ComfyUI servers serve it.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use remuda_core::id::Tenant;
use remuda_core::record::StateRow;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::path::Path;
use super::super::{ApiError, Caller, Context, lost};
use super::error::ComfyuiError;
use super::history::{find_stored, list_ended};
use super::history_entry::{EndedPrompt, history_entry};
use super::output_summary::output_summary;
use super::prompt::{Prompt, PromptWorkflow};
use super::queue::{OpenPrompts, cancel, query};

const STATUSES: [&str; 5] = ["pending", "in_progress", "completed", "failed", "cancelled"];
/// Each job is read from the store; a client that wants more requests the next page.
const LIMIT_MAX: usize = 1000;
/// Jobs cancelled by one request.
const CANCEL_MAX: usize = 1000;

/// The status in ComfyUI's vocabulary.
fn status(prompt: &Prompt) -> &'static str {
    match prompt.life.state {
        StateRow::Queued { .. } => "pending",
        StateRow::Running { .. } => "in_progress",
        StateRow::Completed { .. } => "completed",
        StateRow::Failed { .. } | StateRow::Expired { .. } => "failed",
        StateRow::Cancelled { .. } => "cancelled",
    }
}

fn bad_request(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": message }))).into_response()
}

pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let query = query(&uri);
    let statuses = match parse_statuses(&query) {
        Ok(statuses) => statuses,
        Err(refused) => return Ok(bad_request(&refused)),
    };
    let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
        None => None,
        Some(Ok(limit)) if limit > 0 => Some(limit),
        Some(_) => return Ok(bad_request("limit must be a positive integer")),
    };
    let offset = query.get("offset").and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let mut prompts = list_prompts(&context, &tenant).await?;
    prompts.retain(|prompt| statuses.is_empty() || statuses.contains(&status(prompt)));
    if let Some(id) = query.get("workflow_id") {
        prompts = filter_by_workflow_id(&context, prompts, id).await?;
    }
    match query.get("sort_by").map(String::as_str) {
        Some("execution_duration") => prompts.sort_by_key(|prompt| (duration(prompt), prompt.job)),
        _ => prompts.sort_by_key(|prompt| prompt.job),
    }
    if query.get("sort_order").map(String::as_str) != Some("asc") {
        prompts.reverse();
    }
    let total = prompts.len();
    let page = prompts.into_iter().skip(offset).take(limit.unwrap_or(LIMIT_MAX).min(LIMIT_MAX));
    let mut jobs = Vec::new();
    for prompt in page {
        jobs.push(summary(&context, &prompt).await?);
    }
    let has_more = offset + jobs.len() < total;
    let pagination = json!({ "offset": offset, "limit": limit, "total": total, "has_more": has_more });
    Ok(Json(json!({ "jobs": jobs, "pagination": pagination })).into_response())
}

fn parse_statuses(query: &BTreeMap<String, String>) -> Result<Vec<&'static str>, String> {
    let named =
        query.get("status").map_or("", String::as_str).split(',').map(|name| name.trim().to_lowercase());
    let mut statuses = Vec::new();
    for name in named.filter(|name| !name.is_empty()) {
        match STATUSES.into_iter().find(|known| *known == name) {
            Some(known) => statuses.push(known),
            None => {
                let known = STATUSES.join(", ");
                return Err(format!("Invalid status value(s): {name}. Valid values: {known}"));
            }
        }
    }
    Ok(statuses)
}

/// All open prompts and all visible history entries.
async fn list_prompts(context: &Context, tenant: &Tenant) -> Result<Vec<Prompt>, ComfyuiError> {
    let open = OpenPrompts::read(context, tenant).await?;
    let mut prompts: BTreeMap<_, _> =
        list_ended(context, tenant).await?.into_iter().map(|prompt| (prompt.job, prompt)).collect();
    for prompt in open.running.into_iter().chain(open.pending) {
        prompts.entry(prompt.job).or_insert(prompt);
    }
    Ok(prompts.into_values().collect())
}

async fn filter_by_workflow_id(
    context: &Context,
    prompts: Vec<Prompt>,
    id: &str,
) -> Result<Vec<Prompt>, ComfyuiError> {
    let mut found = Vec::new();
    for prompt in prompts {
        if workflow_id(&workflow(context, &prompt).await?).is_some_and(|it| it == id) {
            found.push(prompt);
        }
    }
    Ok(found)
}

async fn workflow(context: &Context, prompt: &Prompt) -> Result<PromptWorkflow, ApiError> {
    let body = context.store.workflow(prompt.job).await?;
    Ok(body.map(|body| PromptWorkflow::read(&body)).unwrap_or_default())
}

fn workflow_id(workflow: &PromptWorkflow) -> Option<Value> {
    let info = workflow.extra.get("extra_pnginfo")?;
    Some(info["workflow"]["id"].clone()).filter(|id| !id.is_null())
}

fn duration(prompt: &Prompt) -> u64 {
    let started = prompt.life.attempts.last().map(|attempt| attempt.started_at);
    started.map_or(0, |started| prompt.life.changed_at.as_millis().saturating_sub(started.as_millis()))
}

/// A prompt as it appears in lists.
async fn summary(context: &Context, prompt: &Prompt) -> Result<Value, ComfyuiError> {
    let mut job = json!({
        "id": prompt.id, "status": status(prompt), "priority": prompt.number,
        "create_time": prompt.accepted_at.as_millis(), "outputs_count": 0,
    });
    if let Some(id) = workflow_id(&workflow(context, prompt).await?) {
        job["workflow_id"] = id;
    }
    if prompt.is_open() {
        return Ok(job);
    }
    let ended = EndedPrompt::read(context, prompt).await?;
    let word = |kind: &str| ended.messages.iter().find(|(said, _)| *said == kind).map(|(_, data)| data);
    job["execution_start_time"] = word("execution_start").map_or(Value::Null, |it| it["timestamp"].clone());
    job["execution_end_time"] = prompt.life.changed_at.as_millis().into();
    if let Some(error) = word("execution_error") {
        job["execution_error"] = error.clone();
    }
    let (count, preview) = output_summary(&ended.outputs);
    job["outputs_count"] = count.into();
    if let Some(preview) = preview {
        job["preview_output"] = preview;
    }
    Ok(job)
}

pub(super) async fn show(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let found = find_stored(&context, &tenant, &id).await?;
    if found.is_none()
        && let Some(lost) = id.parse().ok().and_then(|id| lost::job(&context, id))
    {
        return Err(lost.into());
    }
    let Some(prompt) = found.filter(|prompt| prompt.is_open() || prompt.is_history()) else {
        return Ok((StatusCode::NOT_FOUND, Json(json!({ "error": "Job not found" }))).into_response());
    };
    let mut job = summary(&context, &prompt).await?;
    if !prompt.is_open() {
        let mut entry = history_entry(&context, &prompt, &BTreeMap::new()).await?;
        job["outputs"] = entry["outputs"].take();
        job["execution_status"] = entry["status"].take();
        job["workflow"] =
            json!({ "prompt": entry["prompt"][2].take(), "extra_data": entry["prompt"][3].take() });
    }
    Ok(Json(job).into_response())
}

pub(super) async fn cancel_one(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let is_cancelled = cancel_by_id(&context, &tenant, &id).await?;
    Ok(Json(json!({ "cancelled": is_cancelled })))
}

pub(super) async fn cancel_many(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return Ok(bad_request("Request body must be valid JSON"));
    };
    let Some(ids) = body["job_ids"].as_array() else { return Ok(bad_request("job_ids must be a list")) };
    if ids.len() > CANCEL_MAX {
        return Ok(bad_request(&format!("job_ids has at most {CANCEL_MAX} ids")));
    }
    let is_id = |id: &Value| {
        id.as_str().is_some_and(|id| Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == id))
    };
    let invalid: Vec<&Value> = ids.iter().filter(|id| !is_id(id)).collect();
    if !invalid.is_empty() {
        let body = json!({ "error": "job_ids contains invalid id(s)", "invalid_ids": invalid });
        return Ok((StatusCode::BAD_REQUEST, Json(body)).into_response());
    }
    let mut is_any = false;
    for id in ids.iter().filter_map(Value::as_str) {
        is_any |= cancel_by_id(&context, &tenant, id).await?;
    }
    Ok(Json(json!({ "cancelled": is_any })).into_response())
}

async fn cancel_by_id(context: &Context, tenant: &Tenant, id: &str) -> Result<bool, ComfyuiError> {
    match Prompt::find(context, tenant, id).await? {
        Some(prompt) if prompt.is_open() => Ok(cancel(context, prompt.job, "cancelled on request").await?),
        Some(_) | None => Ok(false),
    }
}
