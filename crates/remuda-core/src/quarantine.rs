//! Quarantine of shapes that fail on every worker. One bad workflow must not block a whole fleet: after failures on
//! three distinct workers without a success, the workers' blocks are lifted and the shape itself is quarantined.
//! Single trials, at growing intervals, show whether it still fails.
//!
//! ```text
//!  failing on 1, 2 workers ──3rd──▶ quarantined until T ──T──▶ one trial ──success──▶ cleared
//!                                          ▲                       │
//!                                          └───── failed: ×2 ──────┴──3rd failed trial──▶ waiting jobs fail
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{JobId, Shape, WorkerId};
use crate::record::QuarantineRow;
use crate::settings::Settings;
use crate::supervise::{Backoff, Breaker, BreakerState};
use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct Quarantine(BTreeMap<Shape, QuarantineEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineEntry {
    pub failed_on: BTreeSet<WorkerId>,
    pub reason: String,
    breaker: Breaker<JobId>,
}

/// Consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineVerdict {
    Noted,
    /// Quarantined now, or still.
    Quarantined {
        trial_at: Timestamp,
        is_new: bool,
        is_hopeless: bool,
    },
}

/// Whether a job of this shape may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineState {
    Free,
    Quarantined { trial_at: Timestamp },
    TrialUnderWay { job: JobId },
}

impl Quarantine {
    pub fn state(&self, now: Timestamp, shape: &Shape) -> QuarantineState {
        let Some(entry) = self.0.get(shape) else { return QuarantineState::Free };
        match entry.breaker.state(now) {
            BreakerState::Closed | BreakerState::HalfOpen => QuarantineState::Free,
            BreakerState::Open { until } => QuarantineState::Quarantined { trial_at: until },
            BreakerState::Trial(job) => QuarantineState::TrialUnderWay { job },
        }
    }

    /// An attempt starts; in quarantine it is the trial. The router has checked that one may start.
    pub fn started(&mut self, shape: &Shape, job: JobId) {
        if let Some(entry) = self.0.get_mut(shape) {
            entry.breaker.start(Timestamp::NEVER, job);
        }
    }

    /// An attempt ended without evidence about the shape.
    pub fn abandon_trial(&mut self, shape: &Shape, job: JobId) {
        if let Some(entry) = self.0.get_mut(shape) {
            entry.breaker.release(job);
        }
    }

    pub fn failed(
        &mut self,
        now: Timestamp,
        shape: &Shape,
        worker: &WorkerId,
        job: JobId,
        reason: &str,
        settings: &Settings,
    ) -> QuarantineVerdict {
        let entry = self.0.entry(*shape).or_insert_with(|| QuarantineEntry {
            failed_on: BTreeSet::new(),
            reason: String::new(),
            breaker: Breaker::default(),
        });
        entry.failed_on.insert(worker.clone());
        reason.clone_into(&mut entry.reason);
        let is_new = match entry.breaker.state(now) {
            BreakerState::Closed => {
                if entry.failed_on.len() < usize::from(settings.suspect_shape_after.max(1)) {
                    return QuarantineVerdict::Noted;
                }
                true
            }
            BreakerState::Trial(trial) if trial == job => false,
            // It was in flight when the quarantine began: no new evidence.
            BreakerState::Open { .. } | BreakerState::HalfOpen | BreakerState::Trial(_) => {
                return QuarantineVerdict::Noted;
            }
        };
        let cooldown = Backoff::new(settings.quarantine_cooldown, settings.block_cooldown_max);
        entry.breaker.trip(now, cooldown);
        let trial_at = entry.trial_at().unwrap_or(now);
        let is_hopeless = entry.trials_failed() >= settings.quarantine_trials_max;
        QuarantineVerdict::Quarantined { trial_at, is_new, is_hopeless }
    }

    /// A success on any worker clears the shape; returns the removed entry.
    pub fn clear(&mut self, shape: &Shape) -> Option<QuarantineEntry> {
        self.0.remove(shape)
    }

    pub fn get(&self, shape: &Shape) -> Option<&QuarantineEntry> {
        self.0.get(shape)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Shape, &QuarantineEntry)> {
        self.0.iter()
    }

