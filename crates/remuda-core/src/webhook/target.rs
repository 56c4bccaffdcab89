//! Receivers, as far as they listen. Whoever did not take one message is left alone for a while, whoever else has something
//! for it; then one message finds out. So a receiver that is down costs one try at a time, and nobody else waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct Targets(BTreeMap<String, Target>);

#[derive(Clone, Debug, Default)]
struct Target {
    /// In a row.
    failures: u32,
    quiet_until: Timestamp,
    under_way: u32,
}

/// The first time a receiver is left alone; doubles with each failure in a row.
const QUIET_MIN: Duration = Duration::from_secs(1);
const QUIET_MAX: Duration = Duration::from_secs(60);
/// Messages on their way to one receiver at the same time.
const SIDE_BY_SIDE_MAX: u32 = 4;

impl Targets {
    /// When something may be sent there; nothing while as much as may be is on its way.
    pub fn free_at(&self, target: &str) -> Option<Timestamp> {
        let Some(known) = self.0.get(target) else { return Some(Timestamp::ZERO) };
        let most = if known.failures == 0 { SIDE_BY_SIDE_MAX } else { 1 };
        (known.under_way < most).then_some(known.quiet_until)
    }

    pub fn sent(&mut self, target: &str) {
        self.0.entry(target.to_owned()).or_default().under_way += 1;
    }

    pub fn answered(&mut self, now: Timestamp, target: &str, is_taken: bool) {
        let Some(known) = self.0.get_mut(target) else { return };
        known.under_way = known.under_way.saturating_sub(1);
        if is_taken {
            (known.failures, known.quiet_until) = (0, Timestamp::ZERO);
        } else {
            known.failures = known.failures.saturating_add(1);
            let quiet = QUIET_MIN.saturating_mul(1 << (known.failures - 1).min(16)).min(QUIET_MAX);
            known.quiet_until = now.plus(quiet);
        }
        // What is long over, or was never a problem, is not remembered.
        let is_over = |it: &Target| it.failures == 0 || now.since(it.quiet_until) > QUIET_MAX;
        self.0.retain(|_, it| it.under_way > 0 || !is_over(it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// Faults: C11.
    #[test]
    fn who_does_not_listen_is_tried_by_one_message_at_a_time_and_others_are_not_held_up() {
        let mut targets = Targets::default();
        for _ in 0..SIDE_BY_SIDE_MAX {
            assert_eq!(targets.free_at("a"), Some(Timestamp::ZERO));
            targets.sent("a");
        }
        assert_eq!((targets.free_at("a"), targets.free_at("b")), (None, Some(Timestamp::ZERO)));
        for _ in 0..SIDE_BY_SIDE_MAX {
            targets.answered(at(10), "a", false);
        }
        assert_eq!(targets.free_at("a"), Some(at(10 + 8)));
        targets.sent("a");
        assert_eq!(targets.free_at("a"), None, "one finds out");
        targets.answered(at(20), "a", true);
        assert_eq!(targets.free_at("a"), Some(Timestamp::ZERO));
        assert!(targets.0.is_empty());
    }

    #[test]
    fn nobody_is_left_alone_for_longer_than_a_minute() {
        let mut targets = Targets::default();
        for _ in 0..40 {
            targets.sent("a");
            targets.answered(at(0), "a", false);
        }
        assert_eq!(targets.free_at("a"), Some(at(60)));
    }
}
