//! A served model: its queue, its slots for copies, and the backoff of its restarts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::supervise::Backoff;

use super::CopyId;
use super::model_copy::ExitReason;
use super::queue::PartQueue;
use crate::backend::Batching;
use crate::request::{PartAnswer, RequestPart};
use crate::spec::Device;

/// The supervisor's settings of one model.
#[derive(Clone, Debug)]
pub(crate) struct ServingConfig {
    pub(crate) model: Arc<str>,
    pub(crate) copies: u32,
    pub(crate) device: Device,
    /// The memory of the device; `None` for main memory.
    pub(crate) device_bytes: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) batching: Batching,
    /// How long the beacon of a working copy may stand still.
    pub(crate) stall_max: Duration,
    pub(crate) load_stall_max: Duration,
    pub(crate) golden: RequestPart,
    /// The golden answer of an earlier start, if there is one.
    pub(crate) reference: Option<PartAnswer>,
}

#[derive(Debug)]
pub(crate) struct ServedModel {
    pub(crate) config: ServingConfig,
    pub(crate) queue: PartQueue,
    pub(crate) slots: Vec<CopySlot>,
    /// A copy has passed its test at least once.
    pub(crate) was_ready: bool,
    /// The lack of memory was already escalated.
    pub(crate) is_shortage_escalated: bool,
    /// The reason of the last unrequested exit.
    pub(crate) why: Option<ExitReason>,
    pub(crate) used_at: Duration,
    pub(crate) counters: ModelCounters,
    /// Tokens per second of one copy, as a moving average.
    pub(crate) pace: Option<f64>,
}

/// The place of one copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopySlot {
    pub(crate) copy: Option<CopyId>,
    /// Deaths in a row without an answer in between.
    pub(crate) deaths: u32,
    pub(crate) not_before: Duration,
    /// The copy was evicted for another model and starts again on the next request.
    pub(crate) is_evicted: bool,
    /// Since when the copy could have started if there were memory.
    pub(crate) lacks_memory_since: Option<Duration>,
    /// The slot is given up for now, and that was escalated.
    pub(crate) is_given_up: bool,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelCounters {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) cancelled: u64,
    pub(crate) moved: u64,
    pub(crate) deaths: BTreeMap<&'static str, u64>,
    pub(crate) latencies: VecDeque<Duration>,
}

/// Enough for a 99th percentile, few enough to sort on every snapshot.
const LATENCIES_KEPT: usize = 512;

/// The first death is followed by an immediate restart; only repeated deaths back off.
const RESTART: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));

/// The weight of the newest batch in the moving average.
const NEWEST_WEIGHT: f64 = 0.2;

impl ServedModel {
    pub(crate) fn new(config: ServingConfig, now: Duration) -> Self {
        ServedModel {
            slots: vec![CopySlot::default(); config.copies.max(1) as usize],
            queue: PartQueue::default(),
            was_ready: false,
            is_shortage_escalated: false,
            why: None,
            used_at: now,
            counters: ModelCounters::default(),
            pace: None,
            config,
        }
    }

    pub(crate) fn measured(&mut self, tokens: usize, took: Duration) {
        let newest = tokens as f64 / took.as_secs_f64().max(1e-6);
        let pace = self.pace.map_or(newest, |pace| pace + NEWEST_WEIGHT * (newest - pace));
        self.pace = Some(pace);
    }

    /// When the queue will have space for this many tokens, at the measured speed.
    pub(crate) fn retry_after(&self, tokens: usize, copies: usize) -> Duration {
        let pace = self.pace.unwrap_or(tokens as f64) * copies.max(1) as f64;
        let seconds = (tokens as f64 / pace.max(1e-3)).clamp(0.05, 60.0);
        Duration::from_secs_f64(seconds)
    }
}

impl CopySlot {
    /// The copy of this slot died. True if the slot is now given up and this was not escalated yet.
    pub(crate) fn died(
        &mut self,
        now: Duration,
        why: &ExitReason,
        was_stable: bool,
        (deaths_max, crash_loop_pause): (u32, Duration),
    ) -> bool {
        self.copy = None;
        if *why == ExitReason::Requested {
            return false;
        }
        if was_stable {
            self.deaths = 0;
            self.is_given_up = false;
        }
        self.deaths = if why.is_lasting() { deaths_max.max(self.deaths + 1) } else { self.deaths + 1 };
        if self.deaths >= deaths_max {
            self.not_before = now + crash_loop_pause;
            return !std::mem::replace(&mut self.is_given_up, true);
        }
        let delay = self.deaths.checked_sub(2).map_or(Duration::ZERO, |repeated| RESTART.delay(repeated));
        self.not_before = now + delay;
        false
    }

    pub(crate) fn mark_stable(&mut self) {
        self.deaths = 0;
        self.is_given_up = false;
    }
}

impl ModelCounters {
    pub(crate) fn took(&mut self, latency: Duration) {
        if self.latencies.len() == LATENCIES_KEPT {
            self.latencies.pop_front();
        }
        self.latencies.push_back(latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: (u32, Duration) = (5, Duration::from_secs(60));

    #[test]
    fn first_death_restarts_at_once_and_fifth_in_a_row_escalates() {
        let mut slot = CopySlot::default();
        let why = ExitReason::Panicked("x".to_owned());
        let mut waits = Vec::new();
        for _ in 0..4 {
            assert!(!slot.died(Duration::ZERO, &why, false, BUDGET));
            waits.push(slot.not_before.as_millis());
        }
        assert_eq!(waits, [0, 100, 200, 400]);
        assert!(slot.died(Duration::ZERO, &why, false, BUDGET));
        assert_eq!(slot.not_before, BUDGET.1);
        assert!(!slot.died(Duration::ZERO, &why, false, BUDGET), "escalated once");
        assert!(!slot.died(Duration::ZERO, &why, true, BUDGET));
        assert_eq!(slot.not_before, Duration::ZERO, "an answer resets the count");
    }

    #[test]
    fn invalid_file_is_given_up_after_one_attempt() {
        let mut slot = CopySlot::default();
        let why = ExitReason::Load(crate::LoadError::Pickle { path: "x".into() });
        assert!(slot.died(Duration::ZERO, &why, false, BUDGET));
        assert_eq!(slot.not_before, BUDGET.1);
    }
}
