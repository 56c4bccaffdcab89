//! The last hour of the numbers on top of the dashboard: how many jobs wait and run, how long the oldest waits, what the
//! machines cost, how many jobs completed and failed. A bounded ring in memory. Samples begin with this process, so the
//! time before a restart is a gap in the charts; ends of jobs are read back from the stored events, because "failed in
//! the last hour" must not forget a failure when the plane restarts. `serve/number_sampler.rs` fills it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::event_kind::EventKind;
use remuda_core::id::JobId;
use remuda_core::job::JobState;
use remuda_core::money::Money;
use remuda_core::plane::Plane;
use remuda_core::record::StoredEvent;
use remuda_core::time::Timestamp;

/// A chart of an hour has a point every ten seconds: as fine as a small chart can show.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
pub const KEPT: Duration = Duration::from_secs(3600);
const SAMPLES_MAX: usize = 360;
/// Open jobs looked at for the oldest one that waits; the oldest are first.
const OLDEST_MAX: usize = 10_000;

/// The numbers of one moment.
#[derive(Clone, Debug)]
pub struct PlaneNumbers {
    pub at: Timestamp,
    pub waiting: usize,
    pub running: usize,
    /// The oldest job that waits, for how long, and why.
    pub oldest: Option<(JobId, Duration, String)>,
    pub hourly_price: Money,
}

impl PlaneNumbers {
    pub fn read(plane: &Plane, at: Timestamp) -> PlaneNumbers {
        let running = plane.workers().map(|worker| worker.assignments.len()).sum();
        let oldest =
            plane.jobs().take(OLDEST_MAX).find(|job| matches!(job.state(), JobState::Waiting { .. }));
        let fleets = plane.settings().fleets.iter();
        PlaneNumbers {
            at,
            waiting: plane.open_jobs().saturating_sub(running),
            running,
            oldest: oldest.map(|job| (job.id, job.age(at), plane.reason(at, job))),
            hourly_price: fleets.map(|fleet| plane.fleet_hourly_price(&fleet.id)).sum(),
        }
    }
}

/// Jobs that ended within one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCounts {
    pub completed: u32,
    pub failed: u32,
}

/// Clones share the history.
#[derive(Clone, Debug, Default)]
pub struct NumberHistory(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    samples: VecDeque<PlaneNumbers>,
    /// By the number of the interval since 1970.
    ends: BTreeMap<u64, EndCounts>,
}

impl NumberHistory {
    /// Keeps a sample, and forgets what is older than an hour.
    pub fn sample(&self, numbers: PlaneNumbers) {
        let mut kept = self.lock();
        kept.forget_before(numbers.at.minus(KEPT));
        if kept.samples.len() == SAMPLES_MAX {
            kept.samples.pop_front();
        }
        kept.samples.push_back(numbers);
    }

    /// Counts the end of a job.
    pub fn count(&self, event: &StoredEvent) {
        let (completed, failed) = match event.kind {
            EventKind::JobCompleted => (1, 0),
            EventKind::JobFailed => (0, 1),
            _ => return,
        };
        let mut kept = self.lock();
        let counts = kept.ends.entry(interval(event.at)).or_default();
        (counts.completed, counts.failed) = (counts.completed + completed, counts.failed + failed);
    }

    /// Forgets the ends, so that they can be counted again.
    pub fn clear_ends(&self) {
        self.lock().ends.clear();
    }

    /// All jobs that ended within the last hour.
    pub fn ended(&self, now: Timestamp) -> EndCounts {
        let kept = self.lock();
        let counts = kept.ends.range(interval(now.minus(KEPT))..).map(|(_, counts)| counts);
        counts.fold(EndCounts::default(), |sum, counts| EndCounts {
            completed: sum.completed + counts.completed,
            failed: sum.failed + counts.failed,
        })
    }

    pub fn samples(&self) -> Vec<PlaneNumbers> {
        self.lock().samples.iter().cloned().collect()
    }

    /// Ends of jobs, by the beginning of their interval; oldest first.
    pub fn ends(&self) -> Vec<(Timestamp, EndCounts)> {
        let every = millis(SAMPLE_EVERY);
        self.lock().ends.iter().map(|(at, counts)| (Timestamp::from_millis(at * every), *counts)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn forget_before(&mut self, before: Timestamp) {
        self.ends = self.ends.split_off(&interval(before));
        while self.samples.front().is_some_and(|sample| sample.at < before) {
            self.samples.pop_front();
        }
    }
}

fn interval(at: Timestamp) -> u64 {
    at.as_millis() / millis(SAMPLE_EVERY)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use remuda_core::id::Sequence;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn ended(seq: u64, seconds: u64, kind: EventKind) -> StoredEvent {
        let (job, worker, tenant) = (None, None, None);
        let (metadata, detail) = Default::default();
        StoredEvent { seq: Sequence(seq), at: at(seconds), kind, job, worker, tenant, metadata, detail }
    }

    fn numbers(seconds: u64) -> PlaneNumbers {
        PlaneNumbers { at: at(seconds), waiting: 1, running: 2, oldest: None, hourly_price: Money::default() }
    }

    #[test]
    fn an_hour_of_numbers_is_kept_and_no_more() {
        let history = NumberHistory::default();
        for tick in 0..1000 {
            history.count(&ended(tick, tick * 10, EventKind::JobFailed));
            history.sample(numbers(tick * 10));
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
        assert_eq!(history.ended(at(9990)), EndCounts { completed: 0, failed: 361 });
        assert!(history.ends().len() <= SAMPLES_MAX + 1);
        // Nothing failed since.
        assert_eq!(history.ended(at(9990 + 3600 + 10)), EndCounts::default());
    }

    #[test]
    fn only_ends_of_jobs_are_counted() {
        let history = NumberHistory::default();
        for kind in
            [EventKind::JobCompleted, EventKind::JobFailed, EventKind::JobRetrying, EventKind::ScaleUp]
        {
            history.count(&ended(1, 5, kind));
        }
        assert_eq!(history.ends(), [(at(0), EndCounts { completed: 1, failed: 1 })]);
    }
}
