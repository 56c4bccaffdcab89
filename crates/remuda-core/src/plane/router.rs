//! Which worker takes which job, and why not. After every step no worker is idle while a job that it could take is
//! queued: a worker that becomes free gets work, and a job that becomes ready is assigned, at once.
//!
//! `Router` owns the operators' placement rules and remembers that work must be offered again; `Matching` answers the
//! questions, from what the other owners know.

use std::time::Duration;

use super::jobs::Jobs;
use super::judge::judge;
use super::trust::Trust;
use super::workers::Workers;
use super::{DomainEvent, Outbox, PassedOver};
use crate::affinity::{AFFINITIES_MAX, Affinities, Affinity};
use crate::document::{Collection, Document};
use crate::id::{JobId, Shape, Tenant, WorkerId};
use crate::job::{Job, JobState};
use crate::need::Mismatch;
use crate::queue::{Demand, Matcher, NextJob, QueueRules, WorkerProfile};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::strategy::StrategyVerdict;
use crate::time::Timestamp;
use crate::worker::{Availability, Worker};

/// At most this many workers are compared for a job.
const CANDIDATES_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Router {
    affinities: Affinities,
    /// Something changed that decides who may run what: before the step ends, every free worker is offered work
    /// again.
    offers_again: bool,
}

impl Router {
    pub(super) fn restore(&mut self, document: &Document) {
        self.affinities.restore(document);
    }

    pub(super) fn affinities(&self) -> &Affinities {
        &self.affinities
    }

    /// Every free worker is offered work again before the step ends.
    pub(super) fn offer_again(&mut self) {
        self.offers_again = true;
    }

    /// Whether to offer work again; asked until nothing changes any more.
    pub(super) fn take_offer_again(&mut self) -> bool {
        std::mem::take(&mut self.offers_again)
    }

    pub(super) fn set_affinity(
        &mut self,
        now: Timestamp,
        shape: Shape,
        affinity: Affinity,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        if self.affinities.is_full_for(&shape) {
            return Err(Refusal::TooManyAffinities { max: AFFINITIES_MAX });
        }
        outbox.record(Record::Document(affinity.document(&shape)));
        outbox.publish(now, DomainEvent::AffinitySet { shape, affinity: &affinity });
        self.affinities.set(shape, affinity);
        self.offer_again();
        Ok(())
    }

    pub(super) fn remove_affinity(
        &mut self,
        now: Timestamp,
        shape: Shape,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        if !self.affinities.remove(&shape) {
            return Err(Refusal::NothingToRemove { what: format!("affinity of shape {}", shape.short()) });
        }
        outbox.record(Record::DocumentDeleted { collection: Collection::Affinity, id: shape.to_string() });
        outbox.publish(now, DomainEvent::AffinityRemoved(shape));
        self.offer_again();
        Ok(())
    }
}

/// Who can take what at one moment. Changes nothing.
#[derive(Clone, Copy)]
pub(super) struct Matching<'a> {
    pub(super) now: Timestamp,
    pub(super) settings: &'a Settings,
    pub(super) jobs: &'a Jobs,
    pub(super) workers: &'a Workers,
    pub(super) trust: &'a Trust,
    pub(super) router: &'a Router,
}

impl<'a> Matching<'a> {
    /// The best free worker for a job: a preferred one, or else any.
    pub(super) fn best_worker(&self, job: &Job) -> Option<WorkerId> {
        self.preferred_worker(job).or_else(|| self.best_of(job, self.workers.free().iter()))
    }

    /// The best free worker among those preferred by the job or, failing that, by its shape.
    pub(super) fn preferred_worker(&self, job: &Job) -> Option<WorkerId> {
        let own = job.options().map(|options| &options.preferred);
        let of_shape = self.router.affinities.get(&job.kind.shape).map(|affinity| &affinity.preferred);
        [own, of_shape].into_iter().flatten().find_map(|preferred| {
            let free = preferred.iter().filter(|worker| self.workers.free().contains(*worker));
            self.best_of(job, free)
        })
    }

