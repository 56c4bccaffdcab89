//! The caller's side of a request: updates while the answer is computed, then the answer.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::shared::PoolShared;
use crate::failure::ModelError;
use crate::request::{AnswerUpdate, ModelAnswer};
use crate::supervisor::RequestId;

/// The options of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// After this time the request fails with [`ModelError::Deadline`].
    pub deadline: Option<Instant>,
}

/// A submitted request. Dropping it cancels: queued parts are removed at once, and a running batch stops within one
/// step of its copy unless other requests share the batch.
///
/// If a copy dies, its requests move to another copy and are computed again from the start. Of a streamed text only the
/// new part is delivered; if the second text differs from the streamed one, the request fails with
/// [`ModelError::Diverged`].
#[derive(Debug)]
pub struct AnswerHandle {
    model: String,
    answer: oneshot::Receiver<Result<ModelAnswer, ModelError>>,
    updates: mpsc::UnboundedReceiver<AnswerUpdate>,
    interest: CancelOnDrop,
}

impl AnswerHandle {
    pub(super) fn new(
        model: String,
        answer: oneshot::Receiver<Result<ModelAnswer, ModelError>>,
        updates: mpsc::UnboundedReceiver<AnswerUpdate>,
        shared: Arc<PoolShared>,
        request: RequestId,
    ) -> Self {
        AnswerHandle { model, answer, updates, interest: CancelOnDrop { shared, request } }
    }

    /// The next update while the answer is computed; `None` once it is complete.
    pub async fn next_update(&mut self) -> Option<AnswerUpdate> {
        self.updates.recv().await
    }

    pub async fn answer(self) -> Result<ModelAnswer, ModelError> {
        let AnswerHandle { model, answer, updates, interest } = self;
        drop(updates);
        let answer = answer.await.unwrap_or_else(|_| Err(dropped(model)));
        drop(interest);
        answer
    }

    /// Blocks until the answer is there, for callers without an async runtime.
    pub fn wait(self) -> Result<ModelAnswer, ModelError> {
        let AnswerHandle { model, answer, updates, interest } = self;
        drop(updates);
        let answer = answer.blocking_recv().unwrap_or_else(|_| Err(dropped(model)));
        drop(interest);
        answer
    }

    /// The answer, if it has arrived.
    pub fn try_answer(&mut self) -> Option<Result<ModelAnswer, ModelError>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(dropped(self.model.clone()))),
        }
    }
}

fn dropped(model: String) -> ModelError {
    ModelError::NoWorkers { model, why: "the pool was dropped".to_owned() }
}

/// Cancels the request when it is dropped.
#[derive(Debug)]
struct CancelOnDrop {
    shared: Arc<PoolShared>,
    request: RequestId,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.shared.cancel(self.request);
    }
}

/// The pool's side of a [`AnswerHandle`].
#[derive(Debug)]
pub(super) struct AnswerSender {
    pub(super) answer: oneshot::Sender<Result<ModelAnswer, ModelError>>,
    pub(super) updates: mpsc::UnboundedSender<AnswerUpdate>,
}
