//! Which faults happen when: drawn from a seed before the drill begins, so that the same seed brings the same faults at the
//! same moments. What the programs make of them still depends on the machine.
//!
//! Each fault occupies a *lane*: one worker, one ComfyUI server, one network line, or the plane. Faults of one lane do not
//! overlap; those of different lanes do, because real ones do.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What can be done to the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    PlaneKill,
    PlanePause,
    WorkerKill,
    WorkerPause,
    ServerKill,
    ServerPause,
    /// Worker and server together, as when a machine loses power.
    MachineKill,
    LineCut,
    LineDelay,
    /// The plane hears no worker.
    AllLinesCut,
    /// The server drops the sockets of its listeners.
    SocketsDropped,
    /// The next prompt's completion message is not sent.
    CompletionLost,
    DiskFull,
    SyncFails,
    SyncSlow,
    ClockJump,
    HostileWorker,
}

impl FaultKind {
    pub(crate) const ALL: [FaultKind; 17] = [
        FaultKind::PlaneKill,
        FaultKind::PlanePause,
        FaultKind::WorkerKill,
        FaultKind::WorkerPause,
        FaultKind::ServerKill,
        FaultKind::ServerPause,
        FaultKind::MachineKill,
        FaultKind::LineCut,
        FaultKind::LineDelay,
        FaultKind::AllLinesCut,
        FaultKind::SocketsDropped,
        FaultKind::CompletionLost,
        FaultKind::DiskFull,
        FaultKind::SyncFails,
        FaultKind::SyncSlow,
        FaultKind::ClockJump,
        FaultKind::HostileWorker,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FaultKind::PlaneKill => "kill -9 of the plane",
            FaultKind::PlanePause => "plane stopped (SIGSTOP)",
            FaultKind::WorkerKill => "kill -9 of a worker",
            FaultKind::WorkerPause => "worker stopped (SIGSTOP)",
            FaultKind::ServerKill => "kill -9 of a ComfyUI server",
            FaultKind::ServerPause => "ComfyUI server stopped (SIGSTOP)",
            FaultKind::MachineKill => "worker and server killed together",
            FaultKind::LineCut => "line between worker and plane cut",
            FaultKind::LineDelay => "line between worker and plane delayed",
            FaultKind::AllLinesCut => "plane cut off from all workers",
            FaultKind::SocketsDropped => "sockets of a server dropped",
            FaultKind::CompletionLost => "completion message lost",
            FaultKind::DiskFull => "disk full",
            FaultKind::SyncFails => "fsync fails",
            FaultKind::SyncSlow => "fsync slow",
            FaultKind::ClockJump => "clock jump",
            FaultKind::HostileWorker => "hostile worker",
        }
    }

    /// How often it is drawn compared with the others. Faults that stop the whole fleet are rarer, so that the rest of the
    /// time shows what single faults do.
    fn weight(self) -> u64 {
        match self {
            FaultKind::PlaneKill | FaultKind::WorkerKill | FaultKind::ServerKill => 4,
            FaultKind::WorkerPause
            | FaultKind::ServerPause
            | FaultKind::MachineKill
            | FaultKind::LineCut
            | FaultKind::LineDelay
            | FaultKind::SocketsDropped
            | FaultKind::CompletionLost => 3,
            FaultKind::PlanePause | FaultKind::SyncSlow | FaultKind::HostileWorker => 2,
            FaultKind::AllLinesCut | FaultKind::DiskFull | FaultKind::SyncFails | FaultKind::ClockJump => 1,
        }
    }

    /// The shortest and longest time that it lasts, in leases.
    fn length_in_leases(self) -> (f64, f64) {
        match self {
            FaultKind::PlaneKill => (0.02, 0.3),
            FaultKind::PlanePause => (0.1, 2.0),
            FaultKind::WorkerKill | FaultKind::ServerKill | FaultKind::MachineKill => (0.05, 1.5),
            FaultKind::WorkerPause | FaultKind::ServerPause | FaultKind::LineCut => (0.1, 2.0),
            FaultKind::LineDelay => (0.5, 2.0),
            FaultKind::AllLinesCut => (0.5, 2.5),
            FaultKind::SocketsDropped | FaultKind::CompletionLost => (0.0, 0.0),
            FaultKind::DiskFull | FaultKind::SyncSlow => (0.2, 1.0),
            FaultKind::SyncFails => (0.05, 0.2),
            FaultKind::ClockJump => (1.0, 4.0),
            FaultKind::HostileWorker => (0.2, 0.5),
        }
    }

    /// Whether it concerns one of the workers, with its server and its line.
    pub(crate) fn is_of_one_worker(self) -> bool {
        match self {
            FaultKind::WorkerKill
            | FaultKind::WorkerPause
            | FaultKind::ServerKill
            | FaultKind::ServerPause
            | FaultKind::MachineKill
            | FaultKind::LineCut
            | FaultKind::LineDelay
            | FaultKind::SocketsDropped
            | FaultKind::CompletionLost => true,
            FaultKind::PlaneKill
            | FaultKind::PlanePause
            | FaultKind::AllLinesCut
            | FaultKind::DiskFull
            | FaultKind::SyncFails
            | FaultKind::SyncSlow
            | FaultKind::ClockJump
            | FaultKind::HostileWorker => false,
        }
    }

    /// A fault of one worker may end what that worker runs. No other fault may: an absent, slow or cut-off plane costs time
    /// and nothing else.
    pub(crate) fn excuses_retry(self) -> bool {
        self.is_of_one_worker()
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A fault, when it begins, and for how long it lasts. Times count from the beginning of the drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) kind: FaultKind,
    /// For faults of one worker.
    pub(crate) worker: usize,
    pub(crate) at: Duration,
    pub(crate) length: Duration,
}

