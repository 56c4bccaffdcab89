//! The watch over one thing that should signal: silence is probed first and judged later.

use std::time::Duration;

use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// Silent this long: probe.
    pub silence_max: Duration,
    /// Silent this long, probe or not: verdict.
    pub verdict_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchVerdict {
    Alive,
    /// Probe now; returned once for each silence.
    Probe,
    /// The probe is out.
    Probing,
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    seen_at: Timestamp,
    /// From when silence is counted: the last signal, moved forward by `extend_deadline`.
    counted_from: Timestamp,
    is_probing: bool,
}

impl Watch {
    pub fn new(seen_at: Timestamp) -> Self {
        Watch { seen_at, counted_from: seen_at, is_probing: false }
    }

    /// A sign of life. One that arrives after a newer one changes nothing.
    pub fn signal(&mut self, now: Timestamp) {
        self.seen_at = self.seen_at.max(now);
        self.counted_from = self.counted_from.max(now);
        self.is_probing = false;
    }

    /// The probe has its answer, which was no sign of life: silence still counts from the last one.
    pub fn resume(&mut self) {
        self.is_probing = false;
    }

    /// We did not listen for `deaf_for`: that time does not count as silence, and `seen_at` still shows the last signal.
    pub fn extend_deadline(&mut self, now: Timestamp, deaf_for: Duration) {
        self.counted_from = self.counted_from.plus(deaf_for).min(now);
    }

    pub fn seen_at(&self) -> Timestamp {
        self.seen_at
    }

    /// From when its silence counts.
    pub fn counted_from(&self) -> Timestamp {
        self.counted_from
    }

    pub fn silent_for(&self, now: Timestamp) -> Duration {
        now.since(self.counted_from)
    }

    pub fn check(&mut self, now: Timestamp, limits: WatchLimits) -> WatchVerdict {
        let silent_for = self.silent_for(now);
        if silent_for >= limits.verdict_max {
            WatchVerdict::Silent
        } else if self.is_probing {
            WatchVerdict::Probing
        } else if silent_for >= limits.silence_max {
            self.is_probing = true;
            WatchVerdict::Probe
        } else {
            WatchVerdict::Alive
        }
    }

    /// When the next check can return something new.
    pub fn wake_at(&self, limits: WatchLimits) -> Timestamp {
        let limit =
            if self.is_probing { limits.verdict_max } else { limits.silence_max.min(limits.verdict_max) };
        self.counted_from.plus(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WatchLimits =
        WatchLimits { silence_max: Duration::from_secs(15), verdict_max: Duration::from_secs(30) };

    enum Do {
        Signal,
        Extend(u64),
        Check(WatchVerdict),
    }
    use Do::{Check, Extend, Signal};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn check(story: &[(u64, Do)], seen_at: u64) {
        let mut watch = Watch::new(at(0));
        for (second, what) in story {
            match what {
                Signal => watch.signal(at(*second)),
                Extend(seconds) => watch.extend_deadline(at(*second), Duration::from_secs(*seconds)),
                Check(verdict) => assert_eq!(watch.check(at(*second), LIMITS), *verdict, "at {second} s"),
            }
        }
        assert_eq!(watch.seen_at(), at(seen_at));
    }

    #[test]
    fn silence_is_probed_once_and_then_judged() {
        check(
            &[
                (14, Check(WatchVerdict::Alive)),
                (15, Check(WatchVerdict::Probe)),
                (16, Check(WatchVerdict::Probing)),
                (29, Check(WatchVerdict::Probing)),
                (30, Check(WatchVerdict::Silent)),
            ],
            0,
        );
    }

    #[test]
    fn signal_ends_the_probe() {
        check(
            &[
                (15, Check(WatchVerdict::Probe)),
                (20, Signal),
                (30, Check(WatchVerdict::Alive)),
                (35, Check(WatchVerdict::Probe)),
            ],
            20,
        );
    }

    #[test]
    fn our_own_pause_is_neither_silence_nor_a_signal() {
        check(&[(100, Extend(95)), (100, Check(WatchVerdict::Alive)), (110, Check(WatchVerdict::Probe))], 0);
    }

    #[test]
    fn late_signal_does_not_turn_time_back() {
        check(&[(20, Signal), (10, Signal), (34, Check(WatchVerdict::Alive))], 20);
    }
}
