//! Wall clocks that are wrong by years when the plane starts, and other times on every wall clock of a scenario, for the
//! comparison of S10 (`clocks`).

use super::Scenario;
use crate::faults::{Fault, PlannedFault};
use crate::weather::Weather;

/// Whole days, so that budgets per day are the same.
const EPOCH_SHIFT: u64 = 41 * 86_400_000;
/// Three years and a little.
const HOST_SHIFT: u64 = 3 * 365 * 86_400_000 + 12_345;

/// Fifty years: a clock that no start may believe, unless nothing is stored yet.
const WRONG_BY: i64 = 50 * 365 * 86_400_000;
/// Of so many worlds one begins with such a clock, and another one gets it in the middle.
const WRONG_EVERY: u64 = 8;

/// What the wall clocks of a world show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockShift {
    None,
    Other,
}

impl Scenario {
    /// Chosen by the seed and not drawn, so that no other world changes.
    pub(crate) fn set_clocks_wrong(&mut self, seed: u64) {
        if !matches!(self.weather, Weather::Plane | Weather::Wild) {
            return;
        }
        match seed % WRONG_EVERY {
            3 => {
                self.first_jump = WRONG_BY;
                let fault = Fault::KillPlane { down_for: 1000, jump: 0 };
                self.faults.push(PlannedFault { at: self.storm_end / 2, fault });
            }
            5 => {
                for planned in &mut self.faults {
                    if let Fault::KillPlane { jump, .. } | Fault::ReplacePlane { jump, .. } =
                        &mut planned.fault
                    {
                        *jump = if *jump > 0 { WRONG_BY } else { *jump };
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn shift_clocks(&mut self, shift: ClockShift) {
        if shift == ClockShift::None {
            return;
        }
        self.epoch += EPOCH_SHIFT;
        self.clock_shift = HOST_SHIFT;
        self.hosts.iter_mut().for_each(|host| host.clock_offset += HOST_SHIFT);
        for planned in &mut self.faults {
            if let Fault::JumpClock { by } = &mut planned.fault {
                *by = -*by * 2;
            }
        }
    }
}
