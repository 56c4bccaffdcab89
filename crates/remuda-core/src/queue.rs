//! The queue of jobs that may start: by priority, then round robin between tenants, then age.
//!
//! Jobs are grouped by what decides which worker may run them, so that finding work never iterates over jobs:
//!
//! ```text
//!  priority ▸ needs (service, labels, models, …) ▸ tenant ▸ shape ▸ jobs by age
//! ```
//!
//! Taking the next job costs the number of distinct needs at one priority plus the shapes blocked for this worker,
//! never the number of jobs. Each (priority, needs) has its own round robin, and between different needs the tenant
//! served longest ago goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::id::{JobId, Service, Shape, Tenant};
use crate::need::Requirements;

/// A service and other requirements, shared by all jobs with the same ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand(Arc<(Service, Requirements)>);

impl Demand {
    pub(crate) fn new(service: Service, needs: Requirements) -> Self {
        Demand(Arc::new((service, needs)))
    }

    pub fn service(&self) -> &Service {
        &self.0.0
    }

    pub fn needs(&self) -> &Requirements {
        &self.0.1
    }
}

/// Jobs of the same kind are interchangeable for routing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobKind {
    pub demand: Demand,
    pub shape: Arc<Shape>,
}

impl JobKind {
    #[cfg(test)]
    pub(crate) fn for_tests(shape: Shape) -> Self {
        let service = "exec".parse().unwrap();
        JobKind { demand: Demand(Arc::new((service, Requirements::default()))), shape: Arc::new(shape) }
    }
}

/// Interns demands, shapes and tenants: most of a million jobs share them.
#[derive(Clone, Debug, Default)]
pub struct JobKinds {
    demands: BTreeSet<Demand>,
    shapes: BTreeSet<Arc<Shape>>,
    tenants: BTreeSet<Tenant>,
}

/// Unused entries are swept when this many exist.
const SWEEP_AT: usize = 4096;

impl JobKinds {
    pub fn kind(&mut self, service: Service, needs: Requirements, shape: Shape) -> JobKind {
        JobKind { demand: self.demand(service, needs), shape: self.shape(shape) }
    }

    fn demand(&mut self, service: Service, needs: Requirements) -> Demand {
        let demand = Demand(Arc::new((service, needs)));
        if let Some(known) = self.demands.get(&demand) {
            return known.clone();
        }
        if self.demands.len() >= SWEEP_AT {
            self.demands.retain(|demand| Arc::strong_count(&demand.0) > 1);
        }
        self.demands.insert(demand.clone());
        demand
    }

    pub fn shape(&mut self, shape: Shape) -> Arc<Shape> {
        if let Some(known) = self.shapes.get(&shape) {
            return known.clone();
        }
        if self.shapes.len() >= SWEEP_AT {
            self.shapes.retain(|shape| Arc::strong_count(shape) > 1);
        }
        let shape = Arc::new(shape);
        self.shapes.insert(shape.clone());
        shape
    }

    pub fn tenant(&mut self, tenant: Tenant) -> Tenant {
        if let Some(known) = self.tenants.get(&tenant) {
            return known.clone();
        }
        self.tenants.insert(tenant.clone());
        tenant
    }
}

#[derive(Clone, Debug, Default)]
pub struct Queue {
    levels: BTreeMap<Reverse<i8>, BTreeMap<Demand, Level>>,
    /// When each tenant was last served, as a counter value.
    served_at: BTreeMap<Tenant, u64>,
    serves: u64,
    waiting: usize,
}

#[derive(Clone, Debug, Default)]
struct Level {
    lanes: BTreeMap<Tenant, Lane>,
    /// The tenant served last; the next one in order follows.
    served: Option<Tenant>,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    shapes: BTreeMap<Arc<Shape>, BTreeSet<JobId>>,
    /// The oldest job of each shape, so that a shape that may not run is skipped at once.
    heads: BTreeSet<(JobId, Arc<Shape>)>,
}

/// The position of a job in the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueEntry<'a> {
    pub job: JobId,
    pub priority: i8,
    pub tenant: &'a Tenant,
    pub kind: &'a JobKind,
}

/// What the queue must know about a worker.
pub trait Matcher {
    fn fits(&self, demand: &Demand) -> bool;
    fn allows_shape(&self, tenant: &Tenant, shape: &Shape) -> bool;
    fn is_warm(&self, shape: &Shape) -> bool;
    /// The final check of a single job.
    fn accepts(&self, job: JobId) -> bool;
    /// Whether the job has waited so long that no warm job may overtake it.
    fn is_overdue(&self, job: JobId) -> bool;
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub fn insert(&mut self, entry: QueueEntry<'_>) {
        let level = self.levels.entry(Reverse(entry.priority)).or_default();
        let level = level.entry(entry.kind.demand.clone()).or_default();
        let lane = level.lanes.entry(entry.tenant.clone()).or_default();
        if lane.insert(entry.job, &entry.kind.shape) {
            self.waiting += 1;
        }
    }

