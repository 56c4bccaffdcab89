//! Which worker takes which job, and why not. After every step no worker is idle while a job that it could take is
//! queued: a worker that becomes free gets work, and a job that becomes ready is assigned, at once.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::{Plane, queue_entry};
use crate::block;
use crate::id::{JobId, Service, Shape, WorkerId};
use crate::job::{Job, JobState};
use crate::machine::WorkerState;
use crate::need::Mismatch;
use crate::quarantine;
use crate::queue::{Demand, Matcher};
use crate::time::Timestamp;
use crate::worker::{Availability, Worker};

/// Why a worker cannot take a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    Mismatch(Mismatch),
    /// An operator excluded it for this shape.
    Excluded,
    /// It takes no work at all now.
    Unavailable(Availability),
    Blocked {
        until: Timestamp,
    },
    /// Another job is the one trial allowed for this pair.
    BlockTrial {
        job: JobId,
    },
    Quarantined {
        trial_at: Timestamp,
    },
    QuarantineTrial {
        job: JobId,
    },
    /// The job failed there before, and other workers could take it.
    FailedBefore,
    /// The job ran out of memory on a worker no larger, and larger ones could take it.
    TooSmall,
    Busy {
        slots: u32,
    },
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassedOver::Mismatch(unfit) => unfit.fmt(f),
            PassedOver::Excluded => f.write_str("is excluded for this shape by an affinity"),
            PassedOver::Unavailable(availability) => availability.fmt(f),
            PassedOver::Blocked { until } => write!(f, "is blocked for this shape until {until}"),
            PassedOver::BlockTrial { job } => write!(f, "is on trial for this shape with job {job}"),
            PassedOver::Quarantined { trial_at } => write!(f, "the shape is quarantined until {trial_at}"),
            PassedOver::QuarantineTrial { job } => write!(f, "the shape is on trial with job {job}"),
            PassedOver::FailedBefore => f.write_str("an attempt failed there, and others could take it"),
            PassedOver::TooSmall => f.write_str("ran out of memory there, and larger ones could take it"),
            PassedOver::Busy { slots } => write!(f, "is busy ({slots} of {slots} slots)"),
        }
    }
}

impl PassedOver {
    /// Whether waiting cannot change it.
    pub fn is_permanent(&self) -> bool {
        matches!(self, PassedOver::Mismatch(_) | PassedOver::Excluded)
    }
}

/// At most this many workers are compared for a job.
const CANDIDATES_MAX: usize = 32;

impl Plane {
    /// Those of these node classes that no worker has. Empty if no worker offers the service, or if one does not list
    /// its classes.
    pub fn unknown_classes(&self, service: &Service, mut classes: BTreeSet<String>) -> BTreeSet<String> {
        let offers = self.workers.values().filter(|worker| {
            worker.services.contains(service)
                && matches!(worker.state, WorkerState::Spawning | WorkerState::Active)
        });
        let mut is_listed = false;
        for worker in offers {
            let Some(listed) = &worker.offer.classes else { return BTreeSet::new() };
            is_listed = true;
            classes.retain(|class| !listed.contains(class));
        }
        if is_listed { classes } else { BTreeSet::new() }
    }

    /// A job may start: assigns it to the best worker that can take it now, or leaves it queued.
    pub(super) fn ready(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        self.queue.insert(queue_entry(job));
        if self.free.is_empty() {
            return;
        }
        if let Some(worker) = self.best_worker(now, job) {
            self.start(now, id, &worker);
        }
    }

    /// The preferred worker, or else the best one.
    fn best_worker(&self, now: Timestamp, job: &Job) -> Option<WorkerId> {
        self.preferred_worker(now, job).or_else(|| self.best_of(now, job, self.free.iter()))
    }

