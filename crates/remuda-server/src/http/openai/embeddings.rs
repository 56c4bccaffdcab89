//! `POST /v1/embeddings`: one vector per text.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use remuda_models::{ModelRequest, PartAnswer};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context, request_key};
use super::request_fields::{RequestFields, invalid_field};
use super::routing::{self, ModelCall, model_error};

/// As many as OpenAI accepts in one request.
const TEXTS_MAX: usize = 2048;
const DIMENSIONS_MAX: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VectorEncoding {
    Float,
    Base64,
}

#[derive(Serialize)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingItem>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct EmbeddingItem {
    object: &'static str,
    index: usize,
    embedding: EncodedVector,
}

/// Single-precision numbers; nine digits identify each.
#[derive(Serialize)]
#[serde(untagged)]
enum EncodedVector {
    Float(Vec<f32>),
    Base64(String),
}

pub(super) async fn embed(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = RequestFields::read(&body)?;
    let (model, texts, form) = (fields.model()?, texts(fields.take("input"))?, encoding(&mut fields)?);
    let dimensions = fields.integer("dimensions", 1, DIMENSIONS_MAX)?.map(|number| number as usize);
    let timeout = fields.timeout(context.request_timeout)?;
    let count = texts.len();
    let key = request_key::read(&headers)?;
    let call = ModelCall { model: &model, request: ModelRequest::TextEmbedding { texts }, timeout, key };
    let answer = routing::call(&context, &caller, call).await?.answer().await?;
    if answer.parts.len() != count {
        return Err(model_error(&model, "returned a different number of vectors than texts"));
    }
    let usage = json!({ "prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens });
    let mut data = Vec::with_capacity(count);
    for (index, part) in answer.parts.into_iter().enumerate() {
        let PartAnswer::Vector(vector) = part else {
            return Err(model_error(&model, "returned something other than vectors"));
        };
        let vector = truncate(vector, dimensions)?;
        let embedding = match form {
            VectorEncoding::Float => EncodedVector::Float(vector),
            VectorEncoding::Base64 => EncodedVector::Base64(BASE64_STANDARD.encode(little_endian(&vector))),
        };
        data.push(EmbeddingItem { object: "embedding", index, embedding });
    }
    Ok(Json(EmbeddingList { object: "list", data, model, usage }).into_response())
}

fn texts(input: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match input {
        None => return Err(invalid_field("input", "is missing: a text, or a list of texts")),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.into_iter().map(text).collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid_field("input", "is a text, or a list of texts")),
    };
    if texts.is_empty() || texts.len() > TEXTS_MAX {
        return Err(invalid_field(
            "input",
            &format!("has {} texts; it may have 1 to {TEXTS_MAX}", texts.len()),
        ));
    }
    if let Some(at) = texts.iter().position(String::is_empty) {
        return Err(invalid_field("input", &format!("has an empty text at {at}")));
    }
    Ok(texts)
}

fn text(value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Array(_) => Err(invalid_field(
            "input",
            "has tokens in it: send texts, since models have different tokens (LangChain: check_embedding_ctx_length=False)",
        )),
        Value::Null | Value::Bool(_) | Value::Object(_) => {
            Err(invalid_field("input", "is a text, or a list of texts"))
        }
    }
}

fn encoding(fields: &mut RequestFields) -> Result<VectorEncoding, ApiError> {
    match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Ok(VectorEncoding::Float),
        Some("base64") => Ok(VectorEncoding::Base64),
        Some(other) => Err(invalid_field("encoding_format", &format!("is float or base64, not {other:?}"))),
    }
}

/// Truncates a vector and normalizes it again.
fn truncate(mut vector: Vec<f32>, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let Some(dimensions) = dimensions.filter(|wanted| *wanted != vector.len()) else { return Ok(vector) };
    if dimensions > vector.len() {
        let why = format!("is {dimensions}, and the vectors of this model have {}", vector.len());
        return Err(invalid_field("dimensions", &why));
    }
    vector.truncate(dimensions);
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    Ok(vector)
}

fn little_endian(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_a_text_or_a_list_but_not_tokens() {
        assert_eq!(texts(Some(json!("one"))).unwrap(), ["one"]);
        assert_eq!(texts(Some(json!(["one", "two"]))).unwrap(), ["one", "two"]);
        for (input, expected) in [
            (json!([]), "0 texts"),
            (json!(["a", ""]), "empty text at 1"),
            (json!(""), "empty text at 0"),
            (json!([1, 2]), "tokens"),
            (json!([[1], [2]]), "tokens"),
            (json!({}), "a text, or"),
            (json!(vec!["a"; TEXTS_MAX + 1]), "2049 texts"),
        ] {
            let problem = texts(Some(input)).unwrap_err();
            assert!(problem.message.contains(expected), "{}", problem.message);
            assert_eq!(problem.detail["param"], "input");
        }
    }

    #[test]
    fn truncated_vector_is_normalized() {
        assert_eq!(truncate(vec![0.6, 0.8, 0.0], Some(1)).unwrap(), [1.0]);
        assert_eq!(truncate(vec![0.6, 0.8], Some(2)).unwrap(), [0.6, 0.8]);
        assert_eq!(truncate(vec![0.0, 1.0], Some(1)).unwrap(), [0.0]);
        assert!(truncate(vec![1.0], Some(2)).unwrap_err().message.contains("have 1"));
    }
}
