//! The input of each fleet's plan: its workers, its share of the queue, its budget. Read-only.
//!
//! The queue is shared out in order: workers without a fleet first, as many jobs each as the threshold allows; then
//! every fleet up to its maximum; the rest goes to the first fleet that could run it. A job that no worker of a fleet
//! could run is not counted for it: renting more of the same would not help.

use std::collections::BTreeMap;

use super::Plane;
use super::router::mismatch;
use crate::cycle::{self, CyclePlan, FleetSnapshot, WorkerView};
use crate::fleet::{DAY, Fleet, FleetSettings, ScalingPolicy, day_of};
use crate::id::FleetId;
use crate::machine::{self, WorkerState};
use crate::money::Money;
use crate::queue::Demand;
use crate::rental::{Rental, RentalPhase};
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::Worker;

impl Plane {
    /// The plan for workers without a fleet, then one for every fleet.
    pub(super) fn plans(&self, now: Timestamp) -> Vec<(Option<FleetId>, CyclePlan)> {
        let shares = self.shares(now);
        let loose = FleetSnapshot {
            queued: shares.loose,
            workers: self.without_fleet().map(|worker| self.view(now, worker)).collect(),
            mass_loss: self.workers.mass_loss().clone(),
            ..FleetSnapshot::default()
        };
        let mut plans = vec![(None, cycle::plan(now, &loose, &self.settings))];
        for fleet in &self.settings.fleets {
            let queued = shares.fleets.get(&fleet.id).copied().unwrap_or(0);
            let settings =
                Settings { scaling: fleet.scaling.clone(), fleets: Vec::new(), ..self.settings.clone() };
            let snapshot = self.snapshot(now, fleet, queued);
            plans.push((Some(fleet.id.clone()), cycle::plan(now, &snapshot, &settings)));
        }
        plans
    }

    fn snapshot(&self, now: Timestamp, settings: &FleetSettings, queued: u32) -> FleetSnapshot {
        let default = Fleet::default();
        let fleet = self.fleets.fleets.get(&settings.id).unwrap_or(&default);
        let rented = self.rentals_of(&settings.id).map(|rental| self.rental_view(now, rental, settings));
        let own = self.workers.iter().filter(|worker| {
            !self.fleets.rentals.contains_key(&worker.machine)
                && self.fleet_for_worker(worker) == Some(&settings.id)
        });
        let orphans = self.fleets.orphans.values().filter(|orphan| orphan.fleet == settings.id).count();
        FleetSnapshot {
            queued,
            workers: rented.chain(own.map(|worker| self.view(now, worker))).collect(),
            can_rent: settings.can_rent,
            contact_timeout: Some(settings.limits.contact_timeout),
            creation: fleet.creation.clone(),
            mass_loss: self.workers.mass_loss().clone(),
            heading: fleet.heading,
            paused: fleet.paused.clone(),
            ordered: fleet.machines,
            policy_target: self.policy_target(fleet, settings, queued),
            orphans: u32::try_from(orphans).unwrap_or(u32::MAX),
            creation_hold: self.creation_hold(now, fleet, settings),
            affordable: self.affordable(now, fleet, settings),
            spent: self.is_spent(now, fleet, settings),
        }
    }

    pub(super) fn rentals_of<'a>(&'a self, fleet: &'a FleetId) -> impl Iterator<Item = &'a Rental> {
        self.fleets.rentals.values().filter(move |rental| rental.fleet == *fleet)
    }

    /// A rented machine as one worker, however many agents run on it.
    fn rental_view(&self, now: Timestamp, rental: &Rental, settings: &FleetSettings) -> WorkerView {
        let housed = self.fleets.workers_on.get(&rental.machine);
        let there = || housed.into_iter().flatten().filter_map(|worker| self.workers.get(worker));
        let is_ready = |worker: &Worker| match &worker.check {
            Some(check) => check.passed,
            None => worker.unavailable_reason.is_none(),
        };
        let bad_check = there().filter_map(|it| it.check.as_ref()).find(|check| !check.passed);
        let bad_check = bad_check.map(|check| format!("start check: {}", check.problem));
        WorkerView {
            id: rental.worker(),
            state: rental.phase.state(),
            since: rental.since,
            presence: machine::machine_presence(there().map(|worker| worker.presence)),
            is_rented: true,
            counts_against_max: true,
            is_running: rental.running_at.is_some(),
            is_registered: there().next().is_some_and(|_| rental.joined_at.is_some()),
            start_check_passed: there()
                .all(|worker| worker.has_beaten && worker.beat_seq > 0 && is_ready(worker)),
            trouble: rental
                .overdue(now, settings)
                .or(bad_check.filter(|_| rental.phase == RentalPhase::Made)),
            is_outdated: rental.revision != settings.revision,
            drain_until: rental.drain_until,
            beat_at: there().map(|worker| now.minus(worker.watch.silent_for(now))).max(),
            attempts: there().flat_map(|worker| self.attempts_of(worker)).collect(),
            idle_since: there().map(|worker| worker.idle_since).max(),
            warm: there().map(Worker::warm_shapes).sum(),
            metrics_at: there().filter_map(|worker| worker.metrics_at).max(),
        }
    }

