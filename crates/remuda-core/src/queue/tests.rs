//! The order in which one worker takes jobs.

use super::*;
use crate::need::Requirements;

/// A worker that is warm for one shape, blocked for another, and avoided by some jobs.
struct Worker {
    id: WorkerId,
    services: BTreeSet<Service>,
    offer: Capabilities,
    warm: Option<Shape>,
    blocked: Option<Shape>,
    avoids: Vec<JobId>,
    overdue: Vec<JobId>,
}

impl Default for Worker {
    fn default() -> Self {
        Worker {
            id: "a".parse().unwrap(),
            services: ["exec".parse().unwrap()].into(),
            offer: Capabilities::default(),
            warm: None,
            blocked: None,
            avoids: Vec::new(),
            overdue: Vec::new(),
        }
    }
}

impl Matcher for Worker {
    fn profile(&self) -> WorkerProfile<'_> {
        WorkerProfile { id: &self.id, services: &self.services, offer: &self.offer }
    }
    fn fits(&self, demand: &Demand) -> bool {
        self.services.contains(demand.service())
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
    fn waited(&self, _: JobId) -> Duration {
        Duration::ZERO
    }
    fn took_aged(&self) -> bool {
        false
    }
}

const RULES: QueueRules = QueueRules { look_ahead: 32, priority_ageing: Duration::from_secs(300) };

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
    while let Some(NextJob { job, .. }) = queue.next(worker, RULES) {
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

/// Two workers of different kinds share a tenant; neither keeps the other tenants of its kind waiting, nor the shared one.
#[test]
fn tenant_that_others_serve_often_does_not_hold_up_its_neighbours() {
    let mut kinds = JobKinds::default();
    let mut needing = |service: &str, zone: Option<&str>| {
        let labels = zone.map(|zone| ("zone".to_owned(), zone.to_owned())).into_iter().collect();
        let needs = Requirements { labels, ..Requirements::default() };
        kinds.kind(service.parse().unwrap(), needs, shape(1))
    };
    let (plain, zoned, other) = (needing("exec", None), needing("exec", Some("eu")), needing("other", None));
    let tenants: Vec<Tenant> = ["a", "b", "c"].map(|name| name.parse().unwrap()).into();
    let mut queue = Queue::default();
    // `a` has jobs everywhere, `b` only in the zone, `c` only outside it.
    let mut jobs = BTreeMap::new();
    for n in 0..60 {
        let (tenant, kind) = match n % 4 {
            0 => (&tenants[0], &other),
            1 => (&tenants[0], &zoned),
            2 => (&tenants[1], &zoned),
            _ => (&tenants[2], &plain),
        };
        jobs.insert(id(n), QueueEntry { job: id(n), priority: 0, tenant, kind });
        queue.insert(jobs[&id(n)]);
    }
    let labels = BTreeMap::from([("zone".to_owned(), "eu".to_owned())]);
    let worker = Worker { offer: Capabilities { labels, ..Capabilities::default() }, ..Worker::default() };
    let elsewhere = Worker { services: ["other".parse().unwrap()].into(), ..Worker::default() };
    let mut served = BTreeMap::new();
    for _ in 0..12 {
        for worker in [&worker, &elsewhere] {
            let job = queue.next(worker, RULES).unwrap().job;
            queue.record_served(jobs[&job]);
            assert!(queue.remove(jobs[&job]));
            *served.entry(jobs[&job].tenant.as_str()).or_insert(0) += 1;
        }
    }
    // `a` is served elsewhere every time, and has its turn here: 12 and a third of 12.
    assert_eq!(served, BTreeMap::from([("a", 16), ("b", 4), ("c", 4)]));
}

/// A worker that lists what it has takes the same jobs in the same order as one that is compared with every job.
#[test]
fn order_is_the_same_whether_kinds_are_grouped_by_name_or_not() {
    let mut kinds = JobKinds::default();
    let (mut queue, mut entries) = (Queue::default(), BTreeMap::new());
    for n in 0..200_u128 {
        // Some need a model that the worker has, some a class that it lacks, some both, most also a common model.
        let model = |prefix: &str, many: u128| format!("{prefix}{}", n % many);
        let models = [Some("base".to_owned()), (n % 3 > 0).then(|| model("m", 40))].into_iter().flatten();
        let classes = (n % 5 == 0).then(|| model("c", 60));
        let needs = Requirements {
            models: models.collect(),
            classes: classes.into_iter().collect(),
            ..Requirements::default()
        };
        let kind = kinds.kind("exec".parse().unwrap(), needs, shape(n as u8));
        let tenant: Tenant = if n % 2 == 0 { "a" } else { "b" }.parse().unwrap();
        entries.insert(id(n), (tenant, kind));
    }
    fn entry(entries: &BTreeMap<JobId, (Tenant, JobKind)>, job: JobId) -> QueueEntry<'_> {
        let (tenant, kind) = &entries[&job];
        QueueEntry { job, priority: 0, tenant, kind }
    }
    entries.keys().for_each(|job| queue.insert(entry(&entries, *job)));
    let names =
        |prefix: &'static str, numbers: std::ops::Range<u32>| numbers.map(move |n| format!("{prefix}{n}"));
    let models = names("m", 0..20).chain(["base".to_owned()]).collect();
    let offer = Capabilities {
        models: Some(models),
        classes: Some(names("c", 10..35).collect()),
        ..Capabilities::default()
    };
    let fits = |job: &JobId| entries[job].1.demand.needs().lacking(&offer).is_none();
    let of = |tenant: &str| {
        let own = entries.iter().filter(|(job, (it, _))| it.as_str() == tenant && fits(job));
        own.map(|(job, _)| *job).collect::<Vec<_>>()
    };
    let (a, b) = (of("a"), of("b"));
    let worker = Strict(Worker { offer: offer.clone(), ..Worker::default() });
    let mut taken = (Vec::new(), Vec::new());
    while let Some(NextJob { job, .. }) = queue.next(&worker, RULES) {
        queue.record_served(entry(&entries, job));
        assert!(queue.remove(entry(&entries, job)));
        let own = if entries[&job].0.as_str() == "a" { &mut taken.0 } else { &mut taken.1 };
        own.push(job);
    }
    assert!(a.len() > 20 && b.len() > 20, "{} and {}", a.len(), b.len());
    assert_eq!(taken, (a, b), "each tenant's jobs go by age, and none is left out");
    let left: Vec<_> = entries.keys().filter(|job| !fits(job)).collect();
    assert_eq!(queue.len(), left.len());
    left.iter().for_each(|job| assert!(queue.remove(entry(&entries, **job))));
    assert!(queue.is_empty());
}

/// A worker that runs only what it has the names for.
struct Strict(Worker);

impl Matcher for Strict {
    fn profile(&self) -> WorkerProfile<'_> {
        self.0.profile()
    }
    fn fits(&self, demand: &Demand) -> bool {
        demand.needs().lacking(&self.0.offer).is_none()
    }
    fn allows_shape(&self, tenant: &Tenant, shape: &Shape) -> bool {
        self.0.allows_shape(tenant, shape)
    }
    fn is_warm(&self, shape: &Shape) -> bool {
        self.0.is_warm(shape)
    }
    fn accepts(&self, job: JobId) -> bool {
        self.0.accepts(job)
    }
    fn is_overdue(&self, job: JobId) -> bool {
        self.0.is_overdue(job)
    }
    fn waited(&self, job: JobId) -> Duration {
        self.0.waited(job)
    }
    fn took_aged(&self) -> bool {
        self.0.took_aged()
    }
}
