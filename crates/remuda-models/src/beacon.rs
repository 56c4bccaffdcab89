//! The progress counter of a copy. The computing thread advances it; the supervisor reads it without asking the copy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// No caller needs the answer any more, or the copy has to end: the computing code returns as soon as it gets this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped on request")]
pub struct Stopped;

/// Passed to code that loads or computes. Cheap to advance: once per batch, token, denoising step, layer or file read.
#[derive(Clone, Default)]
pub struct Beacon(Arc<Inner>);

#[derive(Default)]
struct Inner {
    steps: AtomicU64,
    stop: AtomicBool,
}

impl Beacon {
    /// Records one unit of progress; fails when the work should stop.
    pub fn step(&self) -> Result<(), Stopped> {
        self.0.steps.fetch_add(1, Ordering::Release);
        if self.0.stop.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Acquire)
    }

    /// Stores the step count that a child process reported.
    pub(crate) fn store_steps(&self, steps: u64) {
        self.0.steps.store(steps, Ordering::Release);
    }

    /// Makes the next `step` fail.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// Clears the stop flag before new work.
    pub fn resume(&self) {
        self.0.stop.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Beacon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beacon").field("steps", &self.steps()).finish_non_exhaustive()
    }
}
