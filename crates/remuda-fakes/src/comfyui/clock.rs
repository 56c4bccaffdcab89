//! The time of the simulated GPU. By default it passes in real time. In manual mode it stands still until
//! `Control::advance`, which returns once everything that was due has happened, so a test can stop in the middle of a
//! run without a race.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// What the executor is doing, in manual mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rest {
    Busy,
    /// Waits for a prompt.
    Idle,
    /// Waits for this time, in seconds since the start.
    Until(f64),
    /// Will never run again.
    Dead,
}

#[derive(Debug)]
pub(super) struct Clock {
    is_manual: bool,
    now: watch::Sender<f64>,
    rest: watch::Sender<Rest>,
    /// The executor's own time, which may lag behind while it catches up.
    local: Mutex<f64>,
}

impl Clock {
    pub(super) fn new(is_manual: bool) -> Clock {
        let ((now, _), (rest, _)) = (watch::channel(0.0), watch::channel(Rest::Busy));
        Clock { is_manual, now, rest, local: Mutex::new(0.0) }
    }

    pub(super) fn set(&self, rest: Rest) {
        self.rest.send_replace(rest);
    }

    /// After idling, the executor's time jumps to the present.
    pub(super) fn catch_up(&self) {
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = *self.now.borrow();
        self.set(Rest::Busy);
    }

    /// Waits for this much GPU time.
    pub(super) async fn pass(&self, time: Duration) {
        if !self.is_manual {
            return tokio::time::sleep(time).await;
        }
        let due = {
            let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
            *local += time.as_secs_f64();
            *local
        };
        self.set(Rest::Until(due));
        // The sender is in this struct, so it cannot be gone.
        let _ = self.now.subscribe().wait_for(|now| *now >= due).await;
        self.set(Rest::Busy);
    }

    /// The time until the executor continues, if it waits for time to pass.
    pub(super) fn due(&self) -> Option<Duration> {
        match *self.rest.borrow() {
            Rest::Until(due) => Some(Duration::from_secs_f64((due - *self.now.borrow()).max(0.0))),
            Rest::Busy | Rest::Idle | Rest::Dead => None,
        }
    }

    /// Advances the manual time. Waits before and after until the executor has nothing left to do, so that work
    /// submitted earlier starts earlier.
    pub(super) async fn advance(&self, by: Duration, has_work: impl Fn() -> bool) {
        self.quiet(&has_work).await;
        self.now.send_modify(|now| *now += by.as_secs_f64());
        self.quiet(&has_work).await;
    }

    async fn quiet(&self, has_work: &impl Fn() -> bool) {
        let now = *self.now.borrow();
        let is_quiet = |rest: &Rest| match *rest {
            Rest::Busy => false,
            Rest::Idle => !has_work(),
            Rest::Until(due) => due > now,
            Rest::Dead => true,
        };
        let _ = self.rest.subscribe().wait_for(is_quiet).await;
    }
}
