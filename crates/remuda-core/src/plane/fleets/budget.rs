//! What fleets cost and may spend: prices, sums, and how many more machines the budget allows. The module `cost` has
//! the sums over attempts.

use super::Fleets;
use crate::cost::CostWindow;
use crate::fleet::{DAY, Fleet, FleetSettings, SpentDay, day_of};
use crate::id::{FleetId, MachineId};
use crate::money::Money;
use crate::orphan::Orphan;
use crate::plane::Outbox;
use crate::rental::Rental;
use crate::settings::Settings;
use crate::time::Timestamp;

impl Fleets {
    /// Hourly price of a machine: the provider's, else that of its offer, else the configured maximum.
    pub(in crate::plane) fn price(&self, rental: &Rental, settings: &Settings) -> Option<Money> {
        let fleet = self.states.get(&rental.fleet);
        let offered = || fleet?.prices.get(&rental.offer).copied();
        let allowed = || settings.fleet(&rental.fleet)?.price_max;
        rental.price.or_else(offered).or_else(allowed)
    }

    /// Hourly price of an offer, if known.
    pub(in crate::plane) fn price_of(&self, settings: &FleetSettings, offer: &str) -> Option<Money> {
        let known = self.states.get(&settings.id).and_then(|fleet| fleet.prices.get(offer)).copied();
        known.or(settings.price_max)
    }

    /// Hourly price of all machines of a fleet, in every phase, and of its orphans.
    pub(in crate::plane) fn rate_of(&self, fleet: &Fleet, settings: &FleetSettings) -> Money {
        let price = |rental: &Rental| rental.price.or_else(|| self.price_of(settings, &rental.offer));
        let orphan_prices = fleet.orphans.values().filter_map(|orphan| orphan.price(&fleet.prices, settings));
        self.of_fleet(&settings.id).filter_map(price).chain(orphan_prices).sum()
    }

    /// Hourly price of all machines of a fleet, in every phase, and of its orphaned pods.
    pub(in crate::plane) fn hourly_price(&self, id: &FleetId, settings: &Settings) -> Money {
        match settings.fleet(id) {
            Some(fleet) => self.rate_of(&self.state(id), fleet),
            None => self.of_fleet(id).filter_map(|rental| self.price(rental, settings)).sum(),
        }
    }

    /// Cost of a machine since its request.
    pub(in crate::plane) fn machine_cost(
        &self,
        rental: &Rental,
        now: Timestamp,
        settings: &Settings,
    ) -> Money {
        rental.cost(now, self.price(rental, settings).unwrap_or_default())
    }

    /// Cost of a fleet within the window: what its machines and orphans have cost since their last price change, and
    /// what is booked. That is kept by the hour, and further back by the day; every hour or day that the window touches
    /// counts.
    pub(in crate::plane) fn spent(
        &self,
        id: &FleetId,
        window: CostWindow,
        now: Timestamp,
        settings: &Settings,
    ) -> Money {
        let there = self
            .of_fleet(id)
            .map(|rental| rental.unbooked(window, now, self.price(rental, settings).unwrap_or_default()));
        let booked = self.states.get(id).map_or(Money::ZERO, |fleet| fleet.cost_within(window));
        there.sum::<Money>().plus(self.orphans_cost(id, window, now, settings.fleet(id))).plus(booked)
    }

    /// Cost of a fleet since the day began.
    pub(in crate::plane) fn spent_today(&self, now: Timestamp, settings: &FleetSettings) -> Money {
        let (day, began) = day_of(now);
        let window = CostWindow { from: began, until: now };
        let fleet = self.states.get(&settings.id);
        let booked = fleet.and_then(|fleet| fleet.spent.get(&day)).copied().unwrap_or_default();
        let price = |rental: &Rental| rental.price.or_else(|| self.price_of(settings, &rental.offer));
        let there = self.of_fleet(&settings.id);
        let there = there.filter_map(|rental| Some(rental.unbooked(window, now, price(rental)?)));
        booked.plus(there.sum()).plus(self.orphans_cost(&settings.id, window, now, Some(settings)))
    }

    /// Cost of a fleet's orphans within the window.
    fn orphans_cost(
        &self,
        id: &FleetId,
        window: CostWindow,
        now: Timestamp,
        settings: Option<&FleetSettings>,
    ) -> Money {
        let Some((fleet, settings)) = self.states.get(id).zip(settings) else { return Money::ZERO };
        let price = |orphan: &Orphan| orphan.price(&fleet.prices, settings).unwrap_or_default();
        let cost = |orphan: &Orphan| orphan.unbooked(window, now, price(orphan));
        fleet.orphans.values().map(cost).sum()
    }

