//! Quarantine of a tenant's jobs of one shape that failed on several workers. One bad workflow must not occupy a whole fleet: after failures of the
//! jobs' own on three distinct workers without a success, the tenant's jobs of that shape run one at a time. A success
//! on any worker, of any tenant, ends it.
//!
//! ```text
//!  failing on 1, 2 workers ──3rd──▶ quarantined ──┬─▶ one trial ──success──▶ cleared
//!                                       ▲         T          │
//!                                       └── failed: T ×2 ────┘
//! ```
//!
//! A trial that raised an error costs its worker nothing, and its submitter waits for that error: the next one may start
//! at once (T = 0). A trial that took its worker down makes the next one wait, each time for longer. No job fails
//! without its own trial, and other tenants' jobs are not held back: their inputs may be good.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{JobId, Shape, Tenant, WorkerId};
use crate::record::QuarantineRow;
use crate::scope::TenantShape;
use crate::settings::Settings;
use crate::supervise::{Backoff, Breaker, BreakerState};
use crate::time::Timestamp;

#[derive(Clone, Debug, Default)]
pub struct Quarantine(BTreeMap<Shape, BTreeMap<Tenant, QuarantineEntry>>);

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
    },
}

/// Whether a job of this tenant and shape may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineState {
    Free,
    Quarantined { trial_at: Timestamp },
    TrialUnderWay { job: JobId },
}

/// A failure as evidence about a shape.
#[derive(Clone, Copy, Debug)]
pub struct QuarantineEvidence<'a> {
    pub worker: &'a WorkerId,
    pub job: JobId,
    pub reason: &'a str,
    pub took_worker_down: bool,
}

