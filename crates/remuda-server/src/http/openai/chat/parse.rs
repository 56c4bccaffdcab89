//! Parses the conversation and the sampling parameters of a request.

use remuda_models::request::{Chat, ChatMessage, Sampling};
use serde_json::Value;

use super::super::super::ApiError;
use super::super::request_fields::{RequestFields, invalid_field, is_falsy};

const STOPS_MAX: usize = 4;
const MESSAGES_MAX: usize = 4096;
/// OpenAI's limits.
const TEMPERATURE_MAX: f64 = 2.0;
const TOKENS_MAX: u64 = u32::MAX as u64;

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamOptions {
    /// Token usage is sent at the end.
    pub(super) has_usage: bool,
}

pub(super) fn stream_options(fields: &mut RequestFields) -> Result<Option<StreamOptions>, ApiError> {
    let is_streamed = fields.flag("stream")?;
    let has_usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !is_streamed => return Err(invalid_field("stream_options", "is only for `stream`")),
        Some(Value::Object(options)) => options.get("include_usage") == Some(&Value::Bool(true)),
        Some(_) => return Err(invalid_field("stream_options", "is an object")),
    };
    Ok(is_streamed.then_some(StreamOptions { has_usage }))
}

pub(super) fn chat(fields: &mut RequestFields) -> Result<Chat, ApiError> {
    refuse(fields)?;
    Ok(Chat { messages: messages(fields.take("messages"))?, sampling: sampling(fields)? })
}

/// Refuses parameters that would change the answer and are not supported.
fn refuse(fields: &mut RequestFields) -> Result<(), ApiError> {
    fields.require("n", |n| n.as_u64() == Some(1), "is more than 1: ask once for each answer")?;
    for (name, what) in [
        ("tools", "is not supported: no model here calls tools"),
        ("functions", "is not supported: no model here calls functions"),
        ("logprobs", "is not supported"),
        ("top_logprobs", "is not supported"),
        ("logit_bias", "is not supported"),
        ("frequency_penalty", "is not supported; `repeat_penalty` is"),
        ("presence_penalty", "is not supported; `repeat_penalty` is"),
        ("audio", "is not supported: answers are texts"),
        ("prediction", "is not supported"),
        ("web_search_options", "is not supported"),
    ] {
        fields.require(name, is_falsy, what)?;
    }
    let is_text = |format: &Value| format["type"] == "text";
    fields.require("response_format", is_text, "can only be text: no model here is held to a form")?;
    let are_texts = |all: &Value| all.as_array().is_some_and(|all| all.iter().all(|it| it == "text"));
    fields.require("modalities", are_texts, "can only be text")
}

fn messages(given: Option<Value>) -> Result<Vec<ChatMessage>, ApiError> {
    let Some(Value::Array(all)) = given else {
        return Err(invalid_field("messages", "is a list of messages, the oldest first"));
    };
    if all.is_empty() || all.len() > MESSAGES_MAX {
        let why = format!("has {} messages; it may have 1 to {MESSAGES_MAX}", all.len());
        return Err(invalid_field("messages", &why));
    }
    all.iter().enumerate().map(|(at, message)| parse_message(at, message)).collect()
}

fn parse_message(at: usize, message: &Value) -> Result<ChatMessage, ApiError> {
    let param = |field: &str| format!("messages[{at}].{field}");
    let role = match message["role"].as_str() {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("tool" | "function") => {
            return Err(invalid_field(&param("role"), "is a tool's: no model here calls tools"));
        }
        _ => return Err(invalid_field(&param("role"), "is one of system, developer, user, assistant")),
    };
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().map(|part| text_part(&param("content"), part)).collect::<Result<_, _>>()?
        }
        _ => return Err(invalid_field(&param("content"), "is a text, or a list of texts")),
    };
    Ok(ChatMessage { role: role.to_owned(), content })
}

fn text_part<'a>(param: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (Some(other), _) if other != "text" => {
            Err(invalid_field(param, &format!("has a part of type {other}: only texts are read here")))
        }
        _ => Err(invalid_field(param, "has a part that is none: {\"type\": \"text\", \"text\": \"…\"}")),
    }
}

fn sampling(fields: &mut RequestFields) -> Result<Sampling, ApiError> {
    let old = fields.integer("max_tokens", 1, TOKENS_MAX)?;
    let tokens_max = fields.integer("max_completion_tokens", 1, TOKENS_MAX)?.or(old);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, TEMPERATURE_MAX)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0),
        top_k: fields.integer("top_k", 1, TOKENS_MAX)?.and_then(|number| number.try_into().ok()),
        repeat_penalty: fields.number("repeat_penalty", 0.1, 10.0)?.unwrap_or(1.0),
        seed: fields.seed()?,
        tokens_max: tokens_max.and_then(|number| number.try_into().ok()),
        stop: stop(fields.take("stop"))?,
    })
}

fn stop(given: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match given {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => {
            let texts: Option<Vec<_>> = all.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            texts.ok_or_else(|| invalid_field("stop", "is a text, or a list of texts"))?
        }
        Some(_) => return Err(invalid_field("stop", "is a text, or a list of texts")),
    };
    if texts.len() > STOPS_MAX || texts.iter().any(String::is_empty) {
        return Err(invalid_field("stop", &format!("has at most {STOPS_MAX} texts, none of them empty")));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(more: &Value) -> RequestFields {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        RequestFields::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn conversation_is_parsed() {
        let messages = json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [{ "type": "text", "text": "one " }, { "type": "text", "text": "two" }] },
            { "role": "assistant", "content": "three", "name": "x" },
        ]);
        let more = json!({ "messages": messages, "max_tokens": 9, "max_completion_tokens": 5, "stop": "\n", "seed": -1,
                           "n": 1, "response_format": { "type": "text" }, "tools": [], "user": "anna", "nobody": [7] });
        let chat = chat(&mut fields(&more)).unwrap();
        let said: Vec<_> = chat.messages.iter().map(|it| (it.role.as_str(), it.content.as_str())).collect();
        assert_eq!(said, [("system", "be brief"), ("user", "one two"), ("assistant", "three")]);
        let Sampling { temperature, tokens_max, seed, stop, .. } = chat.sampling;
        assert_eq!((temperature, tokens_max, seed), (1.0, Some(5), Some(u64::MAX)));
        assert_eq!(stop, ["\n"]);
    }

    #[test]
    fn unsupported_parameter_is_refused_by_name() {
        for (more, param) in [
            (json!({ "n": 2 }), "n"),
            (json!({ "tools": [{ "type": "function" }] }), "tools"),
            (json!({ "logprobs": true }), "logprobs"),
            (json!({ "response_format": { "type": "json_object" } }), "response_format"),
            (json!({ "frequency_penalty": 0.5 }), "frequency_penalty"),
            (json!({ "temperature": 3 }), "temperature"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "max_tokens": 0 }), "max_tokens"),
            (json!({ "stop": ["a", "b", "c", "d", "e"] }), "stop"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": "hello" }), "messages"),
            (json!({ "messages": [{ "role": "tool", "content": "7" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "user", "content": null }] }), "messages[0].content"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
                "messages[0].content",
            ),
        ] {
            let problem = chat(&mut fields(&more)).unwrap_err();
            assert_eq!(problem.detail["param"], param, "{more}: {}", problem.message);
            assert!(problem.message.contains(param), "{}", problem.message);
        }
        assert!(
            stream_options(&mut fields(&json!({ "stream_options": { "include_usage": true } }))).is_err()
        );
    }
}
