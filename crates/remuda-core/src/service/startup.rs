//! Supervision of a service that has never worked yet: each failed start or self-test is retried after a pause. A few
//! failures are a slow start; more of them fail the start check, after which a rented machine is returned.

use std::time::Duration;

use crate::supervise::{Budget, BudgetVerdict};

/// Pause after a failed start or self-test.
pub const START_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// More failures in a row are not a slow start.
const SLOW_STARTS_MAX: u32 = 2;

#[derive(Clone, Debug)]
pub struct StartSupervision(Budget);

/// What a failed start means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// It may be slow: show what it waits for.
    Slow,
    /// The start check has failed.
    Failed,
}

impl Default for StartSupervision {
    fn default() -> Self {
        StartSupervision(Budget::new(SLOW_STARTS_MAX))
    }
}

impl StartSupervision {
    pub fn failed(&mut self) -> StartVerdict {
        match self.0.spend() {
            BudgetVerdict::Apply(_) => StartVerdict::Slow,
            BudgetVerdict::Escalate => StartVerdict::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_failed_start_fails_the_check_and_so_does_every_later_one() {
        let mut start = StartSupervision::default();
        let verdicts = [(); 4].map(|()| start.failed());
        assert_eq!(
            verdicts,
            [StartVerdict::Slow, StartVerdict::Slow, StartVerdict::Failed, StartVerdict::Failed]
        );
    }
}
