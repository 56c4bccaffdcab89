//! `POST /v1/images/generations`: images from a text, as base64 PNG.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use remuda_models::request::ImagePrompt;
use remuda_models::{ModelRequest, PartAnswer};
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context, request_key};
use super::chat::now;
use super::request_fields::{RequestFields, invalid_field, is_falsy};
use super::routing::{self, ModelCall, model_error};

/// As many as OpenAI generates in one request.
const PICTURES_MAX: u64 = 10;
const PROMPT_BYTES_MAX: usize = 32_000;
/// Pixels per side; more would occupy a machine for hours.
const SIDE_MAX: u32 = 4096;
const STEPS_MAX: u64 = 1000;

pub(super) async fn generate(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = RequestFields::read(&body)?;
    let model = fields.model()?;
    let timeout = fields.timeout(context.request_timeout)?;
    refuse(&mut fields)?;
    let count = fields.integer("n", 1, PICTURES_MAX)?.unwrap_or(1);
    let draw = read(&mut fields)?;
    let (key, mut pending) = (request_key::read(&headers)?, Vec::new());
    for number in 0..count {
        // One seed for all would repeat the same image.
        let draw = ImagePrompt { seed: draw.seed.map(|seed| seed.wrapping_add(number)), ..draw.clone() };
        let key = key.as_ref().map(|key| format!("{key}:{number}"));
        let call = ModelCall { model: &model, request: ModelRequest::TextToImage(draw), timeout, key };
        pending.push(routing::call(&context, &caller, call).await?);
    }
    let mut data = Vec::new();
    for answer in pending {
        match answer.answer().await?.parts.into_iter().next() {
            Some(PartAnswer::Image(png)) => data.push(json!({ "b64_json": BASE64_STANDARD.encode(&png) })),
            _ => return Err(model_error(&model, "returned something other than an image")),
        }
    }
    Ok(Json(json!({ "created": now(), "data": data, "output_format": "png" })).into_response())
}

fn refuse(fields: &mut RequestFields) -> Result<(), ApiError> {
    let is = |word: &'static str| move |value: &Value| value == word;
    fields.require(
        "response_format",
        is("b64_json"),
        "can only be b64_json: pictures are not kept to be fetched",
    )?;
    fields.require("output_format", is("png"), "can only be png")?;
    fields.require("stream", is_falsy, "is not supported")?;
    fields.require("background", |value| value != "transparent", "cannot be transparent")
}

fn read(fields: &mut RequestFields) -> Result<ImagePrompt, ApiError> {
    let prompt =
        fields.text("prompt")?.ok_or_else(|| invalid_field("prompt", "is missing: say what to draw"))?;
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(invalid_field(
            "prompt",
            &format!("has {} bytes; the limit is {PROMPT_BYTES_MAX}", prompt.len()),
        ));
    }
    Ok(ImagePrompt {
        prompt,
        negative_prompt: fields.text("negative_prompt")?.unwrap_or_default(),
        size: size(fields)?,
        steps: fields.integer("steps", 1, STEPS_MAX)?.and_then(|steps| steps.try_into().ok()),
        guidance: fields.number("guidance", 0.0, 100.0)?,
        seed: fields.seed()?,
    })
}

fn size(fields: &mut RequestFields) -> Result<Option<(u32, u32)>, ApiError> {
    let Some(text) = fields.text("size")?.filter(|text| text != "auto") else { return Ok(None) };
    let sides =
        text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    let is_fine = |side: u32| (1..=SIDE_MAX).contains(&side);
    match sides.filter(|(width, height)| is_fine(*width) && is_fine(*height)) {
        Some(sides) => Ok(Some(sides)),
        None => Err(invalid_field(
            "size",
            &format!("is as in 512x512, no side above {SIDE_MAX}, or auto; not {text:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &Value) -> RequestFields {
        RequestFields::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn size_has_two_sides() {
        assert_eq!(size(&mut fields(&json!({ "size": "64x32" }))).unwrap(), Some((64, 32)));
        assert_eq!(size(&mut fields(&json!({ "size": "auto" }))).unwrap(), None);
        for bad in ["64", "64x", "0x64", "64x8192", "-1x64", "64X64"] {
            assert_eq!(
                size(&mut fields(&json!({ "size": bad }))).unwrap_err().detail["param"],
                "size",
                "{bad}"
            );
        }
    }

    #[test]
    fn unsupported_parameters_are_refused() {
        for (body, param) in [
            (json!({ "response_format": "url" }), "response_format"),
            (json!({ "output_format": "webp" }), "output_format"),
            (json!({ "stream": true }), "stream"),
            (json!({ "background": "transparent" }), "background"),
        ] {
            assert_eq!(refuse(&mut fields(&body)).unwrap_err().detail["param"], param);
        }
        assert!(read(&mut fields(&json!({}))).unwrap_err().message.contains("prompt"));
    }
}
