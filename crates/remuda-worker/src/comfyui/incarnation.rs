//! Detects whether the ComfyUI server restarted. The server does not report when it started, but it forgets its history
//! when it restarts: as long as its history has our last ended prompt (the *anchor*), it is the same incarnation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_comfyui::{ComfyuiClient, ComfyuiError};
use remuda_core::service::ServiceIncarnation;

#[derive(Debug, Default)]
pub(super) struct IncarnationTracker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    incarnation: u64,
    anchor: Option<String>,
    /// The connection broke since the anchor was last seen, so the server may have restarted.
    is_suspect: bool,
}

impl IncarnationTracker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn current(&self) -> ServiceIncarnation {
        ServiceIncarnation(self.state().incarnation)
    }

    /// The server knows this prompt. Ignored while a restart is suspected: the server may have known it before.
    pub(super) fn set_anchor(&self, id: &str) {
        let mut state = self.state();
        if !state.is_suspect {
            state.anchor = Some(id.to_owned());
        }
    }

    /// The server may have restarted.
    pub(super) fn suspect_restart(&self) {
        self.state().is_suspect = true;
    }

    /// The server was started or restarted.
    pub(super) fn advance(&self) {
        let mut state = self.state();
        state.incarnation += 1;
        (state.anchor, state.is_suspect) = (None, false);
    }

    /// The current incarnation; asks the server for the anchor if a restart is suspected.
    pub(super) async fn confirm(&self, client: &ComfyuiClient) -> Result<ServiceIncarnation, ComfyuiError> {
        let anchor = {
            let state = self.state();
            if !state.is_suspect {
                return Ok(ServiceIncarnation(state.incarnation));
            }
            state.anchor.clone()
        };
        let is_known = match &anchor {
            Some(anchor) => client.is_in_history(anchor).await?,
            // Without an anchor two incarnations look alike. The agent asks twice about a prompt the server does not know.
            None => true,
        };
        let mut state = self.state();
        // Another task may have confirmed it in the meantime.
        if state.is_suspect && state.anchor == anchor {
            if !is_known {
                (state.incarnation, state.anchor) = (state.incarnation + 1, None);
            }
            state.is_suspect = false;
        }
        Ok(ServiceIncarnation(state.incarnation))
    }
}
