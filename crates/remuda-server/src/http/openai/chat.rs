//! `POST /v1/chat/completions`: chat completions, whole or streamed.

mod parse;
mod stream;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use remuda_models::request::{FinishReason, GeneratedText};
use remuda_models::{ModelAnswer, ModelRequest, PartAnswer};
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context, request_key};
use super::request_fields::RequestFields;
use super::routing::{self, ModelCall, model_error};

pub(super) async fn complete(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = RequestFields::read(&body)?;
    let model = fields.model()?;
    let timeout = fields.timeout(context.request_timeout)?;
    let streamed = parse::stream_options(&mut fields)?;
    let request = ModelRequest::TextToText(parse::chat(&mut fields)?);
    let key = request_key::read(&headers)?;
    let call = ModelCall { model: &model, request, timeout, key };
    let pending = routing::call(&context, &caller, call).await?;
    let head = CompletionHead { id: format!("chatcmpl-{}", Uuid::new_v4().simple()), created: now(), model };
    if let Some(streamed) = streamed {
        return stream::respond(&context, head, pending, streamed).await;
    }
    let answer = pending.answer().await?;
    let (usage, text) = (usage(&answer), first_text(answer, &head.model)?);
    let message = json!({ "role": "assistant", "content": text.text, "refusal": null });
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(text.finish) });
    let mut whole = head.with_choices("chat.completion", &[choice]);
    whole["usage"] = usage;
    Ok(Json(whole).into_response())
}

/// Fields common to all chunks of an answer.
#[derive(Clone, Debug)]
struct CompletionHead {
    id: String,
    created: u64,
    model: String,
}

impl CompletionHead {
    fn with_choices(&self, object: &str, choices: &[Value]) -> Value {
        let CompletionHead { id, created, model } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
}

/// Unix time in seconds.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn first_text(answer: ModelAnswer, model: &str) -> Result<GeneratedText, ApiError> {
    match answer.parts.into_iter().next() {
        Some(PartAnswer::Text(text)) => Ok(text),
        _ => Err(model_error(model, "returned something other than text")),
    }
}

fn usage(answer: &ModelAnswer) -> Value {
    let written = match answer.parts.first() {
        Some(PartAnswer::Text(text)) => u64::from(text.tokens),
        _ => 0,
    };
    let read = answer.prompt_tokens;
    json!({ "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written })
}

fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
