//! Blobs over HTTP, streamed both ways, so that a video of gigabytes needs no more memory than an image. Uploads are bounded
//! in size, in number and in idle time; downloads are attachments that no browser renders as a page.

mod headers;

use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_core::id::Tenant;
use remuda_core::refusal::Refusal;
use remuda_store::blobs::{
    BlobError, BlobHash, BlobUpload, OpenBlob, StoredBlob, find_blob_hashes, read_chunks,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::SemaphorePermit;

pub(super) use self::headers::{content_type, disposition, is_harmless};

use self::headers::{Part, part};
use super::body::too_slow;
use super::path::Path;
use super::{ApiError, Caller, Context};

/// Each may hold one of the 512 blocking threads, and a buffer.
pub(super) const UPLOADS_MAX: usize = 64;
/// Bytes that have to arrive within `blobs.upload_idle_timeout`: one byte now and then must not hold a permit for ever.
const STEP_BYTES: u64 = 256 << 10;
/// An unneeded body is read to its end if it is this short: answering before its end would cost the connection.
const SKIP_BYTES_MAX: u64 = 1 << 20;

pub(super) async fn store(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let stored = receive(&context, owner(&caller, &headers)?, body, None).await?;
    Ok(stored_answer(stored))
}

pub(super) async fn store_named(
    State(context): State<Context>,
    caller: Caller,
    Path(hash): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let hash: BlobHash = hash.parse()?;
    if let Some(size_bytes) = context.blobs.touch(hash, context.plane.clock.now()).await? {
        if body.size_hint().upper().is_some_and(|size| size <= SKIP_BYTES_MAX) {
            let mut pieces = BodyPieces::new(body, &context);
            while pieces.next().await?.is_some() {}
        }
        return Ok(stored_answer(StoredBlob { hash, size_bytes, created: false }));
    }
    let stored = receive(&context, owner(&caller, &headers)?, body, Some(hash)).await?;
    Ok(stored_answer(stored))
}

fn stored_answer(stored: StoredBlob) -> Response {
    let StoredBlob { hash, size_bytes, created } = stored;
    let location = format!("/remuda/v1/blobs/{hash}");
    let answer = json!({ "hash": hash, "size_bytes": size_bytes, "created": created });
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    (status, [(header::LOCATION, location)], Json(answer)).into_response()
}

/// The tenant that an upload counts for. What a worker brings counts for the job that names it, once that has ended.
fn owner(caller: &Caller, headers: &HeaderMap) -> Result<Option<Tenant>, ApiError> {
    if caller.is_worker(headers) { Ok(None) } else { caller.tenant(None).map(Some) }
}

/// An upload that counts for this tenant, as long as its quota allows.
pub(super) async fn begin_upload(
    context: &Context,
    tenant: &Tenant,
    bytes: u64,
) -> Result<BlobUpload, ApiError> {
    let (stored, name) = (context.intake().stored_bytes(tenant), tenant.clone());
    let room = context.plane.read(move |plane, _| {
        plane.check_storage(&name, stored, bytes)?;
        Ok::<_, Refusal>(plane.settings().quota_of(&name).storage_room(stored))
    });
    let room = room.await??.unwrap_or(u64::MAX);
    Ok(context.blobs.begin_upload().await?.owned_by(tenant.clone(), room))
}

async fn receive(
    context: &Context,
    owner: Option<Tenant>,
    body: Body,
    expected: Option<BlobHash>,
) -> Result<StoredBlob, ApiError> {
    let bytes_max = context.blobs.bytes_max();
    if body.size_hint().lower() > bytes_max {
        return Err(BlobError::TooLarge { bytes_max }.into());
    }
    let _permit = upload_permit(context)?;
    let mut upload = match owner {
        Some(tenant) => begin_upload(context, &tenant, body.size_hint().lower()).await?,
        None => context.blobs.begin_upload().await?,
    };
    let mut pieces = BodyPieces::new(body, context);
    while let Some(piece) = pieces.next().await? {
        upload = upload.write(&piece).await?;
    }
    Ok(upload.finish(expected, context.plane.clock.now()).await?)
}

/// A permit for an upload.
pub(super) fn upload_permit(context: &Context) -> Result<SemaphorePermit<'_>, ApiError> {
    context.uploads.try_acquire().map_err(|_| {
        let message = format!("{UPLOADS_MAX} uploads are under way: send it again in a moment");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_uploads", message).with_retry_after(1)
    })
}

/// A body in pieces; an error when it breaks off or stalls.
struct BodyPieces {
    body: BodyDataStream,
    pace: Pace,
}

impl BodyPieces {
    fn new(body: Body, context: &Context) -> BodyPieces {
        BodyPieces { body: body.into_data_stream(), pace: Pace::new(context) }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let piece = self.pace.wait(self.body.next()).await?.transpose();
        let piece = piece.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        self.pace.seen(piece.as_ref().map_or(0, Bytes::len));
        Ok(piece)
    }
}