impl PlannedFault {
    pub(crate) fn end(&self) -> Duration {
        self.at + self.length
    }

    /// `None`: the plane.
    fn lane(&self) -> Option<usize> {
        self.kind.is_of_one_worker().then_some(self.worker)
    }
}

/// What a schedule is drawn from.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleOptions {
    pub(crate) seed: u64,
    /// Of the part with faults.
    pub(crate) length: Duration,
    pub(crate) workers: usize,
    /// The mean time between two faults.
    pub(crate) fault_every: Duration,
    pub(crate) lease: Duration,
    pub(crate) kinds: Vec<FaultKind>,
}

/// A lane rests for so many leases after a fault: the parts are to come back, or nothing would ever run.
const REST_IN_LEASES: f64 = 1.5;
/// The plane comes back sooner than a worker is judged.
const PLANE_REST_IN_LEASES: f64 = 0.5;
/// How often another fault is drawn for a moment at which the lane of the first one is busy.
const DRAWS_MAX: usize = 8;

/// All faults, in the order of their beginnings.
pub(crate) fn draw(options: &ScheduleOptions) -> Vec<PlannedFault> {
    let mut rng = DrillRng::new(options.seed);
    let mut planned = Vec::new();
    let mut free_from: BTreeMap<Option<usize>, Duration> = BTreeMap::new();
    let weights: u64 = options.kinds.iter().map(|kind| kind.weight()).sum();
    let mut at = Duration::ZERO;
    if weights == 0 {
        return planned;
    }
    loop {
        // Between half and one and a half of the mean.
        at += options.fault_every.mul_f64(0.5 + rng.fraction());
        if at >= options.length {
            return planned;
        }
        let is_free = |fault: &PlannedFault| free_from.get(&fault.lane()).is_none_or(|free| *free <= at);
        let mut draws = (0..DRAWS_MAX).map(|_| draw_one(options, &mut rng, weights, at));
        let Some(fault) = draws.find(is_free) else { continue };
        let rest = if fault.lane().is_some() { REST_IN_LEASES } else { PLANE_REST_IN_LEASES };
        free_from.insert(fault.lane(), fault.end() + options.lease.mul_f64(rest));
        planned.push(fault);
    }
}

fn draw_one(options: &ScheduleOptions, rng: &mut DrillRng, weights: u64, at: Duration) -> PlannedFault {
    let kind = pick(&options.kinds, rng.below(weights));
    let (shortest, longest) = kind.length_in_leases();
    let length = options.lease.mul_f64(shortest + (longest - shortest) * rng.fraction());
    let worker = usize::try_from(rng.below(options.workers as u64)).unwrap_or(0);
    PlannedFault { kind, worker, at, length }
}

fn pick(kinds: &[FaultKind], mut drawn: u64) -> FaultKind {
    for kind in kinds {
        if drawn < kind.weight() {
            return *kind;
        }
        drawn -= kind.weight();
    }
    FaultKind::PlaneKill
}

/// SplitMix64: small, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct DrillRng(u64);

impl DrillRng {
    pub(crate) fn new(seed: u64) -> DrillRng {
        DrillRng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// From 0 up to 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seed: u64) -> ScheduleOptions {
        ScheduleOptions {
            seed,
            length: Duration::from_secs(3600),
            workers: 4,
            fault_every: Duration::from_secs(3),
            lease: Duration::from_secs(6),
            kinds: FaultKind::ALL.to_vec(),
        }
    }

    #[test]
    fn same_seed_brings_the_same_faults_and_another_seed_others() {
        assert_eq!(draw(&options(7)), draw(&options(7)));
        assert_ne!(draw(&options(7)), draw(&options(8)));
    }

    #[test]
    fn faults_of_one_lane_do_not_overlap_and_every_kind_comes() {
        let planned = draw(&options(1));
        for (at, fault) in planned.iter().enumerate() {
            let later = planned[at + 1..].iter().find(|later| later.lane() == fault.lane());
            assert!(later.is_none_or(|later| later.at >= fault.end()), "{fault:?} overlaps {later:?}");
        }
        for kind in FaultKind::ALL {
            assert!(planned.iter().any(|fault| fault.kind == kind), "{kind} never comes");
        }
    }

    #[test]
    fn only_kinds_that_are_possible_are_drawn() {
        let only = ScheduleOptions { kinds: vec![FaultKind::LineCut], ..options(3) };
        assert!(draw(&only).iter().all(|fault| fault.kind == FaultKind::LineCut));
        let none = ScheduleOptions { kinds: Vec::new(), ..options(3) };
        assert!(draw(&none).is_empty());
    }
}
