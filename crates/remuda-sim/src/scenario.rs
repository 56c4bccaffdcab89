//! Everything that a seed determines before a world starts: workers, workflows, jobs and fault rates. `faults` draws
//! what goes wrong, `fleets` what can be rented.

mod clock_shift;
mod fleets;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::affinity::Affinity;
use remuda_core::id::{FleetId, Hash, JobId, MachineId, Service, Shape, Tenant, WorkerId};
use remuda_core::need::Capabilities;
use remuda_core::options::JobOptions;
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::settings::Settings;

use crate::faults::{self, PERMANENT_WORKERS, PlannedFault};
use crate::focus::FaultFocus;
use crate::random::Random;
use crate::service::{FaultRates, ServicePlan};
use crate::settings::WorldSettings;
use crate::trouble::Troubles;
use crate::weather::Weather;
use remuda_core::money::Money;

pub(crate) use clock_shift::ClockShift;
pub(crate) use fleets::FleetPlan;

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) weather: Weather,
    /// The wall clock when the world starts.
    pub(crate) epoch: u64,
    /// Added to the clock of every host.
    pub(crate) clock_shift: u64,
    pub(crate) core: Settings,
    /// The correct limit, even if a sabotage changes `core`.
    pub(crate) blocks_max: usize,
    pub(crate) shapes: Vec<WorkflowKind>,
    /// Preferred and excluded workers, by index of the shape.
    pub(crate) affinities: BTreeMap<usize, Affinity>,
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) jobs: Vec<JobPlan>,
    pub(crate) faults: Vec<PlannedFault>,
    /// No fault starts after this time, and all of them end.
    pub(crate) storm_end: u64,
    /// Rates in permille: messages lost, duplicated, and duplicated minutes later.
    pub(crate) loss: u64,
    pub(crate) copies: u64,
    pub(crate) late_copies: u64,
    pub(crate) fault_rates: FaultRates,
    pub(crate) fleets: Vec<FleetPlan>,
    pub(crate) troubles: Troubles,
}

/// How the attempts of a shape behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkflowKind {
    Good,
    /// Succeeds, but reports no progress.
    Quiet,
    /// Fails on every worker, through the job's own fault.
    Bad,
    /// Crashes the agent.
    Poison,
    /// Fails on every other worker until the storm ends.
    MissingModel,
}

#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    pub(crate) name: WorkerId,
    /// The rented machine that the host runs on.
    pub(crate) machine: Option<MachineId>,
    /// The machine that it shares with other workers.
    pub(crate) shared_machine: Option<MachineId>,
    pub(crate) fleet: Option<FleetId>,
    pub(crate) services: BTreeSet<Service>,
    pub(crate) slots: u32,
    pub(crate) offer: Capabilities,
    pub(crate) quirk: Quirk,
    /// The clock is off by this many milliseconds and runs at this many permille of the true speed.
    pub(crate) clock_offset: u64,
    pub(crate) clock_speed: u64,
    pub(crate) inactivity: Duration,
    /// A long poll that a newer beat overtakes stays open for a while.
    pub(crate) keeps_polls: bool,
    pub(crate) service: ServicePlan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quirk {
    None,
    /// Fails every run at once.
    BlackHole,
    /// Reports more slots than it has.
    OverstatesSlots,
}

#[derive(Clone, Debug)]
pub(crate) struct JobPlan {
    pub(crate) at: u64,
    pub(crate) tenant: Tenant,
    pub(crate) priority: i8,
    pub(crate) service: Service,
    pub(crate) shape: usize,
    pub(crate) zone: Option<&'static str>,
    pub(crate) pin: Option<WorkerId>,
    pub(crate) excluded: Option<WorkerId>,
    pub(crate) options: JobOptions,
    pub(crate) has_key: bool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) attempts_max: Option<u8>,
    pub(crate) cancel_after: Option<u64>,
    pub(crate) duration: u64,
    /// Interval between progress reports.
    pub(crate) progress_every: u64,
}

/// The wall clock when a world starts.
const EPOCH: u64 = 1_794_744_000_000;

