//! The locks and threads of the pool's shared state. Unit tests of this crate use shuttle's versions, which explore
//! many schedules; all other builds use the standard library.
//!
//! A unit test in this crate that creates a `ModelPool` therefore runs inside
//! `shuttle::check_random`; tests with real threads and processes are in `tests/`.

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

/// A poisoned lock is safe to use: every step either completes or changes nothing.
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

/// Time does not pass under shuttle, so explored tests must not depend on it.
#[cfg(test)]
pub(crate) fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
    wait(condvar, guard)
}

/// True if joining would not block.
#[cfg(not(test))]
pub(crate) fn is_finished(handle: &thread::JoinHandle<()>) -> bool {
    handle.is_finished()
}

/// Shuttle has no such query; joining may block there, and is explored.
#[cfg(test)]
pub(crate) fn is_finished(_: &thread::JoinHandle<()>) -> bool {
    true
}
