//! What a step hands to its caller: records to commit, effects to run, and the events among the records, numbered in
//! one sequence. Owners write here; none of them needs the whole plane for it.

use std::sync::Arc;

use serde_json::Map;

use super::PlaneEffect;
use super::domain_event::{DomainEvent, EventDescription};
use crate::id::Sequence;
use crate::record::{Record, StoredEvent};
use crate::time::Timestamp;
use crate::worker::Worker;

#[derive(Clone, Debug)]
pub(super) struct Outbox {
    /// Of the newest event.
    sequence: Sequence,
    records: Vec<Record>,
    effects: Vec<PlaneEffect>,
}

impl Outbox {
    pub(super) fn new(sequence: Sequence) -> Self {
        Outbox { sequence, records: Vec::new(), effects: Vec::new() }
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

    pub(super) fn publish(&mut self, now: Timestamp, event: DomainEvent<'_>) {
        self.record_event(now, event.describe(now));
    }

    /// Publishes an event about a worker, and whether the worker is usable now.
    pub(super) fn publish_with_state(&mut self, now: Timestamp, worker: &Worker, event: DomainEvent<'_>) {
        self.publish(now, event);
        self.publish(now, DomainEvent::ClientState(worker));
    }

    pub(super) fn record_event(&mut self, now: Timestamp, event: EventDescription<'_>) {
        self.sequence = self.sequence.next();
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
