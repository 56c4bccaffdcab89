//! The rate limit of an account: three windows at once, reported in the headers of every answer.

use std::fmt::Write as _;

use remuda_core::time::Timestamp;

use super::clock::Clock;

#[derive(Debug)]
struct Window {
    name: &'static str,
    seconds: u64,
    quota: u64,
    began: Timestamp,
    used: u64,
}

/// `None`: the account is exempt, and there are no headers.
#[derive(Debug)]
pub(super) struct Quota(Vec<Window>);

impl Quota {
    /// An account with 180 requests a minute had 7200 an hour; the daily limit is the documented one.
    pub(super) fn new(per_minute: Option<u64>, now: Timestamp) -> Quota {
        let window = |name, seconds, quota| Window { name, seconds, quota, began: now, used: 0 };
        let windows = |per_minute| {
            vec![
                window("minute", 60, per_minute),
                window("hour", 3600, per_minute * 40),
                window("day", 86_400, (per_minute * 280).max(50_000)),
            ]
        };
        Quota(per_minute.map(windows).unwrap_or_default())
    }

    /// Uses one request; otherwise returns the exhausted window and the seconds to wait.
    pub(super) fn take(&mut self, clock: &Clock, now: Timestamp) -> Result<(), (&'static str, u64)> {
        for window in &mut self.0 {
            let length = clock.scaled(std::time::Duration::from_secs(window.seconds));
            if now.since(window.began) >= length {
                window.began = now;
                window.used = 0;
            }
        }
        let left = |window: &Window| window.left(clock, now);
        let longest = self.0.iter().filter(|window| window.used >= window.quota).max_by_key(|it| left(it));
        if let Some(window) = longest {
            return Err((window.name, left(window)));
        }
        self.0.iter_mut().for_each(|window| window.used += 1);
        Ok(())
    }

    /// The values of `RateLimit` and `RateLimit-Policy`.
    pub(super) fn headers(&self, clock: &Clock, now: Timestamp) -> Option<(String, String)> {
        let (mut limit, mut policy) = (String::new(), String::new());
        for window in &self.0 {
            let comma = if limit.is_empty() { "" } else { ", " };
            let (name, rest) = (window.name, window.quota.saturating_sub(window.used));
            // Writing to a string does not fail.
            let _ = write!(limit, "{comma}\"{name}\";r={rest};t={}", window.left(clock, now));
            let _ = write!(policy, "{comma}\"{name}\";q={};w={}", window.quota, window.seconds);
        }
        (!limit.is_empty()).then_some((limit, policy))
    }
}

impl Window {
    /// Seconds until it resets, at least one.
    fn left(&self, clock: &Clock, now: Timestamp) -> u64 {
        let length = clock.scaled(std::time::Duration::from_secs(self.seconds));
        let left = length.saturating_sub(now.since(self.began));
        (left.as_millis().div_ceil(1000) as u64).max(1)
    }
}
