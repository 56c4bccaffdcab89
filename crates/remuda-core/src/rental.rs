//! A rented machine, from the wish for it to the proof that it is gone. The wish is stored before the provider hears
//! of it, under a name that no other machine ever had; whatever is lost on the way, the provider can be asked for it.
//!
//! ```text
//!  wanted ──created──▶ made ──runs, registered, checked──▶ up
//!    │ ▲                │                                   │
//!    │ └─nothing made───┼── another offer, same wish        │
//!    │                  │                                   │
//!    └─answer lost──▶ lost ──found by its tag──▶ made       │
//!                       │                                   │
//!                       └── not found in time ──┐           │
//!                       any of them, given up ──┴──▶ returning ──proved gone──▶ (forgotten, its cost kept)
//! ```
//!
//! It counts against the maximum and the budget from the wish to the proof.

mod waiting;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::document::{Collection, Document};
use crate::fleet::FleetSettings;
use crate::id::{FleetId, MachineId, PodId, WorkerId};
use crate::machine::WorkerState;
use crate::money::Money;
use crate::provider::{Pod, PodStatus};
use crate::time::{Timestamp, humanize};

pub use waiting::RentalWait;

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
    /// What was asked for.
    pub offer: String,
    /// What it was made from.
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
    /// What an hour costs, as far as anyone said; what was allowed until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<Timestamp>,
    /// When the provider first said that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    /// When its worker first joined; its join token is used up from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Timestamp>,
    /// Complete lists in a row that it was missing from.
    #[serde(default)]
    pub missed: u32,
    /// Lists in a row that showed it stopped or failed.
    #[serde(default)]
    pub ended: u32,
    /// How often its return was asked for, and when to ask again.
    #[serde(default)]
    pub returns: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_at: Option<Timestamp>,
    /// The answer to its creation was lost with the plane that waited for it: nobody else is to blame.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unheard: bool,
    /// Told once when a return takes too long.
    #[serde(default)]
    pub return_alarm_sent: bool,
    /// A person, or a preemption, set an end to its draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
    /// How it came to be where it is.
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RentalPhase {
    /// Stored, and the provider was asked or is about to be.
    Wanted,
    /// Whether it was made is not known.
    Lost,
    /// It exists; its worker is not at work yet.
    Made,
    Up,
    /// Its worker gets nothing new.
    Draining,
    /// To be given back, until that is proved.
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

    /// The same in the words of a worker's life.
    pub fn state(self) -> WorkerState {
        match self {
            RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made => WorkerState::Spawning,
            RentalPhase::Up => WorkerState::Active,
            RentalPhase::Draining => WorkerState::Terminating,
            RentalPhase::Returning => WorkerState::Terminated,
        }
    }
}

/// What a list says about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Nothing follows from it, yet.
    Nothing,
    /// It is not there any more, as far as can be known.
    Gone,
    /// It is there and does not run any more.
    Ended,
}

/// Lists in a row that have to say the same before it is believed.
pub(crate) const LISTS_MIN: u32 = 2;
/// Between two tries to give a machine back; doubles up to a minute.
const RETURN_WAIT: Duration = Duration::from_secs(5);

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

    /// The provider showed it.
    pub fn seen(&mut self, now: Timestamp, pod: &Pod) {
        self.pod.get_or_insert_with(|| pod.id.clone());
        self.made_at.get_or_insert(now);
        if matches!(self.phase, RentalPhase::Wanted | RentalPhase::Lost) {
            self.go(now, RentalPhase::Made, "made".to_owned());
        }
        self.missed = 0;
        // What a provider leaves out once it has been said still holds.
        if !pod.kind.is_empty() {
            self.kind.clone_from(&pod.kind);
        }
        if !pod.place.is_empty() {
            self.place.clone_from(&pod.place);
        }
        if pod.host.is_some() {
            self.host.clone_from(&pod.host);
        }
        // A price of nothing on a machine that runs is a mistake of the provider's, not a gift.
        if let Some(price) = pod.price.filter(|price| *price > Money::ZERO) {
            self.price = Some(price);
        }
        if pod.status == PodStatus::Running {
            self.running_at.get_or_insert(now);
        }
        let has_ended = matches!(pod.status, PodStatus::Stopped | PodStatus::Failed);
        self.ended = if has_ended { self.ended.saturating_add(1) } else { 0 };
    }

    /// What follows from how often it was missing, or was seen ended. `is_heard`: its worker beats, and so it is there.
    pub fn sighting(&self, now: Timestamp, is_heard: bool, list_lag_max: Duration) -> Sighting {
        let made_long_ago = self.made_at.is_some_and(|at| now.since(at) >= list_lag_max);
        let is_returning = self.phase == RentalPhase::Returning;
        // A pod that was just made may be missing from lists and unknown to its return: that is no proof either.
        if self.missed >= LISTS_MIN && made_long_ago && !is_heard {
            Sighting::Gone
        } else if self.ended >= LISTS_MIN && !is_returning {
            Sighting::Ended
        } else {
            Sighting::Nothing
        }
    }

    /// Its return is asked for; when to ask again if it is still there.
    pub fn return_requested(&mut self, now: Timestamp) {
        let wait = RETURN_WAIT.saturating_mul(1 << self.returns.min(4)).min(Duration::from_secs(60));
        self.returns = self.returns.saturating_add(1);
        self.return_at = Some(now.plus(wait));
    }

    /// What it has cost since `from`; a machine bills from the wish for it, as far as we are concerned.
    pub fn cost_since(&self, from: Timestamp, now: Timestamp, price: Money) -> Money {
        price.over(now.since(from.max(self.wanted_at)))
    }

    /// The name of its first worker.
    pub fn worker(&self) -> WorkerId {
        self.machine.as_str().parse().expect("a machine's name is a good name for its worker")
    }

    /// When time alone makes it overdue, or ends its draining.
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

    /// Why it is given up, if it took too long to come up.
    pub fn overdue(&self, now: Timestamp, fleet: &FleetSettings) -> Option<String> {
        let limits = &fleet.limits;
        if self.phase == RentalPhase::Draining || self.due_at(fleet).is_none_or(|due| now < due) {
            return None;
        }
        let what = match (self.phase, self.running_at, self.joined_at) {
            (RentalPhase::Lost, ..) => {
                let (tag, limit) = (&self.tag, humanize(limits.lost_create_timeout));
                format!("the answer to its creation was lost, and no pod {tag} appeared for {limit}")
            }
            (_, None, _) => {
                format!("its image was not pulled and started within {}", humanize(limits.image_pull_timeout))
            }
            (_, Some(_), None) => {
                let limit = humanize(fleet.scaling.spawning_timeout);
                format!("it runs, and no worker registered within {limit}")
            }
            (_, Some(_), Some(_)) => {
                let limit = humanize(limits.readiness_timeout);
                format!("its worker was not ready for work within {limit} of its registration")
            }
        };
        Some(format!("Spawning timeout: {what}"))
    }
}
/// How bringing a worker to a machine stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    Running,
    /// The machine did not answer, for this reason; retried when the provider next lists the machine.
    Retrying(String),
    Done,
}

impl Bootstrap {
    pub fn spoken(&self) -> String {
        match self {
            Bootstrap::Running => "under way".to_owned(),
            Bootstrap::Retrying(why) => format!("in vain so far, {why}"),
            Bootstrap::Done => "done".to_owned(),
        }
    }
}
