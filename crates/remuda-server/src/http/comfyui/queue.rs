//! `/queue`, `/prompt` and `/interrupt`: pending and running prompts, and stopping them.
//!
//! A ComfyUI server runs one prompt at a time, and many clients read only the first of `queue_running`; a fleet runs many. So a
//! client that names itself (`?client_id=`) gets its own running prompts first, the one that started first before the others,
//! and `/interrupt?client_id=` stops only these. The others stay in the list: a client that looks for a prompt by its id
//! would take a missing one for lost.
//!
//! Some clients do not name themselves and fail if two prompts run. For them `comfyui.one_running` lists all but the first as
//! the next pending ones, which `/queue` then also removes; `/interrupt` still stops everything that runs.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use remuda_core::id::{JobId, Tenant};
use remuda_core::job::{Job, JobState};
use remuda_core::plane::PlaneEvent;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::prompt::{self, Prompt, PromptWorkflow, SERVICE};
use crate::plane_handle::PlaneError;

/// Pending prompts that are listed; the next to run come first.
const PENDING_MAX: usize = 1000;
/// Graphs may be large and clients poll often: beyond this size prompts are listed without their graph.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Ids in one delete request; each is looked up.
const DELETE_MAX: usize = 1000;

pub(super) fn query(uri: &Uri) -> BTreeMap<String, String> {
    Query::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// Running and pending prompts of a tenant, the next to run first.
#[derive(Debug, Default)]
pub(super) struct OpenPrompts {
    pub(super) running: Vec<Prompt>,
    pub(super) pending: Vec<Prompt>,
}

impl OpenPrompts {
    /// A prompt that has left the queue is in the history: some clients look there next, and take it for lost otherwise.
    pub(super) async fn read(context: &Context, tenant: &Tenant) -> Result<OpenPrompts, PlaneError> {
        let tenant = tenant.clone();
        let prompts: Vec<(bool, i8, Prompt)> = context
            .plane
            .read_stored(move |plane, now| {
                let theirs = plane.jobs().filter(|job| belongs_to(job, &tenant));
                theirs
                    .map(|job| {
                        let metadata = job.metadata();
                        let prompt = Prompt {
                            job: job.id,
                            id: prompt::prompt_id(job.id, &metadata),
                            tenant: job.tenant.clone(),
                            is_named: prompt::is_named(&metadata),
                            client: prompt::client_id(&metadata),
                            number: prompt::queue_number(job.id, job.priority, &metadata),
                            accepted_at: job.accepted_at,
                            life: job.status(now),
                        };
                        (matches!(job.state(), JobState::Running { .. }), job.priority, prompt)
                    })
                    .collect()
            })
            .await?;
        let mut open = OpenPrompts::default();
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

    /// The prompts as `/queue` lists them to this client.
    async fn list(
        context: &Context,
        tenant: &Tenant,
        client: Option<&str>,
    ) -> Result<OpenPrompts, PlaneError> {
        let mut open = OpenPrompts::read(context, tenant).await?;
        sort_running(&mut open.running, client);
        if context.comfyui_one_running {
            open.keep_one_running();
        }
        Ok(open)
    }

    fn keep_one_running(&mut self) {
        let others = self.running.drain(self.running.len().min(1)..);
        self.pending.splice(..0, others);
    }
}

fn belongs_to(job: &Job, tenant: &Tenant) -> bool {
    job.tenant == *tenant && job.kind.demand.service().as_str() == SERVICE
}

/// The number of open prompts, as published to clients.
pub(super) async fn count(
    State(context): State<Context>,
    caller: Caller,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let count = context.comfyui.clients.open_jobs(&context, &tenant).await?;
    Ok(Json(exec_info(count)))
}

pub(super) fn exec_info(remaining: usize) -> Value {
    json!({ "exec_info": { "queue_remaining": remaining } })
}

/// The client that a request names, in either of the two ways in which clients write it elsewhere.
fn named_client(uri: &Uri) -> Option<String> {
    let mut query = query(uri);
    query.remove("client_id").or_else(|| query.remove("clientId")).filter(|client| !client.is_empty())
}

/// Oldest start first, and prompts of the named client before all others.
fn sort_running(running: &mut [Prompt], client: Option<&str>) {
    running.sort_by_key(|prompt| {
        let is_other = client.is_some() && prompt.client.as_deref() != client;
        (is_other, prompt.life.attempts.last().map(|attempt| attempt.started_at), prompt.job)
    });
}

pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let open = OpenPrompts::list(&context, &tenant, named_client(&uri).as_deref()).await?;
    let mut bytes_left = QUEUE_BYTES_MAX;
    let running = queue_tuples(&context, &open.running, &mut bytes_left).await?;
    let next = &open.pending[..open.pending.len().min(PENDING_MAX)];
    let pending = queue_tuples(&context, next, &mut bytes_left).await?;
    Ok(Json(BTreeMap::from([("queue_running", running), ("queue_pending", pending)])).into_response())
}

async fn queue_tuples(
    context: &Context,
    prompts: &[Prompt],
    bytes_left: &mut usize,
) -> Result<Vec<Box<RawValue>>, ApiError> {
    let outputs = context.comfyui.node_classes.output_classes(context).await;
    let mut tuples = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let body = match context.workflows.find(prompt.job) {
            _ if *bytes_left == 0 => None,
            Some(body) => Some(body),
            None => context.store.workflow(prompt.job).await?,
        };
        let size = body.as_ref().map_or(0, |body| body.get().len());
        let workflow = body.filter(|_| size <= *bytes_left).map(|body| PromptWorkflow::read(&body));
        *bytes_left = bytes_left.saturating_sub(size);
        let tuple = prompt.queue_tuple(&workflow.unwrap_or_default(), &outputs);
        tuples.push(to_raw_value(&tuple).map_err(|error| ApiError::invalid(error.to_string()))?);
    }
    Ok(tuples)
}

