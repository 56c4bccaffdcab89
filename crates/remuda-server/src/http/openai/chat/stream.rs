//! An answer word by word, as OpenAI's own stream has it: who speaks, then what is said, then how it ended, then what it
//! cost if that was asked for, and `[DONE]`. What goes wrong before the first word has a status; what goes wrong later is
//! the last thing that is said.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use remuda_models::{Answer, Piece, PoolError};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::super::super::{ApiError, Context};
use super::super::error_format::told;
use super::super::routing::{Answering, problem};
use super::read::Streamed;
use super::{Head, finish, generated, usage};
use crate::shutdown::stopped;

/// A prompt may be read for long before the next word comes; lines that are silent are cut by those between us.
const COMMENT_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn stream(
    context: &Context,
    head: Head,
    mut answering: Answering,
    streamed: Streamed,
) -> Result<Response, ApiError> {
    let place = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many streams are open: close one, or ask without `stream`";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).later(1)
    })?;
    let first = answering.piece().await?;
    let mut telling = Telling {
        head,
        streamed,
        answering: None,
        said: String::new(),
        ready: VecDeque::new(),
        stopping: context.stopping.clone(),
        _place: place,
    };
    telling.chunk(&json!({ "role": "assistant", "content": "", "refusal": null }), None);
    match first {
        Some(piece) => {
            telling.say(piece);
            telling.answering = Some(answering);
        }
        None => {
            let answer = answering.answer().await?;
            telling.end(answer)?;
        }
    }
    let events = futures_util::stream::unfold(telling, |mut telling| async {
        let event = telling.next().await?;
        Some((Ok::<_, Infallible>(event), telling))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)).into_response())
}

struct Telling {
    head: Head,
    streamed: Streamed,
    /// Until all of it was said.
    answering: Option<Answering>,
    said: String,
    ready: VecDeque<Event>,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Telling {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let mut answering = self.answering.take()?;
            let heard = tokio::select! {
                piece = answering.piece() => piece,
                () = stopped(&mut self.stopping) => return None,
            };
            let ended = match heard {
                Ok(Some(piece)) => {
                    self.say(piece);
                    self.answering = Some(answering);
                    Ok(())
                }
                Ok(None) => answering.answer().await.and_then(|answer| self.end(answer)),
                Err(problem) => Err(problem),
            };
            if let Err(problem) = ended {
                self.ready.push_back(Event::default().data(told(&problem).to_string()));
            }
        }
    }

    fn say(&mut self, piece: Piece) {
        let Piece::Text(text) = piece else { return };
        if !text.is_empty() {
            self.chunk(&json!({ "content": text }), None);
            self.said.push_str(&text);
        }
    }

    /// Whatever of the whole was not said piece by piece is said now.
    fn end(&mut self, answer: Answer) -> Result<(), ApiError> {
        let usage = usage(&answer);
        let whole = generated(answer, &self.head.model)?;
        match whole.text.strip_prefix(self.said.as_str()) {
            Some("") => {}
            Some(rest) => self.chunk(&json!({ "content": rest }), None),
            // The pool sees to that for its own; a job may have been begun anew by another worker's.
            None => return Err(problem(PoolError::Differs { model: self.head.model.clone() })),
        }
        self.chunk(&json!({}), Some(finish(whole.finish)));
        if self.streamed.has_usage {
            let mut last = self.head.of("chat.completion.chunk", &[]);
            last["usage"] = usage;
            self.ready.push_back(Event::default().data(last.to_string()));
        }
        self.ready.push_back(Event::default().data("[DONE]"));
        Ok(())
    }

    fn chunk(&mut self, delta: &Value, finish: Option<&str>) {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        let mut chunk = self.head.of("chat.completion.chunk", &[choice]);
        if self.streamed.has_usage {
            chunk["usage"] = Value::Null;
        }
        self.ready.push_back(Event::default().data(chunk.to_string()));
    }
}
