//! `/upload/mask`: a picture that was sent, with the alpha of another. The plane never decodes a picture, so a server does
//! it: a small job joins the two and what it gives becomes the upload. It takes as long as a small job takes, and needs a
//! worker.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use remuda_core::id::{JobId, Tenant};
use remuda_core::record::StateRow;
use remuda_store::blobs::{BlobHash, Stored};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::error::Refused;
use super::history_entry::stored_outputs;
use super::prompt::{DOORS_OWN, SERVICE};
use super::uploads::{Form, find};
use super::{submit, view};
use crate::intake::Request;
use crate::live::LiveEvent;

/// A job of four nodes; whoever waits longer finds the fleet busy and asks again.
const JOIN_MAX: Duration = Duration::from_secs(120);

pub(super) async fn mask(
    State(context): State<Context>,
    caller: Caller,
    parts: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, Refused> {
    let tenant = caller.tenant(None)?;
    let (form, place, mask) = Form::of_a_file(&context, parts).await?;
    let original = original(&context, &tenant, form.field("original_ref")).await?;
    let joined = join(&context, &tenant, &original, &mask.hash.to_string()).await?;
    Ok(Json(place.keep(&context, &tenant, &joined, form.overwrites()).await?))
}

/// The hash of the picture that the mask is for: `{"filename", "subfolder", "type"}`.
async fn original(context: &Context, tenant: &Tenant, reference: &str) -> Result<String, Refused> {
    let wrong =
        || ApiError::bad_request("original_ref is {\"filename\", \"subfolder\", \"type\"} of a picture");
    let reference: Value = serde_json::from_str(reference).map_err(|_| wrong())?;
    let part = |key: &str| reference[key].as_str().unwrap_or_default();
    let kind = Some(part("type")).filter(|kind| !kind.is_empty()).unwrap_or("output");
    let found = match find(context, tenant, kind, part("subfolder"), part("filename")).await? {
        Some(upload) => Some(upload.hash),
        None => view::output(context, tenant, part("subfolder"), part("filename"), kind).await?,
    };
    found.ok_or_else(|| ApiError::bad_request("there is no picture that original_ref names").into())
}

async fn join(context: &Context, tenant: &Tenant, original: &str, mask: &str) -> Result<Stored, Refused> {
    let asset =
        |hash: &str| json!({ "__type": "core/ASSET", "info": { "hash": hash, "file_path": "mask.png" } });
    let graph = json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": asset(original) } },
        "2": { "class_type": "LoadImageMask", "inputs": { "image": asset(mask), "channel": "alpha" } },
        "3": { "class_type": "JoinImageWithAlpha", "inputs": { "image": ["1", 0], "alpha": ["2", 0] } },
        "4": { "class_type": "SaveImage", "inputs": { "images": ["3", 0], "filename_prefix": "mask" } },
    });
    let graph = to_raw_value(&graph).map_err(|error| ApiError::invalid(error.to_string()))?;
    if context.comfyui.classes.check(context, &submit::Graph::read(&graph)?, None).await.is_err() {
        let message = "no server of the fleet can join a picture and a mask (JoinImageWithAlpha)";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message).into());
    }
    let mut request = Request::new(Arc::from(graph), tenant.clone());
    request.service = SERVICE.parse().ok();
    request.priority = submit::FRONT;
    request.deadline = Some(JOIN_MAX);
    request.labels.insert(DOORS_OWN.to_owned(), "mask".to_owned());
    let mut news = context.events.subscribe();
    let job = context.intake().take(request).await?.job;
    let ended = async {
        loop {
            match news.recv().await {
                Ok(LiveEvent::Stored(it)) if it.job == Some(job) && is_end(&it.name) => return,
                Ok(_) => {}
                // What was missed may be the end: the store says.
                Err(_) => return,
            }
        }
    };
    // Its deadline ends it by then.
    drop(tokio::time::timeout(JOIN_MAX + Duration::from_secs(5), ended).await);
    given(context, job).await
}

fn is_end(name: &str) -> bool {
    matches!(name, "job:completed" | "job:failed" | "job:cancelled")
}

async fn given(context: &Context, job: JobId) -> Result<Stored, Refused> {
    let unable = |why: String| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "overloaded",
            format!("the mask was not applied: {why}"),
        )
    };
    if let Some((_, life)) = context.store.job(job).await?
        && let StateRow::Failed { message, .. } = life.state
    {
        return Err(unable(message).into());
    }
    let outputs = stored_outputs(context, job).await?;
    let hash = outputs.first().and_then(|output| output.hash.parse::<BlobHash>().ok());
    let Some(hash) = hash else { return Err(unable("no server has done it yet".to_owned()).into()) };
    let size_bytes = context.blobs.size(hash).await?.unwrap_or(0);
    Ok(Stored { hash, size_bytes, is_new: false })
}
