//! Runs the effects of committed steps: waiting workers get their orders, subscribers their events, the log its cycle
//! reports. It is called only after the records of the same step are stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::event_kind::EventKind;
use remuda_core::id::{FleetId, WorkerId};
use remuda_core::plane::{PlaneAnswer, PlaneEffect};
use remuda_core::provider::ProviderCall;
use remuda_core::record::{Record, StoredEvent};
use serde_json::Value;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tracing::{error, info};

use crate::job_secrets::JobSecrets;
use crate::live::{LiveAttempts, LiveEvent};
use crate::plane_handle::{PlaneError, PlaneResult};
use crate::previews::Previews;
use crate::workflow_cache::WorkflowCache;

/// Events a slow subscriber may be behind before it gets a gap mark and catches up from the store.
const EVENTS_MAX: usize = 4096;

/// State that lives in memory only, shared with the tasks that serve it.
#[derive(Clone, Debug)]
pub struct LiveState {
    pub workflows: WorkflowCache,
    pub previews: Previews,
    pub attempts: LiveAttempts,
    pub secrets: JobSecrets,
    pub events: broadcast::Sender<LiveEvent>,
    /// Notified when a webhook was stored for delivery.
    pub outbox: Arc<Notify>,
    /// Notified when the plane has to start again, because the machine's clock was set back.
    pub restart: Arc<Notify>,
}

#[derive(Debug)]
pub struct EffectRunner {
    /// Long polls of workers that wait for orders.
    held_beats: BTreeMap<WorkerId, oneshot::Sender<PlaneResult>>,
    /// Calls to providers. Unbounded, because the plane repeats no call before it has an answer.
    calls: mpsc::UnboundedSender<(FleetId, ProviderCall)>,
    live: LiveState,
}

impl EffectRunner {
    /// Calls to providers go into `calls`; without a receiver they stay unanswered.
    pub fn new(workflows: WorkflowCache, calls: mpsc::UnboundedSender<(FleetId, ProviderCall)>) -> Self {
        let live = LiveState {
            workflows,
            previews: Previews::default(),
            attempts: LiveAttempts::default(),
            secrets: JobSecrets::default(),
            events: broadcast::Sender::new(EVENTS_MAX),
            outbox: Arc::default(),
            restart: Arc::default(),
        };
        EffectRunner { held_beats: BTreeMap::new(), calls, live }
    }

    pub fn live(&self) -> LiveState {
        self.live.clone()
    }

    /// The events among the records, in order.
    pub fn stored_events(records: &[Record]) -> Vec<Arc<StoredEvent>> {
        let events = records.iter().filter_map(|record| match record {
            Record::Event(event) => Some(event.clone()),
            _ => None,
        });
        events.collect()
    }

    /// Holds a worker's beat until there are orders; an older beat of the same worker ends unanswered.
    pub(crate) fn hold_beat(&mut self, worker: WorkerId, answer: oneshot::Sender<PlaneResult>) {
        if let Some(older) = self.held_beats.insert(worker, answer) {
            drop(older.send(Err(PlaneError::Stopping)));
        }
    }

    /// Ends all held beats without orders.
    pub fn drop_held_beats(&mut self) {
        for (_, beat) in std::mem::take(&mut self.held_beats) {
            drop(beat.send(Err(PlaneError::Stopping)));
        }
    }

    pub fn run(&mut self, effects: Vec<PlaneEffect>) {
        for effect in effects {
            match effect {
                PlaneEffect::SendOrders { worker, reply } => {
                    // Without a held beat the plane repeats the orders in its answer to the next one.
                    if let Some(beat) = self.held_beats.remove(&worker) {
                        drop(beat.send(Ok(PlaneAnswer::Reply(reply))));
                    }
                }
                PlaneEffect::Progress { job, tenant, metadata, worker, progress, phase } => {
                    let metadata = Arc::new(metadata);
                    self.send(LiveEvent::Progress { job, tenant, metadata, worker, progress, phase });
                }
                PlaneEffect::CallProvider { fleet, call } => drop(self.calls.send((fleet, call))),
                PlaneEffect::RestartPlane => self.live.restart.notify_one(),
                PlaneEffect::WebhookQueued => self.live.outbox.notify_one(),
                PlaneEffect::ReportCycle(report) => {
                    if !report.reasons.is_empty() {
                        info!(report = %serde_json::to_string(&*report).unwrap_or_default(), "cycle");
                    }
                }
            }
        }
    }

    /// Publishes stored events, and drops the live state of attempts that ended.
    pub fn publish(&mut self, events: &[Arc<StoredEvent>]) {
        for event in events {
            if event.kind == EventKind::PlaneClock {
                match event.detail.get("problem").and_then(Value::as_str) {
                    Some(problem) => error!(problem, "clock jumped"),
                    None => info!("the clock of this machine shows the plane's time again"),
                }
            }
            match event.job {
                Some(job) if event.kind.is_job_end() => {
                    self.live.workflows.remove(job);
                    self.live.secrets.remove(job);
                    self.live.previews.remove(job);
                    self.live.attempts.remove(job);
                }
                Some(job) if event.kind == EventKind::JobRetrying => {
                    self.live.previews.remove(job);
                    self.live.attempts.remove(job);
                }
                Some(_) | None => {}
            }
            self.send(LiveEvent::Stored(event.clone()));
        }
    }

    fn send(&self, event: LiveEvent) {
        if self.live.events.receiver_count() > 0 {
            drop(self.live.events.send(event));
        }
    }
}