    /// Warm first, then fastest for the shape, then least loaded, then longest idle.
    pub(super) fn best_of<'a>(
        &self,
        now: Timestamp,
        job: &Job,
        workers: impl Iterator<Item = &'a WorkerId>,
    ) -> Option<WorkerId> {
        workers
            .filter_map(|id| self.workers.get(id))
            .filter(|worker| self.passed_over(now, job, worker).is_none())
            .take(CANDIDATES_MAX)
            .min_by_key(|worker| {
                let pace = worker.pace(&job.kind.shape).unwrap_or(Duration::ZERO);
                let load = worker.assignments.len() * 1000 / worker.slots.max(1) as usize;
                (!worker.is_warm(&job.kind.shape), pace, load, worker.idle_since)
            })
            .map(|worker| worker.id.clone())
    }

    /// Assigns as many jobs to a worker as it can take. A job that prefers another free worker goes there instead.
    pub(super) fn assign(&mut self, now: Timestamp, id: &WorkerId) {
        while let Some(job) = self.next_for(now, id) {
            let preferred = self.jobs.get(&job).and_then(|job| self.preferred_worker(now, job));
            self.start(now, job, preferred.as_ref().unwrap_or(id));
        }
        self.update_free(now, id);
    }

    pub(super) fn assign_all(&mut self, now: Timestamp) {
        if self.queue.is_empty() {
            return;
        }
        let free: Vec<_> = self.free.iter().cloned().collect();
        for worker in free {
            self.assign(now, &worker);
        }
    }

    fn next_for(&self, now: Timestamp, id: &WorkerId) -> Option<JobId> {
        let worker = self.workers.get(id).filter(|worker| worker.free_slots(now) > 0)?;
        if self.queue.is_empty() {
            return None;
        }
        self.queue.next(&WorkerMatcher { plane: self, worker, now }, self.settings.look_ahead)
    }

    /// The first reason why this worker cannot take this job; None if it can take it now. The only definition of that
    /// question.
    pub fn passed_over(&self, now: Timestamp, job: &Job, worker: &Worker) -> Option<PassedOver> {
        if let Some(unfit) = self.mismatch(&job.kind.demand, worker) {
            return Some(PassedOver::Mismatch(unfit));
        }
        if self.is_excluded(&job.kind.shape, &worker.id) {
            return Some(PassedOver::Excluded);
        }
        if let Some(reason) = self.worker_obstacle(now, &job.kind.shape, worker) {
            return Some(reason);
        }
        if self.avoids(now, job, worker) {
            let is_too_small = !job.has_failed_on(&worker.id);
            return Some(if is_too_small { PassedOver::TooSmall } else { PassedOver::FailedBefore });
        }
        (worker.free_slots(now) == 0).then_some(PassedOver::Busy { slots: worker.slots })
    }

    fn mismatch(&self, demand: &Demand, worker: &Worker) -> Option<Mismatch> {
        demand.needs().mismatch(demand.service(), &worker.id, &worker.services, &worker.offer)
    }

    /// Reasons that depend on the worker and the shape, not on the single job.
    fn worker_obstacle(&self, now: Timestamp, shape: &Shape, worker: &Worker) -> Option<PassedOver> {
        match worker.availability(now) {
            Availability::Ready => self.shape_obstacle(now, shape, &worker.id),
            unavailable => Some(PassedOver::Unavailable(unavailable)),
        }
    }

    fn shape_obstacle(&self, now: Timestamp, shape: &Shape, worker: &WorkerId) -> Option<PassedOver> {
        if self.is_excluded(shape, worker) {
            return Some(PassedOver::Excluded);
        }
        match self.quarantine.state(now, shape) {
            quarantine::QuarantineState::Free => {}
            quarantine::QuarantineState::Quarantined { trial_at } => {
                return Some(PassedOver::Quarantined { trial_at });
            }
            quarantine::QuarantineState::TrialUnderWay { job } => {
                return Some(PassedOver::QuarantineTrial { job });
            }
        }
        match self.blocks.state(worker, shape) {
            block::BlockState::Open => None,
            block::BlockState::Blocked { until } => Some(PassedOver::Blocked { until }),
            block::BlockState::TrialUnderWay { job } => Some(PassedOver::BlockTrial { job }),
        }
    }

    /// Whether a retry avoids this worker because another one could take it soon.
    fn avoids(&self, now: Timestamp, job: &Job, worker: &Worker) -> bool {
        job.is_avoiding(now)
            && job.should_avoid(&worker.id, &worker.offer)
            && self.workers.values().any(|other| {
                other.id != worker.id
                    && other.slots > 0
                    && !job.should_avoid(&other.id, &other.offer)
                    && self.mismatch(&job.kind.demand, other).is_none()
                    && self.worker_obstacle(now, &job.kind.shape, other).is_none()
            })
    }

    pub(super) fn update_free(&mut self, now: Timestamp, id: &WorkerId) {
        let is_free = self.workers.get(id).is_some_and(|worker| worker.free_slots(now) > 0);
        if !is_free {
            self.free.remove(id);
        } else if !self.free.contains(id) {
            self.free.insert(id.clone());
        }
    }
}

/// The queue's view of one worker.
struct WorkerMatcher<'a> {
    plane: &'a Plane,
    worker: &'a Worker,
    now: Timestamp,
}

impl Matcher for WorkerMatcher<'_> {
    fn fits(&self, demand: &Demand) -> bool {
        self.plane.mismatch(demand, self.worker).is_none()
    }

    fn allows_shape(&self, shape: &Shape) -> bool {
        self.plane.shape_obstacle(self.now, shape, &self.worker.id).is_none()
    }

    fn is_warm(&self, shape: &Shape) -> bool {
        self.worker.is_warm(shape)
    }

    fn accepts(&self, job: JobId) -> bool {
        let Some(job) = self.plane.jobs.get(&job) else { return false };
        debug_assert!(matches!(job.state(), JobState::Waiting { .. }));
        !self.plane.avoids(self.now, job, self.worker)
    }

    fn is_overdue(&self, job: JobId) -> bool {
        let patience = self.plane.settings.warm_wait_max;
        self.plane.jobs.get(&job).is_some_and(|job| job.age(self.now) >= patience)
    }
}
