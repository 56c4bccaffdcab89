//! How the event loop is doing: time and size of commits, lag, the longest step. The loop writes, scrapes and alerts read;
//! the lock is held for some nanoseconds and never across an await.
//!
//! Maxima are those of the last minute or two: of the minute under way and of the one before it. A maximum since the last
//! scrape was rejected, because two scrapers would take it from each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remuda_core::histogram::Histogram;

use super::page::Page;
use super::table;

/// Microseconds: an SSD commits within a millisecond or two, a network disk within a hundred.
const COMMIT_BOUNDS: &[u64] =
    &[250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000];
/// Records: one submission makes three, a full round of the loop some thousand.
const RECORD_BOUNDS: &[u64] = &[1, 4, 16, 64, 256, 1_024, 4_096, 16_384];
const MICROS_PER_SECOND: u32 = 1_000_000;
const WINDOW: Duration = Duration::from_secs(60);

/// Clones share the numbers.
#[derive(Clone, Debug)]
pub struct LoopStats(Arc<Mutex<Counted>>);

#[derive(Debug)]
struct Counted {
    commit_micros: Histogram,
    commit_records: Histogram,
    commit_failures: u64,
    messages: u64,
    commit_max: RecentMax,
    lag_max: RecentMax,
    step_max: RecentMax,
}

/// The largest value of this window and the one before.
#[derive(Debug)]
struct RecentMax {
    since: Instant,
    current: Duration,
    previous: Duration,
}

impl RecentMax {
    fn new(now: Instant) -> RecentMax {
        RecentMax { since: now, current: Duration::ZERO, previous: Duration::ZERO }
    }

    fn roll(&mut self, now: Instant) {
        let windows = now.duration_since(self.since).as_secs() / WINDOW.as_secs();
        if windows > 0 {
            self.previous = if windows == 1 { self.current } else { Duration::ZERO };
            (self.since, self.current) = (now, Duration::ZERO);
        }
    }

    fn record(&mut self, now: Instant, value: Duration) {
        self.roll(now);
        self.current = self.current.max(value);
    }

    fn get(&mut self, now: Instant) -> Duration {
        self.roll(now);
        self.current.max(self.previous)
    }
}

impl Default for LoopStats {
    fn default() -> Self {
        let now = Instant::now();
        LoopStats(Arc::new(Mutex::new(Counted {
            commit_micros: Histogram::new(COMMIT_BOUNDS),
            commit_records: Histogram::new(RECORD_BOUNDS),
            commit_failures: 0,
            messages: 0,
            commit_max: RecentMax::new(now),
            lag_max: RecentMax::new(now),
            step_max: RecentMax::new(now),
        })))
    }
}

impl LoopStats {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn committed(&self, began: Instant, records: usize, is_stored: bool) {
        let (now, mut counted) = (Instant::now(), self.lock());
        let took = now.duration_since(began);
        counted.commit_micros.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        counted.commit_records.record(records as u64);
        counted.commit_failures += u64::from(!is_stored);
        counted.commit_max.record(now, took);
    }

    /// A round of the loop: how many messages it handled, and how late its timer was.
    pub(crate) fn stepped(&self, began: Instant, messages: usize, lag: Duration) {
        let (now, mut counted) = (Instant::now(), self.lock());
        counted.messages += messages as u64;
        counted.step_max.record(now, now.duration_since(began));
        counted.lag_max.record(now, lag);
    }

    /// The slowest commit of the last minute or two.
    pub(crate) fn slowest_commit(&self) -> Duration {
        self.lock().commit_max.get(Instant::now())
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let (now, mut counted) = (Instant::now(), self.lock());
        page.family(&table::COMMIT_SECONDS).histogram(&counted.commit_micros, MICROS_PER_SECOND);
        page.family(&table::COMMIT_RECORDS).histogram(&counted.commit_records, 1);
        page.single(&table::COMMIT_FAILURES, counted.commit_failures);
        page.single(&table::LOOP_STEPS, counted.messages);
        page.single(&table::LOOP_LAG, counted.lag_max.get(now).as_secs_f64());
        page.single(&table::LOOP_LONGEST, counted.step_max.get(now).as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_is_forgotten_after_two_windows() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut max = RecentMax::new(start);
        max.record(at(10), Duration::from_millis(700));
        max.record(at(20), Duration::from_millis(30));
        assert_eq!(max.get(at(59)), Duration::from_millis(700));
        assert_eq!(max.get(at(61)), Duration::from_millis(700), "the window before still counts");
        assert_eq!(max.get(at(122)), Duration::ZERO);
        max.record(at(130), Duration::from_millis(5));
        assert_eq!(max.get(at(600)), Duration::ZERO, "a silent loop has no maximum");
    }
}
