//! Fleets and their machines as the plane holds them: restored from their shelves, stored when they change, ordered
//! about by people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::listing::{Lists, Orphan};
use super::{About, Plane, PlaneAnswer, detail};
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

/// The document on the fleets' shelf that holds the name of this deployment; no fleet can be called so.
const DEPLOYMENT: &str = ".deployment";

/// All that the plane holds of fleets.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleets {
    /// Part of every tag.
    pub(super) deployment: Option<String>,
    /// Others may have rented under this name before this plane began, and more than its store tells: it may be an old one.
    pub(super) is_heir: bool,
    pub(super) fleets: BTreeMap<FleetId, Fleet>,
    pub(super) rentals: BTreeMap<MachineId, Rental>,
    /// The workers on each of them.
    pub(super) on: BTreeMap<MachineId, BTreeSet<WorkerId>>,
    /// Pods with our tag that we know nothing of.
    pub(super) orphans: BTreeMap<PodId, Orphan>,
    /// What is known of each provider since this plane began.
    pub(super) lists: BTreeMap<FleetId, Lists>,
    /// Machines to which a worker is brought, and how that stands.
    pub(super) visits: BTreeMap<MachineId, Bootstrap>,
    /// What the last cycle would have done for each fleet, and what forbade it.
    pub(super) held_back: BTreeMap<FleetId, Vec<String>>,
    /// Machines wanted within the same millisecond get different names.
    pub(super) last_number: u64,
}

impl Fleets {
    pub(super) fn restore(&mut self, now: Timestamp, document: &Document) {
        let body = document.body.get();
        match document.collection {
            Collection::Fleet if document.id == DEPLOYMENT => {
                self.deployment = serde_json::from_str(body).ok();
                self.is_heir = self.deployment.is_some();
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
                        let reason = "the plane ended while it was being made".to_owned();
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
    /// A worker came to be on its machine; only rented ones are kept in mind.
    pub(super) fn housed(&mut self, worker: &Worker) {
        if self.rentals.contains_key(&worker.machine) {
            self.on.entry(worker.machine.clone()).or_default().insert(worker.id.clone());
        }
    }

    pub(super) fn gone_from(&mut self, worker: &Worker) {
        if let Some(workers) = self.on.get_mut(&worker.machine) {
            workers.remove(&worker.id);
        }
    }
}

impl Plane {
    /// The name that is part of every tag; without one nothing is rented.
    pub fn deployment(&self) -> Option<&str> {
        self.fleets.deployment.as_deref()
    }

    pub fn rentals(&self) -> impl Iterator<Item = &Rental> {
        self.fleets.rentals.values()
    }

    pub fn rental(&self, machine: &MachineId) -> Option<&Rental> {
        self.fleets.rentals.get(machine)
    }

    /// How bringing a worker to a machine stands, where it has to be brought.
    pub fn visit(&self, machine: &MachineId) -> Option<&Bootstrap> {
        self.fleets.visits.get(machine)
    }

    /// How a fleet stands; one that nothing ever happened to stands as on its first day.
    pub fn fleet(&self, id: &FleetId) -> Fleet {
        self.fleets.fleets.get(id).cloned().unwrap_or_default()
    }

    /// What the last cycle would have done for a fleet, and what forbade it.
    pub fn held_back(&self, id: &FleetId) -> &[String] {
        self.fleets.held_back.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn fleet_settings(&self, id: &FleetId) -> Option<&FleetSettings> {
        self.settings.fleets.iter().find(|fleet| fleet.id == *id)
    }

    /// The plane began, or its rules changed: providers are asked what there is, and whoever drains is not forgotten.
    pub(super) fn look_at_fleets(&mut self, now: Timestamp) {
        let has_fleets = !self.settings.fleets.is_empty();
        if has_fleets {
            self.cycle_soon(now);
        }
        if has_fleets || self.workers.values().any(|worker| worker.drain_until.is_some()) {
            self.alarms.set(Alarm::Provider, Some(now));
        }
    }

    /// Fleets that are in the settings no longer are looked after until their last machine is gone, or it would bill for
    /// ever.
    pub(super) fn adopt_orphaned_fleets(&mut self) {
        let with_machines: BTreeSet<_> =
            self.fleets.rentals.values().map(|rental| rental.fleet.clone()).collect();
        for id in with_machines {
            if self.fleet_settings(&id).is_none() {
                self.settings.fleets.push(FleetSettings::removed(id));
            }
        }
    }

    pub(super) fn named(&mut self, name: String) -> PlaneAnswer {
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
            self.records.push(Record::Document(Arc::new(document)));
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
        let (word, amount) = match order {
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
                fleet.creation.lift();
                fleet.avoided.clear();
                (fleet.creation_paused, fleet.quiet_until) = (None, None);
                ("brake lifted", None)
            }
        };
        self.store_fleet(id);
        let told = detail([
            ("fleet", id.as_str().into()),
            ("order", word.into()),
            ("machines", amount.map_or(serde_json::Value::Null, Into::into)),
        ]);
        self.happened(now, "fleet:order", About::default(), told);
        self.cycle_soon(now);
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn store_fleet(&mut self, id: &FleetId) {
        let document = self.fleets.fleets.get(id).and_then(|fleet| fleet.document(id));
        self.records.extend(document.map(Record::Document));
    }

    pub(super) fn store_rental(&mut self, machine: &MachineId) {
        let document = self.fleets.rentals.get(machine).and_then(Rental::document);
        self.records.extend(document.map(Record::Document));
    }

    /// Which way the fleet goes, kept so that it does not turn too often.
    pub(super) fn went(&mut self, now: Timestamp, id: Option<&FleetId>, direction: ScalingDirection) {
        let Some(id) = id else { return };
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        let before = fleet.heading;
        fleet.heading.record(now, direction);
        if fleet.heading != before {
            self.store_fleet(id);
        }
    }

    pub(super) fn scaled(
        &mut self,
        now: Timestamp,
        id: Option<&FleetId>,
        name: &'static str,
        worker: Option<&WorkerId>,
        count: u32,
        reason: &str,
    ) {
        let mut told = detail([("count", count.into()), ("reason", reason.into())]);
        if let Some(id) = id {
            told.insert("fleet".to_owned(), id.as_str().into());
        }
        self.happened(now, name, worker.map_or_else(About::default, About::worker), told);
    }

    pub(super) fn remember_plan(&mut self, id: Option<&FleetId>, plan: &CyclePlan) {
        if let Some(id) = id {
            self.fleets.held_back.insert(id.clone(), plan.held_back.clone());
        }
    }

    /// How long a shape took on a fleet that is scaled by it.
    pub(super) fn note_pace(&mut self, worker: &WorkerId, shape: &Shape, took: Duration) {
        let Some(id) = self.workers.get(worker).and_then(|worker| self.fleet_of(worker)).cloned() else {
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

    /// What is on its way for a job that waits, or why nothing is.
    pub(super) fn coming(&self, job: &Job) -> Option<String> {
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
        held_back.map(|reason| format!("no machine comes: {reason}"))
    }

    /// Something changed that the cycle should see: it runs at once, and not more than once a second.
    pub(super) fn cycle_soon(&mut self, now: Timestamp) {
        let soon = self.cycled_at.plus(super::TICK_MAX).max(now);
        if self.alarms.get(&Alarm::Cycle).is_none_or(|at| soon < at) {
            self.alarms.set(Alarm::Cycle, Some(soon));
        }
    }
}