const SERVICES: [&str; 2] = ["comfyui", "exec"];
const ZONES: [&str; 2] = ["a", "b"];
const TENANTS: [&str; 4] = ["ada", "bob", "eve", "joe"];

impl Scenario {
    pub(crate) fn draw(random: &mut Random, settings: &WorldSettings) -> Scenario {
        let weather = match settings.focus.map(FaultFocus::weather).or(settings.weather) {
            Some(weather) => weather,
            None if !settings.faults => Weather::Fair,
            None => random.pick(&Weather::ALL),
        };
        let storm_end = settings.storm.as_millis() as u64 * random.between(500, 1500) / 1000;
        if weather == Weather::Fleet {
            return Scenario::draw_with_fleets(random, settings, storm_end * FLEET_STORM_FACTOR);
        }
        let is_sole_worker = random.permille(50);
        let hosts_count = match settings.workers {
            Some(count) => count.max(PERMANENT_WORKERS),
            None => hosts_count(random, weather, is_sole_worker),
        };
        let mut hosts: Vec<_> = (0..hosts_count).map(|n| host(random, weather, n)).collect();
        if weather == Weather::Losses {
            share_machines(random, &mut hosts);
        }
        let shapes = shapes(random, weather);
        let jobs_count = settings.jobs.unwrap_or_else(|| random.between(30, 300) as usize);
        let mut jobs: Vec<_> =
            (0..jobs_count).map(|_| job(random, weather, storm_end, &shapes, &hosts)).collect();
        limit_failing_jobs(&mut jobs, &shapes, hosts.len());
        if settings.focus == Some(FaultFocus::Flood) {
            flood(&mut jobs);
        }
        let affinities = affinities(random, weather, &shapes, &hosts);
        let faults = match settings.focus {
            Some(focus) => focus.draw(random, storm_end, hosts.len()),
            None => faults::draw(random, weather, storm_end, hosts.len()),
        };
        let storm_end = faults::end(&faults, storm_end);
        let is_degraded = matches!(weather, Weather::Network | Weather::Wild);
        let (loss, copies, late_copies) = if is_degraded {
            (random.between(0, 40), random.between(0, 50), random.between(0, 30))
        } else {
            (0, 0, 0)
        };
        let fault_rates = FaultRates::draw(random, weather);
        let mut core = Settings::default();
        if random.permille(200) {
            core.blocks_max = SMALL_BLOCKS_MAX;
        }
        if random.permille(100) {
            core.open_jobs_max = SMALL_JOBS_MAX;
        }
        let blocks_max = core.blocks_max;
        if let Some(sabotage) = settings.sabotage {
            sabotage.configure(&mut core);
        }
        Scenario {
            weather,
            epoch: EPOCH,
            clock_shift: 0,
            core,
            blocks_max,
            shapes,
            affinities,
            hosts,
            jobs,
            faults,
            storm_end,
            loss,
            copies,
            late_copies,
            fault_rates,
            fleets: Vec::new(),
            troubles: Troubles::default(),
        }
    }

