//! `/history`: ended prompts, oldest first, read from the store. Deleting hides an entry from this API and nowhere else.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use remuda_core::document::{Collection, Document};
use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::PlaneEvent;
use remuda_store::{JobFilter, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{ApiError, Caller, Context, lost};
use super::error::ComfyuiError;
use super::history_entry::history_entry;
use super::prompt::Prompt;
use super::queue::{DeleteRequest, query};

/// As many entries as ComfyUI keeps.
const HISTORY_MAX: usize = 10_000;
/// Graphs may be large: the list stops at this size.
const HISTORY_BYTES_MAX: usize = 64 << 20;
const PAGE: usize = 1000;
/// How often to check whether an end that the plane has decided is stored, before the stored state is returned as it is.
const STORED_CHECKS_MAX: u32 = 200;
const STORED_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);
/// More would slow down every request; a client that deletes this many can clear.
const HIDDEN_MAX: usize = 10_000;

/// Entries that a tenant has deleted from its history.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct HiddenPrompts {
    /// Every job up to this one is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    up_to: Option<JobId>,
    #[serde(default)]
    jobs: BTreeSet<JobId>,
}

impl HiddenPrompts {
    fn id(tenant: &Tenant) -> String {
        format!("hidden/{tenant}")
    }

    async fn read(context: &Context, tenant: &Tenant) -> Result<HiddenPrompts, StoreError> {
        let document = context.store.document(Collection::Comfyui, &HiddenPrompts::id(tenant)).await?;
        Ok(document.and_then(|document| serde_json::from_str(document.body.get()).ok()).unwrap_or_default())
    }

    fn contains(&self, job: JobId) -> bool {
        self.up_to.is_some_and(|last| job <= last) || self.jobs.contains(&job)
    }
}

/// All ended prompts that are not hidden, newest first.
pub(super) async fn list_ended(context: &Context, tenant: &Tenant) -> Result<Vec<Prompt>, StoreError> {
    let hidden = HiddenPrompts::read(context, tenant).await?;
    let filter = JobFilter { state: None, tenant: Some(tenant.clone()) };
    let (mut prompts, mut before) = (Vec::new(), None);
    loop {
        let page = context.store.jobs(filter.clone(), before, PAGE).await?;
        let is_last = page.len() < PAGE;
        before = page.last().map(|(accepted, _)| accepted.id);
        let found = page.iter().filter_map(|(accepted, life)| Prompt::from_record(accepted, life.clone()));
        prompts.extend(found.filter(|prompt| prompt.is_history() && !hidden.contains(prompt.job)));
        let is_hidden_from_here = before.is_some_and(|last| hidden.up_to.is_some_and(|up_to| last <= up_to));
        if is_last || is_hidden_from_here || prompts.len() >= HISTORY_MAX {
            prompts.truncate(HISTORY_MAX);
            return Ok(prompts);
        }
    }
}

pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    uri: axum::http::Uri,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let query = query(&uri);
    let number = |key: &str| {
        let not_a_number = || ApiError::bad_request(format!("{key} is a whole number"));
        query.get(key).map(|text| text.parse::<i64>().map_err(|_| not_a_number())).transpose()
    };
    let (max_items, offset) = (number("max_items")?, number("offset")?);
    let prompts = list_ended(&context, &tenant).await?;
    let chosen = page(&prompts, max_items, offset.unwrap_or(-1));
    let outputs = context.comfyui.node_classes.output_classes(&context).await;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for prompt in chosen {
        let text = to_raw_value(&history_entry(&context, prompt, &outputs).await?)
            .map_err(|error| internal_error(&error))?;
        bytes += text.get().len();
        if bytes > HISTORY_BYTES_MAX {
            break;
        }
        entries.push(format!("{}:{}", Value::from(prompt.id.as_str()), text.get()));
    }
    entries.reverse();
    let body = format!("{{{}}}", entries.join(","));
    Ok(([(axum::http::header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response())
}

fn internal_error(error: &serde_json::Error) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
}

/// The newest `max_items`, or as many starting at `offset`, counted from the oldest. Input and output are newest first.
fn page(newest_first: &[Prompt], max_items: Option<i64>, offset: i64) -> &[Prompt] {
    let count = i64::try_from(newest_first.len()).unwrap_or(i64::MAX);
    let first = match max_items {
        Some(max) if offset < 0 => count.saturating_sub(max).clamp(0, count),
        _ => offset.clamp(0, count),
    };
    let last = max_items.map_or(count, |max| first.saturating_add(max.max(0)).min(count));
    let at = |place: i64| usize::try_from(count - place).unwrap_or(0);
    &newest_first[at(last)..at(first)]
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
    let hidden = HiddenPrompts::read(&context, &tenant).await?;
    let mut answer = Map::new();
    if let Some(prompt) = found.filter(|prompt| prompt.is_history() && !hidden.contains(prompt.job)) {
        let outputs = context.comfyui.node_classes.output_classes(&context).await;
        answer.insert(prompt.id.clone(), history_entry(&context, &prompt, &outputs).await?);
    }
    Ok(Json(answer).into_response())
}

/// The stored prompt. If the plane has decided its end but not stored it yet, this waits: a client that no longer sees the
/// prompt in the queue must find it in the history.
pub(super) async fn find_stored(
    context: &Context,
    tenant: &Tenant,
    id: &str,
) -> Result<Option<Prompt>, ComfyuiError> {
    let mut looks = 0;
    loop {
        let Some(prompt) = Prompt::find(context, tenant, id).await? else { return Ok(None) };
        if !prompt.is_open() || looks == STORED_CHECKS_MAX {
            return Ok(Some(prompt));
        }
        let job = prompt.job;
        if context.plane.read(move |plane, _| plane.job(job).is_some()).await? {
            return Ok(Some(prompt));
        }
        tokio::time::sleep(STORED_CHECK_INTERVAL).await;
        looks += 1;
    }
}

pub(super) async fn hide(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let request = DeleteRequest::read(&body)?;
    let mut hidden = HiddenPrompts::read(&context, &tenant).await?;
    if request.clear {
        // A running prompt enters the history later and must be visible then.
        let ended = list_ended(&context, &tenant).await?;
        let open = context.plane.read(|plane, _| plane.jobs().map(|job| job.id).next()).await?;
        let newest = ended.iter().map(|prompt| prompt.job).find(|job| open.is_none_or(|open| *job < open));
        hidden.up_to = hidden.up_to.max(newest);
        hidden.jobs.extend(ended.iter().map(|prompt| prompt.job));
    }
    for id in &request.delete {
        hidden.jobs.extend(Prompt::find(&context, &tenant, id).await?.map(|prompt| prompt.job));
    }
    let up_to = hidden.up_to;
    hidden.jobs.retain(|job| up_to.is_none_or(|up_to| *job > up_to));
    while hidden.jobs.len() > HIDDEN_MAX {
        hidden.jobs.pop_first();
    }
    let document = Document {
        collection: Collection::Comfyui,
        id: HiddenPrompts::id(&tenant),
        tenant: Some(tenant),
        index_key: String::new(),
        expires_at: None,
        body: Arc::from(to_raw_value(&json!(hidden)).map_err(|error| internal_error(&error))?),
    };
    context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
    Ok(StatusCode::OK)
}