    /// Books what a machine has cost until now, at its present price.
    pub(super) fn book(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(rental) = self.rentals.get(machine) else { return };
        let (id, price) = (rental.fleet.clone(), self.price(rental, settings).unwrap_or_default());
        let Some(rental) = self.rentals.get_mut(machine) else { return };
        let from = rental.book(now, price);
        self.state_mut(&id).record_cost(from, now, price);
        self.store_fleet(&id, outbox);
    }

    /// Records which fleets have used up their daily budget.
    pub(in crate::plane) fn close_days(&mut self, now: Timestamp, settings: &Settings, outbox: &mut Outbox) {
        let (day, _) = day_of(now);
        for settings in settings.fleets.iter().filter(|it| it.day_max.is_some()) {
            let (fleet, max) = (self.state(&settings.id), settings.day_max.unwrap_or_default());
            if !fleet.has_spent(day, max) && self.is_spent(now, &fleet, settings).is_some() {
                self.state_mut(&settings.id).spent_day = Some(SpentDay { day, max });
                self.store_fleet(&settings.id, outbox);
            }
        }
    }

    /// Whether the daily budget is used up, counting the cost of draining.
    pub(in crate::plane) fn is_spent(
        &self,
        now: Timestamp,
        fleet: &Fleet,
        settings: &FleetSettings,
    ) -> Option<String> {
        let max = settings.day_max?;
        let (day, began) = day_of(now);
        let left = began.plus(DAY).since(now);
        let spent = self.spent_today(now, settings);
        let owed = self.rate_of(fleet, settings).over(settings.scaling.drain_timeout.min(left));
        // Once the budget is used up it stays so for the day, unless it is raised; otherwise the reserve kept for
        // draining would be spent again.
        let is_over = fleet.has_spent(day, max) || spent.plus(owed) > max;
        is_over.then(|| format!("{spent} of {max} a day are spent"))
    }

    /// How many more machines the budget allows; None without a budget.
    pub(in crate::plane) fn affordable(
        &self,
        now: Timestamp,
        fleet: &Fleet,
        settings: &FleetSettings,
    ) -> Option<(u32, String)> {
        let offer = fleet.offer(now, settings).ok()?;
        let price = self.price_of(settings, &offer);
        if let Some((price, max)) = price.zip(settings.price_max).filter(|(price, max)| price > max) {
            return Some((0, format!("{offer} costs {price} an hour, {max} are allowed")));
        }
        if settings.hour_max.is_none() && settings.day_max.is_none() {
            return None;
        }
        let Some(price) = price.filter(|price| *price > Money::ZERO) else {
            return Some((0, format!("the price of {offer} is unknown, and a budget is set")));
        };
        let times = |money: Money| u32::try_from(money.as_micros() / price.as_micros()).unwrap_or(u32::MAX);
        let rate = self.rate_of(fleet, settings);
        let hourly = settings.hour_max.map(|max| {
            let why = format!("{rate} an hour of {max} are in use, one more costs {price}");
            (times(max.minus(rate)), why)
        });
        let daily = settings.day_max.map(|max| {
            let (spent, scaling) = (self.spent_today(now, settings), &settings.scaling);
            let kept = max.minus(spent.plus(rate.over(scaling.drain_timeout)));
            let least = price.over(scaling.uptime_min + scaling.drain_timeout).max(Money::from_micros(1));
            let count = u32::try_from(kept.as_micros() / least.as_micros()).unwrap_or(u32::MAX);
            (count, format!("{spent} of {max} are spent today"))
        });
        hourly.into_iter().chain(daily).min()
    }

    /// Why no machine may be created at all.
    pub(in crate::plane) fn creation_hold(
        &self,
        now: Timestamp,
        fleet: &Fleet,
        settings: &FleetSettings,
    ) -> Option<String> {
        if self.deployment.is_none() {
            return Some("the plane has not yet named its deployment".to_owned());
        }
        if let Some(why) = fleet.creation_hold(now) {
            return Some(why);
        }
        match self.lists.get(&settings.id) {
            Some(lists) if lists.doubtful > 0 => {
                return Some("most expected machines were missing from the provider's last list".to_owned());
            }
            Some(lists) if lists.tell_all(self.is_restored) => {}
            Some(_) | None => return Some("its provider's machines are not known yet".to_owned()),
        }
        fleet.offer(now, settings).err()
    }

    /// Every fleet that is configured, or was configured and still has machines or history.
    pub(in crate::plane) fn known(&self, settings: &Settings) -> Vec<FleetId> {
        let mut known: Vec<_> = settings.fleets.iter().map(|fleet| fleet.id.clone()).collect();
        let rented = self.rentals.values().map(|rental| rental.fleet.clone());
        for id in self.states.keys().cloned().chain(rented) {
            if !known.contains(&id) {
                known.push(id);
            }
        }
        known
    }
}
