//! Keeps a program's own strategy from stopping the pool. It is called inside the event loop, so one that panics or is slow
//! too often is turned off: from then on workers are chosen as without it, waiting jobs are offered again, and
//! `WorkflowPool::strategy_failure` says why.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use remuda_core::plane::PlaneEvent;
use remuda_core::settings::Settings;
use remuda_core::strategy::{FailoverStrategy, OwnStrategy, StrategyJob, StrategyVerdict, StrategyWorker};
use remuda_server::plane_handle::PlaneHandle;
use tokio::sync::Notify;
use tracing::warn;

use super::{WorkflowPool, WorkflowPoolError};

/// A comparison takes microseconds; only waiting for something takes this long. A step may ask for dozens of pairs.
const SLOW: Duration = Duration::from_millis(5);
/// A busy machine may stop a thread at any time, so a few slow calls prove nothing.
const SLOW_CALLS_MAX: u32 = 20;

pub(super) struct GuardedStrategy {
    own: Box<dyn FailoverStrategy>,
    slow_calls: AtomicU32,
    /// Why it was turned off.
    failure: OnceLock<String>,
    turned_off: Notify,
}

impl std::fmt::Debug for GuardedStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedStrategy").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl GuardedStrategy {
    pub(super) fn new(own: impl FailoverStrategy + 'static) -> Arc<GuardedStrategy> {
        Arc::new(GuardedStrategy {
            own: Box::new(own),
            slow_calls: AtomicU32::new(0),
            failure: OnceLock::new(),
            turned_off: Notify::new(),
        })
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn turn_off(&self, why: String) {
        warn!(why, "the program's own strategy is turned off");
        // Another call may have found a reason first.
        self.failure.set(why).ok();
        self.turned_off.notify_one();
    }

    /// Once it is turned off, the plane forgets it and offers waiting jobs again: its vetoes no longer count.
    pub(super) async fn replace_when_turned_off(self: Arc<Self>, plane: PlaneHandle) {
        self.turned_off.notified().await;
        let Ok(settings) = plane.read(|plane, _| plane.settings().clone()).await else { return };
        let settings = Settings { strategy: OwnStrategy::default(), ..settings };
        if let Err(error) = plane.request(PlaneEvent::ReloadSettings(Box::new(settings))).await {
            warn!(%error, "waiting jobs are not offered again");
        }
    }
}

impl FailoverStrategy for GuardedStrategy {
    fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
        if self.failure.get().is_some() {
            return StrategyVerdict::NEUTRAL;
        }
        let began = Instant::now();
        // The strategy is not called again after a panic, so its state does not matter.
        let Ok(verdict) = catch_unwind(AssertUnwindSafe(|| self.own.judge(job, worker))) else {
            self.turn_off("it panicked".to_owned());
            return StrategyVerdict::NEUTRAL;
        };
        if began.elapsed() > SLOW && self.slow_calls.fetch_add(1, Ordering::Relaxed) + 1 == SLOW_CALLS_MAX {
            self.turn_off(format!("{SLOW_CALLS_MAX} calls took longer than {SLOW:?} each"));
        }
        verdict
    }
}

impl WorkflowPool {
    /// Why the pool's own strategy was turned off; None while it is in force, and without one.
    pub fn strategy_failure(&self) -> Option<String> {
        self.inner.strategy.as_ref()?.failure().map(str::to_owned)
    }

    /// Offers waiting jobs to free servers again. Only needed if a strategy changed its mind: nothing else would ask it.
    pub async fn reconsider(&self) -> Result<(), WorkflowPoolError> {
        let context = self.inner.open_context()?;
        let settings = context.plane.read(|plane, _| plane.settings().clone()).await?;
        context.plane.request(PlaneEvent::ReloadSettings(Box::new(settings))).await?;
        Ok(())
    }
}
