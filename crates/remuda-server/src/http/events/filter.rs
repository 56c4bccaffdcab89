//! The filter of an event stream: by job, tenant, worker, name or metadata.

use std::borrow::Borrow;

use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Tenant, WorkerId};
use serde_json::{Map, Value};

use crate::http::ApiError;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EventFilter {
    pub(super) job: Option<JobId>,
    pub(super) tenant: Option<Tenant>,
    worker: Option<WorkerId>,
    /// A name, or its part before the colon.
    name: Option<String>,
    /// Events after this number; without it, and without Last-Event-ID, only new ones.
    pub(super) after: Option<u64>,
    /// `metadata.user=anna`: a path and the expected value.
    metadata: Vec<(Vec<String>, String)>,
}

/// The fields of an event that a filter can match.
pub(super) struct EventFields<'a> {
    pub(super) kind: EventKind,
    pub(super) job: Option<JobId>,
    pub(super) tenant: Option<&'a Tenant>,
    pub(super) worker: Option<&'a WorkerId>,
    pub(super) metadata: &'a Map<String, Value>,
}

/// People use one or two; more would slow down every event.
const METADATA_MAX: usize = 16;

impl EventFilter {
    pub(super) fn read(query: Vec<(String, String)>) -> Result<EventFilter, ApiError> {
        let mut wanted = EventFilter::default();
        for (key, value) in query {
            match key.as_str() {
                "job" => wanted.job = Some(value.parse()?),
                "tenant" => wanted.tenant = Some(value.parse()?),
                "worker" => wanted.worker = Some(value.parse()?),
                "name" => wanted.name = Some(value),
                "after" => {
                    let number = value.parse().map_err(|_| {
                        ApiError::bad_request(format!("after={value:?}: expected the number of an event"))
                    })?;
                    wanted.after = Some(number);
                }
                _ => match key.strip_prefix("metadata.").filter(|path| !path.is_empty()) {
                    Some(path) if wanted.metadata.len() < METADATA_MAX => {
                        wanted.metadata.push((path.split('.').map(str::to_owned).collect(), value));
                    }
                    Some(_) => {
                        return Err(ApiError::bad_request(format!(
                            "at most {METADATA_MAX} metadata filters"
                        )));
                    }
                    None => {
                        return Err(ApiError::bad_request(format!(
                            "{key:?} is no filter for events: job, tenant, worker, name, after, metadata.KEY"
                        )));
                    }
                },
            }
        }
        Ok(wanted)
    }

    pub(super) fn matches(&self, event: &EventFields<'_>) -> bool {
        is_or_any(self.job.as_ref(), event.job.as_ref())
            && is_or_any(self.tenant.as_ref(), event.tenant)
            && is_or_any(self.worker.as_ref(), event.worker)
            && self.name.as_deref().is_none_or(|wanted| event.kind.is_named(wanted))
            && self.metadata.iter().all(|(path, wanted)| has(event.metadata, path, wanted))
    }
}

fn is_or_any<T: PartialEq>(wanted: Option<&T>, it: Option<&T>) -> bool {
    wanted.is_none_or(|wanted| it == Some(wanted))
}

/// Whether the metadata has this value at this path; numbers and booleans compare as JSON.
fn has(metadata: &Map<String, Value>, path: &[String], wanted: &str) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    let value = rest
        .iter()
        .try_fold(metadata.get(first), |value, key| value.map(|value| value.get(Borrow::<str>::borrow(key))));
    match value.flatten() {
        Some(Value::String(text)) => text == wanted,
        Some(other) => {
            let written = other.to_string();
            written == wanted
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(query: &[(&str, &str)]) -> Result<EventFilter, ApiError> {
        EventFilter::read(query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn events_are_filtered_by_metadata() {
        let Value::Object(metadata) = json!({ "user": "anna", "order": { "n": 7 }, "paid": true }) else {
            unreachable!()
        };
        let (tenant, worker): (Tenant, WorkerId) = ("t".parse().unwrap(), "a".parse().unwrap());
        let event = EventFields {
            kind: EventKind::JobFailed,
            job: None,
            tenant: Some(&tenant),
            worker: Some(&worker),
            metadata: &metadata,
        };
        for (query, expected) in [
            (&[][..], true),
            (&[("metadata.user", "anna")], true),
            (&[("metadata.user", "anna"), ("metadata.order.n", "7"), ("metadata.paid", "true")], true),
            (&[("metadata.user", "bob")], false),
            (&[("metadata.user.name", "anna")], false),
            (&[("metadata.order.n.x", "7")], false),
            (&[("worker", "a"), ("name", "job"), ("tenant", "t")], true),
            (&[("worker", "b")], false),
            (&[("name", "job:failed")], true),
            (&[("name", "worker")], false),
        ] {
            assert_eq!(wanted(query).unwrap().matches(&event), expected, "{query:?}");
        }
        for odd in [("metadata.", "x"), ("user", "anna"), ("after", "x"), ("job", "x"), ("worker", "a b")] {
            assert!(wanted(&[odd]).is_err(), "{odd:?}");
        }
    }
}
