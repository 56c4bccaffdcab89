//! Fleets and their rented machines as the plane holds them: restored from documents, stored when they change,
//! ordered by operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::listing::{Lists, Orphan};
use super::{DomainEvent, Plane, PlaneAnswer};
use crate::alarm::Alarm;
use crate::cycle::CyclePlan;
use crate::document::{Collection, Document};
use crate::fleet::{Fleet, FleetOrder, FleetSettings, ScalingPolicy};
use crate::id::{FleetId, MachineId, PodId, Shape, WorkerId};
use crate::job::Job;
use crate::machine::WorkerState;
use crate::provider::PodTag;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rental::{Bootstrap, Rental, RentalPhase};
use crate::scale::ScalingDirection;
use crate::time::Timestamp;
use crate::worker::Worker;

/// Id of the document that holds the deployment's name; no fleet can have this id.
const DEPLOYMENT: &str = ".deployment";

/// Everything the plane holds about fleets.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleets {
    /// Part of every tag.
    pub(super) deployment: Option<String>,
    /// An earlier plane used this deployment name and may have rented more than this store knows: the store may be an
    /// old backup.
    pub(super) is_restored: bool,
    pub(super) fleets: BTreeMap<FleetId, Fleet>,
    pub(super) rentals: BTreeMap<MachineId, Rental>,
    /// The workers on each rented machine.
    pub(super) workers_on: BTreeMap<MachineId, BTreeSet<WorkerId>>,
    /// Pods with our tag that have no record.
    pub(super) orphans: BTreeMap<PodId, Orphan>,
    /// What each provider has answered since this plane started.
    pub(super) lists: BTreeMap<FleetId, Lists>,
    /// Progress of installing a worker on machines whose image starts none.
    pub(super) bootstraps: BTreeMap<MachineId, Bootstrap>,
    /// What the last cycle held back for each fleet, and why.
    pub(super) held_back: BTreeMap<FleetId, Vec<String>>,
    /// Machines ordered within the same millisecond get different numbers.
    pub(super) last_number: u64,
}

impl Fleets {
    pub(super) fn restore(&mut self, now: Timestamp, document: &Document) {
        let body = document.body.get();
        match document.collection {
            Collection::Fleet if document.id == DEPLOYMENT => {
                self.deployment = serde_json::from_str(body).ok();
                self.is_restored = self.deployment.is_some();
            }
            Collection::Fleet => {
                if let (Ok(id), Ok(fleet)) = (document.id.parse(), serde_json::from_str(body)) {
                    self.fleets.insert(id, fleet);
                }
            }
            Collection::Machine => {
                if let Ok(mut rental) = serde_json::from_str::<Rental>(body) {
                    let number =
                        PodTag::parse(&rental.tag).and_then(|tag| u64::from_str_radix(tag.number, 36).ok());
                    self.last_number = self.last_number.max(number.unwrap_or(0));
                    if rental.phase == RentalPhase::Wanted {
                        let reason = "the plane stopped while it was being created".to_owned();
                        rental.go(now, RentalPhase::Lost, reason);
                        rental.is_unheard = true;
                    }
                    self.rentals.insert(rental.machine.clone(), rental);
                }
            }
            _ => {}
        }
    }
}

impl Fleets {
    /// Registers a worker on its machine, if the machine is rented.
    pub(super) fn add_worker(&mut self, worker: &Worker) {
        if self.rentals.contains_key(&worker.machine) {
            self.workers_on.entry(worker.machine.clone()).or_default().insert(worker.id.clone());
        }
    }

    pub(super) fn remove_worker(&mut self, worker: &Worker) {
        if let Some(workers) = self.workers_on.get_mut(&worker.machine) {
            workers.remove(&worker.id);
        }
    }
}

impl Plane {
    /// The name that is part of every pod tag; nothing is rented without it.
    pub fn deployment(&self) -> Option<&str> {
        self.fleets.deployment.as_deref()
    }

    pub fn rentals(&self) -> impl Iterator<Item = &Rental> {
        self.fleets.rentals.values()
    }

    pub fn rental(&self, machine: &MachineId) -> Option<&Rental> {
        self.fleets.rentals.get(machine)
    }

    /// Progress of installing a worker on this machine, if that is needed.
    pub fn bootstrap(&self, machine: &MachineId) -> Option<&Bootstrap> {
        self.fleets.bootstraps.get(machine)
    }

    /// State of a fleet; the default for a fleet without history.
    pub fn fleet(&self, id: &FleetId) -> Fleet {
        self.fleets.fleets.get(id).cloned().unwrap_or_default()
    }