    pub fn remove(&mut self, entry: QueueEntry<'_>) -> bool {
        let Some(demands) = self.levels.get_mut(&Reverse(entry.priority)) else { return false };
        let Some(level) = demands.get_mut(&entry.kind.demand) else { return false };
        let Some(lane) = level.lanes.get_mut(entry.tenant) else { return false };
        if !lane.remove(entry.job, &entry.kind.shape) {
            return false;
        }
        self.waiting -= 1;
        if lane.shapes.is_empty() {
            level.lanes.remove(entry.tenant);
        }
        if level.lanes.is_empty() {
            demands.remove(&entry.kind.demand);
        }
        if demands.is_empty() {
            self.levels.remove(&Reverse(entry.priority));
        }
        true
    }

    pub fn contains(&self, entry: QueueEntry<'_>) -> bool {
        self.levels
            .get(&Reverse(entry.priority))
            .and_then(|demands| demands.get(&entry.kind.demand))
            .and_then(|level| level.lanes.get(entry.tenant))
            .and_then(|lane| lane.shapes.get(&entry.kind.shape))
            .is_some_and(|jobs| jobs.contains(&entry.job))
    }

    /// The next job for this worker. Changes nothing; `served` records who got it.
    pub fn next(&self, matcher: &impl Matcher, look_ahead: usize) -> Option<JobId> {
        self.levels.values().find_map(|demands| {
            demands
                .iter()
                .filter(|(demand, _)| matcher.fits(demand))
                .filter_map(|(_, level)| level.next(matcher, look_ahead))
                .min_by_key(|(tenant, job)| (self.served_at.get(*tenant).copied().unwrap_or(0), *job))
                .map(|(_, job)| job)
        })
    }

    /// Records that this tenant was served.
    pub fn record_served(&mut self, entry: QueueEntry<'_>) {
        self.serves += 1;
        self.served_at.insert(entry.tenant.clone(), self.serves);
        let level =
            self.levels.get_mut(&Reverse(entry.priority)).and_then(|level| level.get_mut(&entry.kind.demand));
        if let Some(level) = level {
            level.served = Some(entry.tenant.clone());
        }
        if self.served_at.len() > SWEEP_AT {
            let keep_from = self.serves.saturating_sub(SWEEP_AT as u64);
            self.served_at.retain(|_, turn| *turn > keep_from);
        }
    }

    /// Number of jobs of its service ahead of this one, if all waited for one worker: those of higher priority, older
    /// ones of its tenant, and for every other tenant as many as it is served until then. None if the job is not
    /// queued or more than `max` are ahead, which bounds the cost.
    pub fn jobs_ahead(&self, entry: QueueEntry<'_>, max: usize) -> Option<usize> {
        if !self.contains(entry) {
            return None;
        }
        let service = entry.kind.demand.service();
        let lanes = |priority: &Reverse<i8>| {
            let demands = self.levels.get(priority).into_iter().flatten();
            let levels = demands.filter(|(demand, _)| demand.service() == service).map(|(_, level)| level);
            levels.flat_map(|level| &level.lanes)
        };
        let own = Reverse(entry.priority);
        let mine = lanes(&own).filter(|(tenant, _)| *tenant == entry.tenant);
        let older: usize = mine.map(|(_, lane)| lane.older(entry.job, max)).sum();
        let mut others: BTreeMap<&Tenant, usize> = BTreeMap::new();
        for (tenant, lane) in lanes(&own).filter(|(tenant, _)| *tenant != entry.tenant) {
            *others.entry(tenant).or_default() += lane.len();
        }
        let higher = self.levels.range(..own).flat_map(|(priority, _)| lanes(priority));
        let higher: usize = higher.map(|(_, lane)| lane.len()).sum();
        let others: usize = others.values().map(|waiting| (*waiting).min(older)).sum();
        Some(older + others + higher).filter(|ahead| *ahead <= max)
    }

    /// Every demand with a waiting job.
    pub fn demands(&self) -> impl Iterator<Item = &Demand> {
        self.levels.values().flat_map(BTreeMap::keys)
    }

    /// Waiting jobs by demand; a demand appears once per priority.
    pub fn waiting_by_demand(&self) -> impl Iterator<Item = (&Demand, usize)> {
        let levels = self.levels.values().flatten();
        levels.map(|(demand, level)| (demand, level.lanes.values().map(Lane::len).sum()))
    }

