//! Whether the server is still the one that took our prompts. It does not say when it started, but it forgets everything
//! when it does: as long as its history knows the last prompt of ours that ended (the *anchor*), it has not restarted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_comfyui::{Client, Error};
use remuda_core::service::ServiceIncarnation;

#[derive(Debug, Default)]
pub(super) struct Lives(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    life: u64,
    anchor: Option<String>,
    /// The connection broke since the anchor was last seen.
    is_doubted: bool,
}

impl Lives {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn current(&self) -> ServiceIncarnation {
        ServiceIncarnation(self.state().life)
    }

    /// The server knows this prompt. Not taken while there is doubt: it may have known it before it restarted.
    pub(super) fn anchor(&self, id: &str) {
        let mut state = self.state();
        if !state.is_doubted {
            state.anchor = Some(id.to_owned());
        }
    }

    /// It may have restarted.
    pub(super) fn doubt(&self) {
        self.state().is_doubted = true;
    }

    /// It has restarted.
    pub(super) fn began(&self) {
        let mut state = self.state();
        state.life += 1;
        (state.anchor, state.is_doubted) = (None, false);
    }

    /// Which life it is in, after asking if there is doubt.
    pub(super) async fn settle(&self, client: &Client) -> Result<ServiceIncarnation, Error> {
        let anchor = {
            let state = self.state();
            if !state.is_doubted {
                return Ok(ServiceIncarnation(state.life));
            }
            state.anchor.clone()
        };
        let is_known = match &anchor {
            Some(anchor) => client.knows(anchor).await?,
            // Nothing to tell one life from another by: what it does not know is then asked about twice.
            None => true,
        };
        let mut state = self.state();
        // Somebody else may have settled it meanwhile.
        if state.is_doubted && state.anchor == anchor {
            if !is_known {
                (state.life, state.anchor) = (state.life + 1, None);
            }
            state.is_doubted = false;
        }
        Ok(ServiceIncarnation(state.life))
    }
}
