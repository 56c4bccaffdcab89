//! Asks the ComfyUI server what `remuda_core::service::incarnation` needs to know. The server does not report when it
//! started, but it forgets its history when it restarts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_comfyui::{ComfyuiClient, ComfyuiError};
use remuda_core::service::ServiceIncarnation;
use remuda_core::service::incarnation::{IncarnationCheck, IncarnationTracker};

#[derive(Debug, Default)]
pub(super) struct ServerIncarnation(Mutex<IncarnationTracker>);

impl ServerIncarnation {
    pub(super) fn lock(&self) -> MutexGuard<'_, IncarnationTracker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current incarnation; asks the server for the anchor if a restart is suspected.
    pub(super) async fn confirm(&self, client: &ComfyuiClient) -> Result<ServiceIncarnation, ComfyuiError> {
        let check = self.lock().check();
        match check {
            IncarnationCheck::Certain(incarnation) => Ok(incarnation),
            IncarnationCheck::AskFor(anchor) => {
                let is_known = client.is_in_history(&anchor).await?;
                Ok(self.lock().anchor_checked(&anchor, is_known))
            }
        }
    }
}
