//! Events over SSE. A client that reconnects with `Last-Event-ID` continues where it stopped; a slow one gets a gap mark and
//! catches up from the store, without delaying the others.

mod filter;
mod recent;

use std::convert::Infallible;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use remuda_core::event_kind::EventKind;
use remuda_core::id::Sequence;
use remuda_core::record::StoredEvent;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use self::filter::{EventFields, EventFilter};
pub(super) use self::recent::recent;
use super::{ApiError, Caller, Context, preview};
use crate::follower::{Followed, Follower};
use crate::live::{LiveEvent, PreviewUpdate};

pub(super) async fn stream(
    State(context): State<Context>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let mut filter = EventFilter::read(query?.0)?;
    filter.tenant = caller.narrowed(filter.tenant)?;
    let permit = context.streams.clone().try_acquire_owned().map_err(|_| {
        let mut problem = ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_streams",
            "too many event streams are open",
        );
        problem.retry_after = Some(5);
        problem
    })?;
    let resumed =
        match headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().trim().parse::<u64>()) {
            Some(Ok(after)) => Some(after),
            Some(Err(_)) => {
                return Err(ApiError::bad_request("Last-Event-ID is the number of the last event you saw"));
            }
            None => filter.after,
        };
    let events = context.follow(resumed.map(Sequence));
    let follower = EventStream { events, filter, _permit: permit };
    let stream = futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

struct EventStream {
    events: Follower,
    filter: EventFilter,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    /// The next event that passes the filter.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = match self.events.next().await? {
                Followed::Event(LiveEvent::Stored(stored)) => self.show(&stored),
                Followed::Event(LiveEvent::Progress { job, tenant, metadata, worker, progress, phase }) => {
                    let of = EventFields {
                        kind: EventKind::JobProgress,
                        job: Some(job),
                        tenant: Some(&tenant),
                        worker: Some(&worker),
                        metadata: &metadata,
                    };
                    self.show_live(&of, json!({ "progress": progress, "phase": phase }))
                }
                Followed::Event(LiveEvent::Preview(it)) => {
                    let of = EventFields {
                        kind: EventKind::JobPreview,
                        job: Some(it.job),
                        tenant: Some(&it.tenant),
                        worker: Some(&it.worker),
                        metadata: &it.metadata,
                    };
                    self.show_live(&of, preview_json(&it))
                }
                Followed::Event(LiveEvent::Update(_)) => None,
                Followed::Gap { missed, .. } => {
                    Some(Event::default().event("gap").data(json!({ "missed": missed }).to_string()))
                }
                Followed::Restored { generation } => {
                    let reason =
                        "the store continues with less than was stored before: events up to here were lost";
                    let data = json!({ "missed": null, "generation": generation, "reason": reason });
                    Some(Event::default().event("gap").data(data.to_string()))
                }
                Followed::CaughtUp => {
                    let data = json!({ "seq": self.events.position() });
                    Some(Event::default().event("caught_up").data(data.to_string()))
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn show(&self, stored: &StoredEvent) -> Option<Event> {
        let is_match = self.filter.matches(&EventFields {
            kind: stored.kind,
            job: stored.job,
            tenant: stored.tenant.as_ref(),
            worker: stored.worker.as_ref(),
            metadata: &stored.metadata,
        });
        let event = || Event::default().id(stored.seq.to_string()).event(stored.kind.as_str());
        is_match.then(|| event().data(event_json(stored).to_string()))
    }

    /// Live events are not stored and have no number.
    fn show_live(&self, of: &EventFields<'_>, mut data: Value) -> Option<Event> {
        if !self.filter.matches(of) {
            return None;
        }
        (data["name"], data["job"]) = (of.kind.as_str().into(), json!(of.job));
        (data["worker"], data["tenant"]) = (json!(of.worker), json!(of.tenant));
        if !of.metadata.is_empty() {
            data["metadata"] = json!(of.metadata);
        }
        Some(Event::default().event(of.kind.as_str()).data(data.to_string()))
    }
}

fn preview_json(preview: &PreviewUpdate) -> Value {
    json!({
        "attempt": preview.attempt, "media": preview.media.as_str(), "url": preview::url(preview.job),
        "size_bytes": preview.size_bytes,
    })
}

/// An event in answers: with readable times.
pub fn event_json(stored: &StoredEvent) -> Value {
    let mut value = serde_json::to_value(stored).unwrap_or_default();
    value["at"] = stored.at.to_string().into();
    value
}
