//! Costs of fleets, read-only. The module `cost` has the sums over attempts.

use super::Plane;
use crate::cost::CostWindow;
use crate::fleet::hour_of;
use crate::id::{FleetId, WorkerId};
use crate::money::Money;
use crate::rental::Rental;
use crate::time::Timestamp;

impl Plane {
    /// Hourly price of a machine: the provider's, else that of its offer, else the configured maximum.
    pub fn price(&self, rental: &Rental) -> Option<Money> {
        let fleet = self.fleets.fleets.get(&rental.fleet);
        let offered = || fleet?.prices.get(&rental.offer).copied();
        let allowed = || self.fleet_settings(&rental.fleet)?.price_max;
        rental.price.or_else(offered).or_else(allowed)
    }

    /// Hourly price of all machines of a fleet, in every phase, and of its orphaned pods.
    pub fn fleet_hourly_price(&self, id: &FleetId) -> Money {
        match self.fleet_settings(id) {
            Some(settings) => self.rate_of(&self.fleet(id), settings),
            None => self.rentals_of(id).filter_map(|rental| self.price(rental)).sum(),
        }
    }

    /// Cost of a machine within the window.
    pub fn machine_cost(&self, rental: &Rental, window: CostWindow, now: Timestamp) -> Money {
        self.price(rental).unwrap_or_default().over(window.overlap(rental.wanted_at, now))
    }

    /// Cost of a fleet within the window. Machines that are gone are kept by the hour, and further back by the day;
    /// every hour or day that the window touches counts.
    pub fn spent(&self, id: &FleetId, window: CostWindow, now: Timestamp) -> Money {
        let there = self.rentals_of(id).map(|rental| self.machine_cost(rental, window, now));
        let gone = self.fleets.fleets.get(id).map_or(Money::ZERO, |fleet| fleet.cost_within(window));
        there.sum::<Money>().plus(gone)
    }

    /// Cost of each hour of the window, over all fleets.
    pub fn spent_by_hour(&self, window: CostWindow, now: Timestamp) -> Vec<(Timestamp, Money)> {
        let fleets = self.known_fleets();
        let (first, last) = (hour_of(window.from).0, hour_of(window.until).0);
        let hours = (first..=last).map(|hour| {
            let hour = CostWindow::for_hour(hour);
            (hour.from, fleets.iter().map(|id| self.spent(id, hour, now)).sum())
        });
        hours.collect()
    }

    /// Every fleet that is configured, or was configured and still has machines or history.
    pub fn known_fleets(&self) -> Vec<FleetId> {
        let configured = self.settings.fleets.iter().map(|fleet| fleet.id.clone());
        let mut known: Vec<_> = configured.collect();
        let remembered = self.fleets.fleets.keys().cloned();
        let rented = self.rentals().map(|rental| rental.fleet.clone());
        for id in remembered.chain(rented) {
            if !known.contains(&id) {
                known.push(id);
            }
        }
        known
    }

    /// Hourly price of one slot of a worker: the machine's price divided by all slots on it. None for machines that
    /// are not rented.
    pub(super) fn slot_price(&self, id: &WorkerId) -> Option<Money> {
        let worker = self.workers.get(id)?;
        let rental = self.rental(&worker.machine)?;
        let there = self.fleets.workers_on.get(&worker.machine).into_iter().flatten();
        let slots = there.filter_map(|other| self.workers.get(other)).map(|other| other.slots).sum();
        Some(self.price(rental)?.shared(slots))
    }
}
