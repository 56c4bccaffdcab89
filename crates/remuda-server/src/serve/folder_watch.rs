//! Looks whether the data folder is still there: deleted, moved or replaced, it would otherwise be noticed at the next start,
//! when everything accepted since is gone. The store says what it found; the event loop then decides nothing, submissions
//! are refused, and `/health/ready` says why.

use std::time::Duration;

use remuda_store::Store;
use tokio::sync::watch;

use crate::shutdown::stopped;
use crate::tasks::Ticker;

/// Twice a second: what was deleted is noticed within one.
const CHECK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(store: Store, mut stopping: watch::Receiver<bool>, ticker: Ticker) {
    loop {
        ticker.tick();
        let checked = store.clone();
        // A network file system may not answer for minutes. What it found is noted, and logged, by the store itself.
        drop(tokio::task::spawn_blocking(move || checked.check_place()).await);
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = stopped(&mut stopping) => return,
        }
    }
}
