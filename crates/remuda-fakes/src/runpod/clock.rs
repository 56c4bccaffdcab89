//! The time of an account: the wall clock at the start, advanced by a monotonic clock or manually.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remuda_core::time::Timestamp;

#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    start: Timestamp,
    /// How far manual time was advanced.
    by_hand: Option<Mutex<Duration>>,
    /// Divides the provider's durations.
    speed: f64,
}

impl Clock {
    pub(super) fn new(is_manual: bool, speed: f64) -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            began: Instant::now(),
            start: Timestamp::ZERO.plus(since),
            by_hand: is_manual.then(Mutex::default),
            speed,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.start.plus(match &self.by_hand {
            Some(passed) => *passed.lock().unwrap_or_else(PoisonError::into_inner),
            None => self.began.elapsed(),
        })
    }

    /// Advances manual time.
    pub(super) fn advance(&self, by: Duration) {
        if let Some(passed) = &self.by_hand {
            *passed.lock().unwrap_or_else(PoisonError::into_inner) += by;
        }
    }

    /// How long something takes here that takes `real` at the provider.
    pub(super) fn scaled(&self, real: Duration) -> Duration {
        Duration::try_from_secs_f64(real.as_secs_f64() / self.speed).unwrap_or(Duration::ZERO)
    }

    /// Waits until then. In manual mode it never returns: `advance` handles what is due.
    pub(super) async fn until(&self, due: Timestamp) {
        if self.by_hand.is_some() {
            return std::future::pending().await;
        }
        // A little more, so that rounding to milliseconds does not wake too early.
        tokio::time::sleep(due.since(self.now()) + Duration::from_millis(1)).await;
    }

    /// Waits for the delay of an answer. In manual mode it takes no time, because the caller could not advance it
    /// meanwhile.
    pub(super) async fn pass(&self, real: Duration) {
        if self.by_hand.is_none() {
            tokio::time::sleep(self.scaled(real)).await;
        }
    }
}
