//! What goes wrong, and when: drawn from the seed before the world begins, carried out in its time. Every fault has an
//! end, and at the end of the storm all that is still broken is mended, except workers that are gone for good.

use crate::Weather;
use crate::happening::Happening;
use crate::provider::{Trouble, Troubles};
use crate::random::Random;
use crate::scene::STAYERS;
use crate::service::Ailment;
use crate::world::World;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) at: u64,
    pub(crate) fault: Fault,
}

/// Times are milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// `back_after` is nothing for a worker that is gone for good.
    KillAgent {
        host: usize,
        back_after: Option<u64>,
        service_survives: bool,
    },
    PauseAgent {
        host: usize,
        lasts: u64,
    },
    /// Somebody starts a second agent under the same name.
    Twin {
        host: usize,
        lasts: u64,
    },
    CrashService {
        host: usize,
        away: u64,
    },
    /// A service that is too busy to answer.
    MuteService {
        host: usize,
        lasts: u64,
    },
    AilService {
        host: usize,
        ailment: Ailment,
    },
    BreakSocket {
        host: usize,
    },
    /// Somebody else has work for a service, too.
    Intrude {
        host: usize,
        count: u64,
        takes: u64,
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
    /// A share of all workers, in percent: our own link, or a switch.
    CutMany {
        percent: u64,
        lasts: u64,
    },
    /// Three in ten messages are lost and the rest take two seconds.
    FoulNet {
        lasts: u64,
    },
    KillPlane {
        away: u64,
        jump: i64,
    },
    PausePlane {
        lasts: u64,
    },
    /// A plane is paused, another takes the lead, and then the first goes on as if nothing had been.
    Usurp {
        after: u64,
        resumes: u64,
        jump: i64,
    },
    SlowStore {
        commit: u64,
        lasts: u64,
    },
    /// What is written now is kept when the store comes back.
    StoreAway {
        lasts: u64,
    },
    /// What is written now is not kept, and whoever writes it is told so.
    FailCommits {
        lasts: u64,
    },
    /// A person lifts whatever is blocked.
    LiftBlocks,
    /// Something comes over the provider.
    Spell {
        trouble: Trouble,
        lasts: u64,
    },
    /// A person orders a fleet about.
    Order,
    /// The store is put back from a backup.
    OldStore,
}

impl Fault {
    /// How long an outage of the plane or the store lasts: a storm is not over before it is.
    fn outlasts(self) -> u64 {
        match self {
            Fault::KillPlane { away, .. } => away,
            Fault::PausePlane { lasts } | Fault::StoreAway { lasts } => lasts,
            Fault::Usurp { resumes, .. } => resumes,
            Fault::Spell { trouble: Trouble::Outage, lasts } => lasts,
            _ => 0,
        }
    }
}

/// When the last of them is over, if that is later than the storm was meant to end.
pub(crate) fn end(faults: &[Planned], storm_end: u64) -> u64 {
    let ends = faults.iter().map(|planned| planned.at + planned.fault.outlasts() + 1);
    ends.max().unwrap_or(0).max(storm_end)
}

pub(crate) fn draw(random: &mut Random, weather: Weather, storm_end: u64, hosts: usize) -> Vec<Planned> {
    let kinds: &[u64] = match weather {
        Weather::Fair | Weather::Fleet => return Vec::new(),
        Weather::Agents => &[0, 1, 2, 3, 4, 5, 12, 0, 1, 15, 18],
        Weather::Service => &[3, 15, 16, 17, 18, 18, 19, 19, 20, 21],
        Weather::Network => &[6, 6, 7, 8, 6],
        Weather::Plane => &[9, 10, 11, 9],
        Weather::Store => &[13, 13, 14, 22],
        Weather::Wild => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
    };
    // A single one of those that concern a service often meets nothing there.
    let count = random.between(1, 8) * if weather == Weather::Service { 4 } else { 1 };
    let mut faults = Vec::new();
    for _ in 0..count {
        let (at, kind) = (random.below(storm_end), random.pick(kinds));
        fault(random, kind, at, storm_end, hosts, &mut faults);
    }
    faults.retain(|planned| planned.at < storm_end);
    faults
}

