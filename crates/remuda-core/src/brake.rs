//! What stops the plane when it would make a bad day worse: `CreationBrake` when machines fail one after another,
//! `MassLoss` when so many workers fall silent at once that it must be our own link.
//!
//! ```text
//!  CreationBrake                                     MassLoss
//!
//!  free ──3 failures in a row──▶ on until T          off ──half the fleet, and 3, silent in one lease──▶ on
//!   ▲                             │      ▲            ▲                                               │
//!   │                             T      │            └── someone is heard, then a lease without loss;┘
//!   └──success, a person── one trial ────┘                or `HOLD_MAX` is over
//!                           failure: T ×2
//! ```
//!
//! Each fleet has its own `CreationBrake`; there is one `MassLoss` for the plane, because it has one link.
//! Questions change nothing. Neither brake acts: `cycle` and the plane ask, and hold back.

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

/// Stops renting when what is rented does not come up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreationBrake {
    #[serde(flatten)]
    breaker: Breaker,
    /// Why the last one failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

impl CreationBrake {
    /// A machine could not be created, or was and never became a worker. Whether the brake is on now.
    pub fn failed(&mut self, now: Timestamp, why: &str) -> bool {
        why.clone_into(&mut self.why);
        self.breaker.fail(now, &LIMITS);
        self.is_on(now)
    }

    /// A created machine became a worker.
    pub fn succeeded(&mut self) {
        *self = CreationBrake::default();
    }

    /// A person says it is all right again.
    pub fn lift(&mut self) {
        *self = CreationBrake::default();
    }

    pub fn is_on(&self, now: Timestamp) -> bool {
        self.wake_at(now).is_some()
    }

    /// How many machines may be created while `under_way` already are: none while the brake is on, one at a time
    /// after that, and as many as anyone likes once one came up.
    pub fn room(&self, now: Timestamp, under_way: u32) -> u32 {
        match self.breaker.state(now) {
            BreakerState::Closed => u32::MAX,
            BreakerState::Open { .. } => 0,
            BreakerState::HalfOpen | BreakerState::Trial(()) => 1_u32.saturating_sub(under_way),
        }
    }

    /// Why not everything may be created, if so.
    pub fn reason(&self, now: Timestamp) -> Option<String> {
        let until = self.breaker.until()?;
        let (failures, why) = (self.breaker.failures(), &self.why);
        Some(if now < until {
            format!("creation brake until {until}: {failures} creations failed in a row, the last: {why}")
        } else {
            format!("creation brake: one at a time until one comes up, after {failures} failures in a row")
        })
    }

    /// When it is worth asking again.
    pub fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.breaker.until().filter(|until| now < *until)
    }
}

/// Losing one or two workers is everyday life in any fleet, however small.
const LOST_MIN: usize = 3;
/// A rented machine stops itself after 15 minutes without contact: then nothing is left that could be spared by
/// waiting, and a fleet that is really gone must be replaced.
const HOLD_MAX: Duration = Duration::from_secs(15 * 60);

/// Holds back every verdict when most of the fleet falls silent at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MassLoss {
    /// Who fell silent within the last lease and was not heard since.
    silent: BTreeMap<WorkerId, Timestamp>,
    on: Option<Hold>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    since: Timestamp,
    /// One lease after the last loss, or after somebody was first heard since.
    calm_at: Timestamp,
    /// Whether anybody was heard after the last loss.
    is_heard: bool,
    lost: usize,
    fleet: usize,
}

impl Hold {
    fn until(&self) -> Timestamp {
        let longest = self.since.plus(HOLD_MAX);
        if self.is_heard { self.calm_at.min(longest) } else { longest }
    }
}

impl MassLoss {
    /// A worker fell silent, while `online` others are still heard. Comes before any verdict about what it holds;
    /// the answer is whether to hold that verdict back. It never swallows a release: until `release` has told of it,
    /// a further loss goes with the hold that was.
    pub fn silent(&mut self, now: Timestamp, worker: &WorkerId, online: usize, settings: &Settings) -> bool {
        self.silent.retain(|_, at| now.since(*at) < settings.lease);
        self.silent.insert(worker.clone(), now);
        // Who fell silent a moment ago is counted with the fleet: it must not look ever smaller while it vanishes.
        let (lost, fleet) = (self.silent.len(), self.silent.len() + online);
        let is_mass = lost >= LOST_MIN && lost * 100 >= fleet * usize::from(settings.mass_loss_percent);
        let calm_at = now.plus(settings.lease);
        match &mut self.on {
            Some(hold) => {
                (hold.calm_at, hold.is_heard) = (calm_at, false);
                (hold.lost, hold.fleet) = (hold.lost.max(lost), hold.fleet.max(fleet));
            }
            None if is_mass => self.on = Some(Hold { since: now, calm_at, is_heard: false, lost, fleet }),
            None => {}
        }
        self.is_on(now)
    }

    /// A worker beats or joins. Where one is heard again the others may be on their way: they have a lease from here on.
    pub fn heard(&mut self, now: Timestamp, worker: &WorkerId, settings: &Settings) {
        self.silent.remove(worker);
        if let Some(hold) = self.on.as_mut().filter(|hold| !hold.is_heard) {
            (hold.is_heard, hold.calm_at) = (true, now.plus(settings.lease));
        }
    }

