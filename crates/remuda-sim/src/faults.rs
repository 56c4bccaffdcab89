//! What goes wrong in a world, and when. Drawn from the seed before the world starts; `world::faults` applies it. Every
//! fault ends, at the latest with the storm, except the removal of a worker.

use crate::random::Random;
use crate::service::Defect;
use crate::trouble::{Trouble, Troubles};
use crate::weather::Weather;

/// The first two workers are never removed for good: between them they offer every service and every zone.
pub(crate) const PERMANENT_WORKERS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedFault {
    pub(crate) at: u64,
    pub(crate) fault: Fault,
}

/// Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// `back_after` is `None` for a worker that never comes back.
    KillAgent {
        host: usize,
        back_after: Option<u64>,
        service_survives: bool,
    },
    PauseAgent {
        host: usize,
        lasts: u64,
    },
    /// A second agent starts under the same name.
    Twin {
        host: usize,
        lasts: u64,
    },
    CrashService {
        host: usize,
        down_for: u64,
    },
    /// The service is too busy to answer.
    MuteService {
        host: usize,
        lasts: u64,
    },
    BreakService {
        host: usize,
        defect: Defect,
    },
    BreakSocket {
        host: usize,
    },
    /// Other clients submit prompts to the service.
    ForeignPrompts {
        host: usize,
        count: u64,
        duration: u64,
    },
    ClearHistory {
        host: usize,
    },
    Interrupt {
        host: usize,
    },
    DrainWorker {
        host: usize,
    },
    Cut {
        host: usize,
        up: bool,
        down: bool,
        lasts: u64,
    },
    /// Cuts the links of `percent` of all workers, as a failed uplink or switch would.
    CutMany {
        percent: u64,
        lasts: u64,
    },
    /// Kills every agent on a host's machine, with their services.
    KillMachine {
        host: usize,
        back_after: u64,
        closes: bool,
    },
    /// Kills `percent` of all machines with their agents and services; `closes`: their connections are closed, as when a process dies,
    /// and not when a machine loses power.
    KillMany {
        percent: u64,
        back_after: u64,
        closes: bool,
    },
    /// 30 % of the messages are lost and the others take two seconds.
    DegradeNetwork {
        lasts: u64,
    },
    KillPlane {
        down_for: u64,
        jump: i64,
    },
    PausePlane {
        lasts: u64,
    },
    /// The wall clock of the plane's host is set while the plane runs.
    JumpClock {
        by: i64,
    },
    /// The plane is paused, another takes the lead, and then the first resumes without noticing.
    ReplacePlane {
        after: u64,
        resumes: u64,
        jump: i64,
    },
    SlowStore {
        commit: u64,
        lasts: u64,
    },
    /// Commits wait until the store is back, and are kept.
    StoreOutage {
        lasts: u64,
    },
    /// Commits fail, and the writer is told so; some were kept nevertheless.
    FailCommits {
        lasts: u64,
    },
    /// An operator lifts a block.
    LiftBlocks,
    /// The provider has this trouble for a while.
    ProviderTrouble {
        trouble: Trouble,
        lasts: u64,
    },
    /// An operator gives a fleet an order.
    Order,
    /// An operator lowers the maximum of a fleet.
    LowerLimits,
    /// The store is restored from a backup.
    RollBackStore,
}

impl Fault {
    /// How long the plane, the store or the provider is down; the storm lasts at least until then.
    fn outage(self) -> u64 {
        match self {
            Fault::KillPlane { down_for, .. } => down_for,
            Fault::PausePlane { lasts } | Fault::StoreOutage { lasts } => lasts,
            Fault::ReplacePlane { resumes, .. } => resumes,
            Fault::ProviderTrouble { trouble: Trouble::Outage, lasts } => lasts,
            _ => 0,
        }
    }
}

/// When the last fault is over, if that is later than the planned end of the storm.
pub(crate) fn end(faults: &[PlannedFault], storm_end: u64) -> u64 {
    let ends = faults.iter().map(|planned| planned.at + planned.fault.outage() + 1);
    ends.max().unwrap_or(0).max(storm_end)
}

pub(crate) fn draw(random: &mut Random, weather: Weather, storm_end: u64, hosts: usize) -> Vec<PlannedFault> {
    let kinds: &[u64] = match weather {
        Weather::Fair | Weather::Fleet => return Vec::new(),
        Weather::Agents => &[0, 1, 2, 3, 4, 5, 12, 0, 1, 15, 18],
        Weather::Service => &[3, 15, 16, 17, 18, 18, 19, 19, 20, 21],
        Weather::Network => &[6, 6, 7, 8, 6],
        Weather::Plane => &[9, 10, 11, 9, 25],
        Weather::Store => &[13, 13, 14, 22],
        Weather::Losses => &[23, 23, 23, 24, 10, 10, 0, 26, 26],
        Weather::Wild => {
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 25]
        }
    };
    // A single fault at a service often finds nothing to disturb.
    let count = random.between(1, 8) * if weather == Weather::Service { 4 } else { 1 };
    let mut faults = Vec::new();
    for _ in 0..count {
        let (at, kind) = (random.below(storm_end), random.pick(kinds));
        fault(random, kind, at, storm_end, hosts, &mut faults);
    }
    faults.retain(|planned| planned.at < storm_end);
    faults
}

