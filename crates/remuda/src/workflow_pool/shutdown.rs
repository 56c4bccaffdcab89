//! Ends a pool: gracefully with `shutdown`, or as in a crash by dropping it.

use std::time::Duration;

use tracing::{info, warn};

use super::{Running, WorkflowPool};

/// Default limit for running jobs.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long agents may take to hand back jobs that did not finish.
pub(super) const HAND_BACK_TIMEOUT: Duration = Duration::from_secs(6);

/// Why a shutdown was not graceful. Stored jobs are safe.
#[derive(Debug, thiserror::Error)]
#[error("the pool did not shut down cleanly: {0}")]
pub struct ShutdownError(String);

impl WorkflowPool {
    /// Accepts no more jobs, lets running ones finish for up to a minute, and ends. Queued jobs are not started: a pool on
    /// the same folder continues them, a pool in memory loses them. A second call does nothing.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        self.shutdown_within(FINISH_TIMEOUT).await
    }

    /// As `shutdown`, with another limit for running jobs. A pool on the same folder runs the unfinished ones again.
    pub async fn shutdown_within(&self, limit: Duration) -> Result<(), ShutdownError> {
        let running = {
            let mut state = self.inner.state();
            state.is_closing = true;
            state.running.take()
        };
        let Some(Running { serving, mut servers, listeners, _folder }) = running else {
            return Ok(());
        };
        servers.stop_all().await;
        if !servers.all_ended(limit).await {
            info!(?limit, "jobs still running at the shutdown limit; handing them back");
            servers.stop_all().await;
            if !servers.all_ended(HAND_BACK_TIMEOUT).await {
                warn!(timeout = ?HAND_BACK_TIMEOUT, "agents did not end in time");
            }
        }
        drop(servers);
        let context = self.inner.context();
        self.inner.watch.close(&self.inner, context.as_deref()).await;
        drop((context, listeners));
        // Handles and streams reach the files only through this context.
        self.inner.state().context = None;
        serving.stop().await.map_err(|error| ShutdownError(format!("{error:#}")))
    }
}

/// As a crash: stored jobs are safe, everything else is lost. The plane ends in the background.
impl Drop for WorkflowPool {
    fn drop(&mut self) {
        let (running, context) = {
            let mut state = self.inner.state();
            state.is_closing = true;
            (state.running.take(), state.context.take())
        };
        drop((running, context));
        self.inner.watch.drop_all();
    }
}
