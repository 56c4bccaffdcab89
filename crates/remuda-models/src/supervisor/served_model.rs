//! A model that is served: its line, its places for copies, and how often it may be tried again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::CopyId;
use super::model_copy::ExitReason;
use super::queue::PartQueue;
use crate::backend::Batching;
use crate::request::{PartAnswer, RequestPart};
use crate::spec::Device;

/// What a supervisor is told of a model.
#[derive(Clone, Debug)]
pub(crate) struct ServingConfig {
    pub(crate) model: Arc<str>,
    pub(crate) copies: u32,
    pub(crate) device: Device,
    /// What the device has, if it is not the machine's own memory.
    pub(crate) device_bytes: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) batching: Batching,
    /// For how long its beacon may stand still.
    pub(crate) stall_max: Duration,
    pub(crate) load_stall_max: Duration,
    pub(crate) golden: RequestPart,
    /// The answer to it, if one is known from an earlier start.
    pub(crate) reference: Option<PartAnswer>,
}

#[derive(Debug)]
pub(crate) struct ServedModel {
    pub(crate) config: ServingConfig,
    pub(crate) queue: PartQueue,
    pub(crate) slots: Vec<CopySlot>,
    /// A copy of it has proved itself once.
    pub(crate) was_ready: bool,
    /// Its owner knows that there is no room for it.
    pub(crate) is_shortage_escalated: bool,
    /// Why a copy of it ended last.
    pub(crate) why: Option<ExitReason>,
    pub(crate) used_at: Duration,
    pub(crate) counters: ModelCounters,
    /// Tokens a second that one copy does, by and by.
    pub(crate) pace: Option<f64>,
}

/// A place for one copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopySlot {
    pub(crate) copy: Option<CopyId>,
    /// Deaths in a row without anything answered in between.
    pub(crate) deaths: u32,
    pub(crate) not_before: Duration,
    /// It made room for another model, and comes back when somebody asks.
    pub(crate) is_evicted: bool,
    /// When it could have begun, had there been room.
    pub(crate) lacks_memory_since: Option<Duration>,
    /// The owner was told that it is given up for now.
    pub(crate) is_given_up: bool,
}

/// Once for each, since the start.
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

/// Enough of them for a 99th percentile, and few enough to be sorted when somebody asks.
const LATENCIES_KEPT: usize = 512;

/// A death in service is followed by a start at once; only deaths in a row are waited for.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How much of the newest batch is believed of the pace.
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

    /// When there will be room in the line for so much, at the pace so far.
    pub(crate) fn retry_after(&self, tokens: usize, copies: usize) -> Duration {
        let pace = self.pace.unwrap_or(tokens as f64) * copies.max(1) as f64;
        let seconds = (tokens as f64 / pace.max(1e-3)).clamp(0.05, 60.0);
        Duration::from_secs_f64(seconds)
    }
}

impl CopySlot {
    /// Its copy is dead. True if that was the last try for now, and its owner does not know yet.
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
        self.not_before = now + backoff(self.deaths);
        false
    }

    pub(crate) fn mark_stable(&mut self) {
        self.deaths = 0;
        self.is_given_up = false;
    }
}

fn backoff(deaths: u32) -> Duration {
    match deaths {
        0 | 1 => Duration::ZERO,
        _ => (BACKOFF * 2_u32.saturating_pow(deaths - 2)).min(BACKOFF_MAX),
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
    fn the_first_death_is_answered_at_once_and_the_fifth_in_a_row_is_the_owners_matter() {
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
        assert!(!slot.died(Duration::ZERO, &why, false, BUDGET), "told once");
        assert!(!slot.died(Duration::ZERO, &why, true, BUDGET));
        assert_eq!(slot.not_before, Duration::ZERO, "who answered something begins anew");
    }

    #[test]
    fn a_file_that_is_wrong_is_not_read_five_times() {
        let mut slot = CopySlot::default();
        let why = ExitReason::Load(crate::LoadError::Pickle { path: "x".into() });
        assert!(slot.died(Duration::ZERO, &why, false, BUDGET));
        assert_eq!(slot.not_before, BUDGET.1);
    }
}