    /// Machines take minutes to start and hours to pay off: a long storm, and work that comes in waves.
    fn draw_with_fleets(random: &mut Random, settings: &WorldSettings, storm_end: u64) -> Scenario {
        let weather = Weather::Fleet;
        let is_sole_fleet = random.permille(600);
        let hosts_count = if is_sole_fleet { 0 } else { random.between(2, 3) as usize };
        let hosts: Vec<_> = (0..hosts_count).map(|n| host(random, Weather::Fair, n)).collect();
        let fleets = fleets::draw(random, is_sole_fleet);
        let troubles = match settings.faults {
            true => Troubles::draw(random, settings.troubles.as_deref()),
            false => Troubles::default(),
        };
        let shapes: Vec<_> = (0..random.between(2, 5))
            .map(|n| if n > 0 && random.permille(200) { WorkflowKind::Quiet } else { WorkflowKind::Good })
            .collect();
        let waves = fleets::waves(random, storm_end);
        let jobs_count = settings.jobs.unwrap_or_else(|| random.between(30, 300) as usize);
        let mut jobs: Vec<_> =
            (0..jobs_count).map(|_| job(random, weather, storm_end, &shapes, &hosts)).collect();
        for job in &mut jobs {
            job.at = fleets::arrival(random, storm_end, &waves);
            job.duration = fleets::duration(random);
            job.zone = job.zone.filter(|_| !is_sole_fleet || fleets.len() == ZONES.len());
        }
        let faults = faults::draw_for_fleets(random, &troubles, storm_end);
        let storm_end = faults::end(&faults, storm_end);
        let mut core = Settings {
            fleets: fleets.iter().map(|plan| plan.settings.clone()).collect(),
            ..Settings::default()
        };
        let blocks_max = core.blocks_max;
        if let Some(sabotage) = settings.sabotage {
            sabotage.configure(&mut core);
        }
        Scenario {
            weather,
            epoch: EPOCH,
            clock_shift: 0,
            core,
            blocks_max,
            shapes,
            affinities: BTreeMap::new(),
            hosts,
            jobs,
            faults,
            storm_end,
            loss: random.pick(&[0, 0, 0, 10]),
            copies: 0,
            late_copies: 0,
            fault_rates: FaultRates::draw(random, weather),
            fleets,
            troubles,
        }
    }

    /// The time of all jobs that take longer than ten minutes: one worker runs them one after the other.
    pub(crate) fn long_work(&self) -> u64 {
        self.jobs.iter().map(|job| job.duration).filter(|duration| *duration > 600_000).sum()
    }

    /// Every offer, with its price.
    pub(crate) fn offers(&self) -> BTreeMap<String, Money> {
        self.fleets.iter().flat_map(|plan| plan.prices.clone()).collect()
    }

    pub(crate) fn shape(&self, index: usize) -> Shape {
        Shape::from_bytes([index as u8; 32])
    }

    pub(crate) fn shape_of(&self, job: JobId) -> Shape {
        self.shape(self.jobs[client_of(job)].shape)
    }

    /// The exact workflow of a client: no two are alike.
    pub(crate) fn workflow_of(client: usize, is_changed: bool) -> Hash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(client as u64).to_be_bytes());
        hash[8] = u8::from(is_changed);
        Hash::from_bytes(hash)
    }

    /// The scopes of blocks that a job is in.
    pub(crate) fn scopes_of(&self, job: JobId) -> [BlockScope; 3] {
        let (client, shape) = (client_of(job), self.shape_of(job));
        let tenant = self.jobs[client].tenant.clone();
        [
            BlockScope::Workflow(Scenario::workflow_of(client, false)),
            BlockScope::Tenant(TenantShape { shape, tenant }),
            BlockScope::Shape(shape),
        ]
    }

    /// The shapes of the jobs that a block concerns.
    pub(crate) fn shapes_of<'a>(&'a self, scope: &'a BlockScope) -> impl Iterator<Item = Shape> + 'a {
        let clients = 0..self.jobs.len();
        clients.filter_map(move |client| match scope {
            BlockScope::Workflow(hash) if *hash == Scenario::workflow_of(client, false) => {
                Some(self.shape(self.jobs[client].shape))
            }
            BlockScope::Workflow(_) => None,
            BlockScope::Tenant(those) => Some(those.shape),
            BlockScope::Shape(shape) => Some(*shape),
        })
    }

    pub(crate) fn has_shape(&self, shape: Shape) -> bool {
        (0..self.shapes.len()).any(|index| self.shape(index) == shape)
    }

    pub(crate) fn workflow_kind(&self, index: usize) -> WorkflowKind {
        self.shapes[index]
    }
}

/// How much longer the storm lasts where machines are rented.
const FLEET_STORM_FACTOR: u64 = 25;
/// Limits small enough for a world to reach them.
pub(crate) const SMALL_BLOCKS_MAX: usize = 3;
pub(crate) const SMALL_JOBS_MAX: usize = 25;

