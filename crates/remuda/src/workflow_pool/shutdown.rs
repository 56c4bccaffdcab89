//! Ending a pool: in peace, or by dropping it.

use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{info, warn};

use super::{Running, WorkflowPool};

/// Running jobs may take this long, unless something else is said.
const FINISH_MAX: Duration = Duration::from_secs(60);
/// Then they are given up, which takes an agent a moment to say.
const GIVE_UP_MAX: Duration = Duration::from_secs(6);

/// Why a pool did not end in peace. What was stored is stored all the same.
#[derive(Debug, thiserror::Error)]
#[error("the pool ended in trouble: {0}")]
pub struct ShutdownError(String);

impl WorkflowPool {
    /// Takes no more jobs, lets those that run finish (for up to a minute), and ends. Jobs that wait are not begun: a pool
    /// on the same folder goes on with them, and in memory they are lost. A second call does nothing.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        self.shutdown_within(FINISH_MAX).await
    }

    /// As `shutdown`, with another limit for what runs. What has not finished by then is run again by a pool on the same
    /// folder.
    pub async fn shutdown_within(&self, limit: Duration) -> Result<(), ShutdownError> {
        let running = {
            let mut state = self.inner.state();
            state.is_closing = true;
            state.running.take()
        };
        let Some(Running { serving, mut workers, stops, listeners, _folder }) = running else {
            return Ok(());
        };
        for stop in &stops {
            stop.send(()).await.ok();
        }
        if !all_ended(&mut workers, limit).await {
            info!(?limit, "some jobs did not finish in time; they are given up");
            for stop in &stops {
                stop.send(()).await.ok();
            }
            if !all_ended(&mut workers, GIVE_UP_MAX).await {
                warn!("some agents did not end in time");
            }
        }
        drop(workers);
        let context = self.inner.context();
        self.inner.hub.close(&self.inner, context.as_deref()).await;
        drop((context, listeners));
        // From here on no handle or stream holds on to the files.
        self.inner.state().context = None;
        serving.stop().await.map_err(|error| ShutdownError(format!("{error:#}")))
    }
}

async fn all_ended(workers: &mut JoinSet<()>, within: Duration) -> bool {
    let all = async { while workers.join_next().await.is_some() {} };
    tokio::time::timeout(within, all).await.is_ok()
}

/// As after a crash: what is stored is safe, the rest is gone. The plane ends in the background.
impl Drop for WorkflowPool {
    fn drop(&mut self) {
        let (running, context) = {
            let mut state = self.inner.state();
            state.is_closing = true;
            (state.running.take(), state.context.take())
        };
        drop((running, context));
        self.inner.hub.forget_all();
    }
}
