//! What a body asks for, field by field. A field nobody knows is passed over, as OpenAI does; one that is known, would
//! change the answer and cannot be honoured is refused by its name.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::super::ApiError;

/// A body that is an object.
#[derive(Debug)]
pub(super) struct Asked(Map<String, Value>);

impl Asked {
    pub(super) fn read(body: &[u8]) -> Result<Asked, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Asked(fields)),
            Ok(_) => Err(ApiError::bad_request("the body is a JSON object")),
            Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
        }
    }

    /// What was said there; `null` is as good as nothing.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn model(&mut self) -> Result<String, ApiError> {
        self.text("model")?.ok_or_else(|| wrong("model", "is missing: name one of GET /v1/models"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(name, "is a text")),
        }
    }

    pub(super) fn switch(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(is_on)) => Ok(is_on),
            Some(_) => Err(wrong(name, "is true or false")),
        }
    }

    pub(super) fn whole(&mut self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, &format!("is a whole number from {min} to {max}, not {value}"))),
        }
    }

    pub(super) fn number(&mut self, name: &str, min: f32, max: f32) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32).filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, &format!("is a number from {min} to {max}, not {value}"))),
        }
    }

    /// A number that draws the same picture or text again; OpenAI's may be negative.
    pub(super) fn seed(&mut self) -> Result<Option<u64>, ApiError> {
        match self.take("seed") {
            None => Ok(None),
            Some(seed) => {
                let read = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
                read.map(Some).ok_or_else(|| wrong("seed", "is a whole number"))
            }
        }
    }

    /// How long the caller waits; longer than we do is as long as we do.
    pub(super) fn patience(&mut self, request_timeout: Duration) -> Result<Duration, ApiError> {
        let asked = self.number("deadline_seconds", 0.001, f32::MAX)?;
        let asked = asked.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
        Ok(asked.map_or(request_timeout, |asked| asked.min(request_timeout)))
    }

    /// A field that may only say what is so anyway.
    pub(super) fn only(
        &mut self,
        name: &str,
        is_so: impl Fn(&Value) -> bool,
        why: &str,
    ) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !is_so(&value) => {
                let mut problem = wrong(name, why);
                problem.code = "unsupported_parameter";
                Err(problem)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What is wrong with a field: a sentence that begins with its name.
pub(super) fn wrong(param: &str, why: &str) -> ApiError {
    let message = format!("`{param}` {why}");
    let detail = json!({ "param": param });
    ApiError { detail, ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
}

/// Whether it says nothing worth mentioning: nothing at all, an empty list, false, zero.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
    }
}
