//! Presence and uptime of machines. A machine is online while any of its workers is, so it has a history of its own;
//! a worker's history is in its row. Both are kept across restarts, and raise an alert when they go stale too often.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Workers;
use crate::document::{Collection, Document};
use crate::id::{MachineId, WorkerId};
use crate::machine::{Presence, machine_presence};
use crate::plane::{DomainEvent, FleetEvent, Outbox};
use crate::record::Record;
use crate::reliability::Reliability;
use crate::settings::Settings;
use crate::time::Timestamp;

/// A change of presence.
#[derive(Clone, Copy, Debug)]
pub(in crate::plane) enum PresenceChange {
    Up,
    /// With the time of the last beat.
    Stale(Timestamp),
    Away,
    /// It is silent, and there is no proof that messages arrive: not held against it.
    Unproven,
}

impl Workers {
    pub(in crate::plane) fn restore_machine(&mut self, document: &Document) {
        if document.collection == Collection::Reliability
            && let (Ok(machine), Ok(it)) = (document.id.parse(), serde_json::from_str(document.body.get()))
        {
            self.machines.insert(machine, it);
        }
    }

    /// A worker went offline or came back: its machine changes with it if no other worker there is online.
    pub(in crate::plane) fn update_machine_presence(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        went: PresenceChange,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(worker) = self.known.get(id) else { return };
        let (machine, presence) = (worker.machine.clone(), worker.presence());
        let others = self.on_machine(&machine).filter(|it| it.id != *id);
        if machine_presence(others.map(|it| it.presence())) == Presence::Offline {
            let event = FleetEvent::MachinePresence { machine: &machine, worker: Some(id), presence };
            outbox.publish(now, event);
            self.record_machine_presence(now, &machine, went, settings, outbox);
        }
    }

    /// A worker moved to another machine: the old one is offline if no other worker there is online.
    pub(in crate::plane) fn worker_moved_away(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let presence = machine_presence(self.on_machine(machine).map(|it| it.presence()));
        if presence == Presence::Offline {
            outbox.publish(now, FleetEvent::MachinePresence { machine, worker: None, presence });
            self.record_machine_presence(now, machine, PresenceChange::Away, settings, outbox);
            self.forget_machine(machine, outbox);
        }
    }

    /// The last worker of a machine went offline, or its first one came online.
    fn record_machine_presence(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        went: PresenceChange,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let it = self.machines.entry(machine.clone()).or_insert_with(|| Reliability::new(now));
        match went {
            PresenceChange::Up => it.mark_up(now),
            PresenceChange::Stale(seen_at) => it.mark_stale(now, seen_at),
            PresenceChange::Away => it.mark_away(now),
            PresenceChange::Unproven => return,
        }
        if it.take_alert(now, settings.flaps_before_alert) {
            let stale_in_an_hour = it.stale_last_hour(now);
            outbox.publish(now, FleetEvent::MachineUnreliable { machine, stale_in_an_hour });
        }
        if let Ok(body) = serde_json::value::to_raw_value(it) {
            outbox.record(Record::Document(Arc::new(Document {
                collection: Collection::Reliability,
                id: machine.to_string(),
                tenant: None,
                index_key: String::new(),
                expires_at: None,
                body: Arc::<RawValue>::from(body),
            })));
        }
    }

    pub(in crate::plane) fn alert_if_unreliable(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(worker) = self.known.get_mut(id) else { return };
        if worker.reliability.take_alert(now, settings.flaps_before_alert) {
            let stale_in_an_hour = worker.reliability.stale_last_hour(now);
            self.store(now, id, outbox);
            outbox.publish(now, DomainEvent::WorkerUnreliable { worker: id, stale_in_an_hour });
        }
    }

    /// Drops a machine's history once no worker of it is known.
    pub(super) fn forget_machine(&mut self, machine: &MachineId, outbox: &mut Outbox) {
        if self.on_machine(machine).next().is_none() && self.machines.remove(machine).is_some() {
            let id = machine.to_string();
            outbox.record(Record::DocumentDeleted { collection: Collection::Reliability, id });
        }
    }

    /// A machine's uptime history, if any worker of it is known.
    pub(in crate::plane) fn machine_reliability(&self, machine: &MachineId) -> Option<&Reliability> {
        self.machines.get(machine)
    }

    /// Every machine's uptime history.
    pub(in crate::plane) fn machines(&self) -> impl Iterator<Item = (&MachineId, &Reliability)> {
        self.machines.iter()
    }
}
