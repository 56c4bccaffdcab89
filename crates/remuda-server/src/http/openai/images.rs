//! `POST /v1/images/generations`: pictures from a text, as PNG files in base64.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use remuda_models::request::Draw;
use remuda_models::{PartAnswer, Request};
use serde_json::{Value, json};

use super::super::base64::base64;
use super::super::{ApiError, Caller, Context};
use super::chat::now;
use super::request_fields::{Asked, is_empty, wrong};
use super::routing::{self, Call, off};

/// As many as OpenAI draws at once.
const PICTURES_MAX: u64 = 10;
const PROMPT_BYTES_MAX: usize = 32_000;
/// A side of a picture; more takes a machine for hours.
const SIDE_MAX: u32 = 4096;
const STEPS_MAX: u64 = 1000;

pub(super) async fn draw(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut asked = Asked::read(&body)?;
    let model = asked.model()?;
    let patience = asked.patience(context.request_timeout)?;
    refuse(&mut asked)?;
    let count = asked.whole("n", 1, PICTURES_MAX)?.unwrap_or(1);
    let draw = read(&mut asked)?;
    let mut answering = Vec::new();
    for number in 0..count {
        // One seed for all would draw the same picture again.
        let draw = Draw { seed: draw.seed.map(|seed| seed.wrapping_add(number)), ..draw.clone() };
        let call = Call { model: &model, request: Request::TextToImage(draw), patience };
        answering.push(routing::call(&context, &caller, call).await?);
    }
    let mut data = Vec::new();
    for answer in answering {
        match answer.answer().await?.parts.into_iter().next() {
            Some(PartAnswer::Drawn(png)) => data.push(json!({ "b64_json": base64(&png) })),
            _ => return Err(off(&model, "gave something else than a picture")),
        }
    }
    Ok(Json(json!({ "created": now(), "data": data, "output_format": "png" })).into_response())
}

fn refuse(asked: &mut Asked) -> Result<(), ApiError> {
    let is = |word: &'static str| move |value: &Value| value == word;
    asked.only(
        "response_format",
        is("b64_json"),
        "can only be b64_json: pictures are not kept to be fetched",
    )?;
    asked.only("output_format", is("png"), "can only be png")?;
    asked.only("stream", is_empty, "is not supported")?;
    asked.only("background", |value| value != "transparent", "cannot be transparent")
}

fn read(asked: &mut Asked) -> Result<Draw, ApiError> {
    let prompt = asked.text("prompt")?.ok_or_else(|| wrong("prompt", "is missing: say what to draw"))?;
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(wrong("prompt", &format!("has {} bytes; {PROMPT_BYTES_MAX} are the most", prompt.len())));
    }
    Ok(Draw {
        prompt,
        negative_prompt: asked.text("negative_prompt")?.unwrap_or_default(),
        size: size(asked)?,
        steps: asked.whole("steps", 1, STEPS_MAX)?.and_then(|steps| steps.try_into().ok()),
        guidance: asked.number("guidance", 0.0, 100.0)?,
        seed: asked.seed()?,
    })
}

fn size(asked: &mut Asked) -> Result<Option<(u32, u32)>, ApiError> {
    let Some(text) = asked.text("size")?.filter(|text| text != "auto") else { return Ok(None) };
    let sides =
        text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    let is_fine = |side: u32| (1..=SIDE_MAX).contains(&side);
    match sides.filter(|(width, height)| is_fine(*width) && is_fine(*height)) {
        Some(sides) => Ok(Some(sides)),
        None => {
            Err(wrong("size", &format!("is as in 512x512, no side above {SIDE_MAX}, or auto; not {text:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &Value) -> Asked {
        Asked::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn sizes_are_two_sides_or_none() {
        assert_eq!(size(&mut asked(&json!({ "size": "64x32" }))).unwrap(), Some((64, 32)));
        assert_eq!(size(&mut asked(&json!({ "size": "auto" }))).unwrap(), None);
        for bad in ["64", "64x", "0x64", "64x8192", "-1x64", "64X64"] {
            assert_eq!(
                size(&mut asked(&json!({ "size": bad }))).unwrap_err().detail["param"],
                "size",
                "{bad}"
            );
        }
    }

    #[test]
    fn what_cannot_be_given_is_refused() {
        for (body, param) in [
            (json!({ "response_format": "url" }), "response_format"),
            (json!({ "output_format": "webp" }), "output_format"),
            (json!({ "stream": true }), "stream"),
            (json!({ "background": "transparent" }), "background"),
        ] {
            assert_eq!(refuse(&mut asked(&body)).unwrap_err().detail["param"], param);
        }
        assert!(read(&mut asked(&json!({}))).unwrap_err().message.contains("prompt"));
    }
}
