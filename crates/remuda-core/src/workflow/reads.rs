//! How often the text of a workflow was read. Tests hold the number against what a job may cost: twice on the plane, once
//! on a worker.

use std::cell::Cell;

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Reads of workflow texts on this thread since it started. Not shared between threads: a test sees only its own.
pub fn reads() -> u64 {
    READS.get()
}

pub(super) fn count() {
    READS.set(READS.get() + 1);
}