    /// By the rank of the program's own strategy, if there is one; then warm first, then fastest for the shape, then least
    /// loaded, then longest idle.
    fn best_of<'w>(&self, job: &Job, workers: impl Iterator<Item = &'w WorkerId>) -> Option<WorkerId> {
        workers
            .filter_map(|id| self.workers.get(id))
            .filter(|worker| self.passed_over(job, worker).is_none())
            .take(CANDIDATES_MAX)
            .min_by_key(|worker| {
                let pace = worker.pace(&job.kind.shape).unwrap_or(Duration::ZERO);
                let load = worker.assignments.len() * 1000 / worker.slots.max(1) as usize;
                (self.rank(job, worker), !worker.is_warm(&job.kind.shape), pace, load, worker.idle_since)
            })
            .map(|worker| worker.id.clone())
    }

    /// The next job for a worker with a free slot, and the worker that gets it: another free one if the job prefers
    /// that.
    pub(super) fn next_for(&self, id: &WorkerId) -> Option<(NextJob, Option<WorkerId>)> {
        let worker = self.workers.get(id).filter(|worker| worker.free_slots(self.now) > 0)?;
        if self.jobs.queue().is_empty() {
            return None;
        }
        let matcher = WorkerMatcher { matching: *self, worker };
        let Settings { look_ahead, priority_ageing, .. } = *self.settings;
        let next = self.jobs.queue().next(&matcher, QueueRules { look_ahead, priority_ageing })?;
        let job = self.jobs.get(next.job);
        // A strategy orders all workers, so that another free one may be better.
        let better = match self.settings.strategy.is_set() {
            true => job.and_then(|job| self.best_worker(job)),
            false => job.and_then(|job| self.preferred_worker(job)),
        };
        Some((next, better))
    }

    fn rank(&self, job: &Job, worker: &Worker) -> i32 {
        match judge(&self.settings.strategy, job, worker) {
            StrategyVerdict::Rank(rank) => rank,
            StrategyVerdict::Veto => i32::MAX,
        }
    }

    /// Whether the program's own strategy keeps the job from this worker. Asked last: a strategy sees only what may be.
    fn is_vetoed(&self, job: &Job, worker: &Worker) -> bool {
        judge(&self.settings.strategy, job, worker) == StrategyVerdict::Veto
    }

    /// The first reason why this worker cannot take this job; None if it can take it now. The only definition of that
    /// question.
    pub(super) fn passed_over(&self, job: &Job, worker: &Worker) -> Option<PassedOver> {
        if let Some(unfit) = mismatch(&job.kind.demand, worker) {
            return Some(PassedOver::Mismatch(unfit));
        }
        if self.is_excluded(&job.kind.shape, &worker.id) {
            return Some(PassedOver::Excluded);
        }
        if let Some(reason) = self.worker_obstacle(job, worker) {
            return Some(reason);
        }
        if self.avoids(job, worker) {
            let is_too_small = !job.has_failed_on(&worker.id) || self.is_too_small(job, worker);
            return Some(if is_too_small { PassedOver::TooSmall } else { PassedOver::FailedBefore });
        }
        match (worker.line.is_closed(), worker.free_slots(self.now)) {
            (true, _) => Some(PassedOver::Unavailable(Availability::Disconnected)),
            (false, 0) => Some(PassedOver::Busy { slots: worker.slots }),
            (false, _) => self.is_disturbed(job, worker).then_some(PassedOver::NotIdle),
        }
    }

    /// Whether the job is to run alone, and the worker runs something.
    fn is_disturbed(&self, job: &Job, worker: &Worker) -> bool {
        let is_idle = worker.assignments.is_empty() && worker.cancels.is_empty();
        !is_idle && job.needs_isolation(self.settings)
    }

    /// Reasons that waiting for a free slot does not change.
    fn worker_obstacle(&self, job: &Job, worker: &Worker) -> Option<PassedOver> {
        match worker.availability(self.now) {
            Availability::Ready if self.is_excluded(&job.kind.shape, &worker.id) => {
                Some(PassedOver::Excluded)
            }
            Availability::Ready => {
                let obstacle = self.trust.obstacle(self.now, job, &worker.id);
                obstacle.or_else(|| self.is_vetoed(job, worker).then_some(PassedOver::Vetoed))
            }
            unavailable => Some(PassedOver::Unavailable(unavailable)),
        }
    }

    /// Whether a worker that has not answered yet could take the job now, besides the one on which it runs. One that has
    /// just ended its long poll is about to beat.
    pub(super) fn another_could_now(&self, job: &Job, runs_on: &WorkerId) -> bool {
        let is_other = |worker: &&Worker| worker.id != *runs_on && !job.has_answer_of(&worker.id);
        let free = self.workers.free().iter().filter_map(|id| self.workers.get(id));
        free.filter(is_other).any(|worker| self.passed_over(job, worker).is_none())
            || self.workers.between_polls().filter(is_other).any(|worker| {
                mismatch(&job.kind.demand, worker).is_none()
                    && self.worker_obstacle(job, worker).is_none()
                    && !self.avoids(job, worker)
                    && !self.is_disturbed(job, worker)
            })
    }

    /// Whether a worker that has not answered yet could take it, now or when it has a free slot.
    pub(super) fn another_could(&self, job: &Job, runs_on: &WorkerId) -> bool {
        self.workers.iter().any(|other| {
            other.id != *runs_on
                && other.slots > 0
                && !job.has_answer_of(&other.id)
                && mismatch(&job.kind.demand, other).is_none()
                && self.worker_obstacle(job, other).is_none()
        })
    }

    /// Whether this worker is the odd one out: others completed the shape, and it did not.
    pub(super) fn is_odd_one_out(&self, job: &Job, worker: &WorkerId) -> bool {
        let shape = &job.kind.shape;
        let completed_here = self.workers.get(worker).is_some_and(|it| it.pace(shape).is_some());
        !completed_here && self.completed_elsewhere(shape, worker)
    }

    pub(super) fn completed_elsewhere(&self, shape: &Shape, worker: &WorkerId) -> bool {
        self.workers.iter().any(|other| other.id != *worker && other.pace(shape).is_some())
    }

    /// Whether an operator excluded this worker for this shape.
    pub(super) fn is_excluded(&self, shape: &Shape, worker: &WorkerId) -> bool {
        self.router.affinities.get(shape).is_some_and(|affinity| affinity.excluded.contains(worker))
    }

    /// Whether a retry avoids this worker: another one could take it soon, or only a larger one can.
    fn avoids(&self, job: &Job, worker: &Worker) -> bool {
        let is_avoided = job.is_avoiding(self.now)
            && job.should_avoid(&worker.id, &worker.offer)
            && self.workers.iter().any(|other| {
                other.id != worker.id
                    && other.slots > 0
                    && !job.should_avoid(&other.id, &other.offer)
                    && mismatch(&job.kind.demand, other).is_none()
                    && self.worker_obstacle(job, other).is_none()
            });
        is_avoided || self.is_too_small(job, worker)
    }
}

