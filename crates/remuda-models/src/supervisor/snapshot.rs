//! The state of the pool as plain values, for display and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Supervisor;
use super::placement::is_stuck;
use super::served_model::ModelCounters;
use crate::spec::Device;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolSnapshot {
    pub memory_reserved_bytes: u64,
    pub memory_limit_bytes: u64,
    /// The cards that models compute on.
    pub cards: Vec<CardSnapshot>,
    /// Answers that arrived after their request had ended, or from copies that were given up.
    pub stale: u64,
    pub models: Vec<ModelSnapshot>,
}

/// The memory of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CardSnapshot {
    pub device: Device,
    pub memory_reserved_bytes: u64,
    pub memory_limit_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSnapshot {
    pub model: String,
    pub device: Device,
    pub copies: Vec<CopySnapshot>,
    pub queue_parts: usize,
    pub queue_tokens: usize,
    pub queue_bytes: usize,
    /// Requests.
    pub answered: u64,
    pub failed: u64,
    pub refused: u64,
    pub cancelled: u64,
    /// Parts that moved to another copy because theirs died.
    pub moved: u64,
    /// Ended copies by reason.
    pub deaths: BTreeMap<String, u64>,
    /// Slots that are given up for now because their copies died too often in a row.
    pub given_up: usize,
    /// Why the last copy ended.
    pub last_death: Option<String>,
    pub tokens_per_second: Option<f64>,
    /// From submission to answer, of the newest requests.
    pub latency_p50: Option<Duration>,
    pub latency_p99: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopySnapshot {
    /// The `worker_id` of log lines.
    pub id: u64,
    /// `loading`, `testing`, `ready`, `busy`, `draining` or `dead`.
    pub state: String,
    /// It answers, now or after its current request.
    #[serde(skip)]
    pub is_serving: bool,
    pub why: Option<String>,
    /// Dead but not reaped: its memory is still reserved.
    pub stuck: bool,
    /// For a copy in a child process.
    pub pid: Option<u32>,
    pub steps: u64,
    /// Parts.
    pub in_flight: usize,
    pub answered: u64,
    pub failed: u64,
    pub memory_bytes: u64,
}

impl Supervisor {
    pub(crate) fn snapshot(&self) -> PoolSnapshot {
        let models = self.served.iter().map(|(name, served)| {
            let ModelCounters { answered, failed, refused, cancelled, moved, deaths, latencies } =
                &served.counters;
            let copies = self.copies.values().filter(|copy| copy.model == *name);
            let mut sorted: Vec<Duration> = latencies.iter().copied().collect();
            sorted.sort_unstable();
            ModelSnapshot {
                model: name.to_string(),
                device: served.config.device,
                copies: copies.map(|copy| self.copy_snapshot(copy)).collect(),
                queue_parts: served.queue.len(),
                queue_tokens: served.queue.tokens(),
                queue_bytes: served.queue.bytes(),
                answered: *answered,
                failed: *failed,
                refused: *refused,
                cancelled: *cancelled,
                moved: *moved,
                deaths: deaths.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect(),
                given_up: served.slots.iter().filter(|slot| slot.is_given_up).count(),
                last_death: served.why.as_ref().map(ToString::to_string),
                tokens_per_second: served.pace,
                latency_p50: percentile(&sorted, 50),
                latency_p99: percentile(&sorted, 99),
            }
        });
        let card = |device| CardSnapshot {
            device,
            memory_reserved_bytes: self.memory.reserved_bytes(device),
            memory_limit_bytes: self.memory.limit_bytes(device),
        };
        PoolSnapshot {
            memory_reserved_bytes: self.memory.reserved_bytes(Device::Cpu),
            memory_limit_bytes: self.memory.limit_bytes(Device::Cpu),
            cards: self.memory.devices().filter(|device| *device != Device::Cpu).map(card).collect(),
            stale: self.stale,
            models: models.collect(),
        }
    }

    fn copy_snapshot(&self, copy: &super::ModelCopy) -> CopySnapshot {
        let why = match copy.state() {
            super::CopyState::Dead(why) => Some(why.to_string()),
            _ => None,
        };
        CopySnapshot {
            id: copy.id.0,
            state: copy.state().name().to_owned(),
            is_serving: matches!(copy.state(), super::CopyState::Ready | super::CopyState::Busy(_)),
            why,
            stuck: is_stuck(copy),
            pid: None,
            steps: copy.steps,
            in_flight: copy.run().map_or(0, |run| run.items.len()),
            answered: copy.answered,
            failed: copy.failed,
            memory_bytes: self.memory.held_by(copy.id),
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last * percent).div_ceil(100)).copied()
}
