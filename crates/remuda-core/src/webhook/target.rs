//! Webhook receivers. One that refuses a delivery is rested, for every job that reports to it; then single deliveries try it
//! again. So a receiver that is down costs one try at a time and delays no other receiver. For the same reason only a
//! bounded number of deliveries is loaded per receiver; the rest stays in the store.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::supervise::{Backoff, Breaker};
use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct WebhookTargets(BTreeMap<String, Target>);

#[derive(Clone, Debug, Default)]
struct Target {
    breaker: Breaker,
    in_flight: u32,
    /// Deliveries loaded for it.
    loaded: u32,
    /// More are stored than were loaded.
    has_more: bool,
}

/// Every failure opens the breaker, also one that was in flight: receivers fail fast and recover fast.
const COOLDOWN: Backoff = Backoff::new(Duration::from_secs(1), COOLDOWN_MAX);
const COOLDOWN_MAX: Duration = Duration::from_secs(60);
/// Deliveries in flight to one receiver.
const IN_FLIGHT_MAX: u32 = 4;
/// Deliveries loaded for one receiver: enough to keep a working one busy, too few to crowd out others.
const LOADED_MAX: u32 = 100;

impl WebhookTargets {
    /// When the next delivery may be sent; `None` while as many as allowed are in flight.
    pub fn free_at(&self, target: &str) -> Option<Timestamp> {
        let Some(known) = self.0.get(target) else { return Some(Timestamp::ZERO) };
        let until = known.breaker.until();
        let in_flight_max = if until.is_none() { IN_FLIGHT_MAX } else { 1 };
        (known.in_flight < in_flight_max).then_some(until.unwrap_or(Timestamp::ZERO))
    }

    /// Whether one more delivery may be loaded. If not, it stays stored, and `unload` reports when to load again.
    pub fn load(&mut self, target: &str) -> bool {
        let known = self.0.entry(target.to_owned()).or_default();
        known.has_more = known.loaded >= LOADED_MAX;
        if !known.has_more {
            known.loaded += 1;
        }
        !known.has_more
    }

    /// A loaded delivery is done. True if there is room for those that stayed stored.
    pub fn unload(&mut self, target: &str) -> bool {
        let Some(known) = self.0.get_mut(target) else { return false };
        known.loaded = known.loaded.saturating_sub(1);
        let load_more = known.has_more && known.loaded <= LOADED_MAX / 2;
        if load_more {
            known.has_more = false;
        }
        if known.is_idle() && known.breaker.until().is_none() {
            self.0.remove(target);
        }
        load_more
    }

    pub fn sent(&mut self, target: &str) {
        self.0.entry(target.to_owned()).or_default().in_flight += 1;
    }

    pub fn answered(&mut self, now: Timestamp, target: &str, is_accepted: bool) {
        let Some(known) = self.0.get_mut(target) else { return };
        known.in_flight = known.in_flight.saturating_sub(1);
        if is_accepted {
            known.breaker.succeed();
        } else {
            known.breaker.trip(now, COOLDOWN);
        }
        // Forget receivers that work or were last tried long ago, or the map would grow without bound.
        let is_forgettable =
            |it: &Target| it.breaker.until().is_none_or(|until| now.since(until) > COOLDOWN_MAX);
        self.0.retain(|_, it| !it.is_idle() || !is_forgettable(it));
    }
}

impl Target {
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.loaded == 0
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
    fn failing_receiver_is_tried_one_at_a_time_and_delays_no_other() {
        let mut targets = WebhookTargets::default();
        for _ in 0..IN_FLIGHT_MAX {
            assert_eq!(targets.free_at("a"), Some(Timestamp::ZERO));
            targets.sent("a");
        }
        assert_eq!((targets.free_at("a"), targets.free_at("b")), (None, Some(Timestamp::ZERO)));
        for _ in 0..IN_FLIGHT_MAX {
            targets.answered(at(10), "a", false);
        }
        assert_eq!(targets.free_at("a"), Some(at(10 + 8)));
        targets.sent("a");
        assert_eq!(targets.free_at("a"), None, "one trial at a time");
        targets.answered(at(20), "a", true);
        assert_eq!(targets.free_at("a"), Some(Timestamp::ZERO));
        assert!(targets.0.is_empty());
    }

    #[test]
    fn cooldown_is_at_most_a_minute() {
        let mut targets = WebhookTargets::default();
        for _ in 0..40 {
            targets.sent("a");
            targets.answered(at(0), "a", false);
        }
        assert_eq!(targets.free_at("a"), Some(at(60)));
    }

    /// Faults: C11.
    #[test]
    fn loaded_deliveries_per_receiver_are_bounded() {
        let mut targets = WebhookTargets::default();
        for _ in 0..LOADED_MAX {
            assert!(targets.load("a"));
        }
        assert!(!targets.load("a") && targets.load("b"), "a receiver that is down crowds out no other");
        let reloads: Vec<_> = (0..LOADED_MAX).map(|_| targets.unload("a")).collect();
        assert_eq!(reloads.iter().filter(|reload| **reload).count(), 1, "once, not for each");
        assert!(reloads[LOADED_MAX as usize / 2 - 1]);
        assert!(!targets.unload("b"), "nothing of it stayed stored");
        assert!(targets.0.is_empty());
    }
}
