//! `/upload/mask`: replaces the alpha channel of an uploaded image. The plane never decodes images, so a small job on a
//! ComfyUI server joins image and mask, and its output becomes the upload. The request therefore needs a worker.

use std::time::Duration;

use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use remuda_core::id::{JobId, Tenant};
use remuda_core::workflow::Workflow;
use remuda_store::blobs::{BlobHash, StoredBlob};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::history_entry::stored_outputs;
use super::prompt::{INTERNAL_LABEL, SERVICE};
use super::uploads::{UploadForm, find};
use super::{submit, view};
use crate::follower::Followed;
use crate::intake::{IntakeError, SubmitFields};
use crate::live::LiveEvent;

/// The job has four nodes; a client that waits longer should retry when the fleet is less busy.
const MASK_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) async fn upload(
    State(context): State<Context>,
    caller: Caller,
    parts: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let (form, location, mask) = UploadForm::read_file(&context, parts).await?;
    let original = find_original(&context, &tenant, form.field("original_ref")).await?;
    let joined = apply_mask(&context, &tenant, &original, &mask.hash.to_string()).await?;
    Ok(Json(location.store(&context, &tenant, &joined, form.overwrites()).await?))
}

/// The hash of the image that the mask belongs to: `{"filename", "subfolder", "type"}`.
async fn find_original(context: &Context, tenant: &Tenant, reference: &str) -> Result<String, ComfyuiError> {
    let bad_reference =
        || ApiError::bad_request("original_ref is {\"filename\", \"subfolder\", \"type\"} of an image");
    let reference: Value = serde_json::from_str(reference).map_err(|_| bad_reference())?;
    let part = |key: &str| reference[key].as_str().unwrap_or_default();
    let kind = Some(part("type")).filter(|kind| !kind.is_empty()).unwrap_or("output");
    let found = match find(context, tenant, kind, part("subfolder"), part("filename")).await? {
        Some(upload) => Some(upload.hash),
        None => view::find_output(context, tenant, part("subfolder"), part("filename"), kind).await?,
    };
    found.ok_or_else(|| ApiError::bad_request("original_ref does not name an existing image").into())
}

async fn apply_mask(
    context: &Context,
    tenant: &Tenant,
    original: &str,
    mask: &str,
) -> Result<StoredBlob, ComfyuiError> {
    let asset =
        |hash: &str| json!({ "__type": "core/ASSET", "info": { "hash": hash, "file_path": "mask.png" } });
    let graph = json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": asset(original) } },
        "2": { "class_type": "LoadImageMask", "inputs": { "image": asset(mask), "channel": "alpha" } },
        "3": { "class_type": "JoinImageWithAlpha", "inputs": { "image": ["1", 0], "alpha": ["2", 0] } },
        "4": { "class_type": "SaveImage", "inputs": { "images": ["3", 0], "filename_prefix": "mask" } },
    });
    let graph = to_raw_value(&graph).map_err(|error| ApiError::invalid(error.to_string()))?;
    let service = SERVICE.parse().map_err(ApiError::from)?;
    let classes = ["LoadImage", "LoadImageMask", "JoinImageWithAlpha", "SaveImage"].map(str::to_owned).into();
    let unknown = context.plane.read(move |plane, _| plane.unknown_classes(&service, classes)).await?;
    if !unknown.is_empty() {
        let message = "no server of the fleet has the node class JoinImageWithAlpha, which applies masks";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message).into());
    }
    let workflow = Workflow::parse(graph, &context.limits).map_err(IntakeError::from)?;
    let mut fields = SubmitFields::new(tenant.clone());
    fields.service = SERVICE.parse().ok();
    fields.priority = submit::FRONT_PRIORITY;
    fields.deadline = Some(MASK_TIMEOUT);
    fields.labels.insert(INTERNAL_LABEL.to_owned(), "mask".to_owned());
    let mut events = context.follow(None);
    let job = context.intake().submit(workflow, fields).await?.job;
    let ended = async {
        while let Some(followed) = events.next().await {
            match followed {
                Followed::Event(LiveEvent::Stored(it)) if it.job == Some(job) && it.kind.is_job_end() => {
                    return;
                }
                // The end may be among the missed events; the store knows.
                Followed::Gap { is_replayed: false, .. } => return,
                Followed::Event(_) | Followed::Gap { .. } | Followed::CaughtUp => {}
            }
        }
    };
    // The deadline of the job ends it by then.
    drop(tokio::time::timeout(MASK_TIMEOUT + Duration::from_secs(5), ended).await);
    stored_result(context, job).await
}

async fn stored_result(context: &Context, job: JobId) -> Result<StoredBlob, ComfyuiError> {
    let failed = |why: String| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "overloaded",
            format!("the mask was not applied: {why}"),
        )
    };
    if let Some((_, life)) = context.store.job(job).await?
        && let Some((_, message)) = life.state.failure()
    {
        return Err(failed(message.to_owned()).into());
    }
    let outputs = stored_outputs(context, job).await?;
    let hash = outputs.first().and_then(|output| output.hash.parse::<BlobHash>().ok());
    let Some(hash) = hash else { return Err(failed("no server has done it yet".to_owned()).into()) };
    let size_bytes = context.blobs.size(hash).await?.unwrap_or(0);
    Ok(StoredBlob { hash, size_bytes, created: false })
}
