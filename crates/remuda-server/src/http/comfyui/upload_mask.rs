//! `/upload/mask`: stores an image with the alpha channel of an uploaded mask. The plane does it itself, without a worker, as
//! fast as ComfyUI does. It is the only request for which the plane decodes images: `mask_image` bounds what that may cost,
//! it runs on a blocking thread, and only `MASKS_MAX` run at once.

use std::io::Read as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use remuda_core::id::Tenant;
use remuda_store::blobs::{BlobHash, OpenBlob, StoredBlob};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::super::{ApiError, Caller, Context, blobs};
use super::error::ComfyuiError;
use super::mask_image::{self, FILE_BYTES_MAX, MaskError};
use super::uploads::{UploadForm, find, split_annotation};
use super::view;

/// Masks that are applied at the same time; each may need 300 MiB. Further requests wait.
const MASKS_MAX: usize = 2;

/// Permits to decode images.
#[derive(Debug)]
pub(super) struct MaskPermits(Arc<Semaphore>);

impl Default for MaskPermits {
    fn default() -> MaskPermits {
        MaskPermits(Arc::new(Semaphore::new(MASKS_MAX)))
    }
}

pub(super) async fn upload(
    State(context): State<Context>,
    caller: Caller,
    parts: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let (form, location, mask) = UploadForm::read_file(&context, &tenant, parts).await?;
    let original = find_original(&context, &tenant, form.field("original_ref")).await?;
    let applied = apply(&context, &tenant, original, mask.hash).await?;
    Ok(Json(location.store(&context, &tenant, mask.hash, &applied, form.overwrites()).await?))
}

/// The image that the mask belongs to: `{"filename", "subfolder", "type"}`. The name may have a folder, and its type in
/// brackets.
async fn find_original(
    context: &Context,
    tenant: &Tenant,
    reference: &str,
) -> Result<BlobHash, ComfyuiError> {
    let bad_reference =
        || ApiError::bad_request("original_ref is {\"filename\", \"subfolder\", \"type\"} of an image");
    let reference: Value = serde_json::from_str(reference).map_err(|_| bad_reference())?;
    let part = |key: &str| reference[key].as_str().unwrap_or_default();
    let named = Some(part("type")).filter(|kind| !kind.is_empty()).unwrap_or("output");
    let (path, kind) = split_annotation(part("filename")).unwrap_or((part("filename"), named));
    let path = format!("{}/{path}", part("subfolder"));
    let path = path.trim_start_matches('/');
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let found = match find(context, tenant, kind, folder, name).await? {
        Some(upload) => Some(upload.hash),
        None => view::find_output(context, tenant, folder, name, kind).await?,
    };
    let found = found.and_then(|hash| hash.parse().ok());
    found.ok_or_else(|| ApiError::bad_request("original_ref does not name an existing image").into())
}

async fn apply(
    context: &Context,
    tenant: &Tenant,
    image: BlobHash,
    mask: BlobHash,
) -> Result<StoredBlob, ComfyuiError> {
    let (image, mask) = (open(context, image).await?, open(context, mask).await?);
    let permits = context.comfyui.mask_permits.0.clone();
    let permit = permits.acquire_owned().await.map_err(|error| internal(&error))?;
    let applied = tokio::task::spawn_blocking(move || {
        let applied = read(image).and_then(|image| Ok(mask_image::apply_mask(&image, &read(mask)?)));
        drop(permit);
        applied
    });
    let applied = applied.await.map_err(|error| internal(&error))?.map_err(|error| internal(&error))?;
    let applied = applied.map_err(|error: MaskError| ApiError::bad_request(error.to_string()))?;
    let _permit = blobs::upload_permit(context)?;
    let upload = blobs::begin_upload(context, tenant, applied.len() as u64).await?.write(&applied).await?;
    Ok(upload.finish(None, context.plane.clock.now()).await?)
}

fn internal(error: &dyn std::fmt::Display) -> ApiError {
    let message = format!("the mask was not applied: {error}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Opens a file that is small enough to be decoded.
async fn open(context: &Context, hash: BlobHash) -> Result<OpenBlob, ComfyuiError> {
    let blob = context.blobs.read(hash, context.plane.clock.now()).await?;
    let blob = blob.ok_or_else(|| ApiError::bad_request("the image is no longer stored: upload it again"))?;
    if blob.size_bytes > FILE_BYTES_MAX {
        let message = format!("images and masks have at most {FILE_BYTES_MAX} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).into());
    }
    Ok(blob)
}

fn read(blob: OpenBlob) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    blob.file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
