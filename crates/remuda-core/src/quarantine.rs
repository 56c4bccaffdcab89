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
use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct Quarantine(BTreeMap<Shape, QuarantineEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineEntry {
    pub row: QuarantineFields,
    trial: Option<JobId>,
}

/// As `QuarantineRow`, without the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineFields {
    pub failed_on: BTreeSet<WorkerId>,
    pub trial_at: Option<Timestamp>,
    pub trials_failed: u32,
    pub reason: String,
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
        match (entry.row.trial_at, entry.trial) {
            (None, _) => QuarantineState::Free,
            (Some(_), Some(job)) => QuarantineState::TrialUnderWay { job },
            (Some(trial_at), None) if now < trial_at => QuarantineState::Quarantined { trial_at },
            (Some(_), None) => QuarantineState::Free,
        }
    }

    /// An attempt starts; in quarantine it is the trial.
    pub fn started(&mut self, shape: &Shape, job: JobId) {
        if let Some(entry) =
            self.0.get_mut(shape).filter(|it| it.row.trial_at.is_some() && it.trial.is_none())
        {
            entry.trial = Some(job);
        }
    }

    /// An attempt ended without evidence about the shape.
    pub fn released(&mut self, shape: &Shape, job: JobId) {
        if let Some(entry) = self.0.get_mut(shape).filter(|it| it.trial == Some(job)) {
            entry.trial = None;
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
            row: QuarantineFields {
                failed_on: BTreeSet::new(),
                trial_at: None,
                trials_failed: 0,
                reason: String::new(),
            },
            trial: None,
        });
        let row = &mut entry.row;
        row.failed_on.insert(worker.clone());
        reason.clone_into(&mut row.reason);
        let is_new = row.trial_at.is_none();
        let is_trial = entry.trial == Some(job);
        if is_new && row.failed_on.len() < usize::from(settings.suspect_shape_after.max(1)) {
            return QuarantineVerdict::Noted;
        }
        if !is_new && !is_trial {
            // It ran when the quarantine began and is no new evidence.
            return QuarantineVerdict::Noted;
        }
        row.trials_failed += u32::from(is_trial);
        let wait = settings.quarantine_cooldown.saturating_mul(1 << row.trials_failed.min(8));
        let trial_at = now.plus(wait.min(settings.block_cooldown_max));
        row.trial_at = Some(trial_at);
        entry.trial = None;
        let is_hopeless = row.trials_failed >= settings.quarantine_trials_max;
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
        let row = QuarantineFields { failed_on, trial_at, trials_failed, reason };
        self.0.insert(shape, QuarantineEntry { row, trial: None });
    }

    /// Drops one entry above `max`, preferring shapes that are not quarantined.
    pub fn trim(&mut self, max: usize) -> Option<Shape> {
        if self.0.len() <= max {
            return None;
        }
        let shape = *self.0.iter().find(|(_, it)| it.row.trial_at.is_none()).or(self.0.iter().next())?.0;
        self.0.remove(&shape);
        Some(shape)
    }
}

impl QuarantineEntry {
    pub fn row(&self, shape: &Shape) -> QuarantineRow {
        let QuarantineFields { failed_on, trial_at, trials_failed, reason } = self.row.clone();
        QuarantineRow { shape: *shape, failed_on, trial_at, trials_failed, reason }
    }

    pub fn is_quarantined(&self) -> bool {
        self.row.trial_at.is_some()
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
    fn three_distinct_workers_make_a_shape_suspect_and_trials_condemn_it() {
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
