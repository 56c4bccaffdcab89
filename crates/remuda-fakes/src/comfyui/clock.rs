//! The imagined GPU's time. By default it passes by itself; by hand it stands still until `Control::advance`, which
//! answers once everything that was due has happened: so a test can stand in the middle of a run without racing it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// What the executor is at, while time goes by hand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rest {
    Busy,
    /// Waits for a prompt.
    Idle,
    /// Waits for this moment, in seconds since the life began.
    Until(f64),
    /// Will never do anything again.
    Dead,
}

#[derive(Debug)]
pub(super) struct Clock {
    is_manual: bool,
    now: watch::Sender<f64>,
    rest: watch::Sender<Rest>,
    /// How far the executor has come: the past, as long as it catches up.
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

    /// After a time of waiting for work, the past is past.
    pub(super) fn catch_up(&self) {
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = *self.now.borrow();
        self.set(Rest::Busy);
    }

    /// Lets so much time pass.
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
        // The sender is in here with us.
        let _ = self.now.subscribe().wait_for(|now| *now >= due).await;
        self.set(Rest::Busy);
    }

    /// How long until the executor goes on, where it waits for time to pass.
    pub(super) fn due(&self) -> Option<Duration> {
        match *self.rest.borrow() {
            Rest::Until(due) => Some(Duration::from_secs_f64((due - *self.now.borrow()).max(0.0))),
            Rest::Busy | Rest::Idle | Rest::Dead => None,
        }
    }

    /// Moves on by hand. Waits before and after until the executor has nothing left to do: what was begun before began
    /// before.
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
