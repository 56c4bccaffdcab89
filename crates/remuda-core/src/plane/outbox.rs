//! What a step leaves behind: records to commit, effects to run, the events among the records, numbered in one
//! sequence, and alarms for later. Owners write here; none of them needs the whole plane for it.

use std::sync::Arc;

use serde_json::Map;

use super::PlaneEffect;
use super::domain_event::{DomainEvent, EventDescription};
use crate::alarm::{Alarm, Alarms};
use crate::event_kind::EventKind;
use crate::id::{FleetId, Sequence};
use crate::provider::ProviderCall;
use crate::record::{Record, StoredEvent};
use crate::tally::Tally;
use crate::time::Timestamp;
use crate::worker::Worker;

#[derive(Clone, Debug)]
pub(super) struct Outbox {
    /// Of the newest event.
    sequence: Sequence,
    records: Vec<Record>,
    effects: Vec<PlaneEffect>,
    alarms: Alarms,
    counts: Tally<EventCounts>,
}

/// Events since this plane started, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCounts([u64; EventKind::ALL.len()]);

impl Default for EventCounts {
    fn default() -> Self {
        EventCounts([0; EventKind::ALL.len()])
    }
}

impl EventCounts {
    fn record(&mut self, kind: EventKind) {
        self.0[kind as usize] += 1;
    }

    pub fn get(&self, kind: EventKind) -> u64 {
        self.0[kind as usize]
    }
}

impl Outbox {
    pub(super) fn new(sequence: Sequence) -> Self {
        Outbox {
            sequence,
            records: Vec::new(),
            effects: Vec::new(),
            alarms: Alarms::default(),
            counts: Tally::default(),
        }
    }

    pub(super) fn counts(&self) -> &EventCounts {
        &self.counts
    }

    pub(super) fn sequence(&self) -> Sequence {
        self.sequence
    }

    pub(super) fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    pub(super) fn effect(&mut self, effect: PlaneEffect) {
        self.effects.push(effect);
    }

    pub(super) fn call_provider(&mut self, fleet: &FleetId, call: ProviderCall) {
        self.effects.push(PlaneEffect::CallProvider { fleet: fleet.clone(), call });
    }

    /// When to look at something again; `None` if nothing is due there.
    pub(super) fn set_alarm(&mut self, alarm: Alarm, at: Option<Timestamp>) {
        self.alarms.set(alarm, at);
    }

    /// Moves an alarm forward, if it is not earlier already.
    pub(super) fn hasten_alarm(&mut self, alarm: Alarm, latest: Timestamp) {
        if self.alarms.get(&alarm).is_none_or(|at| latest < at) {
            self.alarms.set(alarm, Some(latest));
        }
    }

    pub(super) fn take_due_alarm(&mut self, now: Timestamp) -> Option<Alarm> {
        self.alarms.take_due(now)
    }

    pub(super) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    pub(super) fn publish<'e>(&mut self, now: Timestamp, event: impl Into<DomainEvent<'e>>) {
        self.record_event(now, event.into().describe(now));
    }

    /// Publishes an event about a worker, and whether the worker is usable now.
    pub(super) fn publish_with_state(&mut self, now: Timestamp, worker: &Worker, event: DomainEvent<'_>) {
        self.publish(now, event);
        self.publish(now, DomainEvent::ClientState(worker));
    }

    pub(super) fn record_event(&mut self, now: Timestamp, event: EventDescription<'_>) {
        self.sequence = self.sequence.next();
        self.counts.record(event.kind);
        let (job, delivery) = (event.job, event.delivery);
        self.records.push(Record::Event(Arc::new(StoredEvent {
            seq: self.sequence,
            at: now,
            kind: event.kind,
            job: job.map(|job| job.id).or(delivery.map(|it| it.job)),
            worker: event.worker.cloned(),
            tenant: job.map(|job| job.tenant.clone()).or(delivery.map(|it| it.tenant.clone())),
            metadata: match (job, delivery) {
                (Some(job), _) => job.metadata(),
                (None, Some(delivery)) => delivery.metadata.clone(),
                (None, None) => Map::new(),
            },
            detail: event.detail,
        })));
    }

    /// Everything since the last call.
    pub(super) fn take(&mut self) -> (Vec<Record>, Vec<PlaneEffect>) {
        (std::mem::take(&mut self.records), std::mem::take(&mut self.effects))
    }
}
