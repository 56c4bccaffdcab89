//! Deletes finished jobs and events that are older than `retention`, in small batches so that commits stay short.

use std::time::Duration;

use remuda_core::time::Timestamp;
use remuda_store::Store;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;

const RUN_EVERY: Duration = Duration::from_secs(60);
const BATCH_ROWS: usize = 500;

pub(super) async fn run(
    store: Store,
    plane: PlaneHandle,
    retention: Duration,
    mut stopping: watch::Receiver<bool>,
    ticker: Ticker,
) {
    loop {
        ticker.tick();
        tokio::select! {
            () = tokio::time::sleep(RUN_EVERY) => {}
            () = stopped(&mut stopping) => return,
        }
        let before: Timestamp = plane.clock.now().minus(retention);
        let mut deleted = 0;
        loop {
            match store.delete_ended_before(before, BATCH_ROWS).await {
                Ok(0) => break,
                Ok(rows) => deleted += rows,
                Err(error) => {
                    warn!(%error, "deleting old records failed; will retry");
                    break;
                }
            }
        }
        if let Err(error) = store.delete_expired(plane.clock.now(), BATCH_ROWS).await {
            warn!(%error, "deleting expired documents failed; will retry");
        }
        if deleted > 0 {
            info!(deleted, "records older than retention deleted");
        }
    }
}
