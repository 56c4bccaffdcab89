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
    pub phase: RentalPhase,
    /// Since when it is in this phase.
    pub since: Timestamp,
    pub wanted_at: Timestamp,
    /// The requested offer.
    pub offer: String,
    /// The settings revision it was created from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The price of an hour; the fleet's `price_max` until the provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<Timestamp>,
    /// When the provider first reported it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// When its worker first joined; its one-use join token is spent from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Timestamp>,
    /// Complete lists in a row without it.
    #[serde(default)]
    pub missed: u32,
    /// Lists in a row that showed it stopped or failed.
    #[serde(default)]
    pub ended: u32,
    /// How often its return was requested, and when to request it again.
    #[serde(default)]
    pub returns: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_at: Option<Timestamp>,
    /// The plane restarted before the reply to its creation came. This is no evidence against the provider.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unheard: bool,
    /// The alarm about a slow return was sent; it is sent once.
    #[serde(default)]
    pub return_alarm_sent: bool,
    /// A person or a preemption set a deadline for its draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
    /// Why it is in this phase.
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RentalPhase {
    /// Stored; the provider is being called.
    Wanted,
    /// It is unknown whether the pod exists.
    Lost,
    /// The pod exists; its worker is not ready yet.
    Made,
    Up,
    /// Its worker gets no new work.
    Draining,
    /// Being deleted, until the provider's lists prove it.
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
            phase: RentalPhase::Wanted,
            since: now,
            wanted_at: now,
            offer,
            revision: fleet.revision.clone(),
            pod: None,
            kind: String::new(),
            place: String::new(),
            host: None,
            price: None,
            made_at: None,
            running_at: None,
            joined_at: None,
            missed: 0,
            ended: 0,
            returns: 0,
            return_at: None,
            is_unheard: false,
            return_alarm_sent: false,
            drain_until: None,
            reason: String::new(),
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

    pub fn go(&mut self, now: Timestamp, phase: RentalPhase, reason: String) {
        (self.phase, self.since, self.reason) = (phase, now, reason);
        (self.missed, self.ended) = (0, 0);
    }

    /// The provider listed its pod.
    pub fn seen(&mut self, now: Timestamp, pod: &Pod) {
        self.pod.get_or_insert_with(|| pod.id.clone());
        self.made_at.get_or_insert(now);
        if matches!(self.phase, RentalPhase::Wanted | RentalPhase::Lost) {
            self.go(now, RentalPhase::Made, "made".to_owned());
        }
        self.missed = 0;
        // A field that the provider omits this time keeps its last value.
        if !pod.kind.is_empty() {
            self.kind.clone_from(&pod.kind);
        }
        if !pod.place.is_empty() {
            self.place.clone_from(&pod.place);
        }
        if pod.host.is_some() {
            self.host.clone_from(&pod.host);
        }
        // A price of zero is an error of the provider, not a free machine.
        if let Some(price) = pod.price.filter(|price| *price > Money::ZERO) {
            self.price = Some(price);
        }
        if pod.status == PodStatus::Running {
            self.running_at.get_or_insert(now);
        }
        let has_ended = matches!(pod.status, PodStatus::Stopped | PodStatus::Failed);
        self.ended = if has_ended { self.ended.saturating_add(1) } else { 0 };
    }

    /// What the last lists prove. `is_heard`: its worker beats, which proves that the machine exists.
    pub fn sighting(&self, now: Timestamp, is_heard: bool, list_lag_max: Duration) -> Sighting {
        let made_long_ago = self.made_at.is_some_and(|at| now.since(at) >= list_lag_max);
        let is_returning = self.phase == RentalPhase::Returning;
        // A new pod may be missing from lists and unknown to the delete call: no proof either.
        if self.missed >= LISTS_MIN && made_long_ago && !is_heard {
            Sighting::Gone
        } else if self.ended >= LISTS_MIN && !is_returning {
            Sighting::Ended
        } else {
            Sighting::Nothing
        }
    }

    /// Its return is requested now; schedules the next request.
    pub fn return_requested(&mut self, now: Timestamp) {
        self.return_at = Some(now.plus(RETURN_RETRY.delay(self.returns)));
        self.returns = self.returns.saturating_add(1);
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
        let limits = &fleet.limits;
        let after = |since: Timestamp, limit: Duration| Some(since.plus(limit + Duration::from_millis(1)));
        match (self.phase, self.made_at, self.running_at, self.joined_at) {
            (RentalPhase::Lost, ..) => after(self.since, limits.lost_create_timeout),
            (RentalPhase::Made, Some(made_at), None, _) => after(made_at, limits.image_pull_timeout),
            (RentalPhase::Made, _, Some(running_at), None) => {
                after(running_at, fleet.scaling.spawning_timeout)
            }
            (RentalPhase::Made, _, Some(_), Some(joined_at)) => after(joined_at, limits.readiness_timeout),
            (RentalPhase::Draining, ..) => {
                self.drain_until.or(after(self.since, fleet.scaling.drain_timeout))
            }
            (RentalPhase::Wanted | RentalPhase::Made | RentalPhase::Up | RentalPhase::Returning, ..) => None,
        }
    }

    /// Why it is given up; `None` if it is on time.
    pub fn overdue(&self, now: Timestamp, fleet: &FleetSettings) -> Option<String> {
        let limits = &fleet.limits;
        if self.phase == RentalPhase::Draining || self.due_at(fleet).is_none_or(|due| now < due) {
            return None;
        }
        let what = match (self.phase, self.running_at, self.joined_at) {
            (RentalPhase::Lost, ..) => {
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
