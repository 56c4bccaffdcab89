//! The plane's clock: the wall's time once, at start, and from there on what a monotonic clock counts. A jump of the
//! wall clock moves nothing, and after a restart time never goes back behind what is stored.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remuda_core::time::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Timestamp,
    started: Instant,
}

impl Clock {
    /// Goes on from `latest`, the last moment any stored record speaks of.
    pub fn after(latest: Timestamp) -> Self {
        Clock::anchored(wall(), latest)
    }

    fn anchored(wall: Timestamp, latest: Timestamp) -> Self {
        Clock { anchor: wall.max(latest), started: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        self.anchor.plus(self.started.elapsed())
    }

    /// The instant at which this clock will show `at`.
    pub fn instant(&self, at: Timestamp) -> Instant {
        // A far future is as good as never, and does not overflow.
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
    fn a_wall_clock_that_jumped_back_does_not_turn_time_back() {
        let latest = Timestamp::from_millis(5_000_000);
        let an_hour_earlier = latest.minus(Duration::from_secs(3600));
        let clock = Clock::anchored(an_hour_earlier, latest);
        assert!(clock.now() >= latest);
        let clock = Clock::anchored(latest.plus(Duration::from_secs(3600)), latest);
        assert!(clock.now() >= latest.plus(Duration::from_secs(3600)));
    }

    #[test]
    fn an_instant_is_where_the_clock_will_be() {
        let clock = Clock::after(Timestamp::ZERO);
        let at = clock.now().plus(Duration::from_secs(5));
        let wait = clock.instant(at) - Instant::now();
        assert!(wait <= Duration::from_secs(5) && wait > Duration::from_secs(4));
        assert!(clock.instant(Timestamp::NEVER) > Instant::now());
    }
}
