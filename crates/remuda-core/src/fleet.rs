//! A fleet: machines of one kind with a scaling policy and a provider. `FleetSettings` is its configuration. `Fleet` is its
//! state: scaling trend, avoided offers, provider pauses, manual orders, spending. The state is stored, so that a
//! restarted plane decides like its predecessor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::brake::CreationBrake;
use crate::cost::CostWindow;
use crate::document::{Collection, Document};
use crate::id::{FleetId, PodId, Shape};
use crate::money::Money;
use crate::orphan::Orphan;
use crate::provider::{Pod, ProviderError, ProviderErrorClass};
use crate::scale::ScalingTrend;
pub use crate::settings::fleet::{CONTACT_TIMEOUT, FleetSettings, RentalLimits, ScalingPolicy};
use crate::time::Timestamp;
pub use crate::time::{DAY, HOUR};

/// A manual order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetOrder {
    /// No scaling until `Resume`; failed machines are still returned.
    Pause {
        reason: String,
    },
    Resume,
    /// A fixed number of machines, or `None` to follow the policy again.
    Scale {
        machines: Option<u32>,
    },
    /// Resets the creation brake and provider pauses.
    ResetBrake,
}

/// A fleet's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    pub heading: ScalingTrend,
    pub creation: CreationBrake,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// The manually ordered number of machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<u32>,
    /// Offers that are avoided for a while.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub avoided: BTreeMap<String, Avoidance>,
    /// Physical hosts that gave bad machines.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bad_hosts: BTreeMap<String, Avoidance>,
    /// No provider call before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_until: Option<Avoidance>,
    /// No creation before then: no credit, or a request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_paused: Option<Avoidance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_refusal: Option<KeyRefusal>,
    /// Pods with our tag that have no record.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub orphans: BTreeMap<PodId, Orphan>,
    /// The booked cost of machines, by day since 1970.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spent: BTreeMap<u64, Money>,
    /// The same by the hour, for the last days.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spent_hours: BTreeMap<u64, Money>,
    /// The day whose budget is spent: nothing is rented before the next day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent_day: Option<SpentDay>,
    /// The last reported price of each offer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<String, Money>,
    /// The run time of each shape in milliseconds, for the latency policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub run_times: BTreeMap<Shape, u64>,
}

/// A day whose budget is used up, and how much that was: a raised budget counts at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpentDay {
    /// Counted from 1970.
    pub day: u64,
    pub max: Money,
}

/// The provider refuses the API key. A proxy or a hiccup does that, too, so it counts once a list that was requested
/// afterwards is refused as well. It ends with any call that succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRefusal {
    pub since: Timestamp,
    pub message: String,
    pub is_confirmed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Avoidance {
    pub until: Timestamp,
    pub why: String,
}

impl Avoidance {
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until <= now
    }
}

/// Days whose cost is kept.
const DAYS_KEPT: u64 = 40;
/// Days whose cost is also kept by the hour; whole days, so that no day is half known.
const DAYS_IN_HOURS: u64 = 3;
const HOURS_OF_DAY: u64 = 24;
/// Bound on avoided offers and hosts.
const AVOIDED_MAX: usize = 256;
/// Bound on shapes with a run time.
const PACES_MAX: usize = 64;
/// A person has to act first (pay, correct the settings); calling more often would only flood the provider.
const PERSON_RETRY: Duration = Duration::from_secs(300);
/// After a transient error of the provider.
const RECOVERY: Duration = Duration::from_secs(10);
/// After a rate limit without `Retry-After`.
const RATE_WAIT: Duration = Duration::from_secs(60);

/// The day of a moment, counted from 1970, and its start.
pub fn day_of(now: Timestamp) -> (u64, Timestamp) {
    let day_millis = u64::try_from(DAY.as_millis()).unwrap_or(u64::MAX);
    let day = now.as_millis() / day_millis;
    (day, Timestamp::from_millis(day * day_millis))
}