/// Limits how long a body may stall.
#[derive(Debug)]
pub(super) struct Pace {
    upload_idle_timeout: Duration,
    /// Waited for the current step. The time we take to store a piece does not count.
    waited: Duration,
    seen_bytes: u64,
}

impl Pace {
    pub(super) fn new(context: &Context) -> Pace {
        Pace { upload_idle_timeout: context.blob_upload_idle_timeout, waited: Duration::ZERO, seen_bytes: 0 }
    }

    pub(super) async fn wait<T>(&mut self, next: impl Future<Output = T>) -> Result<T, ApiError> {
        let asked_at = Instant::now();
        let timeout = self.upload_idle_timeout.saturating_sub(self.waited);
        let came = tokio::time::timeout(timeout, next).await.map_err(|_| too_slow())?;
        self.waited += asked_at.elapsed();
        Ok(came)
    }

    /// Counts received bytes.
    pub(super) fn seen(&mut self, bytes: usize) {
        self.seen_bytes += bytes as u64;
        if self.seen_bytes >= STEP_BYTES {
            (self.waited, self.seen_bytes) = (Duration::ZERO, 0);
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DownloadQuery {
    /// The file name; decides the content type.
    name: Option<String>,
}

pub(super) async fn read(
    State(context): State<Context>,
    Path(hash): Path<String>,
    shown: Result<Query<DownloadQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(DownloadQuery { name }) = shown?;
    let (hash, blob) = find(&context, &hash).await?;
    Ok(send(blob, hash, content_type(name.as_deref()), disposition(name.as_deref()), &headers))
}

async fn find(context: &Context, hash: &str) -> Result<(BlobHash, OpenBlob), ApiError> {
    let hash: BlobHash = hash.parse()?;
    let blob = context.blobs.read(hash, context.plane.clock.now()).await?.ok_or_else(|| {
        ApiError::not_found(format!("there is no {hash}; it may have been cleared away (retention)"))
    })?;
    Ok((hash, blob))
}

/// As `read`, for pages that show it in place: images keep their type, and anything that could run is plain bytes. The name
/// may be given to other content later, so caches have to revalidate.
pub(super) async fn show(
    context: &Context,
    hash: &str,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let (hash, blob) = find(context, hash).await?;
    let inline = disposition(Some(name)).replacen("attachment", "inline", 1);
    let mut response = send(blob, hash, content_type(Some(name)), inline, headers);
    let revalidate = HeaderValue::from_static("private, no-cache");
    response.headers_mut().insert(header::CACHE_CONTROL, revalidate);
    Ok(response)
}

/// A blob, or the requested range of it.
pub(super) fn send(
    blob: OpenBlob,
    hash: BlobHash,
    content_type: &str,
    disposition: String,
    headers: &HeaderMap,
) -> Response {
    let size = blob.size_bytes;
    let (status, start, length) = match part(headers, hash, size) {
        Part::Whole => (StatusCode::OK, 0, size),
        Part::Range { start, length } => (StatusCode::PARTIAL_CONTENT, start, length),
        Part::Known => (StatusCode::NOT_MODIFIED, 0, 0),
        Part::OutOfRange => {
            let message = format!("{hash} has {size} bytes");
            let problem = ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", message);
            return ([(header::CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response();
        }
    };
    let mut response = Response::new(Body::from_stream(read_chunks(blob.file, start, length)));
    *response.status_mut() = status;
    let answer = response.headers_mut();
    let mut set = |name: HeaderName, value: String| {
        // Every value consists of characters that a header allows.
        answer.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
    };
    set(header::ETAG, headers::etag(hash));
    // The content of a hash never changes.
    set(header::CACHE_CONTROL, "private, max-age=31536000, immutable".to_owned());
    if status == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Body::empty();
        return response;
    }
    set(header::CONTENT_LENGTH, length.to_string());
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    if status == StatusCode::PARTIAL_CONTENT {
        set(header::CONTENT_RANGE, format!("bytes {start}-{}/{size}", start + length - 1));
    }
    set(header::CONTENT_TYPE, content_type.to_owned());
    set(header::CONTENT_DISPOSITION, disposition);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned());
    set(header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox".to_owned());
    response
}

/// Marks the blobs that these values name as used, so that they are not deleted for a while.
pub(super) async fn touch_named<'a>(
    context: &Context,
    bodies: impl IntoIterator<Item = &'a RawValue>,
) -> Result<(), BlobError> {
    let named = bodies.into_iter().flat_map(|body| find_blob_hashes(body.get())).collect();
    context.blobs.touch_all(named, context.plane.clock.now()).await
}

/// Whether a value names a blob.
pub(super) fn names_any(body: &RawValue) -> bool {
    !find_blob_hashes(body.get()).is_empty()
}

/// As `touch_named`, and what has no owner yet counts for this tenant from now on.
pub(super) async fn claim_named(context: &Context, tenant: Tenant, body: &RawValue) -> Result<(), BlobError> {
    let named = find_blob_hashes(body.get());
    context.blobs.touch_all(named.clone(), context.plane.clock.now()).await?;
    context.blobs.claim_all(named, tenant).await
}
