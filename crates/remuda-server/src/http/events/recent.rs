//! The newest stored events, a page at a time: what happened before a page was opened.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use remuda_core::id::Sequence;
use remuda_core::record::StoredEvent;
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::event_json;
use super::filter::{EventFields, EventFilter};

const LIMIT: usize = 50;
const LIMIT_MAX: usize = 500;
/// Events read for one answer: a rare name is searched for this far back, and `next` says where to go on.
const READ_MAX: usize = 20_000;
const READ_PAGE: usize = 1_000;

pub(in crate::http) async fn recent(
    State(context): State<Context>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let (mut before, mut limit, mut others) = (None, LIMIT, Vec::new());
    for (key, value) in query?.0 {
        match key.as_str() {
            "before" => before = Some(Sequence(number(&key, &value)?)),
            "limit" => {
                limit = usize::try_from(number(&key, &value)?).unwrap_or(LIMIT_MAX).clamp(1, LIMIT_MAX);
            }
            _ => others.push((key, value)),
        }
    }
    let mut filter = EventFilter::read(others)?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    let (mut found, mut read) = (Vec::new(), 0);
    let next = loop {
        let page = context.store.recent_events(before, READ_PAGE).await?;
        let is_last = page.len() < READ_PAGE;
        read += page.len();
        for event in page {
            before = Some(event.seq);
            if is_match(&filter, &event) {
                found.push(event_json(&event));
            }
            if found.len() == limit {
                break;
            }
        }
        if found.len() == limit || read >= READ_MAX {
            break before;
        }
        if is_last {
            break None;
        }
    };
    Ok(Json(json!({ "events": found, "next": next })))
}

fn is_match(filter: &EventFilter, event: &StoredEvent) -> bool {
    filter.matches(&EventFields {
        kind: event.kind,
        job: event.job,
        tenant: event.tenant.as_ref(),
        worker: event.worker.as_ref(),
        metadata: &event.metadata,
    })
}

fn number(key: &str, value: &str) -> Result<u64, ApiError> {
    value.parse().map_err(|_| ApiError::bad_request(format!("{key}={value:?}: expected a number")))
}
