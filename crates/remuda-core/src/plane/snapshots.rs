//! The input of each fleet's plan: its workers, its share of the queue, its budget. Read-only.
//!
//! The queue is shared out in order: workers without a fleet first, as many jobs each as the threshold allows; then
//! every fleet up to its maximum; the rest goes to the first fleet that could run it. A job that no worker of a fleet
//! could run is not counted for it: renting more of the same would not help.

use std::collections::BTreeMap;

use super::Plane;
use super::router::mismatch;
use crate::cycle::{self, CyclePlan, FleetSnapshot, WorkerView};
use crate::fleet::{Fleet, FleetSettings, ScalingPolicy};
use crate::id::FleetId;
use crate::machine::{self, WorkerState};
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
        let fleet = &self.fleets.state(&settings.id);
        let rented = self.fleets.of_fleet(&settings.id).map(|rental| self.rental_view(now, rental, settings));
        let own = self.workers.iter().filter(|worker| {
            !self.fleets.is_rented(&worker.machine) && self.fleet_for_worker(worker) == Some(&settings.id)
        });
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
            orphans: u32::try_from(self.fleets.orphans(&settings.id)).unwrap_or(u32::MAX),
            creation_hold: self.fleets.creation_hold(now, fleet, settings),
            affordable: self.fleets.affordable(now, fleet, settings),
            spent: self.fleets.is_spent(now, fleet, settings),
            hour_max: settings.hour_max,
            problem: fleet.key_problem(),
        }
    }

    /// A rented machine as one worker, however many agents run on it.
    fn rental_view(&self, now: Timestamp, rental: &Rental, settings: &FleetSettings) -> WorkerView {
        let housed = self.fleets.workers_on(&rental.machine);
        let there = || housed.clone().filter_map(|worker| self.workers.get(worker));
        let is_ready = |worker: &Worker| match &worker.check {
            Some(check) => check.passed,
            None => worker.unavailable_reason.is_none(),
        };
        let bad_check = there().filter_map(|it| it.check.as_ref()).find(|check| !check.passed);
        let bad_check = bad_check.map(|check| format!("start check: {}", check.problem));
        WorkerView {
            id: rental.worker(),
            state: rental.phase().state(),
            since: rental.since,
            presence: machine::machine_presence(there().map(|worker| worker.presence())),
            is_rented: true,
            counts_against_max: true,
            price: self.price(rental).unwrap_or_default(),
            is_running: rental.running_at().is_some(),
            is_registered: there().next().is_some_and(|_| rental.joined_at().is_some()),
            start_check_passed: there()
                .all(|worker| worker.has_beaten && worker.beat_seq > 0 && is_ready(worker)),
            trouble: rental
                .overdue(now, settings)
                .or(bad_check.filter(|_| rental.phase() == RentalPhase::Made)),
            is_outdated: rental.revision != settings.revision,
            drain_until: rental.drain_until(),
            beat_at: there().map(|worker| now.minus(worker.watch.silent_for(now))).max(),
            attempts: there().flat_map(|worker| self.attempts_of(worker)).collect(),
            idle_since: there().map(|worker| worker.idle_since).max(),
            warm: there().map(Worker::warm_shapes).sum(),
            metrics_at: there().filter_map(|worker| worker.metrics_at).max(),
        }
    }

    /// The fleet of a worker: that of its rented machine, else the one that lists its machine, else the one it names.
    pub fn fleet_for_worker<'a>(&'a self, worker: &'a Worker) -> Option<&'a FleetId> {
        if let Some(rental) = self.fleets.rental(&worker.machine) {
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
            worker.state() == WorkerState::Active && self.fleet_for_worker(worker) == Some(&fleet.id)
        });
        u32::try_from(active.count()).unwrap_or(u32::MAX)
    }

    /// Whether a machine of this fleet could run such a job, judged by its settings and by the workers it has or had.
    pub(super) fn could_run(&self, fleet: &FleetSettings, demand: &Demand) -> bool {
        let needs = demand.needs();
        let is_served = fleet.services.is_empty() || fleet.services.contains(demand.service());
        let is_labelled = needs.labels.iter().all(|(name, value)| fleet.labels.get(name) == Some(value));
        let mut known = self.workers.iter().filter(|it| it.fleet.as_ref() == Some(&fleet.id)).peekable();
        let has_no_workers = known.peek().is_none();
        is_served
            && is_labelled
            && if has_no_workers {
                needs.pin.is_none()
            } else {
                known.any(|it| mismatch(demand, it).is_none())
            }
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
}

struct Shares {
    loose: u32,
    fleets: BTreeMap<FleetId, u32>,
}
