//! How anything that can stop working is kept alive, at every level the same way:
//!
//! ```text
//!   signal ──▶ quiet ──silence_max──▶ probe ──still nothing by verdict_max──▶ verdict ──▶ remedy ──budget spent──▶ escalate
//!     ▲          │                      │
//!     └──────────┴──── any signal ──────┘
//! ```
//!
//! A remedy is our doing and never counts as a signal, and neither does an excuse: when *we* were not listening (a
//! pause, a restart, a slow store), nobody is blamed for the silence, but `seen_at` still tells when they were last seen.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// When silence becomes a question, and when the question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// Silent this long: probe.
    pub silence_max: Duration,
    /// Silent this long, probe or not: verdict.
    pub verdict_max: Duration,
}

/// What a look at the watch says has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchVerdict {
    Alive,
    /// Ask now; said once for each silence.
    Probe,
    /// Asked already.
    Probing,
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    seen_at: Timestamp,
    /// From when silence is counted: the last signal, or the end of the last excuse.
    counted_from: Timestamp,
    is_probing: bool,
}

impl Watch {
    pub fn new(seen_at: Timestamp) -> Self {
        Watch { seen_at, counted_from: seen_at, is_probing: false }
    }

    /// A sign of life. One that was overtaken by a newer one changes nothing.
    pub fn signal(&mut self, now: Timestamp) {
        self.seen_at = self.seen_at.max(now);
        self.counted_from = self.counted_from.max(now);
        self.is_probing = false;
    }

    /// We were not listening for a while: that time does not count.
    pub fn excuse(&mut self, now: Timestamp, deaf_for: Duration) {
        self.counted_from = self.counted_from.plus(deaf_for).min(now);
    }

    /// Something happened that makes a probe worth it before silence does.
    pub fn doubt(&mut self, now: Timestamp, limits: WatchLimits) {
        if now.since(self.counted_from) < limits.silence_max {
            self.is_probing = true;
        }
    }

    pub fn seen_at(&self) -> Timestamp {
        self.seen_at
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

    /// When the next look can say something new.
    pub fn wake_at(&self, limits: WatchLimits) -> Timestamp {
        let limit =
            if self.is_probing { limits.verdict_max } else { limits.silence_max.min(limits.verdict_max) };
        self.counted_from.plus(limit)
    }
}

/// How often a remedy may be tried before the level above takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    remedies_max: u32,
    spent: u32,
}

/// What to do about a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// Try it; the number says which try this is.
    Apply(u32),
    /// The budget is spent: the level above decides.
    Escalate,
}

impl Budget {
    pub fn new(remedies_max: u32) -> Self {
        Budget { remedies_max, spent: 0 }
    }

    pub fn spend(&mut self) -> BudgetVerdict {
        if self.spent == self.remedies_max {
            return BudgetVerdict::Escalate;
        }
        self.spent += 1;
        BudgetVerdict::Apply(self.spent)
    }

    /// It works again: only a real signal earns the budget back.
    pub fn earn_back(&mut self) {
        self.spent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WatchLimits =
        WatchLimits { silence_max: Duration::from_secs(15), verdict_max: Duration::from_secs(30) };

    enum Do {
        Signal,
        Excuse(u64),
        Doubt,
        Look(WatchVerdict),
    }
    use Do::{Doubt, Excuse, Look, Signal};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn check(story: &[(u64, Do)], seen_at: u64) {
        let mut watch = Watch::new(at(0));
        for (second, what) in story {
            match what {
                Signal => watch.signal(at(*second)),
                Excuse(seconds) => watch.excuse(at(*second), Duration::from_secs(*seconds)),
                Doubt => watch.doubt(at(*second), LIMITS),
                Look(finding) => assert_eq!(watch.check(at(*second), LIMITS), *finding, "at {second} s"),
            }
        }
        assert_eq!(watch.seen_at(), at(seen_at));
    }

    #[test]
    fn silence_is_asked_about_once_and_then_judged() {
        check(
            &[
                (14, Look(WatchVerdict::Alive)),
                (15, Look(WatchVerdict::Probe)),
                (16, Look(WatchVerdict::Probing)),
                (29, Look(WatchVerdict::Probing)),
                (30, Look(WatchVerdict::Silent)),
            ],
            0,
        );
    }

    #[test]
    fn a_signal_ends_the_doubt() {
        check(
            &[
                (15, Look(WatchVerdict::Probe)),
                (20, Signal),
                (30, Look(WatchVerdict::Alive)),
                (31, Doubt),
                (31, Look(WatchVerdict::Probing)),
            ],
            20,
        );
    }

    #[test]
    fn our_own_deafness_is_no_ones_silence_and_no_sign_of_life() {
        check(&[(100, Excuse(95)), (100, Look(WatchVerdict::Alive)), (110, Look(WatchVerdict::Probe))], 0);
    }

    #[test]
    fn a_late_signal_does_not_turn_time_back() {
        check(&[(20, Signal), (10, Signal), (34, Look(WatchVerdict::Alive))], 20);
    }

    #[test]
    fn a_spent_budget_escalates_until_it_is_earned_back() {
        let mut budget = Budget::new(2);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Apply(1), BudgetVerdict::Apply(2)]);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Escalate, BudgetVerdict::Escalate]);
        budget.earn_back();
        assert_eq!(budget.spend(), BudgetVerdict::Apply(1));
    }
}
