//! Shapes that fail wherever they run. One bad workflow must not close a fleet: after three distinct workers
//! without a success in between, the workers are cleared and the shape itself is put in quarantine, where single
//! trials, further and further apart, find out whether it was the shape after all.
//!
//! ```text
//!  failing on 1, 2 workers ──3rd──▶ quarantined until T ──T──▶ one trial ──success──▶ cleared
//!                                          ▲                       │
//!                                          └───── failed: ×2 ──────┴──3rd failed trial──▶ waiting jobs condemned
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{JobId, Shape, WorkerId};
use crate::record::SuspicionRow;
use crate::settings::Settings;
use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct Suspicions(BTreeMap<Shape, Suspicion>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicion {
    pub row: SuspicionRowFields,
    trial: Option<JobId>,
}

/// As `SuspicionRow`, without the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspicionRowFields {
    pub failed_on: BTreeSet<WorkerId>,
    pub trial_at: Option<Timestamp>,
    pub trials_failed: u32,
    pub reason: String,
}

/// What a failure led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Noted,
    /// Now in quarantine, or still.
    Quarantined {
        trial_at: Timestamp,
        is_new: bool,
        is_hopeless: bool,
    },
}

/// May a job of this shape start?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Free,
    Quarantined { trial_at: Timestamp },
    TrialUnderWay { job: JobId },
}

impl Suspicions {
    pub fn standing(&self, now: Timestamp, shape: &Shape) -> Standing {
        let Some(suspicion) = self.0.get(shape) else { return Standing::Free };
        match (suspicion.row.trial_at, suspicion.trial) {
            (None, _) => Standing::Free,
            (Some(_), Some(job)) => Standing::TrialUnderWay { job },
            (Some(trial_at), None) if now < trial_at => Standing::Quarantined { trial_at },
            (Some(_), None) => Standing::Free,
        }
    }

    /// An attempt begins; in quarantine it is the trial.
    pub fn started(&mut self, shape: &Shape, job: JobId) {
        if let Some(suspicion) =
            self.0.get_mut(shape).filter(|it| it.row.trial_at.is_some() && it.trial.is_none())
        {
            suspicion.trial = Some(job);
        }
    }