/// Mostly a few workers; sometimes many, and where machines are lost together up to 200.
fn hosts_count(random: &mut Random, weather: Weather, is_sole_worker: bool) -> usize {
    let count = match (weather, random.below(200)) {
        (Weather::Losses, 0..4) => random.between(61, 200),
        (Weather::Losses, _) => random.pick(&[1, 2, 3, 8, 20, 60]),
        _ if is_sole_worker => 1,
        (_, 0) => random.between(61, 200),
        (_, 1..6) => random.between(9, 60),
        _ => random.between(2, 8),
    };
    count as usize
}

fn host(random: &mut Random, weather: Weather, n: usize) -> HostPlan {
    let mut services: BTreeSet<Service> = SERVICES.iter().filter_map(|name| name.parse().ok()).collect();
    let is_permanent = n < PERMANENT_WORKERS;
    if !is_permanent && random.permille(500) {
        let keep = random.index(2);
        services.retain(|service| service.as_str() == SERVICES[keep]);
    }
    let zone = if is_permanent { ZONES[n] } else { random.pick(&ZONES) };
    let is_plain = matches!(weather, Weather::Fair | Weather::Losses);
    let quirk = match random.below(10) {
        0 if !is_permanent && !is_plain => Quirk::BlackHole,
        1 | 2 if !is_plain => Quirk::OverstatesSlots,
        _ => Quirk::None,
    };
    let slots = random.between(1, 4) as u32;
    let is_narrow = weather != Weather::Fair && random.permille(400);
    let service = ServicePlan {
        slots: if is_narrow { 1 } else { slots as usize },
        is_owned: random.permille(600),
        reports_outcome: random.permille(200),
        lists_finished_as_running: random.permille(500),
    };
    HostPlan {
        name: format!("w{n}").parse().expect("a short name is a valid id"),
        machine: None,
        shared_machine: None,
        fleet: None,
        services,
        slots,
        offer: Capabilities {
            labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
            ..Capabilities::default()
        },
        quirk,
        clock_offset: random.below(10 * 365 * 86_400_000),
        clock_speed: random.between(950, 1050),
        inactivity: Duration::from_secs(random.between(5, 30)),
        keeps_polls: random.permille(700),
        service,
    }
}

/// In some worlds up to eight workers run on one machine.
fn share_machines(random: &mut Random, hosts: &mut [HostPlan]) {
    let per_machine = random.pick(&[1, 1, 3, 8]);
    for (n, host) in hosts.iter_mut().enumerate().filter(|_| per_machine > 1) {
        let name = format!("m{}", n / per_machine);
        host.shared_machine = Some(name.parse().expect("a short name is a valid id"));
    }
}

fn shapes(random: &mut Random, weather: Weather) -> Vec<WorkflowKind> {
    let count = random.between(3, 10) as usize;
    (0..count)
        .map(|n| match random.below(20) {
            _ if n == 0 || matches!(weather, Weather::Fair | Weather::Losses) => WorkflowKind::Good,
            0..=2 => WorkflowKind::Bad,
            3 if weather != Weather::Plane && weather != Weather::Store => WorkflowKind::Poison,
            4..=6 => WorkflowKind::MissingModel,
            7..=8 => WorkflowKind::Quiet,
            _ => WorkflowKind::Good,
        })
        .collect()
}

