//! Events of a pool, with the names that every API of Remuda uses. No stored event is skipped: a slow follower reads what
//! it missed from the store.

use std::sync::Arc;

use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::record::StoredEvent;
use remuda_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::Inner;
use remuda_server::follower::{Followed, Follower};
use remuda_server::live::{LiveEvent, LiveUpdate, PreviewUpdate};

/// An event of the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEvent {
    /// `job:queued`, `job:started`, `job:progress`, `job:preview`, `job:retrying`, `job:completed`, `job:failed`,
    /// `job:cancelled`, `client:blocked_workflow`, `client:unblocked_workflow`, `worker:online`, …
    pub name: String,
    /// Increases from event to event. None for progress and previews, which are not stored.
    pub number: Option<u64>,
    pub at: Option<Timestamp>,
    pub job: Option<JobId>,
    pub worker: Option<WorkerId>,
    /// The metadata of the job.
    pub metadata: Map<String, Value>,
    /// Details by event: progress, reason, duration, …
    pub detail: Map<String, Value>,
}

/// Selects events; an empty filter matches all of them.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    names: Vec<String>,
    job: Option<JobId>,
    worker: Option<WorkerId>,
    metadata: Vec<(String, Value)>,
}

impl EventFilter {
    pub fn new() -> EventFilter {
        EventFilter::default()
    }

    /// A name, or the part before the colon. Repeat it to match any of several names.
    pub fn name(mut self, name: impl Into<String>) -> EventFilter {
        self.names.push(name.into());
        self
    }

    pub fn job(mut self, job: JobId) -> EventFilter {
        self.job = Some(job);
        self
    }

    pub fn worker(mut self, worker: WorkerId) -> EventFilter {
        self.worker = Some(worker);
        self
    }

    /// Only events of jobs with this metadata. Repeat it to require several entries.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> EventFilter {
        self.metadata.push((name.into(), value.into()));
        self
    }

    fn matches(&self, event: &PoolEvent) -> bool {
        let has_name = |name: &String| event.name == *name || event.name.split(':').next() == Some(name);
        (self.names.is_empty() || self.names.iter().any(has_name))
            && (self.job.is_none() || self.job == event.job)
            && (self.worker.is_none() || self.worker == event.worker)
            && self.metadata.iter().all(|(name, value)| event.metadata.get(name) == Some(value))
    }
}

/// The plane's events that pass a filter, in order.
#[derive(Debug)]
pub(super) struct PoolFollower {
    /// None once the pool has stopped.
    events: Option<Follower>,
    filter: EventFilter,
}

impl PoolFollower {
    pub(super) fn new(inner: &Arc<Inner>, filter: EventFilter) -> PoolFollower {
        PoolFollower { events: inner.follow(), filter }
    }

    /// The next event that passes the filter; None once the pool has stopped.
    pub(super) async fn next(&mut self) -> Option<PoolEvent> {
        loop {
            let event = match self.events.as_mut()?.next().await? {
                Followed::Event(LiveEvent::Stored(stored)) => stored_event(&stored),
                Followed::Event(LiveEvent::Preview(update)) => preview_event(&update),
                Followed::Event(LiveEvent::Update(update)) => match progress_event(&update) {
                    Some(event) => event,
                    None => continue,
                },
                // Progress also comes with the live update, which has more detail.
                Followed::Event(LiveEvent::Progress { .. })
                | Followed::Gap { .. }
                | Followed::Restored { .. }
                | Followed::CaughtUp => {
                    continue;
                }
            };
            if self.filter.matches(&event) {
                return Some(event);
            }
        }
    }
}

/// None for an update without progress.
fn progress_event(update: &LiveUpdate) -> Option<PoolEvent> {
    let progress = update.report.progress.as_ref()?;
    let Ok(Value::Object(detail)) = serde_json::to_value(progress) else { return None };
    Some(live_event(EventKind::JobProgress, update.job, &update.worker, update.metadata.clone(), detail))
}

fn stored_event(stored: &StoredEvent) -> PoolEvent {
    PoolEvent {
        name: stored.kind.to_string(),
        number: Some(stored.seq.0),
        at: Some(stored.at),
        job: stored.job,
        worker: stored.worker.clone(),
        metadata: stored.metadata.clone(),
        detail: stored.detail.clone(),
    }
}

fn preview_event(update: &PreviewUpdate) -> PoolEvent {
    let mut detail = Map::new();
    detail.insert("media".to_owned(), update.media.as_str().into());
    detail.insert("size_bytes".to_owned(), update.size_bytes.into());
    detail.insert("node".to_owned(), json!(update.node));
    live_event(EventKind::JobPreview, update.job, &update.worker, update.metadata.clone(), detail)
}

fn live_event(
    kind: EventKind,
    job: JobId,
    worker: &WorkerId,
    metadata: Map<String, Value>,
    detail: Map<String, Value>,
) -> PoolEvent {
    let (name, worker) = (kind.to_string(), Some(worker.clone()));
    PoolEvent { name, number: None, at: None, job: Some(job), worker, metadata, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_matches_name_job_worker_and_metadata() {
        let job = JobId::from_u128(1);
        let metadata = Map::from_iter([("user".to_owned(), json!("anna"))]);
        let event = live_event(EventKind::JobProgress, job, &"w".parse().unwrap(), metadata, Map::new());
        let filter = EventFilter::new;
        for (filter, expected) in [
            (filter(), true),
            (filter().name("job"), true),
            (filter().name("job:progress"), true),
            (filter().name("job:failed"), false),
            (filter().name("job:failed").name("job:progress"), true),
            (filter().name("jo"), false),
            (filter().job(job), true),
            (filter().job(JobId::from_u128(2)), false),
            (filter().worker("v".parse().unwrap()), false),
            (filter().metadata("user", "anna"), true),
            (filter().metadata("user", "anna").metadata("order", 7), false),
        ] {
            assert_eq!(filter.matches(&event), expected, "{filter:?}");
        }
    }
}
