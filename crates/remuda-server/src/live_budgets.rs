//! What each worker may still send of live reports and previews. A worker is known by its credential: the name is in the
//! path, and another worker could spend the budget of the one that it names. All in memory: after a restart every worker
//! begins with a full budget.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::id::{Hash, WorkerId};
use remuda_core::time::Timestamp;
use remuda_core::wire::live_budget::{LiveBudget, LiveExcess};
use tracing::warn;

/// Credentials without a debt are forgotten when this many are known, or twice as many as were left the last time.
const SWEEP_MIN: usize = 8192;
/// How often a flood of one worker is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Clones share the budgets.
#[derive(Clone, Debug, Default)]
pub struct LiveBudgets(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    workers: Mutex<Workers>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Workers {
    known: BTreeMap<Hash, Entry>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    budget: LiveBudget,
    logged_at: Option<Timestamp>,
}

impl LiveBudgets {
    /// Counts a report or preview; `None` if this credential is not known yet.
    pub fn charge(
        &self,
        worker: &WorkerId,
        credential: Hash,
        now: Timestamp,
        bytes: usize,
    ) -> Option<Result<(), LiveExcess>> {
        let mut workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = workers.known.get_mut(&credential)?;
        let charged = entry.budget.charge(now, bytes);
        if let Err(excess) = &charged {
            let dropped = self.0.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if entry.logged_at.is_none_or(|at| now.since(at) >= LOG_EVERY) {
                entry.logged_at = Some(now);
                let (what, per_second) = (excess.what, excess.per_second);
                warn!(%worker, what, per_second, dropped, "live reports of a worker dropped: it sends too many");
            }
        }
        Some(charged)
    }

    /// A credential that the plane knows, and how many slots its worker may have.
    pub fn insert(&self, credential: Hash, slots: u32, now: Timestamp) {
        let mut workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.known.len() >= workers.sweep_at.max(SWEEP_MIN) {
            workers.known.retain(|_, entry| !entry.budget.is_unused(now));
            workers.sweep_at = 2 * workers.known.len();
        }
        workers
            .known
            .entry(credential)
            .or_insert_with(|| Entry { budget: LiveBudget::new(slots), logged_at: None });
    }

    /// Reports and previews that were refused since the start.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}
