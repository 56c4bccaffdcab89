//! Other times on every wall clock of a scenario, for the comparison of S10 (`clocks`).

use super::Scenario;
use crate::faults::Fault;

/// Whole days, so that budgets per day are the same.
const EPOCH_SHIFT: u64 = 41 * 86_400_000;
/// Three years and a little.
const HOST_SHIFT: u64 = 3 * 365 * 86_400_000 + 12_345;

/// What the wall clocks of a world show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockShift {
    None,
    Other,
}

impl Scenario {
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
