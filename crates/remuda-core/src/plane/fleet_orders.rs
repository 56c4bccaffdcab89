//! Orders of operators for fleets, what fleets have to do with waiting jobs, and their costs for readers.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Plane, PlaneAnswer};
use crate::alarm::Alarm;
use crate::cost::CostWindow;
use crate::fleet::{Fleet, FleetOrder, FleetSettings, ScalingPolicy, hour_of};
use crate::id::{FleetId, MachineId, Shape, WorkerId};
use crate::job::Job;
use crate::money::Money;
use crate::refusal::Refusal;
use crate::rental::{Bootstrap, Rental};
use crate::time::Timestamp;

impl Plane {
    /// The name that is part of every pod tag; nothing is rented without it.
    pub fn deployment(&self) -> Option<&str> {
        self.fleets.deployment()
    }

    pub fn rentals(&self) -> impl Iterator<Item = &Rental> {
        self.fleets.rentals()
    }

    pub fn rental(&self, machine: &MachineId) -> Option<&Rental> {
        self.fleets.rental(machine)
    }

    /// Progress of installing a worker on this machine, if that is needed.
    pub fn bootstrap(&self, machine: &MachineId) -> Option<&Bootstrap> {
        self.fleets.bootstrap(machine)
    }

    /// State of a fleet; the default for a fleet without history.
    pub fn fleet(&self, id: &FleetId) -> Fleet {
        self.fleets.state(id)
    }

    /// What the last cycle held back for a fleet, and why.
    pub fn held_back(&self, id: &FleetId) -> &[String] {
        self.fleets.held_back(id)
    }

    /// Why this fleet gets no new machines at all, whether it wants one or not: for people who look at the fleet, and
    /// for jobs that wait.
    pub fn fleet_problem(&self, now: Timestamp, id: &FleetId) -> Option<String> {
        let (fleet, settings) = (self.fleets.state(id), self.settings.fleet(id)?);
        if !settings.can_rent {
            return None;
        }
        let paused = || fleet.paused.as_ref().map(|reason| format!("the fleet is paused: {reason}"));
        let is_closed = fleet.machines == Some(0) || settings.scaling.machines_max == 0;
        let closed = || is_closed.then(|| "the fleet is scaled to 0 machines".to_owned());
        let spent = || self.fleets.is_spent(now, &fleet, settings);
        let hold = || fleet.creation_hold(now);
        let brake = || fleet.creation.is_on(now).then(|| fleet.creation.reason(now)).flatten();
        fleet.key_problem().or_else(paused).or_else(closed).or_else(spent).or_else(hold).or_else(brake)
    }

    /// Hourly price of a machine: the provider's, else that of its offer, else the configured maximum.
    pub fn price(&self, rental: &Rental) -> Option<Money> {
        self.fleets.price(rental, &self.settings)
    }

    /// Hourly price of all machines of a fleet, in every phase, and of its orphaned pods.
    pub fn fleet_hourly_price(&self, id: &FleetId) -> Money {
        self.fleets.hourly_price(id, &self.settings)
    }

    /// Cost of a machine since its request.
    pub fn machine_cost(&self, rental: &Rental, now: Timestamp) -> Money {
        self.fleets.machine_cost(rental, now, &self.settings)
    }

    /// Cost of a fleet within the window.
    pub fn spent(&self, id: &FleetId, window: CostWindow, now: Timestamp) -> Money {
        self.fleets.spent(id, window, now, &self.settings)
    }

    /// Cost of a fleet since the day began.
    pub fn spent_today(&self, now: Timestamp, settings: &FleetSettings) -> Money {
        self.fleets.spent_today(now, settings)
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
        self.fleets.known(&self.settings)
    }

    pub(super) fn order(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        order: FleetOrder,
    ) -> Result<PlaneAnswer, Refusal> {
        if self.settings.fleet(id).is_none() {
            return Err(Refusal::UnknownFleet(id.clone()));
        }
        self.fleets.order(now, id, order, &mut self.outbox);
        self.cycle_soon(now);
        Ok(PlaneAnswer::Done)
    }

    /// After a start or reload: asks the providers for their pods, and resumes draining.
    pub(super) fn schedule_fleets(&mut self, now: Timestamp) {
        let has_fleets = !self.settings.fleets.is_empty();
        if has_fleets {
            self.cycle_soon(now);
        }
        if has_fleets || self.workers.iter().any(|worker| worker.drain_until().is_some()) {
            self.outbox.set_alarm(Alarm::Provider, Some(now));
        }
    }

    /// A fleet that was removed from the settings is kept until its last machine is returned; otherwise the machine
    /// would bill for ever.
    pub(super) fn adopt_orphaned_fleets(&mut self) {
        let with_machines: BTreeSet<_> = self.fleets.rentals().map(|rental| rental.fleet.clone()).collect();
        for id in with_machines {
            if self.settings.fleet(&id).is_none() {
                self.settings.fleets.push(FleetSettings::removed(id));
            }
        }
    }

    /// Records how long a shape took, for fleets that scale by latency.
    pub(super) fn note_pace(&mut self, worker: &WorkerId, shape: &Shape, took: Duration) {
        let Some(id) = self.workers.get(worker).and_then(|worker| self.fleet_for_worker(worker)).cloned()
        else {
            return;
        };
        let by_latency = |settings: &FleetSettings| matches!(settings.policy, ScalingPolicy::Latency { .. });
        if self.settings.fleet(&id).is_some_and(by_latency) {
            let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            self.fleets.record_run_time(&id, shape, took, &mut self.outbox);
        }
    }

    /// Machines that will help a waiting job, or why none is being rented.
    pub(super) fn pending_machines(&self, now: Timestamp, job: &Job) -> Option<String> {
        let demand = &job.kind.demand;
        let fleets =
            self.settings.fleets.iter().filter(|fleet| fleet.can_rent && self.could_run(fleet, demand));
        let mut held_back = None;
        for fleet in fleets {
            match self.fleets.spawning(&fleet.id) {
                0 => {
                    let problem = || self.fleet_problem(now, &fleet.id);
                    let last = || self.fleets.held_back(&fleet.id).first().cloned();
                    held_back = held_back.or_else(problem).or_else(last);
                }
                1 => return Some("waiting for 1 machine to come up".to_owned()),
                count => return Some(format!("waiting for {count} machines to come up")),
            }
        }
        held_back.map(|reason| format!("no machine is being rented: {reason}"))
    }

    /// Runs the cycle soon, at most once a second.
    pub(super) fn cycle_soon(&mut self, now: Timestamp) {
        self.outbox.hasten_alarm(Alarm::Cycle, self.cycled_at.plus(super::TICK_MAX).max(now));
    }

    /// Hourly price of one slot of a worker: the machine's price divided by all slots on it. None for machines that
    /// are not rented.
    pub(super) fn slot_price(&self, id: &WorkerId) -> Option<Money> {
        let worker = self.workers.get(id)?;
        let rental = self.rental(&worker.machine)?;
        let there = self.fleets.workers_on(&worker.machine);
        let slots = there.filter_map(|other| self.workers.get(other)).map(|other| other.slots).sum();
        Some(self.price(rental)?.shared(slots))
    }
}
