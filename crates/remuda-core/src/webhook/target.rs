//! Receivers, as far as they listen. Whoever did not take one message is left alone for a while, whoever else has something
//! for it; then one message finds out. So a receiver that is down costs one try at a time, and nobody else waits for it. For
//! the same reason only so much is held for each: the rest stays where it is stored.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct WebhookTargets(BTreeMap<String, Target>);

#[derive(Clone, Debug, Default)]
struct Target {
    /// In a row.
    failures: u32,
    quiet_until: Timestamp,
    under_way: u32,
    /// News taken up for it.
    held: u32,
    /// More is stored than was taken up.
    has_more: bool,
}

/// The first time a receiver is left alone; doubles with each failure in a row.
const QUIET_MIN: Duration = Duration::from_secs(1);
const QUIET_MAX: Duration = Duration::from_secs(60);
/// Messages on their way to one receiver at the same time.
const SIDE_BY_SIDE_MAX: u32 = 4;
/// News held for one receiver: enough to keep one that listens busy, too little to crowd out the others.
const HELD_MAX: u32 = 100;

impl WebhookTargets {
    /// When something may be sent there; nothing while as much as may be is on its way.
    pub fn free_at(&self, target: &str) -> Option<Timestamp> {
        let Some(known) = self.0.get(target) else { return Some(Timestamp::ZERO) };
        let most = if known.failures == 0 { SIDE_BY_SIDE_MAX } else { 1 };
        (known.under_way < most).then_some(known.quiet_until)
    }

    /// Whether one more may be held for it. What is not is stored still, and `let_go` says when to look again.
    pub fn hold(&mut self, target: &str) -> bool {
        let known = self.0.entry(target.to_owned()).or_default();
        known.has_more = known.held >= HELD_MAX;
        if !known.has_more {
            known.held += 1;
        }
        !known.has_more
    }

    /// One is held no longer; whether there is room for what was left behind.
    pub fn let_go(&mut self, target: &str) -> bool {
        let Some(known) = self.0.get_mut(target) else { return false };
        known.held = known.held.saturating_sub(1);
        let is_worth_it = known.has_more && known.held <= HELD_MAX / 2;
        if is_worth_it {
            known.has_more = false;
        }
        if known.is_idle() && known.failures == 0 {
            self.0.remove(target);
        }
        is_worth_it
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
        self.0.retain(|_, it| !it.is_idle() || !is_over(it));
    }
}

impl Target {
    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.held == 0
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
        let mut targets = WebhookTargets::default();
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
        let mut targets = WebhookTargets::default();
        for _ in 0..40 {
            targets.sent("a");
            targets.answered(at(0), "a", false);
        }
        assert_eq!(targets.free_at("a"), Some(at(60)));
    }

    /// Faults: C11.
    #[test]
    fn so_much_is_held_for_one_receiver_and_the_rest_is_looked_for_when_there_is_room() {
        let mut targets = WebhookTargets::default();
        for _ in 0..HELD_MAX {
            assert!(targets.hold("a"));
        }
        assert!(!targets.hold("a") && targets.hold("b"), "one that is down crowds out nobody");
        let looks: Vec<_> = (0..HELD_MAX).map(|_| targets.let_go("a")).collect();
        assert_eq!(looks.iter().filter(|looks| **looks).count(), 1, "once, and not at each");
        assert!(looks[HELD_MAX as usize / 2 - 1]);
        assert!(!targets.let_go("b"), "nothing of it was left behind");
        assert!(targets.0.is_empty());
    }
}
