//! A rented machine, from the request for it to the proof that it is gone. The request is stored before the provider is
//! called, under a tag that no other machine ever had, so the pod can be found after any crash or lost reply.
//!
//! ```text
//!  wanted ──created──▶ made ──runs, registered, checked──▶ up ──▶ draining
//!    │ ▲                │                                   │         │
//!    │ └─not created────┼── another offer, same request     │         │
//!    │                  │                                   │         │
//!    └─reply lost───▶ lost ──found by its tag──▶ made       │         │
//!                       │                                   │         │
//!                       └── not found in time ──┐           │         │
//!                       any of them, given up ──┴──▶ returning ◀──────┘ ──proved gone──▶ (deleted, its cost kept)
//! ```
//!
//! It counts against the maximum and the budget from the request to the proof.

mod wait;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::document::{Collection, Document};
use crate::fleet::FleetSettings;
use crate::id::{FleetId, MachineId, PodId, WorkerId};
use crate::machine::WorkerState;
use crate::money::Money;
use crate::provider::{Pod, PodStatus};
use crate::supervise::Backoff;
use crate::time::{Timestamp, humanize};

pub use self::wait::RentalWait;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rental {
    pub machine: MachineId,
    pub fleet: FleetId,
    /// The pod's name at the provider.
    pub tag: String,
    #[serde(flatten)]
    state: RentalState,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Why it is in this state.
    #[serde(default)]
    pub reason: String,
    pub wanted_at: Timestamp,
    /// The requested offer.
    pub offer: String,
    /// The settings revision it was created from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// The price of an hour; the fleet's `price_max` until the provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    /// What the provider reports about its pod, once a list or a reply has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<RentedPod>,
    /// When its worker first joined; its one-use join token is spent from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Timestamp>,
    /// Complete lists in a row without it, since it is in this state.
    #[serde(default)]
    pub missed: u32,
}

/// The pod of a machine, as last reported by its provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RentedPod {
    pub id: PodId,
    pub seen_at: Timestamp,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When the provider first reported it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// Lists in a row that showed it stopped or failed, since the machine is in its state.
    #[serde(default)]
    pub ended: u32,
}

/// Each state carries what only it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum RentalState {
    /// Stored; the provider is being called.
    Wanted,
    /// It is unknown whether the pod exists. `is_unheard`: the plane restarted before the reply to its creation came,
    /// which is no evidence against the provider.
    Lost {
        is_unheard: bool,
    },
    /// The pod exists; its worker is not ready yet.
    Made,
    Up,
    /// Its worker gets no new work. `until`: a person or a preemption set a deadline.
    Draining {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// Being deleted, until the provider's lists prove it.
    Returning(ReturnProgress),
}

/// How far the return of a machine has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnProgress {
    /// How often it was requested, and when to request it again.
    pub requests: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// The alarm about a slow return was sent; it is sent once.
    #[serde(default)]
    pub alarm_sent: bool,
    /// It was lost by a restart of the plane and never seen.
    #[serde(default)]
    pub is_unheard: bool,
}

/// What can happen to a rented machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RentalEvent {
    /// The reply to its creation was lost; with the plane's own restart, or not.
    ReplyLost { by_restart: bool },
    /// The provider showed its pod.
    Seen,
    /// Its worker registered and passed the start check.
    Ready,
    /// No new work; `until` is a deadline beyond the usual one.
    Drain { until: Option<Timestamp> },
    /// It is not wanted any more, whatever the reason.
    GiveUp,
}

/// The state without its data, for questions and for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RentalPhase {
    Wanted,
    Lost,
    Made,
    Up,
    Draining,
    Returning,
}

impl RentalPhase {
    pub fn as_str(self) -> &'static str {
        match self {
            RentalPhase::Wanted => "wanted",
            RentalPhase::Lost => "lost",
            RentalPhase::Made => "made",
            RentalPhase::Up => "up",
            RentalPhase::Draining => "draining",
            RentalPhase::Returning => "returning",
        }
    }

    /// The corresponding state of its worker.
    pub fn state(self) -> WorkerState {
        match self {
            RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made => WorkerState::Spawning,
            RentalPhase::Up => WorkerState::Active,
            RentalPhase::Draining => WorkerState::Terminating,
            RentalPhase::Returning => WorkerState::Terminated,
        }
    }
}

/// What the provider's lists prove about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Nothing yet.
    Nothing,
    /// The pod does not exist any more.
    Gone,
    /// The pod exists and does not run any more.
    Ended,
}

/// Lists in a row that must agree before they count: a single list may be incomplete.
pub(crate) const LISTS_MIN: u32 = 2;
/// Between two requests to delete a pod.
const RETURN_RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));

