//! `POST /v1/chat/completions`: a conversation goes on, whole or word by word.

mod read;
mod stream;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use remuda_models::request::{Finish, Generated};
use remuda_models::{Answer, PartAnswer, Request};
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context};
use super::request_fields::Asked;
use super::routing::{self, Call, off};

pub(super) async fn complete(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&body)?;
    let model = asked.model()?;
    let patience = asked.patience(context.request_timeout)?;
    let streamed = read::streamed(&mut asked)?;
    let request = Request::TextToText(read::chat(&mut asked)?);
    let answering = routing::call(&context, &caller, Call { model: &model, request, patience }).await?;
    let head = Head { id: format!("chatcmpl-{}", Uuid::new_v4().simple()), created: now(), model };
    if let Some(streamed) = streamed {
        return stream::stream(&context, head, answering, streamed).await;
    }
    let answer = answering.answer().await?;
    let (usage, text) = (usage(&answer), generated(answer, &head.model)?);
    let message = json!({ "role": "assistant", "content": text.text, "refusal": null });
    let choice =
        json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish(text.finish) });
    let mut whole = head.of("chat.completion", &[choice]);
    whole["usage"] = usage;
    Ok(Json(whole).into_response())
}

/// What every part of an answer begins with.
#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn of(&self, object: &str, choices: &[Value]) -> Value {
        let Head { id, created, model } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
}

/// In seconds, as OpenAI counts.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn generated(answer: Answer, model: &str) -> Result<Generated, ApiError> {
    match answer.parts.into_iter().next() {
        Some(PartAnswer::Text(text)) => Ok(text),
        _ => Err(off(model, "gave something else than a text")),
    }
}

fn usage(answer: &Answer) -> Value {
    let written = match answer.parts.first() {
        Some(PartAnswer::Text(text)) => u64::from(text.tokens),
        _ => 0,
    };
    let read = answer.prompt_tokens;
    json!({ "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written })
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
