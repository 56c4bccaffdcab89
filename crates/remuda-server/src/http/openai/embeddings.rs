//! `POST /v1/embeddings`: a vector for each text.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use remuda_models::{PartAnswer, Request};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::base64::base64;
use super::super::{ApiError, Caller, Context};
use super::request_fields::{Asked, wrong};
use super::routing::{self, Call, off};

/// As many as OpenAI takes at once.
const TEXTS_MAX: usize = 2048;
const DIMENSIONS_MAX: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Float,
    Base64,
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// Numbers of 32 bits, written as such: nine digits tell them apart.
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

pub(super) async fn embed(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&body)?;
    let (model, texts, form) = (asked.model()?, texts(asked.take("input"))?, form(&mut asked)?);
    let dimensions = asked.whole("dimensions", 1, DIMENSIONS_MAX)?.map(|number| number as usize);
    let patience = asked.patience(context.request_timeout)?;
    let count = texts.len();
    let call = Call { model: &model, request: Request::TextEmbedding { texts }, patience };
    let answer = routing::call(&context, &caller, call).await?.answer().await?;
    if answer.parts.len() != count {
        return Err(off(&model, "gave another number of vectors than there were texts"));
    }
    let usage = json!({ "prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens });
    let mut data = Vec::with_capacity(count);
    for (index, part) in answer.parts.into_iter().enumerate() {
        let PartAnswer::Vector(vector) = part else {
            return Err(off(&model, "gave something else than vectors"));
        };
        let vector = cut(vector, dimensions)?;
        let embedding = match form {
            Form::Float => Vector::Float(vector),
            Form::Base64 => Vector::Base64(base64(&little_endian(&vector))),
        };
        data.push(Item { object: "embedding", index, embedding });
    }
    Ok(Json(List { object: "list", data, model, usage }).into_response())
}

fn texts(input: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match input {
        None => return Err(wrong("input", "is missing: a text, or a list of texts")),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.into_iter().map(text).collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong("input", "is a text, or a list of texts")),
    };
    if texts.is_empty() || texts.len() > TEXTS_MAX {
        return Err(wrong("input", &format!("has {} texts; it may have 1 to {TEXTS_MAX}", texts.len())));
    }
    if let Some(at) = texts.iter().position(String::is_empty) {
        return Err(wrong("input", &format!("has an empty text at {at}")));
    }
    Ok(texts)
}

fn text(value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Array(_) => Err(wrong(
            "input",
            "has tokens in it: send texts, since every model has tokens of its own (LangChain: check_embedding_ctx_length=False)",
        )),
        Value::Null | Value::Bool(_) | Value::Object(_) => {
            Err(wrong("input", "is a text, or a list of texts"))
        }
    }
}

fn form(asked: &mut Asked) -> Result<Form, ApiError> {
    match asked.text("encoding_format")?.as_deref() {
        None | Some("float") => Ok(Form::Float),
        Some("base64") => Ok(Form::Base64),
        Some(other) => Err(wrong("encoding_format", &format!("is float or base64, not {other:?}"))),
    }
}

/// The first of its numbers, of length 1 again.
fn cut(mut vector: Vec<f32>, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let Some(dimensions) = dimensions.filter(|wanted| *wanted != vector.len()) else { return Ok(vector) };
    if dimensions > vector.len() {
        let why = format!("is {dimensions}, and the vectors of this model have {}", vector.len());
        return Err(wrong("dimensions", &why));
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
    fn texts_come_alone_or_in_lists_and_tokens_do_not() {
        assert_eq!(texts(Some(json!("one"))).unwrap(), ["one"]);
        assert_eq!(texts(Some(json!(["one", "two"]))).unwrap(), ["one", "two"]);
        for (input, told) in [
            (json!([]), "0 texts"),
            (json!(["a", ""]), "empty text at 1"),
            (json!(""), "empty text at 0"),
            (json!([1, 2]), "tokens"),
            (json!([[1], [2]]), "tokens"),
            (json!({}), "a text, or"),
            (json!(vec!["a"; TEXTS_MAX + 1]), "2049 texts"),
        ] {
            let problem = texts(Some(input)).unwrap_err();
            assert!(problem.message.contains(told), "{}", problem.message);
            assert_eq!(problem.detail["param"], "input");
        }
    }

    #[test]
    fn a_shortened_vector_has_length_one_again() {
        assert_eq!(cut(vec![0.6, 0.8, 0.0], Some(1)).unwrap(), [1.0]);
        assert_eq!(cut(vec![0.6, 0.8], Some(2)).unwrap(), [0.6, 0.8]);
        assert_eq!(cut(vec![0.0, 1.0], Some(1)).unwrap(), [0.0]);
        assert!(cut(vec![1.0], Some(2)).unwrap_err().message.contains("have 1"));
    }
}
