//! A thread that ends the process when the event loop stands still: a process supervisor then restarts it. A thread and
//! not a task, because whatever blocks the event loop may block every task.

use std::time::Duration;

use tracing::{error, warn};

use crate::plane_handle::PlaneHandle;

const CHECK_EVERY: Duration = Duration::from_secs(5);
/// The event loop wakes at least every second; after this long only a restart of the process helps.
const TICK_AGE_MAX: Duration = Duration::from_secs(30);
/// EX_SOFTWARE of sysexits.h.
const EXIT_CODE: i32 = 70;

pub(super) fn start(plane: PlaneHandle) {
    let watchdog = std::thread::Builder::new().name("watchdog".to_owned());
    let started = watchdog.spawn(move || {
        loop {
            std::thread::sleep(CHECK_EVERY);
            let age = plane.tick_age();
            if plane.is_stopped() {
                return;
            }
            if age > TICK_AGE_MAX {
                error!(?age, "event loop stuck; ending the process so that it can be restarted");
                std::process::exit(EXIT_CODE);
            }
        }
    });
    if let Err(error) = started {
        warn!(%error, "watchdog not started; a stuck event loop will not be noticed");
    }
}
