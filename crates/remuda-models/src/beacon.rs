//! The sign of life of a copy: a counter that whoever computes advances, and that nobody has to ask for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nobody wants the answer any more, or the copy is to end: return as soon as this is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("told to stop")]
pub struct Stopped;

/// Given to whoever loads and computes. Cheap to advance: once per batch, token, denoising step, layer, file read.
#[derive(Clone, Default)]
pub struct Beacon(Arc<Inner>);

#[derive(Default)]
struct Inner {
    steps: AtomicU64,
    stop: AtomicBool,
}

impl Beacon {
    /// Says that something was done, and hears whether to go on.
    pub fn step(&self) -> Result<(), Stopped> {
        self.0.steps.fetch_add(1, Ordering::Release);
        if self.0.stop.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Acquire)
    }

    /// What a child process says of its own.
    pub(crate) fn heard(&self, steps: u64) {
        self.0.steps.store(steps, Ordering::Release);
    }

    /// From the next step on.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// What comes next is wanted.
    pub fn resume(&self) {
        self.0.stop.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Beacon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beacon").field("steps", &self.steps()).finish_non_exhaustive()
    }
}