/// The hour of a moment, counted from 1970, and its start.
pub fn hour_of(now: Timestamp) -> (u64, Timestamp) {
    let hour_millis = u64::try_from(HOUR.as_millis()).unwrap_or(u64::MAX);
    let hour = now.as_millis() / hour_millis;
    (hour, Timestamp::from_millis(hour * hour_millis))
}

impl Fleet {
    pub fn document(&self, id: &FleetId) -> Option<Arc<Document>> {
        let body = serde_json::value::to_raw_value(self).ok()?;
        Some(Arc::new(Document {
            collection: Collection::Fleet,
            id: id.to_string(),
            tenant: None,
            index_key: String::new(),
            expires_at: None,
            body: body.into(),
        }))
    }

    /// The first offer that is not avoided, or why there is none.
    pub fn offer(&self, now: Timestamp, settings: &FleetSettings) -> Result<String, String> {
        if let Some(open) = settings.offers.iter().find(|offer| self.is_open(now, offer)) {
            return Ok(open.clone());
        }
        let soonest = self.avoided.values().min_by_key(|avoided| avoided.until);
        Err(match soonest {
            Some(Avoidance { until, why }) => format!("every offer is avoided until {until}: {why}"),
            None => "no offer is configured".to_owned(),
        })
    }

    fn is_open(&self, now: Timestamp, offer: &str) -> bool {
        self.avoided.get(offer).is_none_or(|avoided| avoided.is_over(now))
    }

    pub fn avoid(&mut self, now: Timestamp, offer: &str, wait: Duration, why: &str) {
        remember(&mut self.avoided, now, offer, wait, why);
    }

    pub fn avoid_host(&mut self, now: Timestamp, host: &str, wait: Duration, why: &str) {
        remember(&mut self.bad_hosts, now, host, wait, why);
    }

    pub fn is_bad_host(&self, now: Timestamp, host: &str) -> bool {
        self.bad_hosts.get(host).is_some_and(|avoided| !avoided.is_over(now))
    }

    /// Whether the provider may be called now.
    pub fn can_call_provider(&self, now: Timestamp) -> bool {
        self.quiet_until.as_ref().is_none_or(|quiet| quiet.is_over(now))
    }

    /// Whether the budget of this day was used up at `max`, or at more.
    pub fn has_spent(&self, day: u64, max: Money) -> bool {
        self.spent_day.is_some_and(|spent| spent.day == day && max <= spent.max)
    }

    /// The provider refuses the API key, and that is confirmed.
    pub fn key_problem(&self) -> Option<String> {
        let refusal = self.key_refusal.as_ref().filter(|refusal| refusal.is_confirmed)?;
        let KeyRefusal { since, message, .. } = refusal;
        Some(format!("the provider refuses the API key since {since}, so nothing is rented: {message}"))
    }

    /// The provider refused the key. `is_later`: the refused call was made after the first refusal, and confirms it.
    pub fn key_refused(&mut self, now: Timestamp, message: &str, is_later: bool) {
        let first = KeyRefusal { since: now, message: message.to_owned(), is_confirmed: false };
        self.key_refusal.get_or_insert(first).is_confirmed |= is_later;
    }

    /// Why nothing may be created now.
    pub fn creation_hold(&self, now: Timestamp) -> Option<String> {
        if let Some(problem) = self.key_problem() {
            return Some(problem);
        }
        let told = [&self.quiet_until, &self.creation_paused].into_iter().flatten();
        let last = told.filter(|it| !it.is_over(now)).max_by_key(|it| it.until)?;
        Some(format!("{} (until {})", last.why, last.until))
    }

