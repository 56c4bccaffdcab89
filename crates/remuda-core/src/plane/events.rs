//! Publishes events for subscribers, in one sequence.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Plane;
use crate::id::{Sequence, WorkerId};
use crate::job::Job;
use crate::record::{Record, StoredEvent};
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;

/// The subject of an event.
#[derive(Clone, Copy, Default)]
pub(super) struct EventSubject<'a> {
    pub(super) job: Option<&'a Job>,
    pub(super) worker: Option<&'a WorkerId>,
    /// A job that is no longer in memory.
    pub(super) ended: Option<&'a DeliveryResult>,
}

impl<'a> EventSubject<'a> {
    pub(super) fn job(job: &'a Job) -> Self {
        EventSubject { job: Some(job), ..EventSubject::default() }
    }

    pub(super) fn worker(worker: &'a WorkerId) -> Self {
        EventSubject { worker: Some(worker), ..EventSubject::default() }
    }

    pub(super) fn both(job: &'a Job, worker: &'a WorkerId) -> Self {
        EventSubject { job: Some(job), worker: Some(worker), ended: None }
    }
}

/// `Plane::publish`, for callers that borrow the job from the plane.
pub(super) fn record_event(
    sequence: &mut Sequence,
    records: &mut Vec<Record>,
    now: Timestamp,
    name: &'static str,
    about: EventSubject<'_>,
    detail: Map<String, Value>,
) {
    *sequence = sequence.next();
    let happened = StoredEvent {
        seq: *sequence,
        at: now,
        name: name.into(),
        job: about.job.map(|job| job.id).or(about.ended.map(|ended| ended.job)),
        worker: about.worker.cloned(),
        tenant: about.job.map(|job| job.tenant.clone()).or(about.ended.map(|ended| ended.tenant.clone())),
        metadata: match (about.job, about.ended) {
            (Some(job), _) => job.metadata(),
            (None, Some(ended)) => ended.metadata.clone(),
            (None, None) => Map::new(),
        },
        detail,
    };
    records.push(Record::Event(Arc::new(happened)));
}

/// A small JSON object.
pub(super) fn detail<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Plane {
    /// Publishes an event in the one sequence of all events.
    pub(super) fn publish(
        &mut self,
        now: Timestamp,
        name: &'static str,
        about: EventSubject<'_>,
        detail: Map<String, Value>,
    ) {
        record_event(&mut self.sequence, &mut self.records, now, name, about, detail);
    }
}
