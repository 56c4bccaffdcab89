//! A pod with our tag that has no record: of a store that was restored from a backup, or of a request whose answer came
//! too late. It takes a place and money until it is known to be gone, and it is returned after a grace period. It is
//! stored with its fleet, so that it keeps its age and its cost when the plane restarts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::CostWindow;
use crate::money::Money;
use crate::provider::{LISTS_MIN, LISTS_UNHEARD_MIN, Pod, offered_kind};
use crate::settings::fleet::FleetSettings;
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    price: Option<Money>,
    since: Timestamp,
    /// Its cost until then is booked in its fleet's sums.
    booked_until: Timestamp,
    /// Lists that showed it, as far as that matters.
    lists: u32,
    /// Lists in a row that did not show it.
    #[serde(default)]
    missed: u32,
}

impl Orphan {
    pub fn new(now: Timestamp, pod: &Pod) -> Orphan {
        Orphan {
            kind: pod.kind.clone(),
            price: reported(pod),
            since: now,
            booked_until: now,
            lists: 0,
            missed: 0,
        }
    }

    /// A list shows it.
    pub fn seen(&mut self, pod: &Pod) {
        self.missed = 0;
        self.lists = (self.lists + 1).min(LISTS_MIN);
        self.price = reported(pod).or(self.price);
    }

    /// A list does not show it.
    pub fn was_missed(&mut self) {
        self.missed = self.missed.saturating_add(1);
    }

    pub fn is_gone(&self) -> bool {
        self.missed >= LISTS_UNHEARD_MIN
    }

    pub fn is_repriced(&self, pod: &Pod) -> bool {
        self.price.is_some() && reported(pod).is_some() && reported(pod) != self.price
    }

    /// Whether it is to be returned: a single list may be wrong, and its record may still be on its way.
    pub fn is_due(&self, now: Timestamp, settings: &FleetSettings) -> bool {
        now.since(self.since) >= settings.limits.orphan_grace && self.lists >= LISTS_MIN
    }

    /// Its hourly price: as reported, else that of its kind, else the highest of the fleet.
    pub fn price(&self, prices: &BTreeMap<String, Money>, settings: &FleetSettings) -> Option<Money> {
        let its_kind = prices.iter().filter(|(offer, _)| offered_kind(offer) == self.kind);
        let likely = its_kind.map(|(_, price)| *price).max();
        self.price.or(likely).or_else(|| prices.values().copied().max()).or(settings.price_max)
    }

    /// Its cost within the window that is not booked yet.
    pub fn unbooked(&self, window: CostWindow, now: Timestamp, price: Money) -> Money {
        price.over(window.overlap(self.booked_until, now))
    }

    /// Its cost is booked until now; returns since when it was not.
    pub fn book(&mut self, now: Timestamp) -> Timestamp {
        std::mem::replace(&mut self.booked_until, now)
    }
}

/// A price of zero is an error of the provider, not a free machine.
fn reported(pod: &Pod) -> Option<Money> {
    pod.price.filter(|price| *price > Money::ZERO)
}
