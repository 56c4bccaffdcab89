//! Worlds in which one fault of the catalogue happens again and again and nothing else does, so that its row is tried by
//! itself. `faults` draws mixtures, in which a rare fault is often hidden by another one.

use crate::faults::{Fault, PlannedFault};
use crate::random::Random;
use crate::service::Defect;
use crate::weather::Weather;

/// The one thing that goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultFocus {
    /// Every link of the plane is cut at once, and healed at once (N5, N6).
    MassCut,
    /// A third of all messages is lost and the others take two seconds, through the whole storm (N7).
    LossyNetwork,
    /// The wall clock of the plane's host is set an hour forwards or back while the plane runs (K1).
    ClockJump,
    /// The store is away for minutes (D17).
    StoreOutage,
    /// Another client clears the history of a service (V9).
    ClearedHistory,
    /// A service answers and its agent beats, but nothing runs any more (A9).
    DeadExecutor,
    /// One tenant submits all of its jobs at the start (C18). Not a fault of any part: nothing else goes wrong.
    Flood,
}

/// Long enough for an outage of ten minutes to be over before the storm is.
const OUTAGE_MAX: u64 = 600_000;
const HOUR: i64 = 3_600_000;

impl FaultFocus {
    /// The weather whose workers and jobs fit: plain ones, so that the outcome follows from this fault alone.
    pub(crate) fn weather(self) -> Weather {
        match self {
            FaultFocus::ClearedHistory | FaultFocus::DeadExecutor => Weather::Service,
            FaultFocus::Flood => Weather::Fair,
            _ => Weather::Losses,
        }
    }

    pub(crate) fn draw(self, random: &mut Random, storm_end: u64, hosts: usize) -> Vec<PlannedFault> {
        let planned = |at: u64, fault: Fault| PlannedFault { at, fault };
        match self {
            // The last cut ends with the storm, when the calls of every agent begin to be counted (L5).
            FaultFocus::MassCut => {
                let lasts = random.between(20_000, 120_000).min(storm_end / 2);
                let cut = Fault::CutMany { percent: 100, lasts };
                vec![planned(storm_end / 8, cut), planned(storm_end - lasts, cut)]
            }
            FaultFocus::LossyNetwork => vec![planned(0, Fault::DegradeNetwork { lasts: storm_end })],
            FaultFocus::ClockJump => {
                let first = random.pick(&[HOUR, -HOUR]);
                let jumps = [first, -first, -first, first];
                (1..).zip(jumps).map(|(n, by)| planned(n * storm_end / 6, Fault::JumpClock { by })).collect()
            }
            FaultFocus::StoreOutage => {
                let lasts = random.between(60_000, OUTAGE_MAX);
                vec![planned(storm_end / 4, Fault::StoreOutage { lasts })]
            }
            FaultFocus::ClearedHistory => (0..20)
                .map(|_| planned(random.below(storm_end), Fault::ClearHistory { host: random.index(hosts) }))
                .collect(),
            FaultFocus::DeadExecutor => (0..4)
                .map(|_| {
                    let host = random.index(hosts);
                    planned(random.below(storm_end), Fault::BreakService { host, defect: Defect::Executor })
                })
                .collect(),
            FaultFocus::Flood => Vec::new(),
        }
    }
}