fn fault(random: &mut Random, kind: u64, at: u64, storm_end: u64, hosts: usize, faults: &mut Vec<Planned>) {
    let host = random.index(hosts);
    let left = storm_end - at;
    let jump = random.pick(&[0, 0, -3_600_000, 3_600_000]);
    let some = |random: &mut Random, most: u64| random.between(200, most);
    let service_survives = random.permille(500);
    let fault = match kind {
        0 => Fault::KillAgent { host, back_after: Some(some(random, 90_000)), service_survives },
        1 => Fault::PauseAgent { host, lasts: some(random, 100_000) },
        2 => Fault::Twin { host, lasts: some(random, 60_000) },
        3 => Fault::CrashService { host, away: random.between(0, 30_000) },
        4 => Fault::DrainWorker { host },
        5 if host >= STAYERS => Fault::KillAgent { host, back_after: None, service_survives: false },
        5 => Fault::CrashService { host, away: 10 },
        6 => {
            let (up, down) = random.pick(&[(true, true), (true, false), (false, true)]);
            Fault::Cut { host, up, down, lasts: some(random, 90_000) }
        }
        7 => Fault::CutMany { percent: random.pick(&[50, 80, 100]), lasts: some(random, 120_000) },
        8 => Fault::FoulNet { lasts: some(random, 60_000) },
        9 => Fault::KillPlane { away: outage(random), jump },
        10 => Fault::PausePlane { lasts: outage(random) },
        11 => {
            let after = some(random, 30_000);
            Fault::Usurp { after, resumes: after + some(random, 30_000), jump }
        }
        12 => {
            // A crash loop: it comes back just to go again.
            for n in 1..=random.between(2, 6) {
                let back_after = Some(some(random, 4000));
                let fault = Fault::KillAgent { host, back_after, service_survives };
                faults.push(Planned { at: at + n * 8000, fault });
            }
            return;
        }
        13 => Fault::SlowStore { commit: random.pick(&[300, 1000, 2500, 4000, 10_000]), lasts: 60_000 },
        14 => Fault::StoreAway { lasts: outage(random) },
        15 => Fault::MuteService { host, lasts: random.between(1000, 60_000) },
        16 => Fault::AilService {
            host,
            ailment: random.pick(&[Ailment::Executor, Ailment::Device, Ailment::Disk]),
        },
        17 => Fault::Intrude { host, count: random.between(1, 4), takes: intrusion(random) },
        18 => Fault::BreakSocket { host },
        19 => Fault::ClearHistory { host },
        20 => Fault::Interrupt { host },
        21 => Fault::AilService { host, ailment: Ailment::Executor },
        _ => Fault::FailCommits { lasts: some(random, 20_000) },
    };
    faults.push(Planned { at, fault });
    if random.permille(50) {
        faults.push(Planned { at: at + random.below(left), fault: Fault::LiftBlocks });
    }
}

/// Where machines are rented: what comes over the provider for a while, and what happens to us meanwhile.
pub(crate) fn draw_for_fleets(random: &mut Random, troubles: &Troubles, storm_end: u64) -> Vec<Planned> {
    let mut faults = Vec::new();
    for trouble in troubles.kinds().filter(|trouble| trouble.is_spell()) {
        for _ in 0..random.between(1, 4) {
            let at = random.below(storm_end);
            let fault = match trouble {
                Trouble::OldStore => Fault::OldStore,
                Trouble::People => Fault::Order,
                Trouble::CommitsFail => Fault::FailCommits { lasts: random.between(1000, 60_000) },
                Trouble::PlaneDies if random.permille(200) => {
                    let after = random.between(200, 60_000);
                    Fault::Usurp { after, resumes: after + random.between(200, 300_000), jump: 0 }
                }
                Trouble::PlaneDies if random.permille(200) => Fault::PausePlane { lasts: outage(random) },
                Trouble::PlaneDies => Fault::KillPlane { away: outage(random), jump: 0 },
                trouble => Fault::Spell { trouble, lasts: spell(random, trouble) },
            };
            faults.push(Planned { at, fault });
        }
    }
    faults
}

/// Mostly minutes; an outage sometimes hours.
fn spell(random: &mut Random, trouble: Trouble) -> u64 {
    match trouble {
        Trouble::Outage if random.permille(100) => random.between(3_600_000, 2 * 3_600_000),
        Trouble::RateLimit => random.between(5000, 300_000),
        _ => random.between(10_000, 1_200_000),
    }
}

