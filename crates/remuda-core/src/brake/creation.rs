//! Stops renting when rented machines do not come up: on after three failures in a row, then one trial at a time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::supervise::{Backoff, Breaker, BreakerLimits, BreakerState};
use crate::time::Timestamp;

/// One or two failed creations may be chance; a third machine would be paid for nothing.
const LIMITS: BreakerLimits = BreakerLimits {
    failures_max: 3,
    cooldown: Backoff::new(Duration::from_secs(60), Duration::from_secs(30 * 60)),
};

/// Stops renting when rented machines do not come up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreationBrake {
    #[serde(flatten)]
    breaker: Breaker,
    /// Why the last one failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    last_failure: String,
}

impl CreationBrake {
    /// A machine could not be created, or never became a worker. Returns whether the brake is on.
    pub fn failed(&mut self, now: Timestamp, why: &str) -> bool {
        why.clone_into(&mut self.last_failure);
        self.breaker.fail(now, &LIMITS);
        self.is_on(now)
    }

    /// A created machine became a worker.
    pub fn succeeded(&mut self) {
        *self = CreationBrake::default();
    }

    /// An operator resets the brake.
    pub fn reset(&mut self) {
        *self = CreationBrake::default();
    }

    pub fn is_on(&self, now: Timestamp) -> bool {
        self.wake_at(now).is_some()
    }

    /// How many machines may be created while `under_way` already are: none while the brake is on, one at a time
    /// after that, and any number once one came up.
    pub fn creations_max(&self, now: Timestamp, under_way: u32) -> u32 {
        match self.breaker.state(now) {
            BreakerState::Closed => u32::MAX,
            BreakerState::Open { .. } => 0,
            BreakerState::HalfOpen | BreakerState::Trial(()) => 1_u32.saturating_sub(under_way),
        }
    }

    /// Whether a machine created now is the trial after failures in a row.
    pub fn is_trial(&self, now: Timestamp) -> bool {
        self.breaker.state(now) != BreakerState::Closed
    }

    /// Why creation is limited, if it is.
    pub fn reason(&self, now: Timestamp) -> Option<String> {
        let until = self.breaker.until()?;
        let (failures, why) = (self.breaker.failures(), &self.last_failure);
        Some(if now < until {
            format!("creation brake until {until}: {failures} creations failed in a row, the last: {why}")
        } else {
            format!("creation brake: one at a time until one comes up, after {failures} failures in a row")
        })
    }

    /// When the brake goes off.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.breaker.until().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// Fails at the given seconds; the brake must then be on until `until`.
    fn check_creation(brake: &mut CreationBrake, failures: &[u64], until: Option<u64>) {
        let mut now = at(0);
        for second in failures {
            now = at(*second);
            assert_eq!(brake.failed(now, "no capacity"), brake.is_on(now));
        }
        assert_eq!(brake.wake_at(now), until.map(at), "after {failures:?}");
    }

    #[test]
    fn three_failed_creations_in_a_row_stop_renting() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 1], None);
        brake.succeeded();
        check_creation(&mut brake, &[2, 3], None);
        check_creation(&mut brake, &[4], Some(64));
        assert_eq!(
            (brake.creations_max(at(63), 0), brake.creations_max(at(64), 0), brake.creations_max(at(64), 1)),
            (0, 1, 0)
        );
        let reason = brake.reason(at(10)).unwrap();
        assert!(reason.ends_with("3 creations failed in a row, the last: no capacity"), "{reason}");
    }

    #[test]
    fn every_failed_trial_doubles_the_wait_up_to_half_an_hour() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 0, 0], Some(60));
        for minutes in [2, 4, 8, 16, 30, 30] {
            let trial = brake.breaker.until().unwrap().as_millis() / 1000;
            check_creation(&mut brake, &[trial], Some(trial + minutes * 60));
        }
        brake.succeeded();
        assert_eq!((brake.creations_max(at(0), 9), brake.reason(at(0))), (u32::MAX, None));
    }

    #[test]
    fn what_fails_while_the_brake_is_on_belongs_to_the_same_storm() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 0, 0, 1, 2, 3, 4], Some(60));
        brake.reset();
        assert_eq!(brake.creations_max(at(5), 0), u32::MAX, "a person said so");
    }

    #[test]
    fn a_question_to_the_creation_brake_changes_nothing() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 0, 0], Some(60));
        let before = brake.clone();
        assert!(brake.is_on(at(59)) && !brake.is_on(at(60)) && brake.is_on(at(59)));
        assert_eq!(brake, before);
    }
}
