//! What happened to jobs since this plane started, for metrics. `Jobs` counts where a job changes, so that reading costs
//! nothing, however many jobs there are. Nothing is decided by these numbers and nothing is stored: a new plane starts at
//! zero, and restores only the number of running jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RunningAttempt;
use crate::cause::Cause;
use crate::histogram::Histogram;
use crate::job::{Job, JobState};
use crate::record::StateRow;
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;

/// Upper bounds of waits and run times in milliseconds: a cached picture takes a tenth of a second, a video an hour.
const TIME_BOUNDS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
    3_600_000, 14_400_000,
];

#[derive(Clone, Debug)]
pub struct JobCounts {
    /// Jobs with a running attempt now.
    pub running: usize,
    pub submitted: u64,
    pub ended: EndedCounts,
    /// Ended attempts by what ended them and what was at fault.
    pub attempts: BTreeMap<(AttemptVerdict, Option<Cause>), u64>,
    /// Milliseconds from acceptance to the first start.
    pub waits: Histogram,
    /// Milliseconds of completed attempts.
    pub runs: Histogram,
    /// Milliseconds from acceptance to the outcome, whatever it is.
    pub turnarounds: Histogram,
}

/// Jobs that got their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedCounts {
    pub completed: u64,
    pub failed: u64,
    /// The deadline passed; the native API shows them as failed.
    pub expired: u64,
    pub cancelled: u64,
}

impl Default for JobCounts {
    fn default() -> Self {
        JobCounts {
            running: 0,
            submitted: 0,
            ended: EndedCounts::default(),
            attempts: BTreeMap::new(),
            waits: Histogram::new(TIME_BOUNDS),
            runs: Histogram::new(TIME_BOUNDS),
            turnarounds: Histogram::new(TIME_BOUNDS),
        }
    }
}

impl JobCounts {
    /// A stored job was loaded.
    pub(super) fn restored(&mut self, job: &Job) {
        self.running += usize::from(matches!(job.state(), JobState::Running { .. }));
    }

    pub(super) fn accepted(&mut self) {
        self.submitted += 1;
    }

    /// An attempt started.
    pub(super) fn started(&mut self, now: Timestamp, job: &Job) {
        self.running += 1;
        if job.attempts().is_empty() {
            self.waits.record(millis(job.age(now)));
        }
    }

    /// An event was applied to a job whose attempt ran before.
    pub(super) fn changed(&mut self, now: Timestamp, ran: &RunningAttempt, job: &Job) {
        if matches!(job.state(), JobState::Running { .. }) {
            return;
        }
        self.running = self.running.saturating_sub(1);
        let Some(last) = job.attempts().last() else { return };
        let Some(verdict) = last.verdict else { return };
        *self.attempts.entry((verdict, last.cause)).or_default() += 1;
        if verdict == AttemptVerdict::Completed {
            self.runs.record(millis(now.since(ran.started_at)));
        }
    }

    /// A job got its outcome.
    pub(super) fn ended(&mut self, now: Timestamp, job: &Job, state: &StateRow) {
        let count = match state {
            StateRow::Completed { .. } => &mut self.ended.completed,
            StateRow::Failed { .. } => &mut self.ended.failed,
            StateRow::Expired { .. } => &mut self.ended.expired,
            StateRow::Cancelled { .. } => &mut self.ended.cancelled,
            StateRow::Queued { .. } | StateRow::Running { .. } => return,
        };
        *count += 1;
        self.turnarounds.record(millis(job.age(now)));
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