    /// An attempt ended without saying anything about the shape.
    pub fn released(&mut self, shape: &Shape, job: JobId) {
        if let Some(suspicion) = self.0.get_mut(shape).filter(|it| it.trial == Some(job)) {
            suspicion.trial = None;
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
    ) -> Verdict {
        let suspicion = self.0.entry(*shape).or_insert_with(|| Suspicion {
            row: SuspicionRowFields {
                failed_on: BTreeSet::new(),
                trial_at: None,
                trials_failed: 0,
                reason: String::new(),
            },
            trial: None,
        });
        let row = &mut suspicion.row;
        row.failed_on.insert(worker.clone());
        reason.clone_into(&mut row.reason);
        let is_new = row.trial_at.is_none();
        let is_trial = suspicion.trial == Some(job);
        if is_new && row.failed_on.len() < usize::from(settings.suspect_shape_after.max(1)) {
            return Verdict::Noted;
        }
        if !is_new && !is_trial {
            // It was under way when the quarantine began and says nothing new.
            return Verdict::Noted;
        }
        row.trials_failed += u32::from(is_trial);
        let wait = settings.quarantine_cooldown.saturating_mul(1 << row.trials_failed.min(8));
        let trial_at = now.plus(wait.min(settings.block_cooldown_max));
        row.trial_at = Some(trial_at);
        suspicion.trial = None;
        let is_hopeless = row.trials_failed >= settings.quarantine_trials_max;
        Verdict::Quarantined { trial_at, is_new, is_hopeless }
    }

    /// A success anywhere clears the shape; whether there was anything to clear.
    pub fn clear(&mut self, shape: &Shape) -> Option<Suspicion> {
        self.0.remove(shape)
    }

    pub fn of(&self, shape: &Shape) -> Option<&Suspicion> {
        self.0.get(shape)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Shape, &Suspicion)> {
        self.0.iter()
    }

    pub fn restore(&mut self, row: SuspicionRow) {
        let SuspicionRow { shape, failed_on, trial_at, trials_failed, reason } = row;
        let row = SuspicionRowFields { failed_on, trial_at, trials_failed, reason };
        self.0.insert(shape, Suspicion { row, trial: None });
    }

    /// More shapes under mere suspicion than this are not remembered: the oldest hash makes room.
    pub fn trim(&mut self, max: usize) -> Option<Shape> {
        if self.0.len() <= max {
            return None;
        }
        let shape = *self.0.iter().find(|(_, it)| it.row.trial_at.is_none()).or(self.0.iter().next())?.0;
        self.0.remove(&shape);
        Some(shape)
    }
}

impl Suspicion {
    pub fn row(&self, shape: &Shape) -> SuspicionRow {
        let SuspicionRowFields { failed_on, trial_at, trials_failed, reason } = self.row.clone();
        SuspicionRow { shape: *shape, failed_on, trial_at, trials_failed, reason }
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

    fn fail(suspicions: &mut Suspicions, second: u64, worker: &str, job: u128) -> Verdict {
        let worker = worker.parse().unwrap();
        suspicions.failed(
            at(second),
            &Shape::of(b"s"),
            &worker,
            JobId::from_u128(job),
            "boom",
            &Settings::default(),
        )
    }

    fn quarantined(trial_at: u64, is_new: bool, is_hopeless: bool) -> Verdict {
        Verdict::Quarantined { trial_at: at(trial_at), is_new, is_hopeless }
    }

    #[test]
    fn three_distinct_workers_make_a_shape_suspect_and_trials_condemn_it() {
        let shape = Shape::of(b"s");
        let mut it = Suspicions::default();
        assert_eq!(fail(&mut it, 0, "a", 1), Verdict::Noted);
        assert_eq!(fail(&mut it, 1, "a", 1), Verdict::Noted, "one worker is one worker");
        assert_eq!(fail(&mut it, 2, "b", 1), Verdict::Noted);
        assert_eq!(it.standing(at(2), &shape), Standing::Free);
        assert_eq!(fail(&mut it, 3, "c", 2), quarantined(63, true, false));
        assert_eq!(it.standing(at(62), &shape), Standing::Quarantined { trial_at: at(63) });
        assert_eq!(fail(&mut it, 4, "d", 3), Verdict::Noted, "it was under way already");
        for (start, job, verdict) in [
            (63, 4, quarantined(64 + 120, false, false)),
            (190, 5, quarantined(191 + 240, false, false)),
            (450, 6, quarantined(451 + 480, false, true)),
        ] {
            assert_eq!(it.standing(at(start), &shape), Standing::Free);
            it.started(&shape, JobId::from_u128(job));
            let under_way = Standing::TrialUnderWay { job: JobId::from_u128(job) };
            assert_eq!(it.standing(at(start), &shape), under_way, "one at a time");
            assert_eq!(fail(&mut it, start + 1, "a", job), verdict);
        }
    }

    #[test]
    fn a_success_clears_the_shape() {
        let mut it = Suspicions::default();
        fail(&mut it, 0, "a", 1);
        fail(&mut it, 0, "b", 1);
        assert!(it.clear(&Shape::of(b"s")).is_some());
        assert_eq!(fail(&mut it, 1, "c", 1), Verdict::Noted);
    }

    #[test]
    fn what_is_merely_noted_makes_room_first() {
        let mut it = Suspicions::default();
        for worker in ["a", "b", "c"] {
            fail(&mut it, 0, worker, 1);
        }
        it.failed(
            at(0),
            &Shape::of(b"t"),
            &"a".parse().unwrap(),
            JobId::from_u128(1),
            "x",
            &Settings::default(),
        );
        assert_eq!(it.trim(1), Some(Shape::of(b"t")));
        assert_eq!(it.trim(1), None);
    }
}