    /// Waiting jobs by demand and shape.
    pub fn waiting_by_shape(&self) -> impl Iterator<Item = (&Demand, &Shape, usize)> {
        let levels = self.levels.values().flatten();
        levels.flat_map(|(demand, level)| {
            let shapes = level.lanes.values().flat_map(|lane| &lane.shapes);
            shapes.map(move |(shape, jobs)| (demand, &**shape, jobs.len()))
        })
    }
}

impl Level {
    fn next(&self, matcher: &impl Matcher, look_ahead: usize) -> Option<(&Tenant, JobId)> {
        let after = self.served.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let up_to = self.served.as_ref().map(|served| (Bound::Unbounded, Bound::Included(served)));
        let first = self.lanes.range::<Tenant, _>((after, Bound::Unbounded));
        let then = up_to.map(|range| self.lanes.range::<Tenant, _>(range)).into_iter().flatten();
        first.chain(then).find_map(|(tenant, lane)| Some((tenant, lane.next(tenant, matcher, look_ahead)?)))
    }
}

impl Lane {
    fn insert(&mut self, job: JobId, shape: &Arc<Shape>) -> bool {
        let jobs = self.shapes.entry(shape.clone()).or_default();
        let head = jobs.first().copied();
        if !jobs.insert(job) {
            return false;
        }
        if head.is_none_or(|head| job < head) {
            if let Some(head) = head {
                self.heads.remove(&(head, shape.clone()));
            }
            self.heads.insert((job, shape.clone()));
        }
        true
    }

    fn remove(&mut self, job: JobId, shape: &Arc<Shape>) -> bool {
        let Some(jobs) = self.shapes.get_mut(shape) else { return false };
        let was_head = jobs.first() == Some(&job);
        if !jobs.remove(&job) {
            return false;
        }
        if was_head {
            self.heads.remove(&(job, shape.clone()));
            match jobs.first() {
                Some(next) => {
                    self.heads.insert((*next, shape.clone()));
                }
                None => {
                    self.shapes.remove(shape);
                }
            }
        }
        true
    }

    fn len(&self) -> usize {
        self.shapes.values().map(BTreeSet::len).sum()
    }

    /// Number of jobs older than this one, or somewhat more than `max`.
    fn older(&self, job: JobId, max: usize) -> usize {
        self.shapes.values().map(|jobs| jobs.range(..job).take(max + 1).count()).sum()
    }

    fn next(&self, tenant: &Tenant, matcher: &impl Matcher, look_ahead: usize) -> Option<JobId> {
        let mut allowed = self
            .heads
            .iter()
            .filter(|(_, shape)| matcher.allows_shape(tenant, shape))
            .filter_map(|(_, shape)| Some((self.oldest(shape, matcher, look_ahead)?, shape)));
        let (oldest, shape) = allowed.next()?;
        if matcher.is_warm(shape) || matcher.is_overdue(oldest) {
            return Some(oldest);
        }
        let warm = allowed.take(look_ahead.saturating_sub(1)).find(|(_, shape)| matcher.is_warm(shape));
        Some(warm.map_or(oldest, |(job, _)| job))
    }