fn job(
    random: &mut Random,
    weather: Weather,
    storm_end: u64,
    shapes: &[WorkflowKind],
    hosts: &[HostPlan],
) -> JobPlan {
    let is_fair = weather == Weather::Fair;
    let shape = random.index(shapes.len());
    let duration = match random.below(200) {
        0..=150 if weather == Weather::Losses => random.between(5000, 90_000),
        // An hour, as real renderings take: it reports progress and must be left alone.
        0 if random.permille(8) => random.between(3_300_000, 3_900_000),
        // Longer than a fixed time limit would allow, too.
        0 if random.permille(60) => random.between(310_000, 360_000),
        1..=4 => random.between(10_000, 60_000),
        5..=60 => random.between(1000, 5000),
        _ => random.between(50, 1500),
    };
    let tenant = if random.permille(600) { TENANTS[0] } else { random.pick(&TENANTS) };
    let permanent = PERMANENT_WORKERS.min(hosts.len());
    let pin = (random.permille(20) && permanent > 0).then(|| hosts[random.index(permanent)].name.clone());
    let excluded = (pin.is_none() && random.permille(40)).then(|| removable_worker(random, hosts)).flatten();
    JobPlan {
        at: random.below(storm_end),
        tenant: tenant.parse().expect("a short name is a valid id"),
        priority: if random.permille(100) { random.below(3) as i8 - 1 } else { 0 },
        service: random.pick(&SERVICES).parse().expect("a short name is a valid id"),
        shape,
        zone: (pin.is_none() && random.permille(100)).then(|| ZONES[random.index(permanent)]),
        pin,
        excluded,
        options: options(random, is_fair, hosts),
        has_key: random.permille(700),
        deadline: (!is_fair && random.permille(40)).then(|| Duration::from_millis(random.below(120_000))),
        attempts_max: random.permille(50).then(|| random.between(1, 3) as u8),
        cancel_after: (!is_fair && random.permille(60)).then(|| random.below(30_000)),
        duration,
        progress_every: random.between(500, 4000),
    }
}

/// A worker that may be removed for good.
fn removable_worker(random: &mut Random, hosts: &[HostPlan]) -> Option<WorkerId> {
    let removable = hosts.get(PERMANENT_WORKERS..).filter(|removable| !removable.is_empty())?;
    Some(removable[random.index(removable.len())].name.clone())
}

fn options(random: &mut Random, is_fair: bool, hosts: &[HostPlan]) -> JobOptions {
    let seconds = |random: &mut Random| Duration::from_secs(random.between(15, 60));
    let preferred_count = if random.permille(100) && !hosts.is_empty() { random.between(1, 2) } else { 0 };
    JobOptions {
        retry_delay: random.permille(50).then(|| Duration::from_millis(random.below(5000))),
        preferred: (0..preferred_count).map(|_| hosts[random.index(hosts.len())].name.clone()).collect(),
        start_limit: (!is_fair && random.permille(40)).then(|| seconds(random)),
        node_limit: (!is_fair && random.permille(40)).then(|| seconds(random)),
        ..JobOptions::default()
    }
}

/// In fair weather only preferences: jobs that not every worker may take would hide the order of turns.
fn affinities(
    random: &mut Random,
    weather: Weather,
    shapes: &[WorkflowKind],
    hosts: &[HostPlan],
) -> BTreeMap<usize, Affinity> {
    let mut affinities = BTreeMap::new();
    for shape in 0..shapes.len() {
        if random.permille(150) {
            let preferred = [hosts[random.index(hosts.len())].name.clone()].into();
            let keeps_away = weather != Weather::Fair && random.permille(600);
            let excluded =
                keeps_away.then(|| removable_worker(random, hosts)).flatten().into_iter().collect();
            affinities.insert(shape, Affinity { preferred, excluded });
        }
    }
    affinities
}

/// The first tenant, which has most of the jobs, submits them all at once.
fn flood(jobs: &mut [JobPlan]) {
    jobs.iter_mut().filter(|job| job.tenant.as_str() == TENANTS[0]).for_each(|job| job.at = 0);
}

/// With a single worker every trial of a failing shape delays all others.
const FAILING_JOBS_SOLE_WORKER_MAX: usize = 2;
/// Failing jobs in a world. Where only one or two workers can take them, each costs a trial every ten minutes.
const FAILING_JOBS_MAX: usize = 5;

fn limit_failing_jobs(jobs: &mut [JobPlan], shapes: &[WorkflowKind], workers: usize) {
    let failing_max = if workers == 1 { FAILING_JOBS_SOLE_WORKER_MAX } else { FAILING_JOBS_MAX };
    let failing =
        jobs.iter_mut().filter(|job| matches!(shapes[job.shape], WorkflowKind::Bad | WorkflowKind::Poison));
    failing.skip(failing_max).for_each(|job| job.shape = 0);
}

/// The client that submitted a job: its index is part of the id.
pub(crate) fn client_of(job: JobId) -> usize {
    (job.as_u128() & 0xffff) as usize
}