    /// Takes the brake off if its time is over. True exactly once: then everyone who is silent is looked at again.
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
        let Hold { lost, fleet, since, .. } = self.on.as_ref().filter(|hold| now < hold.until())?;
        let ago = humanize(now.since(*since));
        Some(format!(
            "mass-loss brake, on for {ago}: {lost} of {fleet} workers fell silent together, which may be our own link"
        ))
    }

    /// When to call `release`.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.on.as_ref().map(Hold::until)
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
        assert_eq!((brake.room(at(63), 0), brake.room(at(64), 0), brake.room(at(64), 1)), (0, 1, 0));
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
        assert_eq!((brake.room(at(0), 9), brake.reason(at(0))), (u32::MAX, None));
    }

    #[test]
    fn what_fails_while_the_brake_is_on_belongs_to_the_same_storm() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 0, 0, 1, 2, 3, 4], Some(60));
        brake.lift();
        assert_eq!(brake.room(at(5), 0), u32::MAX, "a person said so");
    }

    #[test]
    fn a_question_to_the_creation_brake_changes_nothing() {
        let mut brake = CreationBrake::default();
        check_creation(&mut brake, &[0, 0, 0], Some(60));
        let before = brake.clone();
        assert!(brake.is_on(at(59)) && !brake.is_on(at(60)) && brake.is_on(at(59)));
        assert_eq!(brake, before);
    }

    /// `count` of `fleet` workers fall silent a second apart; how many were lost when the brake went on.
    fn vanish(brake: &mut MassLoss, fleet: usize, count: usize) -> Option<usize> {
        let settings = Settings::default();
        (1..=count).filter(|n| brake.silent(at(*n as u64), &worker(*n), fleet - n, &settings)).min()
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
            assert!(!brake.silent(at(n * 15), &worker(n as usize), 4, &settings), "two in any lease");
        }
    }

    #[test]
    fn one_flapping_worker_is_no_mass() {
        let (mut brake, settings) = (MassLoss::default(), Settings::default());
        for second in 0..20 {
            assert!(!brake.silent(at(second), &worker(1), 2, &settings));
        }
    }

    #[test]
    fn who_came_back_does_not_count_as_lost() {
        let (mut brake, settings) = (MassLoss::default(), Settings::default());
        for n in 1..=2 {
            brake.silent(at(n), &worker(n as usize), 2, &settings);
        }
        brake.heard(at(2), &worker(1), &settings);
        assert!(!brake.silent(at(3), &worker(3), 2, &settings));
        assert!(brake.silent(at(4), &worker(1), 1, &settings));
    }

    #[test]
    fn the_brake_holds_until_a_lease_of_health() {
        let mut brake = MassLoss::default();
        assert_eq!(vanish(&mut brake, 6, 4), Some(3));
        assert!(brake.is_on(at(33)) && !brake.release(at(33)));
        brake.heard(at(4), &worker(6), &Settings::default());
        assert_eq!(brake.wake_at(), Some(at(34)), "a lease after the last loss");
        brake.silent(at(20), &worker(5), 1, &Settings::default());
        assert!(brake.is_on(at(49)), "a further loss begins the lease anew");
        brake.heard(at(20), &worker(6), &Settings::default());
        assert!(brake.is_on(at(49)) && !brake.is_on(at(50)) && brake.is_on(at(49)), "asking changes nothing");
        assert!(brake.release(at(50)) && !brake.release(at(50)), "told once");
        assert_eq!((brake.wake_at(), brake.reason(at(50))), (None, None));
    }

    #[test]
    fn while_nobody_is_heard_calm_proves_nothing() {
        let mut brake = MassLoss::default();
        assert_eq!(vanish(&mut brake, 3, 3), Some(3));
        assert!(brake.is_on(at(600)));
        let reason = brake.reason(at(63)).unwrap();
        assert!(reason.starts_with("mass-loss brake, on for 1 min: 3 of 3 workers fell silent"), "{reason}");
        let mut heard = brake.clone();
        heard.heard(at(600), &worker(2), &Settings::default());
        assert!(heard.is_on(at(629)), "the others may be on their way");
        assert!(!heard.is_on(at(630)), "a lease of health");
        assert!(!brake.is_on(at(903)), "a fleet that is really gone is replaced in the end");
    }

    #[test]
    fn a_single_loss_after_the_release_is_everyday_life_again() {
        let mut brake = MassLoss::default();
        vanish(&mut brake, 6, 4);
        brake.heard(at(4), &worker(6), &Settings::default());
        assert!(brake.release(at(100)));
        assert!(!brake.silent(at(100), &worker(5), 1, &Settings::default()));
    }

    #[test]
    fn a_loss_in_the_last_moment_does_not_swallow_the_release() {
        let mut brake = MassLoss::default();
        vanish(&mut brake, 3, 3);
        assert!(brake.silent(at(902), &worker(4), 0, &Settings::default()));
        assert!(!brake.silent(at(903), &worker(5), 0, &Settings::default()), "held long enough");
        assert!(brake.release(at(903)), "and everyone is looked at again");
    }
}