impl Rental {
    pub fn wanted(
        now: Timestamp,
        machine: MachineId,
        tag: String,
        offer: String,
        fleet: &FleetSettings,
    ) -> Rental {
        Rental {
            machine,
            fleet: fleet.id.clone(),
            tag,
            state: RentalState::Wanted,
            since: now,
            reason: String::new(),
            wanted_at: now,
            offer,
            revision: fleet.revision.clone(),
            price: None,
            pod: None,
            joined_at: None,
            missed: 0,
        }
    }

    pub fn document(&self) -> Option<Arc<Document>> {
        let body = serde_json::value::to_raw_value(self).ok()?;
        Some(Arc::new(Document {
            collection: Collection::Machine,
            id: self.machine.to_string(),
            tenant: None,
            index_key: self.fleet.to_string(),
            expires_at: None,
            body: body.into(),
        }))
    }

    /// The only place where its state changes. False if the event changes nothing.
    pub fn apply(&mut self, now: Timestamp, event: RentalEvent, reason: String) -> bool {
        use RentalState::{Draining, Lost, Made, Returning, Up, Wanted};
        let state = match (&self.state, event) {
            (Wanted, RentalEvent::ReplyLost { by_restart }) => Lost { is_unheard: by_restart },
            (Wanted | Lost { .. }, RentalEvent::Seen) => Made,
            (Wanted | Lost { .. } | Made, RentalEvent::Ready) => Up,
            (Wanted | Lost { .. } | Made | Up, RentalEvent::Drain { until }) => Draining { until },
            (Lost { is_unheard }, RentalEvent::GiveUp) => {
                Returning(ReturnProgress { is_unheard: *is_unheard, ..ReturnProgress::default() })
            }
            (Wanted | Made | Up | Draining { .. }, RentalEvent::GiveUp) => {
                Returning(ReturnProgress::default())
            }
            (Lost { .. } | Made | Up | Draining { .. }, RentalEvent::ReplyLost { .. })
            | (Made | Up | Draining { .. }, RentalEvent::Seen)
            | (Up | Draining { .. }, RentalEvent::Ready)
            | (Draining { .. }, RentalEvent::Drain { .. })
            | (Returning(_), _) => return false,
        };
        (self.state, self.since, self.reason) = (state, now, reason);
        self.missed = 0;
        if let Some(pod) = &mut self.pod {
            pod.ended = 0;
        }
        true
    }

    pub fn state(&self) -> &RentalState {
        &self.state
    }

    pub fn phase(&self) -> RentalPhase {
        match self.state {
            RentalState::Wanted => RentalPhase::Wanted,
            RentalState::Lost { .. } => RentalPhase::Lost,
            RentalState::Made => RentalPhase::Made,
            RentalState::Up => RentalPhase::Up,
            RentalState::Draining { .. } => RentalPhase::Draining,
            RentalState::Returning(_) => RentalPhase::Returning,
        }
    }

    /// Whether its worker was ready for work once.
    pub fn was_up(&self) -> bool {
        matches!(self.state, RentalState::Up | RentalState::Draining { .. })
    }

    pub fn is_returning(&self) -> bool {
        matches!(self.state, RentalState::Returning(_))
    }

    /// The deadline of its draining, if it has one of its own.
    pub fn drain_until(&self) -> Option<Timestamp> {
        match self.state {
            RentalState::Draining { until } => until,
            RentalState::Wanted
            | RentalState::Lost { .. }
            | RentalState::Made
            | RentalState::Up
            | RentalState::Returning(_) => None,
        }
    }

    pub fn running_at(&self) -> Option<Timestamp> {
        self.pod.as_ref()?.running_at
    }

    /// The provider showed its pod.
    pub fn seen(&mut self, now: Timestamp, shown: &Pod) {
        self.apply(now, RentalEvent::Seen, "made".to_owned());
        self.missed = 0;
        // A price of zero is an error of the provider, not a free machine.
        if let Some(price) = shown.price.filter(|price| *price > Money::ZERO) {
            self.price = Some(price);
        }
        self.pod.get_or_insert_with(|| RentedPod::new(now, shown.id.clone())).update(now, shown);
    }

    /// What the last lists prove. `is_heard`: its worker beats, which proves that the machine exists.
    pub fn sighting(&self, now: Timestamp, is_heard: bool, list_lag_max: Duration) -> Sighting {
        let pod = self.pod.as_ref();
        let seen_long_ago = pod.is_some_and(|pod| now.since(pod.seen_at) >= list_lag_max);
        // A new pod may be missing from lists and unknown to the delete call: no proof either.
        if self.missed >= LISTS_MIN && seen_long_ago && !is_heard {
            Sighting::Gone
        } else if pod.is_some_and(|pod| pod.ended >= LISTS_MIN) && !self.is_returning() {
            Sighting::Ended
        } else {
            Sighting::Nothing
        }
    }

