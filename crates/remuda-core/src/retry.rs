//! Backoff of retries: doubling, with full jitter, so that jobs that failed together do not retry together. The
//! jitter comes from the job's id, so this stays deterministic.

use std::time::Duration;

use crate::id::{Attempt, JobId};
use crate::settings::Settings;

/// The wait after `failures` failures of any class, the last of them in `attempt`.
pub fn delay(settings: &Settings, failures: u32, job: JobId, attempt: Attempt) -> Duration {
    let doubled = settings.retry_base.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let ceiling = u64::try_from(doubled.min(settings.retry_max).as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(job.jitter(attempt.0) % ceiling.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_spread() {
        let settings = Settings::default();
        let longest = |failures| {
            (0..200)
                .map(|n| delay(&settings, failures, JobId::from_u128(n), Attempt(failures)))
                .max()
                .unwrap()
        };
        assert!(longest(1) > Duration::from_millis(900) && longest(1) <= Duration::from_secs(1));
        assert!(longest(3) > Duration::from_millis(3600) && longest(3) <= Duration::from_secs(4));
        assert!(longest(30) <= settings.retry_max);
        let spread: std::collections::BTreeSet<_> =
            (0..100).map(|n| delay(&settings, 3, JobId::from_u128(n), Attempt(3))).collect();
        assert!(spread.len() > 80, "jobs that failed together must not return together");
    }
}
