//! The time of an account: stamps are those of the wall clock at the start, moved on by a monotonic one, or by hand.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remuda_core::time::Timestamp;

#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    start: Timestamp,
    /// How far time was moved on, where it goes by hand.
    by_hand: Option<Mutex<Duration>>,
    /// What the provider's own durations are divided by.
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

    /// Moves on, where time goes by hand.
    pub(super) fn advance(&self, by: Duration) {
        if let Some(passed) = &self.by_hand {
            *passed.lock().unwrap_or_else(PoisonError::into_inner) += by;
        }
    }

    /// How long something takes here that takes `real` at the provider.
    pub(super) fn scaled(&self, real: Duration) -> Duration {
        Duration::try_from_secs_f64(real.as_secs_f64() / self.speed).unwrap_or(Duration::ZERO)
    }

    /// Waits until then; for ever, where time goes by hand, for whoever moves it sees to what is due.
    pub(super) async fn until(&self, due: Timestamp) {
        if self.by_hand.is_some() {
            return std::future::pending().await;
        }
        // A little more, so that rounding to milliseconds does not wake us just before it.
        tokio::time::sleep(due.since(self.now()) + Duration::from_millis(1)).await;
    }

    /// Lets a delay of an answer pass. By hand it takes no time: nobody could move it on meanwhile.
    pub(super) async fn pass(&self, real: Duration) {
        if self.by_hand.is_none() {
            tokio::time::sleep(self.scaled(real)).await;
        }
    }
}
