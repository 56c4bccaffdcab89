//! The liveness queries of the public API (`is_alive`, `validate_workers`, …), as a view of the supervisor's signals.
//! Supervision does not depend on them.
//!
//! A copy is alive if it has not exited, was not found hung or wrong, and its side thread answers a ping. An idle child
//! process that does not answer in time is tested with the golden request before it gets more work; it is not removed
//! for being slow on a busy machine.

use std::time::{Duration, Instant};

use super::ModelPool;
use super::copy_handle::CopyOrder;
use super::shared::PoolShared;
use crate::supervisor::{CopyId, PoolSnapshot, SupervisorEvent};
use crate::sync::wait_for;

/// How long a pong is awaited.
const PONG_MAX: Duration = Duration::from_millis(100);

impl ModelPool {
    /// Whether this copy is alive and may get work, now or after its current batch.
    pub fn is_alive(&self, worker_id: u64) -> bool {
        self.0.shared.is_alive(CopyId(worker_id))
    }

    /// Reads the beacons of the model's copies now and removes dead copies. Returns how many were removed; the
    /// supervisor does the same on every event, so this is usually zero.
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

    /// The alive copy with the least work.
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
            // A thread copy has no side thread: not having exited and not having been given up counts as its pong.
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
            self.apply(SupervisorEvent::PingUnanswered(copy));
        }
        // For a working copy the beacon decides, and it has not decided against this one.
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
