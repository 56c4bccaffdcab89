//! What whoever asked something has in hand: pieces of the answer as they come, and the answer.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::shared::PoolShared;
use crate::failure::ModelError;
use crate::request::{AnswerUpdate, ModelAnswer};
use crate::supervisor::RequestId;

/// On which terms something is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Past it nobody waits for the answer any more.
    pub deadline: Option<Instant>,
}

/// A request somebody waits for. Whoever drops it wants no answer any more: what of it waits is dropped at once, and
/// what runs stops within one step of its copy, unless others wait for answers from the same batch.
///
/// If a copy dies, its requests go on to another and begin anew there. Of an answer that was being said, only what is new
/// is heard; if it becomes another text than it began as, it fails with [`ModelError::Diverged`].
#[derive(Debug)]
pub struct PendingAnswer {
    model: String,
    answer: oneshot::Receiver<Result<ModelAnswer, ModelError>>,
    pieces: mpsc::UnboundedReceiver<AnswerUpdate>,
    interest: CancelOnDrop,
}

impl PendingAnswer {
    pub(super) fn new(
        model: String,
        answer: oneshot::Receiver<Result<ModelAnswer, ModelError>>,
        pieces: mpsc::UnboundedReceiver<AnswerUpdate>,
        shared: Arc<PoolShared>,
        request: RequestId,
    ) -> Self {
        PendingAnswer { model, answer, pieces, interest: CancelOnDrop { shared, request } }
    }

    /// The next thing that is said of the answer while it is made; nothing once it is made.
    pub async fn piece(&mut self) -> Option<AnswerUpdate> {
        self.pieces.recv().await
    }

    pub async fn answer(self) -> Result<ModelAnswer, ModelError> {
        let PendingAnswer { model, answer, pieces, interest } = self;
        drop(pieces);
        let answer = answer.await.unwrap_or_else(|_| Err(dropped(model)));
        drop(interest);
        answer
    }

    /// For whoever has no runtime.
    pub fn wait(self) -> Result<ModelAnswer, ModelError> {
        let PendingAnswer { model, answer, pieces, interest } = self;
        drop(pieces);
        let answer = answer.blocking_recv().unwrap_or_else(|_| Err(dropped(model)));
        drop(interest);
        answer
    }

    /// The answer, if there is one by now.
    pub fn try_answer(&mut self) -> Option<Result<ModelAnswer, ModelError>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(dropped(self.model.clone()))),
        }
    }
}

fn dropped(model: String) -> ModelError {
    ModelError::NoWorkers { model, why: "the pool is gone".to_owned() }
}

/// As long as it lives, somebody wants the answer.
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

/// The other end of a ticket.
#[derive(Debug)]
pub(super) struct AnswerSender {
    pub(super) answer: oneshot::Sender<Result<ModelAnswer, ModelError>>,
    pub(super) pieces: mpsc::UnboundedSender<AnswerUpdate>,
}