/// Mostly seconds, sometimes longer than anything of ours may stand still.
fn intrusion(random: &mut Random) -> u64 {
    if random.permille(100) { random.between(310_000, 500_000) } else { random.between(500, 30_000) }
}

/// Mostly seconds, sometimes minutes: longer than a lease, a beat, an idle timeout.
fn outage(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => random.between(280_000, 700_000),
        1..=3 => random.between(20_000, 120_000),
        _ => random.between(10, 20_000),
    }
}

impl World<'_> {
    pub(crate) fn befall(&mut self, fault: Fault) {
        self.meet_own(fault);
        let end =
            |lasts: u64, world: &World<'_>| (world.now + lasts).min(world.scene.storm_end.max(world.now));
        match fault {
            Fault::KillAgent { host, back_after, service_survives } => {
                self.kill_agent(host, service_survives, "killed");
                match back_after {
                    Some(after) => self.at(after, Happening::Begin { host }),
                    None => self.hosts[host].is_gone = true,
                }
            }
            Fault::PauseAgent { host, lasts } => self.pause_agent(host, end(lasts, self)),
            Fault::Twin { host, lasts } => self.add_twin(host, end(lasts, self)),
            Fault::CrashService { host, away } => self.crash_service(host, away),
            Fault::MuteService { host, lasts } => self.mute_service(host, end(lasts, self)),
            Fault::AilService { host, ailment } => self.ail(host, ailment),
            Fault::BreakSocket { host } => self.break_socket(host),
            Fault::Intrude { host, count, takes } => self.intrude(host, count, takes),
            Fault::ClearHistory { host } => self.clear_history(host),
            Fault::Interrupt { host } => self.interrupt(host),
            Fault::FailCommits { lasts } => self.failing_until = end(lasts, self),
            Fault::DrainWorker { host } => self.ask_to_drain(host),
            Fault::Cut { host, up, down, lasts } => {
                let end = end(lasts, self);
                self.cut(host, up.then_some(end), down.then_some(end));
            }
            Fault::CutMany { percent, lasts } => {
                let end = end(lasts, self);
                for host in 0..self.hosts.len() {
                    if self.random.below(100) < percent {
                        self.cut(host, Some(end), Some(end));
                    }
                }
            }
            Fault::FoulNet { lasts } => {
                self.foul_until = end(lasts, self);
                self.hosts.iter_mut().for_each(|host| host.is_pristine = false);
            }
            Fault::KillPlane { away, jump } => self.kill_plane(away, jump),
            Fault::PausePlane { lasts } => self.pause_plane(lasts),
            Fault::Usurp { after, resumes, jump } => self.usurp(after, resumes, jump),
            Fault::SlowStore { commit, lasts } => {
                (self.slow_commit, self.slow_until) = (commit, end(lasts, self));
            }
            Fault::StoreAway { lasts } => self.away_until = self.now + lasts,
            Fault::LiftBlocks => self.lift_blocks(),
            Fault::Spell { trouble, lasts } => self.begin_spell(trouble, lasts),
            Fault::Order => self.somebody_orders(),
            Fault::OldStore => self.put_store_back(),
        }
    }

    /// What happens to ourselves where machines are rented.
    fn meet_own(&mut self, fault: Fault) {
        match fault {
            Fault::KillPlane { .. } | Fault::PausePlane { .. } | Fault::Usurp { .. } => {
                self.account.meet(Trouble::PlaneDies);
            }
            Fault::FailCommits { .. } => self.account.meet(Trouble::CommitsFail),
            _ => {}
        }
    }

    /// The storm is over: what is broken is mended.
    pub(crate) fn calm(&mut self) {
        self.is_calm = true;
        (self.foul_until, self.slow_until, self.failing_until) = (self.now, self.now, self.now);
        self.mend_services();
        self.calm_provider();
        for host in 0..self.hosts.len() {
            let link = &mut self.hosts[host].link;
            (link.cut_up_until, link.cut_down_until) = (0, 0);
            if self.hosts[host].is_twin {
                self.kill_agent(host, false, "sorted out");
                self.hosts[host].is_gone = true;
            }
        }
    }
}
