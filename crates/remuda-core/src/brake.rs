//! Brakes: `CreationBrake` stops renting when machines fail one after another; `MassLoss` holds back verdicts when so
//! many workers fall silent at once that the plane's own link must have failed.
//!
//! ```text
//!  CreationBrake                                     MassLoss
//!
//!  free ──3 failures in a row──▶ on until T          off ──half the fleet, and 3, silent in one lease──▶ on
//!   ▲                             │      ▲            ▲                                               │
//!   │                             T      │            └── a worker beats, then a lease without loss;──┘
//!   └─success, an operator─ one trial ────┘               or `HOLD_MAX` is over
//!                           failure: T ×2
//! ```
//!
//! Each fleet has its own `CreationBrake`; there is one `MassLoss` for the plane, because it has one link.
//! Reading changes nothing. The brakes do not act: `cycle` and the plane consult them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::WorkerId;
use crate::settings::Settings;
use crate::supervise::{Backoff, Breaker, BreakerLimits, BreakerState};
use crate::time::{Timestamp, humanize};

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

/// Losing one or two workers is normal in any fleet.
const LOST_MIN: usize = 3;
/// A rented machine stops itself after 15 minutes without contact: waiting longer saves nothing, and a fleet that is
/// really gone must be replaced.
const HOLD_MAX: Duration = Duration::from_secs(15 * 60);

/// Holds back every verdict when most of the fleet falls silent at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MassLoss {
    /// Workers that fell silent within the last lease and have not beaten since.
    lost: BTreeMap<WorkerId, Timestamp>,
    on: Option<Trip>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Trip {
    since: Timestamp,
    /// One lease after the last loss, or after the first beat since.
    calm_at: Timestamp,
    /// Whether any worker has beaten since the last loss.
    has_beats: bool,
    lost: usize,
    fleet: usize,
}

impl Trip {
    fn until(&self) -> Timestamp {
        let longest = self.since.plus(HOLD_MAX);
        if self.has_beats { self.calm_at.min(longest) } else { longest }
    }
}

impl MassLoss {
    /// A worker fell silent while `online` others still beat. Called before any verdict on its attempts; returns
    /// whether to hold that verdict back. It never hides a release: until `release` has reported it, a further loss
    /// extends the current hold.
    pub fn record_loss(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        online: usize,
        settings: &Settings,
    ) -> bool {
        self.lost.retain(|_, at| now.since(*at) < settings.lease);
        self.lost.insert(worker.clone(), now);
        // Recently lost workers count towards the fleet's size: it must not seem to shrink while it vanishes.
        let (lost, fleet) = (self.lost.len(), self.lost.len() + online);
        let is_mass = lost >= LOST_MIN && lost * 100 >= fleet * usize::from(settings.mass_loss_percent);
        let calm_at = now.plus(settings.lease);
        match &mut self.on {
            Some(hold) => {
                (hold.calm_at, hold.has_beats) = (calm_at, false);
                (hold.lost, hold.fleet) = (hold.lost.max(lost), hold.fleet.max(fleet));
            }
            None if is_mass => self.on = Some(Trip { since: now, calm_at, has_beats: false, lost, fleet }),
            None => {}
        }
        self.is_on(now)
    }

    /// A worker beats or joins. The others may follow: they get a lease from now.
    pub fn record_beat(&mut self, now: Timestamp, worker: &WorkerId, settings: &Settings) {
        self.lost.remove(worker);
        if let Some(hold) = self.on.as_mut().filter(|hold| !hold.has_beats) {
            (hold.has_beats, hold.calm_at) = (true, now.plus(settings.lease));
        }
    }

    /// Releases the brake if its time is over. True exactly once; the caller then checks every silent worker again.
    pub fn release(&mut self, now: Timestamp) -> bool {
        let is_over = self.on.as_ref().is_some_and(|hold| now >= hold.until());
        if is_over {
            *self = MassLoss::default();
        }
        is_over
    }

    pub fn is_on(&self, now: Timestamp) -> bool {
        self.on.as_ref().is_some_and(|hold| now < hold.until())
    }

    pub fn reason(&self, now: Timestamp) -> Option<String> {
        let Trip { lost, fleet, since, .. } = self.on.as_ref().filter(|hold| now < hold.until())?;
        let ago = humanize(now.since(*since));
        Some(format!(
            "mass-loss brake, on for {ago}: {lost} of {fleet} workers fell silent together, so the plane's own link may have failed"
        ))
    }

