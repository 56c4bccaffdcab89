//! Uptime history of workers and machines across restarts, and alerts for those that go stale too often. A worker's
//! history is in its row. A machine has a history of its own: it is online while any of its workers is, which cannot
//! be derived from theirs.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{DomainEvent, Plane};
use crate::document::{Collection, Document};
use crate::id::{MachineId, WorkerId};
use crate::record::Record;
use crate::reliability::Reliability;
use crate::time::Timestamp;

/// A change of presence.
#[derive(Clone, Copy, Debug)]
pub(super) enum PresenceChange {
    Up,
    /// With the time of the last beat.
    Stale(Timestamp),
    Away,
}

impl Plane {
    pub(super) fn restore_reliability(&mut self, document: &Document) {
        if document.collection == Collection::Reliability
            && let (Ok(machine), Ok(it)) = (document.id.parse(), serde_json::from_str(document.body.get()))
        {
            self.machines.insert(machine, it);
        }
    }

    /// The last worker of a machine went offline, or its first one came online.
    pub(super) fn record_machine_presence(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        went: PresenceChange,
    ) {
        let it = self.machines.entry(machine.clone()).or_insert_with(|| Reliability::new(now));
        match went {
            PresenceChange::Up => it.mark_up(now),
            PresenceChange::Stale(seen_at) => it.mark_stale(now, seen_at),
            PresenceChange::Away => it.mark_away(now),
        }
        if it.take_alert(now, self.settings.flaps_before_alert) {
            let stale_in_an_hour = it.stale_last_hour(now);
            self.outbox.publish(now, DomainEvent::MachineUnreliable { machine, stale_in_an_hour });
        }
        let body = self.machines.get(machine).and_then(|it| serde_json::value::to_raw_value(it).ok());
        if let Some(body) = body {
            self.outbox.record(Record::Document(Arc::new(Document {
                collection: Collection::Reliability,
                id: machine.to_string(),
                tenant: None,
                index_key: String::new(),
                expires_at: None,
                body: Arc::<RawValue>::from(body),
            })));
        }
    }

    pub(super) fn alert_if_unreliable(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.reliability.take_alert(now, self.settings.flaps_before_alert) {
            let stale_in_an_hour = worker.reliability.stale_last_hour(now);
            self.store_worker(now, id);
            self.outbox.publish(now, DomainEvent::WorkerUnreliable { worker: id, stale_in_an_hour });
        }
    }

    /// Drops a machine's history once no worker of it is known.
    pub(super) fn forget_machine(&mut self, machine: &MachineId) {
        let is_known = self.workers.values().any(|worker| worker.machine == *machine);
        if !is_known && self.machines.remove(machine).is_some() {
            let id = machine.to_string();
            self.outbox.record(Record::DocumentDeleted { collection: Collection::Reliability, id });
        }
    }

    /// A machine's uptime history, if any worker of it is known.
    pub fn machine_reliability(&self, machine: &MachineId) -> Option<&Reliability> {
        self.machines.get(machine)
    }

    /// Machines that went stale too often within the last hour.
    pub fn unreliable_machines(&self, now: Timestamp) -> impl Iterator<Item = &MachineId> {
        let is_so = move |it: &Reliability| it.is_unreliable(now, self.settings.flaps_before_alert);
        self.machines.iter().filter(move |(_, it)| is_so(it)).map(|(machine, _)| machine)
    }

    /// Workers that went stale too often within the last hour.
    pub fn unreliable_workers(&self, now: Timestamp) -> impl Iterator<Item = &WorkerId> {
        let is_so = move |it: &Reliability| it.is_unreliable(now, self.settings.flaps_before_alert);
        self.workers.values().filter(move |worker| is_so(&worker.reliability)).map(|worker| &worker.id)
    }
}