    /// Pauses calls or creations according to the error class. The provider says what is wrong, so the pauses are fixed
    /// per class and do not grow.
    pub fn provider_failed(&mut self, now: Timestamp, fault: &ProviderError) {
        let why = fault.to_string();
        let later = |wait: Duration| Some(Avoidance { until: now.plus(wait), why: why.clone() });
        match fault.class {
            ProviderErrorClass::RateLimited => self.quiet_until = later(fault.wait.unwrap_or(RATE_WAIT)),
            ProviderErrorClass::Billing | ProviderErrorClass::Invalid => {
                self.creation_paused = later(PERSON_RETRY);
            }
            ProviderErrorClass::Transient | ProviderErrorClass::Ambiguous => {
                self.creation_paused = later(RECOVERY);
            }
            // `key_refused` has its own rule: a refused key must never keep machines from being returned.
            ProviderErrorClass::Auth
            | ProviderErrorClass::Capacity
            | ProviderErrorClass::Denied
            | ProviderErrorClass::NotFound
            | ProviderErrorClass::Conflict => {}
        }
    }

    /// A call succeeded: calls may resume, and the key works. Creations stay paused, because listing works without
    /// credit. True if that changes something.
    pub fn answered(&mut self) -> bool {
        self.quiet_until.take().is_some() | self.key_refusal.take().is_some()
    }

    /// Updates a shape's run time: half old, half new. True if it changed enough to be stored.
    pub fn record_run_time(&mut self, shape: &Shape, took_millis: u64) -> bool {
        if self.run_times.len() >= PACES_MAX && !self.run_times.contains_key(shape) {
            self.run_times.pop_first();
        }
        let pace = self.run_times.entry(*shape).or_insert(0);
        let before = *pace;
        *pace = if before == 0 { took_millis } else { before / 2 + took_millis / 2 };
        before.abs_diff(*pace) > before / 8
    }

    /// A complete list shows these pods of ours without a record. What is gone is forgotten, its cost kept.
    pub fn track_orphans(&mut self, now: Timestamp, settings: &FleetSettings, strays: &[Pod]) {
        let mut orphans = std::mem::take(&mut self.orphans);
        for pod in strays {
            let orphan = orphans.entry(pod.id.clone()).or_insert_with(|| Orphan::new(now, pod));
            if orphan.is_repriced(pod) {
                self.book_orphan(now, orphan, settings);
            }
            orphan.seen(pod);
        }
        orphans.retain(|id, orphan| {
            if !strays.iter().any(|pod| pod.id == *id) {
                orphan.was_missed();
            }
            if orphan.is_gone() {
                self.book_orphan(now, orphan, settings);
            }
            !orphan.is_gone()
        });
        self.orphans = orphans;
    }

    fn book_orphan(&mut self, now: Timestamp, orphan: &mut Orphan, settings: &FleetSettings) {
        let price = orphan.price(&self.prices, settings).unwrap_or_default();
        self.record_cost(orphan.book(now), now, price);
    }

    /// Books the cost of a machine from `from` to `until`, by day and by hour.
    pub fn record_cost(&mut self, from: Timestamp, until: Timestamp, price: Money) {
        let (mut at, (last_day, _)) = (from, day_of(until));
        while at < until {
            let ((day, _), (hour, began)) = (day_of(at), hour_of(at));
            let end = began.plus(HOUR).min(until);
            let cost = price.over(end.since(at));
            for spent in [self.spent.entry(day).or_default(), self.spent_hours.entry(hour).or_default()] {
                *spent = spent.plus(cost);
            }
            at = end;
        }
        self.spent.retain(|day, _| day + DAYS_KEPT > last_day);
        self.spent_hours.retain(|hour, _| hour / HOURS_OF_DAY + DAYS_IN_HOURS > last_day);
    }

    /// The booked cost in the hours that the window touches; whole days where hours are no longer kept.
    pub fn cost_within(&self, window: CostWindow) -> Money {
        let is_touched = |from: Timestamp, length| !window.overlap(from, from.plus(length)).is_zero();
        let hours =
            self.spent_hours.iter().filter(|(hour, _)| is_touched(CostWindow::for_hour(**hour).from, HOUR));
        let by_hour: Money = hours.map(|(_, spent)| *spent).sum();
        let days = self.spent.iter().filter(|(day, _)| {
            let has_hours = self.spent_hours.keys().any(|hour| hour / HOURS_OF_DAY == **day);
            !has_hours && is_touched(CostWindow::for_hour(**day * HOURS_OF_DAY).from, DAY)
        });
        days.map(|(_, spent)| *spent).sum::<Money>().plus(by_hour)
    }
}