    /// The fleet of a worker: that of its rented machine, else the one that lists its machine, else the one it names.
    pub fn fleet_for_worker<'a>(&'a self, worker: &'a Worker) -> Option<&'a FleetId> {
        if let Some(rental) = self.fleets.rentals.get(&worker.machine) {
            return Some(&rental.fleet);
        }
        let listed = self.settings.fleets.iter().find(|fleet| fleet.machines.contains(&worker.machine));
        let named = || self.settings.fleets.iter().find(|fleet| worker.fleet.as_ref() == Some(&fleet.id));
        listed.or_else(named).map(|fleet| &fleet.id)
    }

    fn without_fleet(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| self.fleet_for_worker(worker).is_none())
    }

    fn shares(&self, now: Timestamp) -> Shares {
        let all = u32::try_from(self.jobs.queue().len()).unwrap_or(u32::MAX);
        if self.settings.fleets.is_empty() {
            return Shares { loose: all, fleets: BTreeMap::new() };
        }
        let per = |scaling: &crate::settings::Scaling| u64::from(scaling.jobs_per_worker.max(1));
        let able: Vec<_> =
            self.without_fleet().filter(|worker| worker.availability(now).is_capacity()).collect();
        let mut loose_room = able.len() as u64 * per(&self.settings.scaling);
        let mut room: Vec<_> = self
            .settings
            .fleets
            .iter()
            .map(|fleet| u64::from(self.size_max(fleet)) * per(&fleet.scaling))
            .collect();
        let (mut loose, mut shares) = (0_u64, vec![0_u64; room.len()]);
        for (demand, count) in self.jobs.queue().waiting_by_demand() {
            let mut left = count as u64;
            if able.iter().any(|worker| mismatch(demand, worker).is_none()) {
                let taken = left.min(loose_room);
                (loose, loose_room, left) = (loose + taken, loose_room - taken, left - taken);
            }
            let fitting: Vec<_> = self
                .settings
                .fleets
                .iter()
                .enumerate()
                .filter(|(_, fleet)| self.could_run(fleet, demand))
                .map(|(at, _)| at)
                .collect();
            for at in &fitting {
                let taken = left.min(room[*at]);
                (shares[*at], room[*at], left) = (shares[*at] + taken, room[*at] - taken, left - taken);
            }
            match fitting.first() {
                Some(first) => shares[*first] += left,
                None => loose += left,
            }
        }
        let short = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let fleets = self.settings.fleets.iter().zip(shares);
        Shares {
            loose: short(loose),
            fleets: fleets.map(|(fleet, count)| (fleet.id.clone(), short(count))).collect(),
        }
    }

    /// The largest number of machines a fleet may have.
    fn size_max(&self, fleet: &FleetSettings) -> u32 {
        if fleet.can_rent {
            return fleet.scaling.machines_max;
        }
        let active = self.workers.iter().filter(|worker| {
            worker.state == WorkerState::Active && self.fleet_for_worker(worker) == Some(&fleet.id)
        });
        u32::try_from(active.count()).unwrap_or(u32::MAX)
    }

    /// Whether a machine of this fleet could run such a job, judged by its settings and by the workers it has or had.
    pub(super) fn could_run(&self, fleet: &FleetSettings, demand: &Demand) -> bool {
        let needs = demand.needs();
        let is_served = fleet.services.is_empty() || fleet.services.contains(demand.service());
        let is_labelled = needs.labels.iter().all(|(name, value)| fleet.labels.get(name) == Some(value));
        let mut known = self.workers.iter().filter(|it| it.fleet.as_ref() == Some(&fleet.id)).peekable();
        let nobody = known.peek().is_none();
        is_served
            && is_labelled
            && if nobody { needs.pin.is_none() } else { known.any(|it| mismatch(demand, it).is_none()) }
    }

    /// Machines wanted by a policy other than queue length. None until something was measured.
    fn policy_target(&self, fleet: &Fleet, settings: &FleetSettings, queued: u32) -> Option<(u32, String)> {
        let ScalingPolicy::Latency { wait_max } = settings.policy else { return None };
        let known = fleet.run_times.len() as u64;
        let usual = fleet.run_times.values().sum::<u64>().checked_div(known)?;
        let (mut work, mut jobs) = (0_u64, 0_u64);
        let mut ours = BTreeMap::new();
        for (demand, shape, count) in self.jobs.queue().waiting_by_shape() {
            if *ours.entry(demand).or_insert_with(|| self.could_run(settings, demand)) {
                let pace = fleet.run_times.get(shape).copied().unwrap_or(usual);
                work = work.saturating_add(pace.saturating_mul(count as u64));
                jobs += count as u64;
            }
        }
        // Jobs that another fleet takes are not counted here.
        let own = work.checked_div(jobs.max(1))?.saturating_mul(u64::from(queued).min(jobs));
        let wait_millis = u64::try_from(wait_max.as_millis()).unwrap_or(u64::MAX).max(1);
        let wanted = u32::try_from(own.div_ceil(wait_millis)).unwrap_or(u32::MAX);
        let spoken = crate::time::humanize;
        let why = format!(
            "{queued} waiting jobs are {} of work and should start within {}",
            spoken(std::time::Duration::from_millis(own)),
            spoken(wait_max)
        );
        Some((wanted, why))
    }

    /// Why no machine may be created at all.
    fn creation_hold(&self, now: Timestamp, fleet: &Fleet, settings: &FleetSettings) -> Option<String> {
        if self.fleets.deployment.is_none() {
            return Some("the plane has not yet named its deployment".to_owned());
        }
        if let Some(why) = fleet.creation_hold(now) {
            return Some(why);
        }
        match self.fleets.lists.get(&settings.id) {
            Some(lists) if lists.doubtful > 0 => {
                return Some("most expected machines were missing from the provider's last list".to_owned());
            }
            Some(lists) if lists.tell_all(self.fleets.is_restored) => {}
            Some(_) | None => return Some("its provider's machines are not known yet".to_owned()),
        }
        fleet.offer(now, settings).err()
    }

    /// Hourly price of an offer, if known.
    pub(super) fn price_of(&self, fleet: &Fleet, settings: &FleetSettings, offer: &str) -> Option<Money> {
        fleet.prices.get(offer).copied().or(settings.price_max)
    }

    /// How many more machines the budget allows; None without a budget.
    pub(super) fn affordable(
        &self,
        now: Timestamp,
        fleet: &Fleet,
        settings: &FleetSettings,
    ) -> Option<(u32, String)> {
        let offer = fleet.offer(now, settings).ok()?;
        let price = self.price_of(fleet, settings, &offer);
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

    /// Hourly price of all machines of a fleet, in every phase, and of its orphans.
    pub(super) fn rate_of(&self, fleet: &Fleet, settings: &FleetSettings) -> Money {
        let price = |rental: &Rental| rental.price.or_else(|| self.price_of(fleet, settings, &rental.offer));
        let orphans = self.fleets.orphans.values().filter(|orphan| orphan.fleet == settings.id);
        let nobodys = orphans.filter_map(|orphan| orphan.price(fleet, settings));
        self.rentals_of(&settings.id).filter_map(price).chain(nobodys).sum()
    }

    /// Cost of a fleet since the day began.
    pub fn spent_today(&self, now: Timestamp, settings: &FleetSettings) -> Money {
        let (day, began) = day_of(now);
        let fleet = self.fleet(&settings.id);
        let gone = fleet.spent.get(&day).copied().unwrap_or_default();
        let price = |rental: &Rental| rental.price.or_else(|| self.price_of(&fleet, settings, &rental.offer));
        let there = self.rentals_of(&settings.id);
        gone.plus(there.filter_map(|rental| Some(rental.cost_since(began, now, price(rental)?))).sum())
    }

    /// Records which fleets have used up their daily budget.
    pub(super) fn close_days(&mut self, now: Timestamp) {
        let (day, _) = day_of(now);
        let limited: Vec<_> =
            self.settings.fleets.iter().filter(|it| it.day_max.is_some()).cloned().collect();
        for settings in limited {
            let fleet = self.fleet(&settings.id);
            if fleet.spent_day != Some(day) && self.is_spent(now, &fleet, &settings).is_some() {
                self.fleets.fleets.entry(settings.id.clone()).or_default().spent_day = Some(day);
                self.store_fleet(&settings.id);
            }
        }
    }

    /// Whether the daily budget is used up, counting the cost of draining.
    fn is_spent(&self, now: Timestamp, fleet: &Fleet, settings: &FleetSettings) -> Option<String> {
        let max = settings.day_max?;
        let (day, began) = day_of(now);
        let left = began.plus(DAY).since(now);
        let spent = self.spent_today(now, settings);
        let owed = self.rate_of(fleet, settings).over(settings.scaling.drain_timeout.min(left));
        // Once the budget is used up it stays so for the day; otherwise the reserve kept for draining would be spent
        // again.
        let is_over = fleet.spent_day == Some(day) || spent.plus(owed) > max;
        is_over.then(|| format!("{spent} of {max} a day are spent"))
    }
}

struct Shares {
    loose: u32,
    fleets: BTreeMap<FleetId, u32>,
}
