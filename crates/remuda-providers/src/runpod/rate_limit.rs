//! Respects RunPod's rate limit. RunPod counts calls per minute, hour and day and reports in every answer what is left
//! of each window; when one is used up, calls are refused here without sending them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// If RunPod does not say how long to wait: its shortest window.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// RunPod's longest window.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Default)]
pub(super) struct RateLimit {
    blocked_until: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// Whether a call may be made now.
    pub(super) fn check(&self, now: Instant) -> Result<(), ProviderError> {
        let until = *self.blocked_until.lock().unwrap_or_else(PoisonError::into_inner);
        match until.map(|until| until.saturating_duration_since(now)).filter(|wait| !wait.is_zero()) {
            None => Ok(()),
            Some(wait) => {
                let why = format!("RunPod has no calls left for us for {} s", wait.as_secs() + 1);
                Err(ProviderError {
                    wait: Some(wait),
                    ..ProviderError::new(ProviderErrorClass::RateLimited, why)
                })
            }
        }
    }

    /// Records what an answer says about the next call. Returns how long that has to wait.
    pub(super) fn record(&self, now: Instant, headers: &HeaderMap, is_refused: bool) -> Option<Duration> {
        let used_up = windows(headers).filter(|window| window.left == 0).map(|window| window.reset).max();
        let told =
            if is_refused { used_up.max(retry_after(headers)).or(Some(DEFAULT_WAIT)) } else { used_up };
        let wait = told?.min(WAIT_MAX);
        let mut blocked_until = self.blocked_until.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer that took longer has older numbers: the later end wins.
        *blocked_until = (*blocked_until).max(now.checked_add(wait));
        Some(wait)
    }
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(WAIT_MAX))
}

struct Window {
    left: u64,
    reset: Duration,
}

/// `RateLimit: "minute";r=57;t=12, "hour";r=2800;t=1812`; unreadable windows are skipped.
fn windows(headers: &HeaderMap) -> impl Iterator<Item = Window> {
    let texts = headers.get_all("ratelimit").into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).filter_map(|window| {
        let number = |name: &str| {
            let mut parts = window.split(';').filter_map(|part| part.trim().split_once('='));
            parts.find(|(it, _)| *it == name)?.1.trim().parse().ok()
        };
        Some(Window { left: number("r")?, reset: Duration::from_secs(number("t")?) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(limit: &'static str, retry_after: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", limit.parse().unwrap());
        headers.extend(retry_after.map(|seconds| (RETRY_AFTER, seconds.parse().unwrap())));
        headers
    }

    /// The wait after an answer with these headers, in seconds.
    fn waits(headers: &HeaderMap, is_refused: bool) -> Option<u64> {
        let (rate_limit, now) = (RateLimit::default(), Instant::now());
        let record = rate_limit.record(now, headers, is_refused);
        let checked = rate_limit.check(now).err().map(|fault| {
            assert_eq!(fault.class, ProviderErrorClass::RateLimited);
            fault.wait.unwrap()
        });
        assert_eq!(record, checked);
        record.map(|wait| wait.as_secs())
    }

    /// Faults: P6.
    #[test]
    fn longest_exhausted_window_counts() {
        let some_left = headers(r#""minute";r=57;t=12, "hour";r=2800;t=1812"#, None);
        let none_left = headers(r#""minute";r=0;t=12, "hour";r=0;t=1812, "day";r=5;t=45012"#, None);
        assert_eq!(waits(&some_left, false), None);
        assert_eq!(waits(&none_left, false), Some(1812));
        assert_eq!(waits(&headers(r#""minute";r=0;t=12"#, Some("30")), true), Some(30));
        assert_eq!(waits(&headers(r#""hour";r=0;t=90"#, Some("30")), true), Some(90));
        assert_eq!(waits(&headers("", None), true), Some(60), "untold");
        assert_eq!(waits(&headers("", Some("99999999999")), true), Some(24 * 60 * 60), "bounded");
        for odd in ["r=0", "\"minute\";r=x;t=1", "\"minute\";t=1", ";;,,=", "\"m\";r=-1;t=5"] {
            assert_eq!(waits(&headers(odd, None), false), None, "{odd}");
        }
    }

    #[test]
    fn wait_ends_on_time() {
        let (rate_limit, now) = (RateLimit::default(), Instant::now());
        rate_limit.record(now, &headers(r#""minute";r=0;t=12"#, None), false);
        // An older answer that arrives later does not shorten the wait.
        rate_limit.record(now, &headers(r#""minute";r=0;t=3"#, None), false);
        assert!(rate_limit.check(now + Duration::from_secs(11)).is_err());
        assert!(rate_limit.check(now + Duration::from_secs(12)).is_ok());
    }
}