    /// What the last cycle held back for a fleet, and why.
    pub fn held_back(&self, id: &FleetId) -> &[String] {
        self.fleets.held_back.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn fleet_settings(&self, id: &FleetId) -> Option<&FleetSettings> {
        self.settings.fleets.iter().find(|fleet| fleet.id == *id)
    }

    /// After a start or reload: asks the providers for their pods, and resumes draining.
    pub(super) fn schedule_fleets(&mut self, now: Timestamp) {
        let has_fleets = !self.settings.fleets.is_empty();
        if has_fleets {
            self.cycle_soon(now);
        }
        if has_fleets || self.workers.iter().any(|worker| worker.drain_until.is_some()) {
            self.outbox.set_alarm(Alarm::Provider, Some(now));
        }
    }

    /// A fleet that was removed from the settings is kept until its last machine is returned; otherwise the machine
    /// would bill for ever.
    pub(super) fn adopt_orphaned_fleets(&mut self) {
        let with_machines: BTreeSet<_> =
            self.fleets.rentals.values().map(|rental| rental.fleet.clone()).collect();
        for id in with_machines {
            if self.fleet_settings(&id).is_none() {
                self.settings.fleets.push(FleetSettings::removed(id));
            }
        }
    }

    pub(super) fn name_deployment(&mut self, name: String) -> PlaneAnswer {
        if self.fleets.deployment.is_none()
            && let Ok(body) = serde_json::value::to_raw_value(&name)
        {
            let document = Document {
                collection: Collection::Fleet,
                id: DEPLOYMENT.to_owned(),
                tenant: None,
                index_key: String::new(),
                expires_at: None,
                body: Arc::<RawValue>::from(body),
            };
            self.outbox.record(Record::Document(Arc::new(document)));
            self.fleets.deployment = Some(name);
        }
        PlaneAnswer::Done
    }

    pub(super) fn order(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        order: FleetOrder,
    ) -> Result<PlaneAnswer, Refusal> {
        if self.fleet_settings(id).is_none() {
            return Err(Refusal::UnknownFleet(id.clone()));
        }
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        let (order, machines) = match order {
            FleetOrder::Pause { reason } => {
                fleet.paused = Some(reason);
                ("paused", None)
            }
            FleetOrder::Resume => {
                fleet.paused = None;
                ("resumed", None)
            }
            FleetOrder::Scale { machines } => {
                fleet.machines = machines;
                ("scaled", machines)
            }
            FleetOrder::ResetBrake => {
                fleet.creation.reset();
                fleet.avoided.clear();
                (fleet.creation_paused, fleet.quiet_until) = (None, None);
                ("brake lifted", None)
            }
        };
        self.store_fleet(id);
        self.outbox.publish(now, DomainEvent::FleetOrder { fleet: id, order, machines });
        self.cycle_soon(now);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn store_fleet(&mut self, id: &FleetId) {
        if let Some(document) = self.fleets.fleets.get(id).and_then(|fleet| fleet.document(id)) {
            self.outbox.record(Record::Document(document));
        }
    }

    pub(super) fn store_rental(&mut self, machine: &MachineId) {
        if let Some(document) = self.fleets.rentals.get(machine).and_then(Rental::document) {
            self.outbox.record(Record::Document(document));
        }
    }

    /// Records the scaling direction, so that a fleet does not reverse too often.
    pub(super) fn record_direction(
        &mut self,
        now: Timestamp,
        id: Option<&FleetId>,
        direction: ScalingDirection,
    ) {
        let Some(id) = id else { return };
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        let before = fleet.heading;
        fleet.heading.record(now, direction);
        if fleet.heading != before {
            self.store_fleet(id);
        }
    }

    pub(super) fn remember_plan(&mut self, id: Option<&FleetId>, plan: &CyclePlan) {
        if let Some(id) = id {
            self.fleets.held_back.insert(id.clone(), plan.held_back.clone());
        }
    }

    /// Records how long a shape took, for fleets that scale by latency.
    pub(super) fn note_pace(&mut self, worker: &WorkerId, shape: &Shape, took: Duration) {
        let Some(id) = self.workers.get(worker).and_then(|worker| self.fleet_for_worker(worker)).cloned()
        else {
            return;
        };
        let by_latency = |settings: &FleetSettings| matches!(settings.policy, ScalingPolicy::Latency { .. });
        if self.fleet_settings(&id).is_some_and(by_latency) {
            let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            if self.fleets.fleets.entry(id.clone()).or_default().record_run_time(shape, took) {
                self.store_fleet(&id);
            }
        }
    }

    /// Machines that will help a waiting job, or why none is being rented.
    pub(super) fn pending_machines(&self, job: &Job) -> Option<String> {
        let demand = &job.kind.demand;
        let fleets =
            self.settings.fleets.iter().filter(|fleet| fleet.can_rent && self.could_run(fleet, demand));
        let mut held_back = None;
        for fleet in fleets {
            let spawning = self.rentals_of(&fleet.id).filter(|it| it.phase.state() == WorkerState::Spawning);
            match spawning.count() {
                0 => held_back = held_back.or_else(|| self.fleets.held_back.get(&fleet.id)?.first()),
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
}