    /// The oldest job of a shape that the worker accepts; it may be blocked for single workflows, and a job that failed
    /// there may avoid it.
    fn oldest(&self, shape: &Arc<Shape>, matcher: &impl Matcher, look_ahead: usize) -> Option<JobId> {
        self.shapes.get(shape)?.iter().copied().take(look_ahead.max(1)).find(|job| matcher.accepts(*job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that is warm for one shape, blocked for another, and avoided by some jobs.
    #[derive(Default)]
    struct Worker {
        warm: Option<Shape>,
        blocked: Option<Shape>,
        avoids: Vec<JobId>,
        overdue: Vec<JobId>,
    }

    impl Matcher for Worker {
        fn fits(&self, demand: &Demand) -> bool {
            demand.service().as_str() == "exec"
        }
        fn allows_shape(&self, _: &Tenant, shape: &Shape) -> bool {
            self.blocked != Some(*shape)
        }
        fn is_warm(&self, shape: &Shape) -> bool {
            self.warm == Some(*shape)
        }
        fn accepts(&self, job: JobId) -> bool {
            !self.avoids.contains(&job)
        }
        fn is_overdue(&self, job: JobId) -> bool {
            self.overdue.contains(&job)
        }
    }

    fn shape(n: u8) -> Shape {
        Shape::from_bytes([n; 32])
    }

    fn id(n: u128) -> JobId {
        JobId::from_u128(n)
    }

    /// Puts in (job, priority, tenant, shape) and takes everything out again, in order.
    fn check(jobs: &[(u128, i8, &str, u8)], worker: &Worker, expected: &[u128]) {
        let mut queue = Queue::default();
        let mut kinds = JobKinds::default();
        let jobs: BTreeMap<_, _> = jobs
            .iter()
            .map(|(job, priority, tenant, n)| {
                let kind = kinds.kind("exec".parse().unwrap(), Requirements::default(), shape(*n));
                (id(*job), (*priority, tenant.parse::<Tenant>().unwrap(), kind))
            })
            .collect();
        let place = |job: JobId| {
            let (priority, tenant, kind) = &jobs[&job];
            QueueEntry { job, priority: *priority, tenant, kind }
        };
        jobs.keys().for_each(|job| queue.insert(place(*job)));
        let mut taken = Vec::new();
        while let Some(job) = queue.next(worker, 32) {
            queue.record_served(place(job));
            assert!(queue.remove(place(job)));
            assert!(!queue.contains(place(job)));
            taken.push(job.as_u128());
        }
        assert_eq!(taken, expected);
        assert_eq!(queue.len(), jobs.len() - taken.len());
    }

    #[test]
    fn priority_goes_first_then_tenants_take_turns_then_age() {
        let jobs = [
            (1, 0, "a", 1),
            (2, 0, "a", 1),
            (3, 0, "a", 1),
            (4, 0, "b", 1),
            (5, 0, "c", 1),
            (6, 0, "b", 1),
            (7, 9, "a", 1),
        ];
        check(&jobs, &Worker::default(), &[7, 1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn a_flood_of_one_tenant_does_not_hold_up_another() {
        let mut jobs: Vec<_> = (0..50).map(|n| (n, 0, "flood", (n % 3) as u8)).collect();
        jobs.push((60, 0, "quiet", 1));
        let mut expected: Vec<u128> = (0..50).collect();
        expected.insert(1, 60);
        check(&jobs, &Worker::default(), &expected);
    }

    #[test]
    fn a_blocked_shape_is_passed_over_and_stays() {
        let worker = Worker { blocked: Some(shape(1)), ..Worker::default() };
        check(&[(1, 0, "a", 1), (2, 0, "a", 2), (3, 0, "a", 1)], &worker, &[2]);
    }

    #[test]
    fn a_warm_job_may_go_first_unless_the_oldest_is_overdue() {
        let jobs = [(1, 0, "a", 1), (2, 0, "a", 2), (3, 0, "a", 2)];
        check(&jobs, &Worker { warm: Some(shape(2)), ..Worker::default() }, &[2, 3, 1]);
        check(&jobs, &Worker { warm: Some(shape(2)), overdue: vec![id(1)], ..Worker::default() }, &[1, 2, 3]);
    }

    #[test]
    fn a_job_that_avoids_this_worker_lets_the_next_one_pass() {
        check(&[(1, 0, "a", 1), (2, 0, "a", 1)], &Worker { avoids: vec![id(1)], ..Worker::default() }, &[2]);
    }

    #[test]
    fn who_waits_is_told_how_many_go_before() {
        let mut queue = Queue::default();
        let mut kinds = JobKinds::default();
        let kind = kinds.kind("exec".parse().unwrap(), Requirements::default(), shape(1));
        let [a, b]: [Tenant; 2] = ["a", "b"].map(|tenant| tenant.parse().unwrap());
        let places = [(1, 0, &a), (2, 0, &a), (3, 0, &a), (4, 0, &b), (5, 0, &b), (6, 9, &b)]
            .map(|(job, priority, tenant)| QueueEntry { job: id(job), priority, tenant, kind: &kind });
        places.iter().for_each(|place| queue.insert(*place));
        let ahead = places.map(|place| queue.jobs_ahead(place, 100).unwrap());
        assert_eq!(ahead, [1, 3, 5, 1, 3, 0]);
        assert_eq!(queue.jobs_ahead(places[2], 4), None);
        queue.remove(places[5]);
        assert_eq!((queue.jobs_ahead(places[5], 100), queue.jobs_ahead(places[0], 100)), (None, Some(0)));
    }

    #[test]
    fn the_look_ahead_is_bounded() {
        let mut jobs: Vec<_> = (0..40).map(|n| (n, 0, "a", n as u8)).collect();
        jobs.push((50, 0, "a", 200));
        let worker = Worker { warm: Some(shape(200)), ..Worker::default() };
        let mut expected: Vec<u128> = (0..40).collect();
        expected.insert(9, 50);
        check(&jobs, &worker, &expected);
    }
}