/// `{"delete": [ids]}` or `{"clear": true}`
#[derive(Debug, Default)]
pub(super) struct DeleteRequest {
    pub(super) clear: bool,
    pub(super) delete: BTreeSet<String>,
}

impl DeleteRequest {
    pub(super) fn read(body: &[u8]) -> Result<DeleteRequest, ApiError> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?;
        let clear = match &body["clear"] {
            Value::Null => false,
            Value::Bool(is_so) => *is_so,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(_) | Value::Object(_) => true,
        };
        let listed = body["delete"].as_array().map_or(&[][..], Vec::as_slice);
        if listed.len() > DELETE_MAX {
            let message = format!("delete has at most {DELETE_MAX} ids: ask again for the rest, or clear");
            return Err(ApiError::bad_request(message));
        }
        let delete = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(DeleteRequest { clear, delete })
    }
}

/// Removes pending prompts; running ones are kept, as in ComfyUI.
pub(super) async fn change(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let request = DeleteRequest::read(&body)?;
    let open = OpenPrompts::list(&context, &tenant, named_client(&uri).as_deref()).await?;
    for prompt in &open.pending {
        if request.clear || request.delete.contains(&prompt.id) {
            cancel(&context, prompt.job, "taken out of the queue").await?;
        }
    }
    Ok(StatusCode::OK)
}

/// Interrupts one prompt by id, or all running ones of the caller or of the client that the request names. An unreadable body means all, as in ComfyUI.
pub(super) async fn interrupt(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let client = named_client(&uri);
    let body: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({}));
    if !body.is_object() {
        return Err(ApiError::bad_request("an interrupt is {} or {\"prompt_id\": \"…\"}").into());
    }
    let id = body["prompt_id"].as_str().filter(|id| !id.is_empty());
    for prompt in OpenPrompts::read(&context, &tenant).await?.running {
        let is_theirs = client.is_none() || prompt.client == client;
        if is_theirs && id.is_none_or(|id| id == prompt.id) {
            cancel(&context, prompt.job, "interrupted").await?;
        }
    }
    Ok(StatusCode::OK)
}

/// Returns false if the job had already ended.
pub(super) async fn cancel(context: &Context, job: JobId, why: &str) -> Result<bool, PlaneError> {
    match context.plane.request(PlaneEvent::Cancel { job, message: why.to_owned() }).await {
        Ok(_) => Ok(true),
        Err(PlaneError::Refused(_)) => Ok(false),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::id::Attempt;
    use remuda_core::record::{JobStatus, StateRow};
    use remuda_core::time::Timestamp;

    use super::*;

    fn prompt(job: u128, client: &str) -> Prompt {
        let life = JobStatus {
            state: StateRow::Queued { not_before: Timestamp::ZERO },
            attempt: Attempt(1),
            failures: 0,
            infra_failures: 0,
            crashed_workers: BTreeSet::new(),
            attempts: Vec::new(),
            changed_at: Timestamp::ZERO,
        };
        Prompt {
            job: JobId::from_u128(job),
            id: job.to_string(),
            tenant: "t".parse().unwrap(),
            client: Some(client.to_owned()),
            is_named: true,
            number: json!(1),
            accepted_at: Timestamp::ZERO,
            life,
        }
    }

    #[test]
    fn client_sees_its_own_running_prompts_first() {
        let order = |client: Option<&str>| {
            let mut running = vec![prompt(3, "bert"), prompt(1, "anna"), prompt(2, "bert")];
            sort_running(&mut running, client);
            running.into_iter().map(|prompt| prompt.id).collect::<Vec<_>>()
        };
        assert_eq!(order(None), ["1", "2", "3"]);
        assert_eq!(order(Some("bert")), ["2", "3", "1"]);
        assert_eq!(order(Some("nobody")), ["1", "2", "3"]);
    }

    #[test]
    fn client_is_named_by_either_spelling() {
        let named = |uri: &str| named_client(&uri.parse().unwrap());
        assert_eq!(named("/queue?client_id=a").as_deref(), Some("a"));
        assert_eq!(named("/queue?clientId=b&x=1").as_deref(), Some("b"));
        assert_eq!(named("/queue?client_id="), None);
        assert_eq!(named("/queue"), None);
    }
}
