//! What the pool's shared state is guarded by. In this crate's own unit tests it is shuttle's, which tries one schedule
//! after the other; everywhere else it is the standard library's.
//!
//! So a unit test in this crate that has a [`Pool`](crate::Pool) runs inside `shuttle::check_random`; tests with real
//! threads and processes stand in `tests/`.

#[cfg(not(test))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use std::thread;

#[cfg(test)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(test)]
pub(crate) use shuttle::thread;

use std::sync::PoisonError;
use std::time::Duration;

/// A thread that panicked with the lock in its hands left a state that is whole: a step is taken or it is not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(test))]
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Shuttle's time never passes: what is tried with it may not depend on it.
#[cfg(test)]
pub(crate) fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
    wait(condvar, guard)
}

/// Joining it will not wait.
#[cfg(not(test))]
pub(crate) fn is_finished(handle: &thread::JoinHandle<()>) -> bool {
    handle.is_finished()
}

/// Shuttle knows no such question; there joining waits, and is explored.
#[cfg(test)]
pub(crate) fn is_finished(_: &thread::JoinHandle<()>) -> bool {
    true
}
