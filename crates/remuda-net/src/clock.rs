//! The plane's clock: it reads the wall clock once, at the start, and a monotonic clock from then on. A jump of the wall
//! clock has no effect, and after a restart time never runs behind what is stored.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remuda_core::time::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Timestamp,
    started: Instant,
}

impl Clock {
    /// Never shows a time before `latest`, the latest time in any stored record.
    pub fn not_before(latest: Timestamp) -> Self {
        Clock::anchored(wall(), latest)
    }

    fn anchored(wall: Timestamp, latest: Timestamp) -> Self {
        Clock { anchor: wall.max(latest), started: Instant::now() }
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

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: K1.
    #[test]
    fn wall_clock_jump_does_not_turn_time_back() {
        let latest = Timestamp::from_millis(5_000_000);
        let hour_earlier = latest.minus(Duration::from_secs(3600));
        let clock = Clock::anchored(hour_earlier, latest);
        assert!(clock.now() >= latest);
        let clock = Clock::anchored(latest.plus(Duration::from_secs(3600)), latest);
        assert!(clock.now() >= latest.plus(Duration::from_secs(3600)));
    }

    #[test]
    fn instant_matches_the_clock() {
        let clock = Clock::not_before(Timestamp::ZERO);
        let at = clock.now().plus(Duration::from_secs(5));
        let wait = clock.instant(at) - Instant::now();
        assert!(wait <= Duration::from_secs(5) && wait > Duration::from_secs(4));
        assert!(clock.instant(Timestamp::NEVER) > Instant::now());
    }
}
