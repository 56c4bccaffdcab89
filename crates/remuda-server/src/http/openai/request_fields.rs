//! Fields of a request. Unknown fields are ignored, as OpenAI does; a known field that would change the answer and is not
//! supported is refused by name.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::super::ApiError;
use crate::intake::DURATION_MAX;

/// The fields of a JSON object.
#[derive(Debug)]
pub(super) struct RequestFields(Map<String, Value>);

impl RequestFields {
    pub(super) fn read(body: &[u8]) -> Result<RequestFields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(RequestFields(fields)),
            Ok(_) => Err(ApiError::bad_request("the body is a JSON object")),
            Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
        }
    }

    /// Removes a field; `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn model(&mut self) -> Result<String, ApiError> {
        self.text("model")?.ok_or_else(|| invalid_field("model", "is missing: name one of GET /v1/models"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(invalid_field(name, "is a text")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(is_on)) => Ok(is_on),
            Some(_) => Err(invalid_field(name, "is true or false")),
        }
    }

    pub(super) fn integer(&mut self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(invalid_field(name, &format!("is a whole number from {min} to {max}, not {value}"))),
        }
    }

    pub(super) fn number(&mut self, name: &str, min: f64, max: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(invalid_field(name, &format!("is a number from {min} to {max}, not {value}"))),
        }
    }

    /// The seed; OpenAI allows negative ones.
    pub(super) fn seed(&mut self) -> Result<Option<u64>, ApiError> {
        match self.take("seed") {
            None => Ok(None),
            Some(seed) => {
                let read = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
                read.map(Some).ok_or_else(|| invalid_field("seed", "is a whole number"))
            }
        }
    }

    /// The caller's timeout, capped by ours.
    pub(super) fn timeout(&mut self, timeout_max: Duration) -> Result<Duration, ApiError> {
        let fields = self.number("deadline_seconds", 0.001, DURATION_MAX.as_secs_f64())?;
        let fields = fields.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
        Ok(fields.map_or(timeout_max, |fields| fields.min(timeout_max)))
    }

    /// Refuses a field whose value is not supported.
    pub(super) fn require(
        &mut self,
        name: &str,
        is_supported: impl Fn(&Value) -> bool,
        why: &str,
    ) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !is_supported(&value) => {
                let mut problem = invalid_field(name, why);
                problem.code = "unsupported_parameter";
                Err(problem)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// An error about a field; the message starts with its name.
pub(super) fn invalid_field(param: &str, why: &str) -> ApiError {
    let message = format!("`{param}` {why}");
    let detail = json!({ "param": param });
    ApiError { detail, ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
}

/// True for absent, empty, false and zero values.
pub(super) fn is_falsy(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
    }
}
