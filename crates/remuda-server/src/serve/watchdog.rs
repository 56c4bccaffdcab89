//! A thread that ends the process when the event loop stands still: a process supervisor then restarts it. A thread and
//! not a task, because whatever blocks the event loop may block every task.
//!
//! What counts is the process's own running time. A process that was stopped (SIGSTOP, a closed lid, `docker pause`, a
//! moved VM) wakes up with an old tick, and is not stuck: its threads did not run either. So the watchdog counts its own
//! rounds without a tick and not the time on a clock. However long the process was stopped, that is one round.

use std::time::Duration;

use tracing::{error, warn};

use crate::plane_handle::PlaneHandle;

/// The event loop wakes at least every second; after this long only a restart of the process helps.
const LIMIT: Duration = Duration::from_secs(30);
/// How much of the limit one round is.
const ROUNDS: u32 = 30;
/// EX_SOFTWARE of sysexits.h.
const EXIT_CODE: i32 = 70;
/// A log that blocks, which may be what the event loop waits for, must not keep the process alive.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// For tests: another limit, and after how long the event loop is made to hang. Both in milliseconds. They are no settings,
/// so their names do not begin like those.
const LIMIT_VARIABLE: &str = "__REMUDA_WATCHDOG_LIMIT_MS";
const HANG_VARIABLE: &str = "__REMUDA_WATCHDOG_TEST_HANG_MS";

/// The rounds in which the event loop did not tick.
#[derive(Debug, Default)]
struct Standstill {
    tick: u64,
    rounds: u32,
}

impl Standstill {
    /// Called once a round; returns whether the loop stands still for too long.
    fn is_too_long(&mut self, tick: u64) -> bool {
        self.rounds = if tick == self.tick { self.rounds + 1 } else { 0 };
        self.tick = tick;
        self.rounds > ROUNDS
    }
}

pub(super) fn start(plane: PlaneHandle) {
    let round = from_environment(LIMIT_VARIABLE).unwrap_or(LIMIT) / ROUNDS;
    if let Some(after) = from_environment(HANG_VARIABLE) {
        hang(plane.clone(), after);
    }
    let watchdog = std::thread::Builder::new().name("watchdog".to_owned());
    let started = watchdog.spawn(move || {
        let mut standstill = Standstill::default();
        loop {
            std::thread::sleep(round);
            if plane.is_stopped() {
                return;
            }
            if standstill.is_too_long(plane.last_tick()) {
                end_process(plane.tick_age());
            }
        }
    });
    if let Err(error) = started {
        warn!(%error, "watchdog not started; a stuck event loop will not be noticed");
    }
}

fn end_process(age: Duration) -> ! {
    let logging = std::thread::spawn(move || {
        error!(?age, "event loop stuck; ending the process so that it can be restarted");
    });
    let began = std::time::Instant::now();
    while !logging.is_finished() && began.elapsed() < LOG_TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::exit(EXIT_CODE)
}

fn from_environment(name: &str) -> Option<Duration> {
    Some(Duration::from_millis(std::env::var(name).ok()?.parse().ok()?))
}

fn hang(plane: PlaneHandle, after: Duration) {
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let forever = |_: &remuda_core::plane::Plane, _| loop {
            std::thread::park();
        };
        drop(plane.read::<()>(forever).await);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: C6.
    #[test]
    fn loop_that_does_not_tick_for_all_rounds_is_stuck() {
        let mut standstill = Standstill::default();
        assert!(!standstill.is_too_long(7));
        assert!((0..ROUNDS).all(|_| !standstill.is_too_long(7)));
        assert!(standstill.is_too_long(7));
    }

    /// Faults: J4, C6.
    #[test]
    fn process_that_was_stopped_is_not_stuck() {
        let mut standstill = Standstill::default();
        // An hour passes on every clock between two rounds: the watchdog stood still as well.
        for tick in 0..1000 {
            assert!(!standstill.is_too_long(tick * 3_600_000));
            assert!(!standstill.is_too_long(tick * 3_600_000), "the loop wakes up a moment later");
        }
    }
}