/// Why this worker can never run such a job, as it is.
pub(super) fn mismatch(demand: &Demand, worker: &Worker) -> Option<Mismatch> {
    demand.needs().mismatch(demand.service(), &worker.id, &worker.services, &worker.offer)
}

/// The queue's view of one worker.
struct WorkerMatcher<'a> {
    matching: Matching<'a>,
    worker: &'a Worker,
}

impl Matcher for WorkerMatcher<'_> {
    fn profile(&self) -> WorkerProfile<'_> {
        let Worker { id, services, offer, .. } = self.worker;
        WorkerProfile { id, services, offer }
    }

    fn fits(&self, demand: &Demand) -> bool {
        mismatch(demand, self.worker).is_none()
    }

    fn allows_shape(&self, tenant: &Tenant, shape: &Shape) -> bool {
        let Matching { now, trust, .. } = self.matching;
        !self.matching.is_excluded(shape, &self.worker.id)
            && trust.shape_obstacle(now, tenant, shape, &self.worker.id).is_none()
    }

    fn is_warm(&self, shape: &Shape) -> bool {
        self.worker.is_warm(shape)
    }

    fn accepts(&self, job: JobId) -> bool {
        let Some(job) = self.matching.jobs.get(job) else { return false };
        debug_assert!(matches!(job.state(), JobState::Waiting { .. }));
        let is_blocked = self.matching.trust.obstacle(self.matching.now, job, &self.worker.id).is_some();
        let is_disturbed = self.matching.is_disturbed(job, self.worker);
        !is_blocked
            && !is_disturbed
            && !self.matching.is_vetoed(job, self.worker)
            && !self.matching.avoids(job, self.worker)
    }

    fn is_overdue(&self, job: JobId) -> bool {
        self.waited(job) >= self.matching.settings.warm_wait_max
    }

    fn waited(&self, job: JobId) -> Duration {
        self.matching.jobs.get(job).map_or(Duration::ZERO, |job| job.age(self.matching.now))
    }

    fn took_aged(&self) -> bool {
        self.worker.took_aged
    }
}