    /// When to call `release`.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.on.as_ref().map(Trip::until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn worker(n: usize) -> WorkerId {
        format!("gpu-{n}").parse().unwrap()
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

    /// `count` of `fleet` workers fall silent a second apart; returns how many were lost when the brake tripped.
    fn vanish(brake: &mut MassLoss, fleet: usize, count: usize) -> Option<usize> {
        let settings = Settings::default();
        (1..=count).filter(|n| brake.record_loss(at(*n as u64), &worker(*n), fleet - n, &settings)).min()
    }

    #[test]
    fn half_the_fleet_and_at_least_three_are_a_mass_loss() {
        for (fleet, count, expected) in [
            (10, 10, Some(5)),
            (10, 4, None),
            (2, 2, None),
            (3, 3, Some(3)),
            (4, 3, Some(3)),
            (100, 29, None),
        ] {
            assert_eq!(vanish(&mut MassLoss::default(), fleet, count), expected, "{count} of {fleet}");
        }
    }

    #[test]
    fn losses_spread_over_time_are_everyday_life() {
        let (mut brake, settings) = (MassLoss::default(), Settings::default());
        for n in 0..8 {
            assert!(!brake.record_loss(at(n * 15), &worker(n as usize), 4, &settings), "two in any lease");
        }
    }

    #[test]
    fn one_flapping_worker_is_no_mass() {
        let (mut brake, settings) = (MassLoss::default(), Settings::default());
        for second in 0..20 {
            assert!(!brake.record_loss(at(second), &worker(1), 2, &settings));
        }
    }

    #[test]
    fn who_came_back_does_not_count_as_lost() {
        let (mut brake, settings) = (MassLoss::default(), Settings::default());
        for n in 1..=2 {
            brake.record_loss(at(n), &worker(n as usize), 2, &settings);
        }
        brake.record_beat(at(2), &worker(1), &settings);
        assert!(!brake.record_loss(at(3), &worker(3), 2, &settings));
        assert!(brake.record_loss(at(4), &worker(1), 1, &settings));
    }

    #[test]
    fn the_brake_holds_until_a_lease_of_health() {
        let mut brake = MassLoss::default();
        assert_eq!(vanish(&mut brake, 6, 4), Some(3));
        assert!(brake.is_on(at(33)) && !brake.release(at(33)));
        brake.record_beat(at(4), &worker(6), &Settings::default());
        assert_eq!(brake.wake_at(), Some(at(34)), "a lease after the last loss");
        brake.record_loss(at(20), &worker(5), 1, &Settings::default());
        assert!(brake.is_on(at(49)), "a further loss starts the lease again");
        brake.record_beat(at(20), &worker(6), &Settings::default());
        assert!(brake.is_on(at(49)) && !brake.is_on(at(50)) && brake.is_on(at(49)), "asking changes nothing");
        assert!(brake.release(at(50)) && !brake.release(at(50)), "told once");
        assert_eq!((brake.wake_at(), brake.reason(at(50))), (None, None));
    }

    #[test]
    fn silence_without_any_beat_is_not_calm() {
        let mut brake = MassLoss::default();
        assert_eq!(vanish(&mut brake, 3, 3), Some(3));
        assert!(brake.is_on(at(600)));
        let reason = brake.reason(at(63)).unwrap();
        assert!(reason.starts_with("mass-loss brake, on for 1 min: 3 of 3 workers fell silent"), "{reason}");
        let mut heard = brake.clone();
        heard.record_beat(at(600), &worker(2), &Settings::default());
        assert!(heard.is_on(at(629)), "the others may be on their way");
        assert!(!heard.is_on(at(630)), "a lease of health");
        assert!(!brake.is_on(at(903)), "a fleet that is really gone is replaced in the end");
    }

    #[test]
    fn a_single_loss_after_the_release_is_everyday_life_again() {
        let mut brake = MassLoss::default();
        vanish(&mut brake, 6, 4);
        brake.record_beat(at(4), &worker(6), &Settings::default());
        assert!(brake.release(at(100)));
        assert!(!brake.record_loss(at(100), &worker(5), 1, &Settings::default()));
    }

    #[test]
    fn a_loss_in_the_last_moment_does_not_swallow_the_release() {
        let mut brake = MassLoss::default();
        vanish(&mut brake, 3, 3);
        assert!(brake.record_loss(at(902), &worker(4), 0, &Settings::default()));
        assert!(!brake.record_loss(at(903), &worker(5), 0, &Settings::default()), "held long enough");
        assert!(brake.release(at(903)), "and everyone is looked at again");
    }
}
