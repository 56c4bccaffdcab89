//! Fleets and their machines as the plane holds them: restored from their shelves, stored when they change, ordered
//! about by people.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::{About, Answer, Plane, detail};
use crate::alarm::Alarm;
use crate::document::{Document, Shelf};
use crate::fleet::{Fleet, FleetSettings, Order};
use crate::id::{FleetId, MachineId};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::rental::Rental;
use crate::time::Timestamp;

/// The document on the fleets' shelf that holds the name of this deployment; no fleet can be called so.
const DEPLOYMENT: &str = ".deployment";

/// All that the plane holds of fleets.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleets {
    /// Part of every tag.
    pub(super) deployment: Option<String>,
    pub(super) fleets: BTreeMap<FleetId, Fleet>,
    pub(super) rentals: BTreeMap<MachineId, Rental>,
    /// Pods with our tag that we know nothing of, and since when they are seen.
    pub(super) orphans: BTreeMap<crate::id::PodId, Timestamp>,
    /// Lists in a row that lacked most of what should be there.
    pub(super) doubtful_lists: BTreeMap<FleetId, u32>,
    /// Machines wanted within the same millisecond get different names.
    pub(super) last_number: u64,
}

impl Fleets {
    pub(super) fn restore(&mut self, document: &Document) {
        let body = document.body.get();
        match document.shelf {
            Shelf::Fleet if document.id == DEPLOYMENT => self.deployment = serde_json::from_str(body).ok(),
            Shelf::Fleet => {
                if let (Ok(id), Ok(fleet)) = (document.id.parse(), serde_json::from_str(body)) {
                    self.fleets.insert(id, fleet);
                }
            }
            Shelf::Machine => {
                if let Ok(rental) = serde_json::from_str::<Rental>(body) {
                    self.rentals.insert(rental.machine.clone(), rental);
                }
            }
            _ => {}
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

    /// How a fleet stands; one that nothing ever happened to stands as on its first day.
    pub fn fleet(&self, id: &FleetId) -> Fleet {
        self.fleets.fleets.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn fleet_settings(&self, id: &FleetId) -> Option<&FleetSettings> {
        self.settings.fleets.iter().find(|fleet| fleet.id == *id)
    }

    pub(super) fn named(&mut self, name: String) -> Answer {
        if self.fleets.deployment.is_none()
            && let Ok(body) = serde_json::value::to_raw_value(&name)
        {
            let document = Document {
                shelf: Shelf::Fleet,
                id: DEPLOYMENT.to_owned(),
                tenant: None,
                mark: String::new(),
                expires_at: None,
                body: Arc::<RawValue>::from(body),
            };
            self.records.push(Record::Document(Arc::new(document)));
            self.fleets.deployment = Some(name);
        }
        Answer::Done
    }

    pub(super) fn order(&mut self, now: Timestamp, id: &FleetId, order: Order) -> Result<Answer, Refusal> {
        if self.fleet_settings(id).is_none() {
            return Err(Refusal::UnknownFleet(id.clone()));
        }
        let fleet = self.fleets.fleets.entry(id.clone()).or_default();
        let (word, amount) = match order {
            Order::Pause { reason } => {
                fleet.paused = Some(reason);
                ("paused", None)
            }
            Order::Resume => {
                fleet.paused = None;
                ("resumed", None)
            }
            Order::Scale { machines } => {
                fleet.machines = machines;
                ("scaled", machines)
            }
            Order::LiftBrake => {
                fleet.creation.lift();
                fleet.avoided.clear();
                (fleet.creates_after, fleet.quiet_until) = (None, None);
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
        Ok(Answer::Done)
    }

    pub(super) fn store_fleet(&mut self, id: &FleetId) {
        let document = self.fleets.fleets.get(id).and_then(|fleet| fleet.document(id));
        self.records.extend(document.map(Record::Document));
    }

    pub(super) fn store_rental(&mut self, machine: &MachineId) {
        let document = self.fleets.rentals.get(machine).and_then(Rental::document);
        self.records.extend(document.map(Record::Document));
    }

    /// Something changed that the cycle should see: it runs at once, and not more than once a second.
    pub(super) fn cycle_soon(&mut self, now: Timestamp) {
        let soon = self.cycled_at.plus(super::TICK_MAX).max(now);
        if self.alarms.of(&Alarm::Cycle).is_none_or(|at| soon < at) {
            self.alarms.set(Alarm::Cycle, Some(soon));
        }
    }
}
