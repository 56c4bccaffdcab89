//! A rented machine, from the request for it to the proof that it is gone. The request is stored before the provider is
//! called, under a tag that no other machine ever had, so the pod can be found after any crash or lost reply.
//!
//! ```text
//!  wanted ──its pod is seen──▶ made ──running, registered, checked──▶ up ──▶ draining
//!    │ │                        ▲ │                                   │        │
//!    │ └─reply lost──▶ lost ────┘ │                                   │        │
//!    │                 found by   │                                   │        │
//!    │                 its tag    └── any of them, given up ──▶ returning ◀────┘ ──proved gone──▶ (deleted, its cost kept)
//!    │                                                              ▲
//!    └─refused──▶ (deleted)            lost, not found in time ─────┘
//! ```
//!
//! A refused request is not repeated: the next cycle writes a new one, for the next offer.
//!
//! It counts against the maximum and the budget from the request to the proof.

mod bootstrap;
mod pod;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cost::CostWindow;
use crate::document::{Collection, Document};
use crate::fleet::FleetSettings;
use crate::id::{FleetId, MachineId, PodId, WorkerId};
use crate::machine::WorkerState;
use crate::money::Money;
use crate::provider::{LISTS_MIN, LISTS_UNHEARD_MIN, Pod};
use crate::supervise::Backoff;
use crate::time::{Timestamp, humanize};

pub use self::bootstrap::Bootstrap;
pub use self::pod::RentedPod;
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
    /// Its cost until then is booked in its fleet's sums, at the prices that applied then: a price applies from when it is
    /// reported, not to the past.
    booked_until: Timestamp,
    /// That cost.
    #[serde(default)]
    booked: Money,
    /// When its worker first joined; its one-use join token is spent from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    joined_at: Option<Timestamp>,
    /// Complete lists in a row without it, since it is in this state.
    #[serde(default)]
    missed: u32,
}

/// Each state carries what it needs. The pod is known from `Made` on; a machine that is drained or given up earlier has
/// none until a list shows it.
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
    Made {
        pod: RentedPod,
    },
    Up {
        pod: RentedPod,
    },
    /// Its worker gets no new work. `until`: a person or a preemption set a deadline.
    Draining {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<RentedPod>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// Being deleted, until the provider's lists prove it.
    Returning {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<RentedPod>,
        #[serde(default)]
        progress: ReturnProgress,
    },
}

/// Why a machine is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReturnCause {
    /// Idle, drained, or an operator's order.
    #[default]
    NotWanted,
    /// A maximum or a budget has no room for it.
    OverLimit,
    /// It did not come up, failed or is gone.
    Failed,
}

/// How far the return of a machine has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnProgress {
    #[serde(default)]
    pub cause: ReturnCause,
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

impl ReturnProgress {
    fn new(cause: ReturnCause) -> ReturnProgress {
        ReturnProgress { cause, ..ReturnProgress::default() }
    }
}

