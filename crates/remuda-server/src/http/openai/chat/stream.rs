//! A streamed answer in OpenAI's order: role, text, finish reason, usage if requested, `[DONE]`. An error before the first text
//! has a status; a later one is the last event.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use remuda_models::{AnswerUpdate, ModelAnswer, ModelError};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::super::super::{ApiError, Context};
use super::super::error_format::error_body;
use super::super::routing::{PendingAnswer, pool_error};
use super::parse::StreamOptions;
use super::{CompletionHead, finish_reason, first_text, usage};
use crate::shutdown::stopped;

/// Reading a long prompt may take a while, and proxies close silent connections.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

pub(super) async fn respond(
    context: &Context,
    head: CompletionHead,
    mut pending: PendingAnswer,
    streamed: StreamOptions,
) -> Result<Response, ApiError> {
    let permit = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many streams are open: close one, or request without `stream`";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).with_retry_after(1)
    })?;
    let first = pending.piece().await?;
    let mut stream = AnswerStream {
        head,
        streamed,
        pending: None,
        sent_text: String::new(),
        ready: VecDeque::new(),
        stopping: context.stopping.clone(),
        _permit: permit,
    };
    stream.push_chunk(&json!({ "role": "assistant", "content": "", "refusal": null }), None);
    match first {
        Some(piece) => {
            stream.push_piece(piece);
            stream.pending = Some(pending);
        }
        None => {
            let answer = pending.answer().await?;
            stream.push_end(answer)?;
        }
    }
    let events = futures_util::stream::unfold(stream, |mut stream| async {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response())
}

struct AnswerStream {
    head: CompletionHead,
    streamed: StreamOptions,
    /// `None` once the answer is complete.
    pending: Option<PendingAnswer>,
    sent_text: String,
    ready: VecDeque<Event>,
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl AnswerStream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let mut pending = self.pending.take()?;
            let next = tokio::select! {
                piece = pending.piece() => piece,
                () = stopped(&mut self.stopping) => return None,
            };
            let ended = match next {
                Ok(Some(piece)) => {
                    self.push_piece(piece);
                    self.pending = Some(pending);
                    Ok(())
                }
                Ok(None) => pending.answer().await.and_then(|answer| self.push_end(answer)),
                Err(problem) => Err(problem),
            };
            if let Err(problem) = ended {
                self.ready.push_back(Event::default().data(error_body(&problem).to_string()));
            }
        }
    }

    fn push_piece(&mut self, piece: AnswerUpdate) {
        let AnswerUpdate::Text(text) = piece else { return };
        if !text.is_empty() {
            self.push_chunk(&json!({ "content": text }), None);
            self.sent_text.push_str(&text);
        }
    }

    /// Sends the text that was not streamed yet.
    fn push_end(&mut self, answer: ModelAnswer) -> Result<(), ApiError> {
        let usage = usage(&answer);
        let whole = first_text(answer, &self.head.model)?;
        match whole.text.strip_prefix(self.sent_text.as_str()) {
            Some("") => {}
            Some(rest) => self.push_chunk(&json!({ "content": rest }), None),
            // The pool guarantees this for its own models; a job may have been retried on another worker.
            None => return Err(pool_error(ModelError::Diverged { model: self.head.model.clone() })),
        }
        self.push_chunk(&json!({}), Some(finish_reason(whole.finish)));
        if self.streamed.has_usage {
            let mut last = self.head.with_choices("chat.completion.chunk", &[]);
            last["usage"] = usage;
            self.ready.push_back(Event::default().data(last.to_string()));
        }
        self.ready.push_back(Event::default().data("[DONE]"));
        Ok(())
    }

    fn push_chunk(&mut self, delta: &Value, finish: Option<&str>) {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        let mut chunk = self.head.with_choices("chat.completion.chunk", &[choice]);
        if self.streamed.has_usage {
            chunk["usage"] = Value::Null;
        }
        self.ready.push_back(Event::default().data(chunk.to_string()));
    }
}
