//! Routes of existing assets: find by id or content, read, create again from known content, delete.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::document::Collection;
use remuda_core::plane::PlaneEvent;
use remuda_store::blobs::BlobHash;
use serde_json::Value;

use super::super::blobs;
use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::asset::{self, Asset, AssetFields, blob_not_found, not_found};
use super::links::Links;

/// Content that this caller uploaded and that still exists.
async fn reusable_content(
    context: &Context,
    caller: &Caller,
    hash: &str,
) -> Result<(BlobHash, u64, Vec<Asset>), ApiError> {
    let hash: BlobHash = hash.parse().map_err(|_| blob_not_found())?;
    let known = asset::with_content(context, caller, hash).await?;
    if known.is_empty() {
        return Err(blob_not_found());
    }
    let size = context.blobs.touch(hash, context.plane.clock.now()).await?.ok_or_else(blob_not_found)?;
    Ok((hash, size, known))
}

pub(super) async fn from_hash(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    body: Bytes,
) -> Result<Response, ApiError> {
    let fields: AssetFields = serde_json::from_slice(&body).map_err(|error| {
        ApiError::invalid(format!("expected {{\"hash\", \"file_path\", \"tags\", \"expires_in\"}}: {error}"))
    })?;
    fields.check()?;
    let hash = fields.hash.clone().ok_or_else(|| ApiError::invalid("\"hash\" is missing"))?;
    let (hash, size_bytes, known) = reusable_content(&context, &caller, &hash).await?;
    let tenant = caller.tenant(None)?;
    let same = known.iter().find(|asset| {
        asset.tenant == tenant && asset.meta.file_path == fields.file_path && asset.meta.tags == fields.tags
    });
    let same = same.map(|asset| (asset.id, asset.meta.clone()));
    let mut asset = Asset::create(&context, tenant, hash, size_bytes, fields, &known);
    let status = match same {
        Some((id, meta)) => {
            (asset.id, asset.meta) = (id, meta);
            StatusCode::OK
        }
        None => StatusCode::CREATED,
    };
    asset.store(&context).await?;
    let location = [(header::LOCATION, format!("/api/v2/assets/{}", asset.id))];
    Ok((status, location, Json(asset.to_json(&links, Some(false)))).into_response())
}

pub(super) async fn by_hash(
    State(context): State<Context>,
    caller: Caller,
    Path(hash): Path<String>,
) -> Result<StatusCode, ApiError> {
    reusable_content(&context, &caller, &hash).await.map(|_| StatusCode::OK)
}

pub(super) async fn show(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let asset = asset::find(&context, &caller, &id).await?;
    Ok(Json(asset.to_json(&links, None)))
}

pub(super) async fn delete(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let asset = asset::find(&context, &caller, &id).await?;
    if asset.job.is_some() {
        let message = "the asset is in use and cannot be deleted now";
        return Err(ApiError::new(StatusCode::CONFLICT, "asset_in_use", message));
    }
    context
        .plane
        .request(PlaneEvent::DeleteDocument { collection: Collection::Asset, id: asset.id.to_string() })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn content(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asset = asset::find(&context, &caller, &id).await?;
    let now = context.plane.clock.now();
    if let Some(text) = &asset.text {
        // Store the text as a blob, so that ranges work as for any other.
        let upload = context.blobs.begin_upload().await?.write(text.as_bytes()).await?;
        upload.finish(Some(asset.hash), now).await?;
    }
    let blob = context.blobs.read(asset.hash, now).await?.ok_or_else(not_found)?;
    let declared = asset.meta.content_type.as_str();
    // A type that a browser might run is served as plain bytes, whatever the uploader declared.
    let content_type = if blobs::is_harmless(declared) { declared } else { "application/octet-stream" };
    let name = asset.meta.file_path.as_deref().and_then(|path| path.rsplit(['/', '\\']).next());
    Ok(blobs::send(blob, asset.hash, content_type, blobs::disposition(name), &headers))
}
