//! The circuit breaker. It stops nothing by itself: its owner reads `state` before it starts work, and reports how the
//! work ended. Questions change nothing, and half open is not a stored state: it follows from the time.

use serde::{Deserialize, Serialize};

use super::Backoff;
use crate::time::Timestamp;

/// `T` names the operation that is the trial, where its owner has to tell it from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, bound = "")]
pub struct Breaker<T = ()> {
    /// Failures since the last success.
    failures: u32,
    /// How often it opened since the last success.
    #[serde(alias = "renewed")]
    trips: u32,
    /// When the last cooldown ends or ended; `None` while it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    /// Not stored: after a restart another trial may start.
    #[serde(skip)]
    trial: Option<T>,
}

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerLimits {
    pub failures_max: u32,
    pub cooldown: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState<T = ()> {
    Closed,
    Open {
        until: Timestamp,
    },
    /// The cooldown is over: one trial may start.
    HalfOpen,
    /// The trial is running.
    Trial(T),
}

impl<T> Default for Breaker<T> {
    fn default() -> Self {
        Breaker { failures: 0, trips: 0, until: None, trial: None }
    }
}

impl<T: Copy + PartialEq> Breaker<T> {
    /// An open breaker as its owner stored it.
    pub fn opened(failures: u32, trips: u32, until: Timestamp) -> Self {
        Breaker { failures, trips, until: Some(until), trial: None }
    }

    /// A closed breaker as its owner stored it.
    pub fn counting(failures: u32) -> Self {
        Breaker { failures, ..Breaker::default() }
    }

    pub fn state(&self, now: Timestamp) -> BreakerState<T> {
        match (self.until, self.trial) {
            (None, _) => BreakerState::Closed,
            (Some(_), Some(trial)) => BreakerState::Trial(trial),
            (Some(until), None) if now < until => BreakerState::Open { until },
            (Some(_), None) => BreakerState::HalfOpen,
        }
    }

    /// An operation starts. True if it becomes the trial.
    pub fn start(&mut self, now: Timestamp, operation: T) -> bool {
        let is_trial = self.state(now) == BreakerState::HalfOpen;
        if is_trial {
            self.trial = Some(operation);
        }
        is_trial
    }

    /// The trial ended without evidence (cancelled, lost): another one may start.
    pub fn release(&mut self, operation: T) {
        self.trial.take_if(|trial| *trial == operation);
    }

    /// Closes it and forgets every failure.
    pub fn succeed(&mut self) {
        *self = Breaker::default();
    }

    /// Counts a failure by the standard rule. True if it opened the breaker, for the first time or again.
    pub fn fail(&mut self, now: Timestamp, limits: &BreakerLimits) -> bool {
        self.count_failure();
        let opens = match self.state(now) {
            BreakerState::Closed => self.failures >= limits.failures_max.max(1),
            // It was in flight when the breaker opened: the same incident.
            BreakerState::Open { .. } => false,
            BreakerState::HalfOpen | BreakerState::Trial(_) => true,
        };
        if opens {
            self.trip(now, limits.cooldown);
        }
        opens
    }

    /// Counts a failure, and leaves open whether the breaker opens.
    pub fn count_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Opens it, each time for twice as long as the last time.
    pub fn trip(&mut self, now: Timestamp, cooldown: Backoff) {
        self.until = Some(now.plus(cooldown.delay(self.trips)));
        self.trips = self.trips.saturating_add(1);
        self.trial = None;
    }

    /// Opens it again for as long as the last time: something failed that was not the trial.
    pub fn reopen(&mut self, now: Timestamp, cooldown: Backoff) {
        self.trips = self.trips.saturating_sub(1);
        self.trip(now, cooldown);
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn trips(&self) -> u32 {
        self.trips
    }

    /// When the last cooldown ends or ended; `None` while it is closed.
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: BreakerLimits = BreakerLimits {
        failures_max: 2,
        cooldown: Backoff::new(Duration::from_secs(60), Duration::from_secs(200)),
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    enum Do {
        Fail,
        Start(u8),
        Release(u8),
        Succeed,
        Reopen,
    }
    use Do::{Fail, Release, Reopen, Start, Succeed};

    fn check(story: &[(u64, Do)], now: u64, expected: BreakerState<u8>) {
        let mut breaker = Breaker::default();
        for (second, what) in story {
            match what {
                Fail => _ = breaker.fail(at(*second), &LIMITS),
                Start(operation) => _ = breaker.start(at(*second), *operation),
                Release(operation) => breaker.release(*operation),
                Succeed => breaker.succeed(),
                Reopen => breaker.reopen(at(*second), LIMITS.cooldown),
            }
        }
        assert_eq!(breaker.state(at(now)), expected);
    }

    fn open(until: u64) -> BreakerState<u8> {
        BreakerState::Open { until: at(until) }
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_forgets_them() {
        check(&[(0, Fail)], 0, BreakerState::Closed);
        check(&[(0, Fail), (1, Succeed), (2, Fail)], 2, BreakerState::Closed);
        check(&[(0, Fail), (1, Fail)], 1, open(61));
    }

    #[test]
    fn failure_while_open_lengthens_nothing() {
        check(&[(0, Fail), (0, Fail), (59, Fail)], 59, open(60));
    }

    #[test]
    fn one_trial_decides() {
        check(&[(0, Fail), (0, Fail)], 60, BreakerState::HalfOpen);
        check(&[(0, Fail), (0, Fail), (59, Start(1))], 60, BreakerState::HalfOpen);
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (61, Start(2))], 61, BreakerState::Trial(1));
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (61, Succeed)], 61, BreakerState::Closed);
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (61, Release(2))], 61, BreakerState::Trial(1));
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (61, Release(1))], 61, BreakerState::HalfOpen);
    }

    #[test]
    fn failed_trial_doubles_the_cooldown_up_to_its_maximum() {
        let mut story = vec![(0, Fail), (0, Fail), (60, Start(1)), (60, Fail)];
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (60, Fail)], 60, open(180));
        story.extend([(180, Fail), (380, Fail)]);
        check(&story, 380, open(580));
    }

    #[test]
    fn other_failure_during_a_trial_repeats_the_cooldown() {
        check(&[(0, Fail), (0, Fail), (60, Start(1)), (70, Reopen)], 70, open(130));
    }

    #[test]
    fn stored_breaker_continues_where_it_was() {
        let mut breaker = Breaker::<u8>::default();
        assert_eq!([breaker.fail(at(0), &LIMITS), breaker.fail(at(0), &LIMITS)], [false, true]);
        breaker.start(at(60), 1);
        breaker.fail(at(60), &LIMITS);
        let text = serde_json::to_string(&breaker).unwrap();
        assert_eq!(text, r#"{"failures":3,"trips":2,"until":180000}"#);
        assert_eq!(serde_json::from_str::<Breaker<u8>>(&text).unwrap(), breaker);
        assert_eq!(serde_json::from_str::<Breaker<u8>>("{}").unwrap(), Breaker::default());
    }
}
