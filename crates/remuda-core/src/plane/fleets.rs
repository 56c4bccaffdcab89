//! Fleets and their rented machines: restored from documents, stored when they change, ordered by operators.
//!
//! | part | decides |
//! |---|---|
//! | `rented` | renting machines and returning them |
//! | `lists` | what a provider's lists prove, and when to call it |
//! | `budget` | what fleets cost and may spend |

mod budget;
mod lists;
mod rented;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;

use self::lists::Lists;
use super::{FleetEvent, Outbox, ProviderCallCounts};
use crate::cycle::CyclePlan;
use crate::document::{Collection, Document};
use crate::fleet::{Fleet, FleetOrder};
use crate::id::{FleetId, MachineId, Shape, WorkerId};
use crate::machine::WorkerState;
use crate::money::Money;
use crate::provider::{PodTag, ProviderEvent};
use crate::record::Record;
use crate::rental::{Bootstrap, Rental, RentalEvent};
use crate::scale::ScalingDirection;
use crate::tally::Tally;
use crate::time::Timestamp;
use crate::worker::Worker;

/// Id of the document that holds the deployment's name; no fleet can have this id.
const DEPLOYMENT: &str = ".deployment";

/// Everything the plane holds about fleets.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleets {
    /// Part of every tag.
    deployment: Option<String>,
    /// An earlier plane used this deployment name and may have rented more than this store knows: the store may be an
    /// old backup.
    is_restored: bool,
    states: BTreeMap<FleetId, Fleet>,
    rentals: BTreeMap<MachineId, Rental>,
    /// The workers on each rented machine.
    workers_on: BTreeMap<MachineId, BTreeSet<WorkerId>>,
    /// What each provider has answered since this plane started.
    lists: BTreeMap<FleetId, Lists>,
    /// Progress of installing a worker on machines whose image starts none.
    bootstraps: BTreeMap<MachineId, Bootstrap>,
    /// What the last cycle held back for each fleet, and why.
    held_back: BTreeMap<FleetId, Vec<String>>,
    /// Machines ordered within the same millisecond get different numbers.
    last_number: u64,
    calls: Tally<ProviderCallCounts>,
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
                    self.states.insert(id, fleet);
                }
            }
            Collection::Machine => {
                if let Ok(mut rental) = serde_json::from_str::<Rental>(body) {
                    let number =
                        PodTag::parse(&rental.tag).and_then(|tag| u64::from_str_radix(tag.number, 36).ok());
                    self.last_number = self.last_number.max(number.unwrap_or(0));
                    let reason = "the plane stopped while it was being created".to_owned();
                    rental.apply(now, RentalEvent::ReplyLost { by_restart: true }, reason);
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

impl Fleets {
    /// The name that is part of every pod tag; nothing is rented without it.
    pub(super) fn deployment(&self) -> Option<&str> {
        self.deployment.as_deref()
    }

    pub(super) fn calls(&self) -> &ProviderCallCounts {
        &self.calls
    }

    /// Counts an answer of a provider.
    pub(super) fn count_answer(&mut self, answer: &ProviderEvent) {
        self.calls.record(answer);
    }

    pub(super) fn rentals(&self) -> impl Iterator<Item = &Rental> {
        self.rentals.values()
    }

    pub(super) fn of_fleet<'a>(&'a self, fleet: &'a FleetId) -> impl Iterator<Item = &'a Rental> {
        self.rentals.values().filter(move |rental| rental.fleet == *fleet)
    }

    /// Machines that are being created.
    pub(super) fn spawning(&self, fleet: &FleetId) -> usize {
        self.of_fleet(fleet).filter(|rental| rental.phase().state() == WorkerState::Spawning).count()
    }

    pub(super) fn rental(&self, machine: &MachineId) -> Option<&Rental> {
        self.rentals.get(machine)
    }

    /// A worker joined on this machine, if it is rented. Returns the state and the fleet that it has from its machine.
    pub(super) fn joined(&mut self, now: Timestamp, machine: &MachineId) -> Option<(WorkerState, FleetId)> {
        let rental = self.rentals.get_mut(machine)?;
        rental.joined(now);
        Some((rental.phase().state(), rental.fleet.clone()))
    }

    pub(super) fn is_rented(&self, machine: &MachineId) -> bool {
        self.rentals.contains_key(machine)
    }

    /// The workers on a rented machine.
    pub(super) fn workers_on(&self, machine: &MachineId) -> impl Iterator<Item = &WorkerId> + Clone {
        self.workers_on.get(machine).into_iter().flatten()
    }

    /// Pods of a fleet with our tag that have no record.
    pub(super) fn orphans(&self, fleet: &FleetId) -> usize {
        self.states.get(fleet).map_or(0, |fleet| fleet.orphans.len())
    }

    /// Progress of installing a worker on this machine, if that is needed.
    pub(super) fn bootstrap(&self, machine: &MachineId) -> Option<&Bootstrap> {
        self.bootstraps.get(machine)
    }

    pub(super) fn set_bootstrap(&mut self, machine: &MachineId, progress: Bootstrap) {
        self.bootstraps.insert(machine.clone(), progress);
    }

    /// State of a fleet; the default for a fleet without history.
    pub(super) fn state(&self, id: &FleetId) -> Fleet {
        self.states.get(id).cloned().unwrap_or_default()
    }

    fn state_mut(&mut self, id: &FleetId) -> &mut Fleet {
        self.states.entry(id.clone()).or_default()
    }

    /// Updates the run time of a shape, for the latency policy.
    pub(super) fn record_run_time(
        &mut self,
        id: &FleetId,
        shape: &Shape,
        took_millis: u64,
        outbox: &mut Outbox,
    ) {
        if self.state_mut(id).record_run_time(shape, took_millis) {
            self.store_fleet(id, outbox);
        }
    }

    /// The provider reported the prices of a fleet's offers.
    pub(super) fn set_prices(&mut self, id: &FleetId, prices: BTreeMap<String, Money>, outbox: &mut Outbox) {
        let fleet = self.state_mut(id);
        if fleet.prices != prices {
            fleet.prices = prices;
            self.store_fleet(id, outbox);
        }
    }

    /// What the last cycle held back for a fleet, and why.
    pub(super) fn held_back(&self, id: &FleetId) -> &[String] {
        self.held_back.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn remember_plan(&mut self, id: &FleetId, plan: &CyclePlan) {
        self.held_back.insert(id.clone(), plan.held_back.clone());
    }

    fn publish_phase(&self, now: Timestamp, machine: &MachineId, outbox: &mut Outbox) {
        if let Some(rental) = self.rentals.get(machine) {
            outbox.publish(now, FleetEvent::MachinePhase(rental));
        }
    }

    pub(super) fn name_deployment(&mut self, name: String, outbox: &mut Outbox) {
        if self.deployment.is_none()
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
            outbox.record(Record::Document(Arc::new(document)));
            self.deployment = Some(name);
        }
    }

    pub(super) fn order(&mut self, now: Timestamp, id: &FleetId, order: FleetOrder, outbox: &mut Outbox) {
        let fleet = self.state_mut(id);
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
                (fleet.creation_paused, fleet.quiet_until, fleet.key_refusal) = (None, None, None);
                ("brake lifted", None)
            }
        };
        self.store_fleet(id, outbox);
        outbox.publish(now, FleetEvent::Order { fleet: id, order, machines });
    }

    fn store_fleet(&self, id: &FleetId, outbox: &mut Outbox) {
        if let Some(document) = self.states.get(id).and_then(|fleet| fleet.document(id)) {
            outbox.record(Record::Document(document));
        }
    }

    pub(super) fn store_rental(&self, machine: &MachineId, outbox: &mut Outbox) {
        if let Some(document) = self.rentals.get(machine).and_then(Rental::document) {
            outbox.record(Record::Document(document));
        }
    }

    /// Records the scaling direction, so that a fleet does not reverse too often.
    pub(super) fn record_direction(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        direction: ScalingDirection,
        outbox: &mut Outbox,
    ) {
        let fleet = self.state_mut(id);
        let before = fleet.heading;
        fleet.heading.record(now, direction);
        if fleet.heading != before {
            self.store_fleet(id, outbox);
        }
    }
}
