//! The clock of a process: the time at which it started, plus a monotonic clock. A jump of the machine's clock has no effect
//! on it. `remuda_core::clock` decides at which time a plane starts; a worker and a command start at the machine's time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remuda_core::time::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Timestamp,
    started: Instant,
}

impl Clock {
    /// A clock that shows `now` now.
    pub fn starting_at(now: Timestamp) -> Self {
        Clock { anchor: now, started: Instant::now() }
    }

    /// A clock that shows the machine's time now.
    pub fn starting_now() -> Self {
        Clock::starting_at(machine_time())
    }

    pub fn now(&self) -> Timestamp {
        self.anchor.plus(self.started.elapsed())
    }

    /// The instant at which this clock shows `at`.
    pub fn instant(&self, at: Timestamp) -> Instant {
        // Adding a time that is further away could overflow `Instant`; a day is as good as never.
        const FAR: Duration = Duration::from_secs(24 * 60 * 60);
        self.started + at.since(self.anchor).min(self.started.elapsed() + FAR)
    }
}

/// What the machine's clock shows. It may jump at any moment, in either direction.
pub fn machine_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: K1.
    #[test]
    fn clock_continues_from_its_start_whatever_the_machine_shows() {
        let hour = Duration::from_secs(3600);
        for start in [machine_time().minus(hour), machine_time().plus(hour)] {
            let clock = Clock::starting_at(start);
            let (earlier, later) = (clock.now(), clock.now());
            assert!(earlier >= start && later >= earlier && later.since(start) < hour / 2);
        }
    }

    #[test]
    fn instant_matches_the_clock() {
        let clock = Clock::starting_now();
        let at = clock.now().plus(Duration::from_secs(5));
        let wait = clock.instant(at) - Instant::now();
        assert!(wait <= Duration::from_secs(5) && wait > Duration::from_secs(4));
        assert!(clock.instant(Timestamp::NEVER) > Instant::now());
    }
}
