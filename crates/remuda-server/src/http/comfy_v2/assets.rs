//! Assets, once they are there: found by id or by content, read, made anew from what was sent before, forgotten.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::document::Shelf;
use remuda_core::plane::Event;
use remuda_store::blobs::BlobHash;
use serde_json::Value;

use super::super::blobs;
use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::asset::{self, Asset, Wanted, missing, no_blob};
use super::links::Links;

/// What may be made anew: content that this caller sent, and that is still there.
async fn mintable(
    context: &Context,
    caller: &Caller,
    hash: &str,
) -> Result<(BlobHash, u64, Vec<Asset>), ApiError> {
    let hash: BlobHash = hash.parse().map_err(|_| no_blob())?;
    let known = asset::of_content(context, caller, hash).await?;
    if known.is_empty() {
        return Err(no_blob());
    }
    let size = context.blobs.touch(hash, context.plane.clock.now()).await?.ok_or_else(no_blob)?;
    Ok((hash, size, known))
}

pub(super) async fn from_hash(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    body: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Wanted = serde_json::from_slice(&body).map_err(|error| {
        ApiError::invalid(format!("expected {{\"hash\", \"file_path\", \"tags\", \"expires_in\"}}: {error}"))
    })?;
    wanted.check()?;
    let hash = wanted.hash.clone().ok_or_else(|| ApiError::invalid("\"hash\" is missing"))?;
    let (hash, size_bytes, known) = mintable(&context, &caller, &hash).await?;
    let tenant = caller.tenant(None)?;
    let same = known.iter().find(|asset| {
        asset.tenant == tenant && asset.of.file_path == wanted.file_path && asset.of.tags == wanted.tags
    });
    let same = same.map(|asset| (asset.id, asset.of.clone()));
    let mut asset = Asset::mint(&context, tenant, hash, size_bytes, wanted, &known);
    let status = match same {
        Some((id, of)) => {
            (asset.id, asset.of) = (id, of);
            StatusCode::OK
        }
        None => StatusCode::CREATED,
    };
    asset.keep(&context).await?;
    let location = [(header::LOCATION, format!("/api/v2/assets/{}", asset.id))];
    Ok((status, location, Json(asset.shown(&links, Some(false)))).into_response())
}

pub(super) async fn by_hash(
    State(context): State<Context>,
    caller: Caller,
    Path(hash): Path<String>,
) -> Result<StatusCode, ApiError> {
    mintable(&context, &caller, &hash).await.map(|_| StatusCode::OK)
}

pub(super) async fn one(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let asset = asset::find(&context, &caller, &id).await?;
    Ok(Json(asset.shown(&links, None)))
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
    context.plane.request(Event::Discard { shelf: Shelf::Asset, id: asset.id.to_string() }).await?;
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
        // A blob from now on: read, in parts as well, as any other.
        let upload = context.blobs.begin().await?.write(text.as_bytes()).await?;
        upload.finish(Some(asset.hash), now).await?;
    }
    let blob = context.blobs.read(asset.hash, now).await?.ok_or_else(missing)?;
    let declared = asset.of.content_type.as_str();
    // What a browser might run is only bytes to it, whatever its sender calls it.
    let content_type = if blobs::is_harmless(declared) { declared } else { "application/octet-stream" };
    let name = asset.of.file_path.as_deref().and_then(|path| path.rsplit(['/', '\\']).next());
    Ok(blobs::send(blob, asset.hash, content_type, blobs::disposition(name), &headers))
}
