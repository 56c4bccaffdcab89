//! Liveness under the names by which it is asked for, as a view of the signals: nobody's life hangs on it.
//!
//! A copy is alive if it has not ended, has not been found hung or wrong, and answers a ping from beside its work. A child
//! process that does not answer in time, while its beacon says nothing against it, is asked something real before it is
//! given more work; it is not removed for being slow on a busy machine.

use std::time::{Duration, Instant};

use super::ModelPool;
use super::copy_handle::CopyOrder;
use super::shared::PoolShared;
use crate::supervisor::{CopyId, PoolEvent, PoolSnapshot};
use crate::sync::wait_for;

/// How long an answer to a ping is waited for.
const PONG_MAX: Duration = Duration::from_millis(100);

impl ModelPool {
    /// Whether this copy lives and may be given work, now or after what it is at.
    pub fn is_alive(&self, worker_id: u64) -> bool {
        self.0.shared.is_alive(CopyId(worker_id))
    }

    /// Reads all signs of life of the model's copies now, and removes who shows none. How many were removed by it; the
    /// supervisor does the same whenever something happens, so it is seldom more than none.
    pub fn validate_workers(&self, model: &str) -> usize {
        let shared = &self.0.shared;
        let usable = shared.state().supervisor.usable_copies(model);
        let is_removed = |copy: &&CopyId| {
            let mut state = shared.state();
            shared.read_beacon(&mut state, **copy);
            drop(state);
            !shared.is_alive(**copy) && !shared.state().supervisor.is_alive(**copy)
        };
        usable.iter().filter(is_removed).count()
    }

    pub fn has_alive_workers(&self, model: &str) -> bool {
        self.get_alive_worker(model).is_some()
    }

    /// The one with the least to do of those that live.
    pub fn get_alive_worker(&self, model: &str) -> Option<u64> {
        let shared = &self.0.shared;
        let usable = shared.state().supervisor.usable_copies(model);
        usable.into_iter().find(|copy| shared.is_alive(*copy)).map(|copy| copy.0)
    }
}

impl PoolShared {
    fn is_alive(self: &std::sync::Arc<Self>, copy: CopyId) -> bool {
        let mut state = self.state();
        if !state.supervisor.is_alive(copy) {
            return false;
        }
        let nonce = state.pings.open(copy);
        if state.copies.get(&copy).is_some_and(|handle| handle.process.is_none()) {
            // A thread has no other thread beside it: that it has not ended, and was not given up, is its pong.
            state.pings.answer(copy, nonce);
        } else {
            state.order(copy, CopyOrder::Ping(nonce));
        }
        let until = Instant::now() + PONG_MAX;
        while !state.pings.is_answered(nonce) && state.supervisor.is_alive(copy) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = wait_for(&self.ponged, state, left);
        }
        let is_answered = state.pings.is_answered(nonce);
        state.pings.close(nonce);
        let is_watched = state.supervisor.watched().any(|watched| watched == copy);
        let is_alive = state.supervisor.is_alive(copy);
        drop(state);
        if is_alive && !is_answered && !is_watched {
            self.apply(PoolEvent::PingUnanswered(copy));
        }
        // Of one at work the beacon decides, and it has not decided against it.
        is_alive && (is_answered || is_watched)
    }

    pub(super) fn wait_until_closed(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let mut state = self.state();
        while !state.is_closed() && Instant::now() < until {
            state = wait_for(&self.ended, state, until.saturating_duration_since(Instant::now()));
        }
    }
}

impl super::shared::State {
    pub(super) fn is_closed(&self) -> bool {
        self.supervisor.is_closed() && self.copies.is_empty()
    }

    pub(super) fn snapshot(&self) -> PoolSnapshot {
        let mut snapshot = self.supervisor.snapshot();
        for copy in snapshot.models.iter_mut().flat_map(|model| &mut model.copies) {
            let Some(handle) = self.copies.get(&CopyId(copy.id)) else { continue };
            copy.steps = handle.beacon.steps();
            copy.pid = handle.process.as_ref().map(|process| process.pid());
        }
        snapshot
    }
}
