//! Offers work: jobs that may start to free workers, free workers the queue. `router` says who fits.

use std::collections::BTreeSet;

use super::{Matching, PassedOver, Plane};
use crate::id::{JobId, Service, WorkerId};
use crate::job::Job;
use crate::time::Timestamp;
use crate::worker::Worker;

impl Plane {
    pub(super) fn matching(&self, now: Timestamp) -> Matching<'_> {
        let Plane { settings, jobs, workers, trust, router, .. } = self;
        Matching { now, settings, jobs, workers, trust, router }
    }

    /// The first reason why this worker cannot take this job; None if it can take it now.
    pub fn passed_over(&self, now: Timestamp, job: &Job, worker: &Worker) -> Option<PassedOver> {
        self.matching(now).passed_over(job, worker)
    }

    /// Those of these node classes that no worker has. Empty if no worker offers the service, or if one does not list
    /// its classes.
    pub fn unknown_classes(&self, service: &Service, classes: BTreeSet<String>) -> BTreeSet<String> {
        self.workers.unknown_classes(service, classes)
    }

    /// A job may start: assigns it to the best worker that can take it now, or leaves it queued.
    pub(super) fn ready(&mut self, now: Timestamp, id: JobId) {
        if self.jobs.enqueue(id).is_none() || self.workers.free().is_empty() {
            return;
        }
        let matching = self.matching(now);
        if let Some(worker) = matching.jobs.get(id).and_then(|job| matching.best_worker(job)) {
            self.start(now, id, &worker);
        }
    }

    /// Assigns as many jobs to a worker as it can take. A job that prefers another free worker goes there instead.
    pub(super) fn assign(&mut self, now: Timestamp, id: &WorkerId) {
        while let Some((next, preferred)) = self.matching(now).next_for(id) {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.took_aged = next.is_aged;
            }
            self.start(now, next.job, preferred.as_ref().unwrap_or(id));
        }
        self.workers.update_free(now, id);
    }

    pub(super) fn assign_all(&mut self, now: Timestamp) {
        if self.jobs.queue().is_empty() {
            return;
        }
        let free: Vec<_> = self.workers.free().iter().cloned().collect();
        for worker in free {
            self.assign(now, &worker);
        }
    }
}