    /// The pod to return now, if its return is due; schedules the next request. A machine without a known pod must be
    /// found by its tag first.
    pub fn request_return(&mut self, now: Timestamp) -> Option<PodId> {
        let RentalState::Returning(progress) = &mut self.state else { return None };
        let pod = self.pod.as_ref().filter(|_| progress.next_at.is_none_or(|at| at <= now))?;
        progress.next_at = Some(now.plus(RETURN_RETRY.delay(progress.requests)));
        progress.requests = progress.requests.saturating_add(1);
        Some(pod.id.clone())
    }

    /// Its return takes longer than `limit`. True once.
    pub fn take_return_alarm(&mut self, now: Timestamp, limit: Duration) -> bool {
        let is_slow = now >= self.since.plus(limit);
        match &mut self.state {
            RentalState::Returning(progress) if is_slow && !progress.alarm_sent => {
                progress.alarm_sent = true;
                true
            }
            RentalState::Returning(_)
            | RentalState::Wanted
            | RentalState::Lost { .. }
            | RentalState::Made
            | RentalState::Up
            | RentalState::Draining { .. } => false,
        }
    }

    /// How far its return has come.
    pub fn return_progress(&self) -> Option<&ReturnProgress> {
        match &self.state {
            RentalState::Returning(progress) => Some(progress),
            RentalState::Wanted
            | RentalState::Lost { .. }
            | RentalState::Made
            | RentalState::Up
            | RentalState::Draining { .. } => None,
        }
    }

    /// Its cost since `from`, counted from its request: the provider may bill from then on.
    pub fn cost_since(&self, from: Timestamp, now: Timestamp, price: Money) -> Money {
        price.over(now.since(from.max(self.wanted_at)))
    }

    /// The id of its first worker.
    pub fn worker(&self) -> WorkerId {
        self.machine.as_str().parse().expect("a machine's name is a good name for its worker")
    }

    /// When its phase times out, or its draining ends.
    pub fn due_at(&self, fleet: &FleetSettings) -> Option<Timestamp> {
        let after = |wait: RentalWait| wait.since.plus(wait.max + Duration::from_millis(1));
        match self.state {
            RentalState::Lost { .. } | RentalState::Made => self.current_wait(fleet).map(after),
            RentalState::Draining { until } => until.or(self.current_wait(fleet).map(after)),
            RentalState::Wanted | RentalState::Up | RentalState::Returning(_) => None,
        }
    }

    /// Why it is given up; `None` if it is on time.
    pub fn overdue(&self, now: Timestamp, fleet: &FleetSettings) -> Option<String> {
        let limits = &fleet.limits;
        if self.was_up() || self.due_at(fleet).is_none_or(|due| now < due) {
            return None;
        }
        let what = match (&self.state, self.running_at(), self.joined_at) {
            (RentalState::Lost { .. }, ..) => {
                let (tag, limit) = (&self.tag, humanize(limits.lost_create_timeout));
                format!("the reply to its creation was lost, and no pod {tag} appeared within {limit}")
            }
            (_, None, _) => {
                format!("its image was not pulled and started within {}", humanize(limits.image_pull_timeout))
            }
            (_, Some(_), None) => {
                let limit = humanize(fleet.scaling.spawning_timeout);
                format!("it is running, but no worker registered within {limit}")
            }
            (_, Some(_), Some(_)) => {
                let limit = humanize(limits.readiness_timeout);
                format!("its worker was not ready for work within {limit} of its registration")
            }
        };
        Some(format!("Spawning timeout: {what}"))
    }
}

impl RentedPod {
    fn new(now: Timestamp, id: PodId) -> Self {
        RentedPod {
            id,
            seen_at: now,
            kind: String::new(),
            place: String::new(),
            host: None,
            running_at: None,
            ended: 0,
        }
    }

    /// A field that the provider omits this time keeps its last value.
    fn update(&mut self, now: Timestamp, shown: &Pod) {
        if !shown.kind.is_empty() {
            self.kind.clone_from(&shown.kind);
        }
        if !shown.place.is_empty() {
            self.place.clone_from(&shown.place);
        }
        if shown.host.is_some() {
            self.host.clone_from(&shown.host);
        }
        if shown.status == PodStatus::Running {
            self.running_at.get_or_insert(now);
        }
        let has_ended = matches!(shown.status, PodStatus::Stopped | PodStatus::Failed);
        self.ended = if has_ended { self.ended.saturating_add(1) } else { 0 };
    }
}

/// The state of the SSH bootstrap of a machine's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    Running,
    /// The machine did not answer, for this reason; retried when the provider next lists the machine.
    Retrying(String),
    Done,
}

impl Bootstrap {
    pub fn describe(&self) -> String {
        match self {
            Bootstrap::Running => "running".to_owned(),
            Bootstrap::Retrying(why) => format!("retrying: {why}"),
            Bootstrap::Done => "done".to_owned(),
        }
    }
}
