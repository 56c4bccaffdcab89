//! Events over SSE. A client that reconnects with `Last-Event-ID` continues where it stopped; a slow one gets a gap mark and
//! catches up from the store, without delaying the others.

mod filter;

use std::convert::Infallible;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use remuda_core::id::Sequence;
use remuda_core::record::StoredEvent;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use self::filter::{EventFields, EventFilter};
use super::{ApiError, Caller, Context, preview};
use crate::live::{LiveEvent, PreviewUpdate};
use crate::shutdown::stopped;

const PAGE: usize = 512;

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
    // Subscribed before the store is read: events in between are in both, and their number removes the duplicates.
    let events = context.events.subscribe();
    let seen = resumed.map(Sequence);
    let follower = EventFollower {
        stopping: context.stopping.clone(),
        context,
        filter,
        events,
        seen,
        backlog: Vec::new(),
        catching_up: seen.is_some(),
        owes_caught_up: false,
        _permit: permit,
    };
    let stream = futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

struct EventFollower {
    context: Context,
    filter: EventFilter,
    events: broadcast::Receiver<LiveEvent>,
    seen: Option<Sequence>,
    /// Read from the store and not yet sent, newest first.
    backlog: Vec<StoredEvent>,
    catching_up: bool,
    /// All stored events were sent, and the mark `caught_up` is not sent yet.
    owes_caught_up: bool,
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl EventFollower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(happened) = self.backlog.pop() {
                if let Some(event) = self.show(&happened) {
                    return Some(event);
                }
                continue;
            }
            if self.catching_up {
                let after = self.seen.unwrap_or_default();
                self.backlog = self.context.store.events(after, PAGE).await.ok()?;
                self.catching_up = self.backlog.len() == PAGE;
                self.owes_caught_up = !self.catching_up;
                self.backlog.reverse();
                continue;
            }
            if std::mem::take(&mut self.owes_caught_up) {
                let data = json!({ "seq": self.seen });
                return Some(Event::default().event("caught_up").data(data.to_string()));
            }
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = stopped(&mut self.stopping) => return None,
            };
            match event {
                Ok(LiveEvent::Stored(happened)) => {
                    if let Some(event) = self.show(&happened) {
                        return Some(event);
                    }
                }
                Ok(LiveEvent::Progress { job, tenant, metadata, worker, progress, phase }) => {
                    let of = EventFields {
                        name: "job:progress",
                        job: Some(job),
                        tenant: Some(&tenant),
                        worker: Some(&worker),
                        metadata: &metadata,
                    };
                    let data = json!({ "progress": progress, "phase": phase });
                    if let Some(event) = self.show_live(&of, data) {
                        return Some(event);
                    }
                }
                Ok(LiveEvent::Preview(it)) => {
                    let of = EventFields {
                        name: "job:preview",
                        job: Some(it.job),
                        tenant: Some(&it.tenant),
                        worker: Some(&it.worker),
                        metadata: &it.metadata,
                    };
                    if let Some(event) = self.show_live(&of, preview_json(&it)) {
                        return Some(event);
                    }
                }
                Ok(LiveEvent::Update(_)) => {}
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    self.catching_up = self.seen.is_some();
                    return Some(Event::default().event("gap").data(json!({ "missed": missed }).to_string()));
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    fn show(&mut self, happened: &StoredEvent) -> Option<Event> {
        if self.seen.is_some_and(|seen| happened.seq <= seen) {
            return None;
        }
        self.seen = Some(happened.seq);
        let is_match = self.filter.matches(&EventFields {
            name: &happened.name,
            job: happened.job,
            tenant: happened.tenant.as_ref(),
            worker: happened.worker.as_ref(),
            metadata: &happened.metadata,
        });
        let event = || Event::default().id(happened.seq.to_string()).event(&happened.name);
        is_match.then(|| event().data(event_json(happened).to_string()))
    }

    /// Live events are not stored and have no number.
    fn show_live(&self, of: &EventFields<'_>, mut data: Value) -> Option<Event> {
        if !self.filter.matches(of) {
            return None;
        }
        (data["name"], data["job"]) = (of.name.into(), json!(of.job));
        (data["worker"], data["tenant"]) = (json!(of.worker), json!(of.tenant));
        if !of.metadata.is_empty() {
            data["metadata"] = json!(of.metadata);
        }
        Some(Event::default().event(of.name).data(data.to_string()))
    }
}

fn preview_json(shown: &PreviewUpdate) -> Value {
    json!({
        "attempt": shown.attempt, "media": shown.media.as_str(), "url": preview::url(shown.job),
        "size_bytes": shown.size_bytes,
    })
}

/// An event in answers: with readable times.
pub fn event_json(happened: &StoredEvent) -> Value {
    let mut value = serde_json::to_value(happened).unwrap_or_default();
    value["at"] = happened.at.to_string().into();
    value
}
