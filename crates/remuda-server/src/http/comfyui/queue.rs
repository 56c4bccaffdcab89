//! `/queue`, `/prompt` and `/interrupt`: what waits and what runs, and stopping it.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use remuda_core::id::{JobId, Tenant};
use remuda_core::job::{Job, State as JobState};
use remuda_core::plane::Event;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::error::Refused;
use super::prompt::{self, DOORS_OWN, Prompt, SERVICE, Workflow};
use crate::plane_handle::PlaneError;

/// Of those that wait, as many as are shown with their graphs; the next to run come first.
const PENDING_MAX: usize = 1000;
/// Graphs may be large, and clients ask often: from here on prompts are listed without theirs, and still are listed.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Ids in one request to delete; each is looked up.
const DELETE_MAX: usize = 1000;

pub(super) fn query(uri: &Uri) -> BTreeMap<String, String> {
    Query::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// What runs and what waits for a tenant, the next to run first.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) running: Vec<Prompt>,
    pub(super) pending: Vec<Prompt>,
}

impl Open {
    pub(super) async fn look(context: &Context, tenant: &Tenant) -> Result<Open, PlaneError> {
        let tenant = tenant.clone();
        let prompts: Vec<(bool, i8, Prompt)> = context
            .plane
            .read(move |plane, now| {
                let theirs = plane.jobs().filter(|job| is_of(job, &tenant));
                theirs
                    .map(|job| {
                        let metadata = job.metadata();
                        let prompt = Prompt {
                            job: job.id,
                            id: prompt::id(job.id, &metadata),
                            client: prompt::client(&metadata),
                            number: prompt::number(job.id, job.priority, &metadata),
                            accepted_at: job.accepted_at,
                            life: job.life(now),
                        };
                        (matches!(job.state(), JobState::Running { .. }), job.priority, prompt)
                    })
                    .collect()
            })
            .await?;
        let mut open = Open::default();
        let mut pending = Vec::new();
        for (is_running, priority, prompt) in prompts {
            match is_running {
                true => open.running.push(prompt),
                false => pending.push((std::cmp::Reverse(priority), prompt)),
            }
        }
        pending.sort_by_key(|(priority, prompt)| (*priority, prompt.job));
        open.pending = pending.into_iter().map(|(_, prompt)| prompt).collect();
        Ok(open)
    }
}

fn is_of(job: &Job, tenant: &Tenant) -> bool {
    let is_own = job.extra.as_ref().is_some_and(|extra| extra.labels.contains_key(DOORS_OWN));
    job.tenant == *tenant && job.kind.demand.service().as_str() == SERVICE && !is_own
}

/// How many have not ended, as far as everyone can see that they have.
pub(super) async fn remaining(
    State(context): State<Context>,
    caller: Caller,
) -> Result<Json<Value>, Refused> {
    let tenant = caller.tenant(None)?;
    let count = context.comfyui.hub.remaining(&context, &tenant).await?;
    Ok(Json(exec_info(count)))
}

pub(super) fn exec_info(remaining: usize) -> Value {
    json!({ "exec_info": { "queue_remaining": remaining } })
}

pub(super) async fn list(State(context): State<Context>, caller: Caller) -> Result<Response, Refused> {
    let tenant = caller.tenant(None)?;
    let open = Open::look(&context, &tenant).await?;
    let mut bytes_left = QUEUE_BYTES_MAX;
    let running = tuples(&context, &open.running, &mut bytes_left).await?;
    let next = &open.pending[..open.pending.len().min(PENDING_MAX)];
    let pending = tuples(&context, next, &mut bytes_left).await?;
    Ok(Json(BTreeMap::from([("queue_running", running), ("queue_pending", pending)])).into_response())
}

async fn tuples(
    context: &Context,
    prompts: &[Prompt],
    bytes_left: &mut usize,
) -> Result<Vec<Box<RawValue>>, ApiError> {
    let outputs = context.comfyui.classes.outputs(context).await;
    let mut tuples = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let body = match context.workflows.find(prompt.job) {
            _ if *bytes_left == 0 => None,
            Some(body) => Some(body),
            None => context.store.workflow(prompt.job).await?,
        };
        let size = body.as_ref().map_or(0, |body| body.get().len());
        let workflow = body.filter(|_| size <= *bytes_left).map(|body| Workflow::read(&body));
        *bytes_left = bytes_left.saturating_sub(size);
        let tuple = prompt.tuple(&workflow.unwrap_or_default(), &outputs);
        tuples.push(to_raw_value(&tuple).map_err(|error| ApiError::invalid(error.to_string()))?);
    }
    Ok(tuples)
}

/// `{"delete": [ids]}` or `{"clear": true}`
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) clear: bool,
    pub(super) delete: BTreeSet<String>,
}

impl Asked {
    pub(super) fn read(body: &[u8]) -> Result<Asked, ApiError> {
        let asked: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?;
        let clear = match &asked["clear"] {
            Value::Null => false,
            Value::Bool(is_so) => *is_so,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(_) | Value::Object(_) => true,
        };
        let listed = asked["delete"].as_array().map_or(&[][..], Vec::as_slice);
        if listed.len() > DELETE_MAX {
            let message = format!("delete has at most {DELETE_MAX} ids: ask again for the rest, or clear");
            return Err(ApiError::bad_request(message));
        }
        let delete = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Asked { clear, delete })
    }
}

/// What runs is spared, as in ComfyUI.
pub(super) async fn change(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let tenant = caller.tenant(None)?;
    let asked = Asked::read(&body)?;
    let open = Open::look(&context, &tenant).await?;
    for prompt in &open.pending {
        if asked.clear || asked.delete.contains(&prompt.id) {
            cancel(&context, prompt.job, "taken out of the queue").await?;
        }
    }
    Ok(StatusCode::OK)
}

/// One by its id, or everything of the caller's that runs. A body that cannot be read means the latter, as in ComfyUI.
pub(super) async fn interrupt(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let tenant = caller.tenant(None)?;
    let asked: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({}));
    if !asked.is_object() {
        return Err(ApiError::bad_request("an interrupt is {} or {\"prompt_id\": \"…\"}").into());
    }
    let id = asked["prompt_id"].as_str().filter(|id| !id.is_empty());
    for prompt in Open::look(&context, &tenant).await?.running {
        if id.is_none_or(|id| id == prompt.id) {
            cancel(&context, prompt.job, "interrupted").await?;
        }
    }
    Ok(StatusCode::OK)
}

/// Whether it was still to be stopped.
pub(super) async fn cancel(context: &Context, job: JobId, why: &str) -> Result<bool, PlaneError> {
    match context.plane.request(Event::Cancel { job, message: why.to_owned() }).await {
        Ok(_) => Ok(true),
        Err(PlaneError::Refused(_)) => Ok(false),
        Err(other) => Err(other),
    }
}
