//! What is done once it is stored: waiting workers get their orders, followers their events, the log its reports.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use remuda_core::id::{Attempt, FleetId, JobId, Tenant, WorkerId};
use remuda_core::plane::{Answer, Effect};
use remuda_core::provider::ProviderCall;
use remuda_core::record::{Happened, Record};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tracing::info;

use crate::drive::Unanswered;
use crate::keyring::Keyring;
use crate::live::{Doings, Told};
use crate::previews::Previews;
use remuda_core::wire::preview::PreviewFormat;

/// News a slow follower may be behind before it gets a gap mark and catches up from the store.
const NEWS_MAX: usize = 4096;

/// What followers hear.
#[derive(Clone, Debug)]
pub enum News {
    /// Stored, numbered, never missed.
    Happened(Arc<Happened>),
    /// Live only: dropped first.
    Progress {
        job: JobId,
        tenant: Tenant,
        metadata: Arc<Map<String, Value>>,
        worker: WorkerId,
        progress: f32,
        phase: String,
    },
    /// Live only: dropped first.
    Preview(Arc<Shown>),
    /// Live only: dropped first.
    Told(Arc<Told>),
}

/// A preview that can be looked at.
#[derive(Clone, Debug)]
pub struct Shown {
    pub job: JobId,
    pub tenant: Tenant,
    pub metadata: Map<String, Value>,
    pub worker: WorkerId,
    pub attempt: Attempt,
    pub media: PreviewFormat,
    pub size_bytes: usize,
    /// Which part of the workflow it shows, if that was said.
    pub node: Option<String>,
}

/// What lives in memory only, for those who serve it.
#[derive(Clone, Debug)]
pub struct Live {
    pub bodies: Bodies,
    pub previews: Previews,
    pub doings: Doings,
    pub keyring: Keyring,
    pub news: broadcast::Sender<News>,
    /// Somebody is to be told how a job ended.
    pub outbox: Arc<Notify>,
}

#[derive(Debug)]
pub struct CarryOut {
    lines: BTreeMap<WorkerId, oneshot::Sender<Result<Answer, Unanswered>>>,
    /// What is to be asked of providers. Without a bound, because the plane asks nothing twice before it has an answer.
    calls: mpsc::UnboundedSender<(FleetId, ProviderCall)>,
    live: Live,
}

impl CarryOut {
    /// Calls to providers go into `calls`; if nobody takes them, they are as good as unanswered.
    pub fn new(bodies: Bodies, calls: mpsc::UnboundedSender<(FleetId, ProviderCall)>) -> Self {
        let live = Live {
            bodies,
            previews: Previews::default(),
            doings: Doings::default(),
            keyring: Keyring::default(),
            news: broadcast::Sender::new(NEWS_MAX),
            outbox: Arc::default(),
        };
        CarryOut { lines: BTreeMap::new(), calls, live }
    }

    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// The events among the records, in order.
    pub fn happened(records: &[Record]) -> Vec<Arc<Happened>> {
        let happened = records.iter().filter_map(|record| match record {
            Record::Happened(happened) => Some(happened.clone()),
            _ => None,
        });
        happened.collect()
    }

    /// A worker waits for orders; an older line of the same worker is answered by dropping it.
    pub fn hold(&mut self, worker: WorkerId, answer: oneshot::Sender<Result<Answer, Unanswered>>) {
        self.lines.insert(worker, answer);
    }

    pub fn drop_lines(&mut self) {
        self.lines.clear();
    }

    pub fn effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Orders { worker, reply } => {
                    // If the line is gone, the plane says it again with the next beat.
                    if let Some(line) = self.lines.remove(&worker) {
                        drop(line.send(Ok(Answer::Reply(reply))));
                    }
                }
                Effect::Progress { job, tenant, metadata, worker, progress, phase } => {
                    let metadata = Arc::new(metadata);
                    self.tell(News::Progress { job, tenant, metadata, worker, progress, phase });
                }
                Effect::Provider { fleet, call } => drop(self.calls.send((fleet, call))),
                Effect::Outbox => self.live.outbox.notify_one(),
                Effect::Cycle(report) => {
                    if !report.reasons.is_empty() {
                        info!(report = %serde_json::to_string(&*report).unwrap_or_default(), "cycle");
                    }
                }
            }
        }
    }

    pub fn publish(&mut self, happened: &[Arc<Happened>]) {
        for happened in happened {
            match (&*happened.name, happened.job) {
                ("job:completed" | "job:failed" | "job:cancelled", Some(job)) => {
                    self.live.bodies.forget(job);
                    self.live.keyring.forget(job);
                    self.live.previews.forget(job);
                    self.live.doings.forget(job);
                }
                ("job:retrying", Some(job)) => {
                    self.live.previews.forget(job);
                    self.live.doings.forget(job);
                }
                _ => {}
            }
            self.tell(News::Happened(happened.clone()));
        }
    }

    fn tell(&self, news: News) {
        if self.live.news.receiver_count() > 0 {
            drop(self.live.news.send(news));
        }
    }
}

/// Workflows of jobs that were accepted a moment ago, so that starting them does not have to read them back.
#[derive(Clone, Debug, Default)]
pub struct Bodies(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    bodies: BTreeMap<JobId, Arc<RawValue>>,
    order: VecDeque<JobId>,
    bytes: usize,
}

/// Enough for thousands of ordinary workflows; what does not fit is read from the store.
const BODIES_BYTES_MAX: usize = 8 << 20;

impl Bodies {
    pub fn keep(&self, job: JobId, body: Arc<RawValue>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += body.get().len();
        kept.bodies.insert(job, body);
        kept.order.push_back(job);
        while kept.bytes > BODIES_BYTES_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.remove(oldest);
        }
    }

    pub fn find(&self, job: JobId) -> Option<Arc<RawValue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bodies.get(&job).cloned()
    }

    fn forget(&self, job: JobId) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(job);
        // Most jobs end in the order they came: their places in line go with them.
        while let Some(oldest) = kept.order.front().copied()
            && !kept.bodies.contains_key(&oldest)
        {
            kept.order.pop_front();
        }
    }
}

impl Kept {
    fn remove(&mut self, job: JobId) {
        if let Some(body) = self.bodies.remove(&job) {
            self.bytes -= body.get().len();
        }
    }
}