fn remember(known: &mut BTreeMap<String, Avoidance>, now: Timestamp, name: &str, wait: Duration, why: &str) {
    known.retain(|_, avoided| !avoided.is_over(now));
    if known.len() >= AVOIDED_MAX && !known.contains_key(name) {
        return;
    }
    known.insert(name.to_owned(), Avoidance { until: now.plus(wait), why: why.to_owned() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> Timestamp {
        Timestamp::from_millis(hours * 3_600_000)
    }

    #[test]
    fn cost_is_counted_on_the_day_it_arose() {
        let mut fleet = Fleet::default();
        fleet.record_cost(at(22), at(27), Money::from_micros(1_000_000));
        let spent: Vec<_> = fleet.spent.iter().map(|(day, spent)| (*day, spent.to_string())).collect();
        assert_eq!(spent, [(0, "$2.00".to_owned()), (1, "$3.00".to_owned())]);
        fleet.record_cost(at(24 * 60), at(24 * 60 + 1), Money::from_micros(1_000_000));
        assert_eq!(fleet.spent.len(), 1, "old days are dropped");
    }

    #[test]
    fn cost_is_kept_by_the_hour_and_later_by_the_day() {
        let mut fleet = Fleet::default();
        let dollar = Money::from_micros(1_000_000);
        let within = |fleet: &Fleet, from, until| {
            fleet.cost_within(CostWindow { from: at(from), until: at(until) }).as_micros() / 1_000_000
        };
        fleet.record_cost(at(22), at(27), dollar);
        assert_eq!([within(&fleet, 0, 24), within(&fleet, 23, 25), within(&fleet, 0, 99)], [2, 2, 5]);
        assert_eq!(within(&fleet, 27, 99), 0);
        fleet.record_cost(at(24 * 3), at(24 * 3 + 1), dollar);
        assert_eq!(
            [within(&fleet, 23, 24), within(&fleet, 0, 99)],
            [2, 6],
            "the first day is known as a whole"
        );
    }

    #[test]
    fn offers_are_taken_in_order_and_bad_ones_avoided() {
        let mut settings = FleetSettings::new("gpus".parse().unwrap(), true);
        settings.offers = vec!["4090".to_owned(), "A6000".to_owned()];
        let mut fleet = Fleet::default();
        assert_eq!(fleet.offer(at(0), &settings).unwrap(), "4090");
        fleet.avoid(at(0), "4090", Duration::from_secs(7200), "no capacity");
        assert_eq!(fleet.offer(at(0), &settings).unwrap(), "A6000");
        fleet.avoid(at(0), "A6000", Duration::from_secs(3600), "CUDA fails");
        let why = fleet.offer(at(0), &settings).unwrap_err();
        assert!(why.contains("CUDA fails"), "{why}");
        assert_eq!(fleet.offer(at(1), &settings).unwrap(), "A6000");
        assert_eq!(fleet.offer(at(2), &settings).unwrap(), "4090");
    }

    #[test]
    fn missing_credit_pauses_creations_and_a_refused_key_does_once_it_is_confirmed() {
        let mut fleet = Fleet::default();
        fleet
            .provider_failed(at(0), &ProviderError::new(ProviderErrorClass::Billing, "insufficient balance"));
        assert!(fleet.can_call_provider(at(0)) && fleet.creation_hold(at(0)).is_some());
        assert_eq!(fleet.creation_hold(at(1)), None);
        fleet.key_refused(at(1), "missing bearer token", false);
        assert_eq!(fleet.creation_hold(at(1)), None);
        fleet.key_refused(at(1), "missing bearer token", true);
        assert!(fleet.can_call_provider(at(1)) && fleet.creation_hold(at(9)).is_some());
        assert!(fleet.answered());
        assert_eq!(fleet.creation_hold(at(9)), None);
    }
}