/// What can happen to a rented machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RentalEvent<'a> {
    /// The reply to its creation was lost; with the plane's own restart, or not.
    ReplyLost { by_restart: bool },
    /// The provider showed its pod.
    Seen(&'a Pod),
    /// Its worker registered and passed the start check.
    Ready,
    /// No new work; `until` is a deadline beyond the usual one.
    Drain { until: Option<Timestamp> },
    /// It is not wanted any more.
    GiveUp(ReturnCause),
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
            // The provider may bill from the request on.
            booked_until: now,
            booked: Money::ZERO,
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

    /// The only place where its state changes. True if it is in another phase now.
    pub fn apply(&mut self, now: Timestamp, event: RentalEvent<'_>, reason: String) -> bool {
        use RentalEvent::{Drain, GiveUp, Ready, ReplyLost, Seen};
        use RentalState::{Draining, Lost, Made, Returning, Up, Wanted};
        let before = self.phase();
        let is_sighting = matches!(event, Seen(_));
        let pod_of = |pod: Option<RentedPod>, shown: &Pod| Some(RentedPod::seen(pod, now, shown));
        self.state = match (std::mem::replace(&mut self.state, Wanted), event) {
            (Wanted, ReplyLost { by_restart }) => Lost { is_unheard: by_restart },
            (Wanted | Lost { .. }, Seen(shown)) => Made { pod: RentedPod::seen(None, now, shown) },
            (Made { pod }, Seen(shown)) => Made { pod: RentedPod::seen(Some(pod), now, shown) },
            (Up { pod }, Seen(shown)) => Up { pod: RentedPod::seen(Some(pod), now, shown) },
            (Draining { pod, until }, Seen(shown)) => Draining { pod: pod_of(pod, shown), until },
            (Returning { pod, progress }, Seen(shown)) => Returning { pod: pod_of(pod, shown), progress },
            (Made { pod }, Ready) => Up { pod },
            (Wanted | Lost { .. }, Drain { until }) => Draining { pod: None, until },
            (Made { pod } | Up { pod }, Drain { until }) => Draining { pod: Some(pod), until },
            (Wanted, GiveUp(cause)) => Returning { pod: None, progress: ReturnProgress::new(cause) },
            (Lost { is_unheard }, GiveUp(cause)) => {
                Returning { pod: None, progress: ReturnProgress { is_unheard, ..ReturnProgress::new(cause) } }
            }
            (Made { pod } | Up { pod }, GiveUp(cause)) => {
                Returning { pod: Some(pod), progress: ReturnProgress::new(cause) }
            }
            (Draining { pod, .. }, GiveUp(cause)) => Returning { pod, progress: ReturnProgress::new(cause) },
            (state @ (Lost { .. } | Made { .. } | Up { .. } | Draining { .. }), ReplyLost { .. })
            // Ready needs a running pod, which a list or a reply has shown first.
            | (state @ (Wanted | Lost { .. } | Up { .. } | Draining { .. }), Ready)
            | (state @ Draining { .. }, Drain { .. })
            | (state @ Returning { .. }, ReplyLost { .. } | Ready | Drain { .. } | GiveUp(_)) => state,
        };
        let has_moved = self.phase() != before;
        if has_moved {
            (self.since, self.reason) = (now, reason);
        }
        if has_moved || is_sighting {
            self.missed = 0;
        }
        if let Some(pod) = self.pod_mut().filter(|_| has_moved && !is_sighting) {
            pod.ended = 0;
        }
        has_moved
    }

    pub fn state(&self) -> &RentalState {
        &self.state
    }

    pub fn phase(&self) -> RentalPhase {
        match self.state {
            RentalState::Wanted => RentalPhase::Wanted,
            RentalState::Lost { .. } => RentalPhase::Lost,
            RentalState::Made { .. } => RentalPhase::Made,
            RentalState::Up { .. } => RentalPhase::Up,
            RentalState::Draining { .. } => RentalPhase::Draining,
            RentalState::Returning { .. } => RentalPhase::Returning,
        }
    }

    /// What the provider reports about its pod, once a list or a reply has shown it.
    pub fn pod(&self) -> Option<&RentedPod> {
        match &self.state {
            RentalState::Wanted | RentalState::Lost { .. } => None,
            RentalState::Made { pod } | RentalState::Up { pod } => Some(pod),
            RentalState::Draining { pod, .. } | RentalState::Returning { pod, .. } => pod.as_ref(),
        }
    }

    fn pod_mut(&mut self) -> Option<&mut RentedPod> {
        match &mut self.state {
            RentalState::Wanted | RentalState::Lost { .. } => None,
            RentalState::Made { pod } | RentalState::Up { pod } => Some(pod),
            RentalState::Draining { pod, .. } | RentalState::Returning { pod, .. } => pod.as_mut(),
        }
    }

    /// When its worker first joined.
    pub fn joined_at(&self) -> Option<Timestamp> {
        self.joined_at
    }

    /// Its worker joined; only the first time counts.
    pub fn joined(&mut self, now: Timestamp) {
        self.joined_at.get_or_insert(now);
    }

    /// The plane was away: that time counts against no machine that it waits for. True if that changed something.
    pub fn excuse(&mut self, now: Timestamp, away: Duration) -> bool {
        let is_waited_for = match self.phase() {
            RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made | RentalPhase::Draining => true,
            RentalPhase::Up | RentalPhase::Returning => false,
        };
        if is_waited_for {
            let later = |at: Timestamp| at.plus(away).min(now);
            (self.since, self.joined_at) = (later(self.since), self.joined_at.map(later));
            if let Some(pod) = self.pod_mut() {
                (pod.seen_at, pod.running_at) = (later(pod.seen_at), pod.running_at.map(later));
            }
        }
        is_waited_for
    }

    /// A complete list does not show its pod.
    pub fn was_missed(&mut self) {
        self.missed = self.missed.saturating_add(1);
    }

    /// Complete lists in a row without it.
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// Whether it is up or draining; one that was drained before it was up counts, too.
    pub fn was_up(&self) -> bool {
        matches!(self.state, RentalState::Up { .. } | RentalState::Draining { .. })
    }

    pub fn is_returning(&self) -> bool {
        matches!(self.state, RentalState::Returning { .. })
    }

    /// The deadline of its draining, if it has one of its own.
    pub fn drain_until(&self) -> Option<Timestamp> {
        match self.state {
            RentalState::Draining { until, .. } => until,
            RentalState::Wanted
            | RentalState::Lost { .. }
            | RentalState::Made { .. }
            | RentalState::Up { .. }
            | RentalState::Returning { .. } => None,
        }
    }

    pub fn running_at(&self) -> Option<Timestamp> {
        self.pod()?.running_at
    }

    /// The provider showed its pod. True if it is in another phase now.
    pub fn seen(&mut self, now: Timestamp, shown: &Pod) -> bool {
        // A price of zero is an error of the provider, not a free machine.
        if let Some(price) = shown.price.filter(|price| *price > Money::ZERO) {
            self.price = Some(price);
        }
        self.apply(now, RentalEvent::Seen(shown), "made".to_owned())
    }

    /// What the last lists prove. `is_heard`: its worker beats, which proves that the machine exists.
    pub fn sighting(&self, now: Timestamp, is_heard: bool, list_lag_max: Duration) -> Sighting {
        let pod = self.pod();
        let seen_long_ago = pod.is_some_and(|pod| now.since(pod.seen_at) >= list_lag_max);
        // A new pod may be missing from lists and unknown to the delete call: no proof either.
        let lists_min = if self.joined_at.is_some() { LISTS_MIN } else { LISTS_UNHEARD_MIN };
        if self.missed >= lists_min && seen_long_ago && !is_heard {
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
        let RentalState::Returning { pod, progress } = &mut self.state else { return None };
        let pod = pod.as_ref().filter(|_| progress.next_at.is_none_or(|at| at <= now))?;
        progress.next_at = Some(now.plus(RETURN_RETRY.delay(progress.requests)));
        progress.requests = progress.requests.saturating_add(1);
        Some(pod.id.clone())
    }

    /// Its return takes longer than `limit`. True once.
    pub fn take_return_alarm(&mut self, now: Timestamp, limit: Duration) -> bool {
        let is_slow = now >= self.since.plus(limit);
        let RentalState::Returning { progress, .. } = &mut self.state else { return false };
        let is_first = is_slow && !progress.alarm_sent;
        progress.alarm_sent |= is_slow;
        is_first
    }

    /// How far its return has come.
    pub fn return_progress(&self) -> Option<&ReturnProgress> {
        let RentalState::Returning { progress, .. } = &self.state else { return None };
        Some(progress)
    }

    /// Whether the provider shows another price than before.
    pub fn is_repriced(&self, shown: &Pod) -> bool {
        let shown = shown.price.filter(|price| *price > Money::ZERO);
        self.price.is_some() && shown.is_some() && shown != self.price
    }

    /// Its cost within the window that is not booked yet.
    pub fn unbooked(&self, window: CostWindow, now: Timestamp, price: Money) -> Money {
        price.over(window.overlap(self.booked_until, now))
    }

    /// Its cost since its request.
    pub fn cost(&self, now: Timestamp, price: Money) -> Money {
        self.booked.plus(price.over(now.since(self.booked_until)))
    }

    /// Books its cost until now; returns since when it was not booked.
    pub fn book(&mut self, now: Timestamp, price: Money) -> Timestamp {
        self.booked = self.cost(now, price);
        std::mem::replace(&mut self.booked_until, now)
    }

    /// The id of its first worker.
    pub fn worker(&self) -> WorkerId {
        self.machine.as_str().parse().expect("a machine's name is a good name for its worker")
    }

    /// When its phase times out, or its draining ends.
    pub fn due_at(&self, fleet: &FleetSettings) -> Option<Timestamp> {
        let after = |wait: RentalWait| wait.since.plus(wait.max + Duration::from_millis(1));
        match self.state {
            RentalState::Lost { .. } | RentalState::Made { .. } => self.current_wait(fleet).map(after),
            RentalState::Draining { until, .. } => until.or(self.current_wait(fleet).map(after)),
            RentalState::Wanted | RentalState::Up { .. } | RentalState::Returning { .. } => None,
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