fn fault(
    random: &mut Random,
    kind: u64,
    at: u64,
    storm_end: u64,
    hosts: usize,
    faults: &mut Vec<PlannedFault>,
) {
    let host = random.index(hosts);
    let left = storm_end - at;
    let jump = random.pick(&[0, 0, -3_600_000, 3_600_000]);
    let some = |random: &mut Random, most: u64| random.between(200, most);
    let service_survives = random.permille(500);
    let fault = match kind {
        0 => Fault::KillAgent { host, back_after: Some(some(random, 90_000)), service_survives },
        1 => Fault::PauseAgent { host, lasts: some(random, 100_000) },
        2 => Fault::Twin { host, lasts: some(random, 60_000) },
        3 => Fault::CrashService { host, down_for: random.between(0, 30_000) },
        4 => Fault::DrainWorker { host },
        5 if host >= PERMANENT_WORKERS => {
            Fault::KillAgent { host, back_after: None, service_survives: false }
        }
        5 => Fault::CrashService { host, down_for: 10 },
        6 => {
            let (up, down) = random.pick(&[(true, true), (true, false), (false, true)]);
            Fault::Cut { host, up, down, lasts: some(random, 90_000) }
        }
        7 => Fault::CutMany { percent: random.pick(&[50, 80, 100]), lasts: some(random, 120_000) },
        8 => Fault::DegradeNetwork { lasts: some(random, 60_000) },
        9 => Fault::KillPlane { down_for: outage(random), jump },
        10 => Fault::PausePlane { lasts: outage(random) },
        11 => {
            let after = some(random, 30_000);
            Fault::ReplacePlane { after, resumes: after + some(random, 30_000), jump }
        }
        12 => {
            // A crash loop: the agent comes back and dies again.
            for n in 1..=random.between(2, 6) {
                let back_after = Some(some(random, 4000));
                let fault = Fault::KillAgent { host, back_after, service_survives };
                faults.push(PlannedFault { at: at + n * 8000, fault });
            }
            return;
        }
        13 => Fault::SlowStore { commit: random.pick(&[300, 1000, 2500, 4000, 10_000]), lasts: 60_000 },
        14 => Fault::StoreOutage { lasts: outage(random) },
        15 => Fault::MuteService { host, lasts: random.between(1000, 60_000) },
        16 => Fault::BreakService {
            host,
            defect: random.pick(&[Defect::Executor, Defect::Device, Defect::Disk]),
        },
        17 => Fault::ForeignPrompts { host, count: random.between(1, 4), duration: foreign_duration(random) },
        18 => Fault::BreakSocket { host },
        19 => Fault::ClearHistory { host },
        20 => Fault::Interrupt { host },
        21 => Fault::BreakService { host, defect: Defect::Executor },
        23 => Fault::KillMany {
            percent: random.pick(&[10, 30, 60, 90, 100]),
            back_after: some(random, 200_000),
            closes: random.permille(500),
        },
        26 => Fault::KillMachine { host, back_after: some(random, 200_000), closes: random.permille(500) },
        25 => Fault::JumpClock { by: random.pick(&[-3_600_000, -40_000, 40_000, 3_600_000]) },
        24 => Fault::CutMany { percent: 100, lasts: random.between(20_000, 200_000) },
        _ => Fault::FailCommits { lasts: some(random, 20_000) },
    };
    faults.push(PlannedFault { at, fault });
    if random.permille(50) {
        faults.push(PlannedFault { at: at + random.below(left), fault: Fault::LiftBlocks });
    }
}

/// Where machines are rented: the provider's timed troubles, and the faults of our own plane, store and operators.
pub(crate) fn draw_for_fleets(random: &mut Random, troubles: &Troubles, storm_end: u64) -> Vec<PlannedFault> {
    let mut faults = Vec::new();
    for trouble in troubles.kinds().filter(|trouble| trouble.is_timed()) {
        for _ in 0..random.between(1, 4) {
            let at = random.below(storm_end);
            let fault = match trouble {
                Trouble::StoreRolledBack => Fault::RollBackStore,
                Trouble::Operators => Fault::Order,
                Trouble::LimitsLowered => Fault::LowerLimits,
                Trouble::CommitsFail => Fault::FailCommits { lasts: random.between(1000, 60_000) },
                Trouble::PlaneDies if random.permille(200) => {
                    let after = random.between(200, 60_000);
                    Fault::ReplacePlane { after, resumes: after + random.between(200, 300_000), jump: 0 }
                }
                Trouble::PlaneDies if random.permille(200) => Fault::PausePlane { lasts: outage(random) },
                Trouble::PlaneDies => Fault::KillPlane { down_for: outage(random), jump: 0 },
                trouble => Fault::ProviderTrouble { trouble, lasts: trouble_duration(random, trouble) },
            };
            faults.push(PlannedFault { at, fault });
        }
    }
    faults
}

/// Mostly minutes; an outage sometimes takes hours.
fn trouble_duration(random: &mut Random, trouble: Trouble) -> u64 {
    match trouble {
        Trouble::Outage if random.permille(100) => random.between(3_600_000, 2 * 3_600_000),
        Trouble::RateLimit => random.between(5000, 300_000),
        _ => random.between(10_000, 1_200_000),
    }
}

/// Mostly seconds, sometimes longer than one of our prompts may stand still.
fn foreign_duration(random: &mut Random) -> u64 {
    if random.permille(100) { random.between(310_000, 500_000) } else { random.between(500, 30_000) }
}

/// Mostly seconds, sometimes minutes: longer than a lease, a beat interval or an idle timeout.
fn outage(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => random.between(280_000, 700_000),
        1..=3 => random.between(20_000, 120_000),
        _ => random.between(10, 20_000),
    }
}
