//! How long a job waits before its next attempt: a backoff with full jitter, so that jobs that failed together do not
//! return together. The randomness is in the job's id.

use std::time::Duration;

use crate::id::{Attempt, JobId};
use crate::settings::Settings;
use crate::supervise::Backoff;

/// The delay after `failures` failures of any class, the last of them in `attempt`.
pub fn delay(settings: &Settings, failures: u32, job: JobId, attempt: Attempt) -> Duration {
    let backoff = Backoff::new(settings.retry_base, settings.retry_max);
    backoff.full_jitter(failures.saturating_sub(1), job.jitter(attempt.0))
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