    pub fn restore(&mut self, row: QuarantineRow) {
        let QuarantineRow { shape, failed_on, trial_at, trials_failed, reason } = row;
        let breaker = match trial_at {
            Some(trial_at) => Breaker::opened(0, trials_failed.saturating_add(1), trial_at),
            None => Breaker::default(),
        };
        self.0.insert(shape, QuarantineEntry { failed_on, reason, breaker });
    }

    /// Drops one entry above `max`, preferring shapes that are not quarantined.
    pub fn trim(&mut self, max: usize) -> Option<Shape> {
        if self.0.len() <= max {
            return None;
        }
        let shape = *self.0.iter().find(|(_, it)| !it.is_quarantined()).or(self.0.iter().next())?.0;
        self.0.remove(&shape);
        Some(shape)
    }
}

impl QuarantineEntry {
    pub fn row(&self, shape: &Shape) -> QuarantineRow {
        QuarantineRow {
            shape: *shape,
            failed_on: self.failed_on.clone(),
            trial_at: self.trial_at(),
            trials_failed: self.trials_failed(),
            reason: self.reason.clone(),
        }
    }

    /// When the next trial may start; `None` while the shape is not quarantined.
    pub fn trial_at(&self) -> Option<Timestamp> {
        self.breaker.until()
    }

    /// The first opening is the quarantine itself; each later one is a failed trial.
    pub fn trials_failed(&self) -> u32 {
        self.breaker.trips().saturating_sub(1)
    }

    pub fn is_quarantined(&self) -> bool {
        self.breaker.until().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn fail(quarantine: &mut Quarantine, second: u64, worker: &str, job: u128) -> QuarantineVerdict {
        let worker = worker.parse().unwrap();
        quarantine.failed(
            at(second),
            &Shape::digest(b"s"),
            &worker,
            JobId::from_u128(job),
            "boom",
            &Settings::default(),
        )
    }

    fn quarantined(trial_at: u64, is_new: bool, is_hopeless: bool) -> QuarantineVerdict {
        QuarantineVerdict::Quarantined { trial_at: at(trial_at), is_new, is_hopeless }
    }

    #[test]
    fn three_distinct_workers_make_a_shape_suspect_and_failing_trials_fail_what_waits() {
        let shape = Shape::digest(b"s");
        let mut it = Quarantine::default();
        assert_eq!(fail(&mut it, 0, "a", 1), QuarantineVerdict::Noted);
        assert_eq!(fail(&mut it, 1, "a", 1), QuarantineVerdict::Noted, "one worker is one worker");
        assert_eq!(fail(&mut it, 2, "b", 1), QuarantineVerdict::Noted);
        assert_eq!(it.state(at(2), &shape), QuarantineState::Free);
        assert_eq!(fail(&mut it, 3, "c", 2), quarantined(63, true, false));
        assert_eq!(it.state(at(62), &shape), QuarantineState::Quarantined { trial_at: at(63) });
        assert_eq!(fail(&mut it, 4, "d", 3), QuarantineVerdict::Noted, "it was under way already");
        for (start, job, verdict) in [
            (63, 4, quarantined(64 + 120, false, false)),
            (190, 5, quarantined(191 + 240, false, false)),
            (450, 6, quarantined(451 + 480, false, true)),
        ] {
            assert_eq!(it.state(at(start), &shape), QuarantineState::Free);
            it.started(&shape, JobId::from_u128(job));
            let under_way = QuarantineState::TrialUnderWay { job: JobId::from_u128(job) };
            assert_eq!(it.state(at(start), &shape), under_way, "one at a time");
            assert_eq!(fail(&mut it, start + 1, "a", job), verdict);
        }
    }

    #[test]
    fn a_success_clears_the_shape() {
        let mut it = Quarantine::default();
        fail(&mut it, 0, "a", 1);
        fail(&mut it, 0, "b", 1);
        assert!(it.clear(&Shape::digest(b"s")).is_some());
        assert_eq!(fail(&mut it, 1, "c", 1), QuarantineVerdict::Noted);
    }

    #[test]
    fn what_is_merely_noted_makes_room_first() {
        let mut it = Quarantine::default();
        for worker in ["a", "b", "c"] {
            fail(&mut it, 0, worker, 1);
        }
        it.failed(
            at(0),
            &Shape::digest(b"t"),
            &"a".parse().unwrap(),
            JobId::from_u128(1),
            "x",
            &Settings::default(),
        );
        assert_eq!(it.trim(1), Some(Shape::digest(b"t")));
        assert_eq!(it.trim(1), None);
    }
}