impl Quarantine {
    pub fn state(&self, now: Timestamp, jobs: &TenantShape) -> QuarantineState {
        let Some(entry) = self.get(jobs) else { return QuarantineState::Free };
        match entry.breaker.state(now) {
            BreakerState::Closed | BreakerState::HalfOpen => QuarantineState::Free,
            BreakerState::Open { until } => QuarantineState::Quarantined { trial_at: until },
            BreakerState::Trial(job) => QuarantineState::TrialUnderWay { job },
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An attempt starts; in quarantine it is the trial. The router has checked that one may start.
    pub fn started(&mut self, jobs: &TenantShape, job: JobId) -> bool {
        self.get_mut(jobs).is_some_and(|entry| entry.breaker.start(Timestamp::NEVER, job))
    }

    /// An attempt ended without evidence about the shape.
    pub fn abandon_trial(&mut self, jobs: &TenantShape, job: JobId) {
        if let Some(entry) = self.get_mut(jobs) {
            entry.breaker.release(job);
        }
    }

    pub fn failed(
        &mut self,
        now: Timestamp,
        jobs: &TenantShape,
        evidence: QuarantineEvidence<'_>,
        settings: &Settings,
    ) -> QuarantineVerdict {
        let of_shape = self.0.entry(jobs.shape).or_default();
        let entry = of_shape.entry(jobs.tenant.clone()).or_insert_with(|| QuarantineEntry {
            failed_on: BTreeSet::new(),
            reason: String::new(),
            breaker: Breaker::default(),
        });
        let limit = usize::from(settings.suspect_shape_after.max(1));
        if entry.failed_on.len() < limit {
            entry.failed_on.insert(evidence.worker.clone());
        }
        evidence.reason.clone_into(&mut entry.reason);
        let is_new = match entry.breaker.state(now) {
            BreakerState::Closed => {
                if entry.failed_on.len() < limit {
                    return QuarantineVerdict::Noted;
                }
                true
            }
            BreakerState::Trial(trial) if trial == evidence.job => false,
            // It was in flight when the quarantine began: no new evidence.
            BreakerState::Open { .. } | BreakerState::HalfOpen | BreakerState::Trial(_) => {
                return QuarantineVerdict::Noted;
            }
        };
        let cooldown = match evidence.took_worker_down {
            true => Backoff::new(settings.quarantine_cooldown, settings.block_cooldown_max),
            false => Backoff::new(Duration::ZERO, Duration::ZERO),
        };
        entry.breaker.trip(now, cooldown);
        QuarantineVerdict::Quarantined { trial_at: entry.trial_at().unwrap_or(now), is_new }
    }

    /// A success on any worker clears the shape for every tenant; returns what was removed.
    pub fn clear(&mut self, shape: &Shape) -> Vec<(TenantShape, QuarantineEntry)> {
        let of_shape = self.0.remove(shape).unwrap_or_default().into_iter();
        of_shape.map(|(tenant, entry)| (TenantShape { shape: *shape, tenant }, entry)).collect()
    }

    pub fn get(&self, jobs: &TenantShape) -> Option<&QuarantineEntry> {
        self.0.get(&jobs.shape)?.get(&jobs.tenant)
    }

    fn get_mut(&mut self, jobs: &TenantShape) -> Option<&mut QuarantineEntry> {
        self.0.get_mut(&jobs.shape)?.get_mut(&jobs.tenant)
    }

    pub fn iter(&self) -> impl Iterator<Item = (TenantShape, &QuarantineEntry)> {
        self.0.iter().flat_map(|(shape, of_shape)| {
            let jobs = |tenant: &Tenant| TenantShape { shape: *shape, tenant: tenant.clone() };
            of_shape.iter().map(move |(tenant, entry)| (jobs(tenant), entry))
        })
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub fn restore(&mut self, row: QuarantineRow) {
        let QuarantineRow { jobs, failed_on, trial_at, trials_failed, reason } = row;
        let breaker = match trial_at {
            Some(trial_at) => Breaker::opened(0, trials_failed.saturating_add(1), trial_at),
            None => Breaker::default(),
        };
        let entry = QuarantineEntry { failed_on, reason, breaker };
        self.0.entry(jobs.shape).or_default().insert(jobs.tenant, entry);
    }

    /// Drops one entry above `max`, preferring shapes that are not quarantined.
    pub fn trim(&mut self, max: usize) -> Option<TenantShape> {
        if self.len() <= max {
            return None;
        }
        let least = self.iter().find(|(_, it)| !it.is_quarantined()).or_else(|| self.iter().next());
        let (jobs, _) = least?;
        let of_shape = self.0.get_mut(&jobs.shape)?;
        of_shape.remove(&jobs.tenant);
        if of_shape.is_empty() {
            self.0.remove(&jobs.shape);
        }
        Some(jobs)
    }
}

impl QuarantineEntry {
    pub fn row(&self, jobs: &TenantShape) -> QuarantineRow {
        QuarantineRow {
            jobs: jobs.clone(),
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

    fn jobs(shape: &[u8], tenant: &str) -> TenantShape {
        TenantShape { shape: Shape::digest(shape), tenant: tenant.parse().unwrap() }
    }

    fn fail(it: &mut Quarantine, second: u64, worker: &str, job: u128, crash: bool) -> QuarantineVerdict {
        let worker = worker.parse().unwrap();
        let evidence = QuarantineEvidence {
            worker: &worker,
            job: JobId::from_u128(job),
            reason: "boom",
            took_worker_down: crash,
        };
        it.failed(at(second), &jobs(b"s", "t"), evidence, &Settings::default())
    }

    fn quarantined(trial_at: u64, is_new: bool) -> QuarantineVerdict {
        QuarantineVerdict::Quarantined { trial_at: at(trial_at), is_new }
    }

    #[test]
    fn three_distinct_workers_make_a_shape_run_one_at_a_time() {
        let those = jobs(b"s", "t");
        let mut it = Quarantine::default();
        assert_eq!(fail(&mut it, 0, "a", 1, false), QuarantineVerdict::Noted);
        assert_eq!(fail(&mut it, 1, "a", 1, false), QuarantineVerdict::Noted, "one worker is one worker");
        assert_eq!(fail(&mut it, 2, "b", 1, false), QuarantineVerdict::Noted);
        assert_eq!(it.state(at(2), &those), QuarantineState::Free);
        assert_eq!(fail(&mut it, 3, "c", 2, false), quarantined(3, true));
        assert_eq!(fail(&mut it, 4, "d", 3, false), QuarantineVerdict::Noted, "it was under way already");
        for (start, job, crash, verdict) in [
            (63, 4, false, quarantined(64, false)),
            (190, 5, true, quarantined(191 + 240, false)),
            (450, 6, false, quarantined(451, false)),
        ] {
            assert_eq!(it.state(at(start), &those), QuarantineState::Free);
            it.started(&those, JobId::from_u128(job));
            let under_way = QuarantineState::TrialUnderWay { job: JobId::from_u128(job) };
            assert_eq!(it.state(at(start), &those), under_way, "one at a time");
            assert_eq!(it.state(at(start), &jobs(b"s", "other")), QuarantineState::Free);
            assert_eq!(fail(&mut it, start + 1, "a", job, crash), verdict);
        }
    }

    #[test]
    fn a_success_clears_the_shape_for_every_tenant() {
        let mut it = Quarantine::default();
        fail(&mut it, 0, "a", 1, false);
        fail(&mut it, 0, "b", 1, false);
        assert_eq!(it.clear(&Shape::digest(b"other")).len(), 0);
        assert_eq!(it.clear(&Shape::digest(b"s")).len(), 1);
        assert_eq!(fail(&mut it, 1, "c", 1, false), QuarantineVerdict::Noted);
    }

    #[test]
    fn what_is_merely_noted_makes_room_first() {
        let mut it = Quarantine::default();
        for worker in ["a", "b", "c"] {
            fail(&mut it, 0, worker, 1, false);
        }
        let worker = "a".parse().unwrap();
        let evidence = QuarantineEvidence {
            worker: &worker,
            job: JobId::from_u128(1),
            reason: "x",
            took_worker_down: false,
        };
        it.failed(at(0), &jobs(b"t", "t"), evidence, &Settings::default());
        assert_eq!(it.trim(1), Some(jobs(b"t", "t")));
        assert_eq!(it.trim(1), None);
    }
}
