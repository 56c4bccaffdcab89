//! Events of a pool, by the names that every surface of Remuda uses. What is stored is never left out: whoever was too slow
//! to hear it reads it from the store.

use std::collections::VecDeque;
use std::sync::Arc;

use remuda_core::id::{JobId, Sequence, WorkerId};
use remuda_core::record::StoredEvent;
use remuda_core::time::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

use super::Inner;
use remuda_server::live::{LiveEvent, LiveUpdate, PreviewUpdate};

/// Events read from the store at a time.
const PAGE: usize = 500;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEvent {
    /// `job:queued`, `job:started`, `job:progress`, `job:preview`, `job:retrying`, `job:completed`, `job:failed`,
    /// `job:cancelled`, `client:blocked_workflow`, `client:unblocked_workflow`, `worker:online`, …
    pub name: String,
    /// Only rises. Nothing for progress and previews, which are not stored.
    pub number: Option<u64>,
    pub at: Option<Timestamp>,
    pub job: Option<JobId>,
    pub worker: Option<WorkerId>,
    /// As it was given with the job.
    pub metadata: Map<String, Value>,
    /// What there is to say about it: how far, why, how long it took.
    pub detail: Map<String, Value>,
}

/// Which events are wanted; all, unless something is said.
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

    /// A name, or the part before the colon; may be said again for more than one.
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

    /// Only of jobs that were given this; may be said again, and then all of it has to be so.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> EventFilter {
        self.metadata.push((name.into(), value.into()));
        self
    }

    fn is(&self, event: &PoolEvent) -> bool {
        let is_named = |name: &String| event.name == *name || event.name.split(':').next() == Some(name);
        (self.names.is_empty() || self.names.iter().any(is_named))
            && (self.job.is_none() || self.job == event.job)
            && (self.worker.is_none() || self.worker == event.worker)
            && self.metadata.iter().all(|(name, value)| event.metadata.get(name) == Some(value))
    }
}

/// What a pool cares for among the plane's news.
#[derive(Debug)]
pub(super) enum News {
    Event(Arc<StoredEvent>),
    Told(Arc<LiveUpdate>),
    Preview(Arc<PreviewUpdate>),
}

#[derive(Debug)]
pub(super) struct Follower {
    inner: Arc<Inner>,
    /// None once the pool has stopped.
    news: Option<broadcast::Receiver<LiveEvent>>,
    seen: Sequence,
    backlog: VecDeque<StoredEvent>,
    is_behind: bool,
    filter: EventFilter,
}

impl Follower {
    pub(super) fn new(inner: &Arc<Inner>, filter: EventFilter) -> Follower {
        // First the ear and then the number: what comes between is heard and known.
        let news = inner.context().map(|context| context.events.subscribe());
        let (inner, seen) = (inner.clone(), inner.hub.seen());
        Follower { inner, news, seen, backlog: VecDeque::new(), is_behind: false, filter }
    }

    /// The next event that is wanted; nothing once the pool has stopped.
    pub(super) async fn next(&mut self) -> Option<PoolEvent> {
        loop {
            let event = match self.news().await? {
                News::Event(happened) => of_happened(&happened),
                News::Preview(shown) => of_preview(&shown),
                News::Told(told) => match of_progress(&told) {
                    Some(event) => event,
                    None => continue,
                },
            };
            if self.filter.is(&event) {
                return Some(event);
            }
        }
    }

    pub(super) async fn news(&mut self) -> Option<News> {
        loop {
            if let Some(happened) = self.backlog.pop_front() {
                self.seen = happened.seq;
                return Some(News::Event(happened.into()));
            }
            if self.is_behind {
                let context = self.inner.context()?;
                self.backlog = context.store.events(self.seen, PAGE).await.ok()?.into();
                self.is_behind = self.backlog.len() == PAGE;
                continue;
            }
            match self.news.as_mut()?.recv().await {
                Ok(LiveEvent::Stored(happened)) if happened.seq > self.seen => {
                    self.seen = happened.seq;
                    return Some(News::Event(happened));
                }
                // How far it is comes with what is told of it.
                Ok(LiveEvent::Stored(_) | LiveEvent::Progress { .. }) => {}
                Ok(LiveEvent::Update(told)) => return Some(News::Told(told)),
                Ok(LiveEvent::Preview(shown)) => return Some(News::Preview(shown)),
                Err(broadcast::error::RecvError::Lagged(_)) => self.is_behind = true,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// A report may be of other things only.
fn of_progress(told: &LiveUpdate) -> Option<PoolEvent> {
    let progress = told.report.progress.as_ref()?;
    let Ok(Value::Object(detail)) = serde_json::to_value(progress) else { return None };
    Some(live("job:progress", told.job, &told.worker, told.metadata.clone(), detail))
}

fn of_happened(happened: &StoredEvent) -> PoolEvent {
    PoolEvent {
        name: happened.name.to_string(),
        number: Some(happened.seq.0),
        at: Some(happened.at),
        job: happened.job,
        worker: happened.worker.clone(),
        metadata: happened.metadata.clone(),
        detail: happened.detail.clone(),
    }
}

fn of_preview(shown: &PreviewUpdate) -> PoolEvent {
    let mut detail = Map::new();
    detail.insert("media".to_owned(), shown.media.as_str().into());
    detail.insert("size_bytes".to_owned(), shown.size_bytes.into());
    detail.insert("node".to_owned(), json!(shown.node));
    live("job:preview", shown.job, &shown.worker, shown.metadata.clone(), detail)
}

fn live(
    name: &str,
    job: JobId,
    worker: &WorkerId,
    metadata: Map<String, Value>,
    detail: Map<String, Value>,
) -> PoolEvent {
    let (name, worker) = (name.to_owned(), Some(worker.clone()));
    PoolEvent { name, number: None, at: None, job: Some(job), worker, metadata, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_picked_by_name_job_worker_and_metadata() {
        let job = JobId::from_u128(1);
        let metadata = Map::from_iter([("user".to_owned(), json!("anna"))]);
        let event = live("job:progress", job, &"w".parse().unwrap(), metadata, Map::new());
        let filter = EventFilter::new;
        for (filter, is_wanted) in [
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
            assert_eq!(filter.is(&event), is_wanted, "{filter:?}");
        }
    }
}
