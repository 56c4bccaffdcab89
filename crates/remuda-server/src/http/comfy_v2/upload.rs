//! An upload as `multipart/form-data`. The file is written to a blob as it arrives, so its size does not cost memory. Parts may
//! arrive in any order and are checked when all of them are there.

use axum::Json;
use axum::body::HttpBody as _;
use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::Tenant;
use remuda_store::blobs::{BlobError, BlobHash, BlobUpload};

use super::super::blobs::{self, Pace};
use super::super::{ApiError, Caller, Context, request_key};
use super::asset::{self, Asset, AssetFields};
use super::links::Links;
use super::upload_keys::KeyClaim;

/// Size limit of a part that is not the file.
const TEXT_BYTES_MAX: usize = 16 << 10;
const PARTS_MAX: usize = 100;
/// Size limit of the form without the file.
const FORM_BYTES_MAX: u64 = 1 << 20;

pub(super) async fn upload(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let tenant = caller.tenant(None)?;
    let bytes_max = context.blobs.bytes_max();
    if request.body().size_hint().lower() > bytes_max + FORM_BYTES_MAX {
        return Err(BlobError::TooLarge { bytes_max }.into());
    }
    let claim = match request_key::read(&headers)? {
        Some(key) => Some(KeyClaim::claim(&context, &tenant, &key).await?),
        None => None,
    };
    let _permit = blobs::upload_permit(&context)?;
    let parts = Multipart::from_request(request, &()).await.map_err(|rejection| {
        ApiError::invalid(format!("an upload is a multipart/form-data: {}", rejection.body_text()))
    })?;
    let form = UploadParts::read(&context, &tenant, parts).await?;
    let (file, expected, fields) = form.finish()?;
    let stored = file.finish(expected, context.plane.clock.now()).await?;
    let known = asset::with_content(&context, &caller, stored.hash).await?;
    let asset = Asset::create(&context, tenant, stored.hash, stored.size_bytes, fields, &known);
    if let Some(claim) = &claim {
        claim.store(&context).await?;
    }
    asset.store(&context).await?;
    // Whether another tenant has the same content is not revealed.
    let is_new = stored.created || known.is_empty();
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let location = [(header::LOCATION, format!("/api/v2/assets/{}", asset.id))];
    Ok((status, location, Json(asset.to_json(&links, Some(is_new)))).into_response())
}

/// The parts received so far.
#[derive(Debug, Default)]
struct UploadParts {
    file: Option<BlobUpload>,
    expected: Option<BlobHash>,
    fields: AssetFields,
}

impl UploadParts {
    async fn read(context: &Context, tenant: &Tenant, mut parts: Multipart) -> Result<UploadParts, ApiError> {
        let (mut form, mut pace) = (UploadParts::default(), Pace::new(context));
        for _ in 0..PARTS_MAX {
            match pace.wait(parts.next_field()).await?.map_err(bad_form)? {
                Some(part) => form.take(context, tenant, &mut pace, part).await?,
                None => return Ok(form),
            }
        }
        Err(ApiError::invalid(format!("an upload has at most {PARTS_MAX} parts")))
    }

    async fn take(
        &mut self,
        context: &Context,
        tenant: &Tenant,
        pace: &mut Pace,
        part: Field<'_>,
    ) -> Result<(), ApiError> {
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            let file = receive(context, tenant, pace, part).await?;
            return check_once("file", self.file.replace(file).is_none());
        }
        let text = read_text(pace, part, &name).await?;
        let fields = &mut self.fields;
        match name.as_str() {
            "content_type" => check_once("content_type", fields.content_type.replace(text).is_none()),
            "file_path" => check_once("file_path", fields.file_path.replace(text).is_none()),
            "expected_hash" => {
                let hash =
                    text.parse().map_err(|error| ApiError::invalid(format!("expected_hash: {error}")))?;
                check_once("expected_hash", self.expected.replace(hash).is_none())
            }
            "expires_in" => {
                let seconds =
                    text.parse().map_err(|_| ApiError::invalid("expires_in is a number of seconds"))?;
                check_once("expires_in", fields.expires_in.replace(seconds).is_none())
            }
            "tags" => {
                fields.tags.push(text);
                Ok(())
            }
            _ => Err(ApiError::invalid(format!("an upload has no part {name:?}"))),
        }
    }

    fn finish(self) -> Result<(BlobUpload, Option<BlobHash>, AssetFields), ApiError> {
        let missing = |name: &str| ApiError::invalid(format!("the upload has no part {name:?}"));
        let file = self.file.ok_or_else(|| missing("file"))?;
        self.fields.content_type.as_ref().ok_or_else(|| missing("content_type"))?;
        self.fields.file_path.as_ref().ok_or_else(|| missing("file_path"))?;
        self.fields.check()?;
        Ok((file, self.expected, self.fields))
    }
}

fn check_once(name: &str, is_first: bool) -> Result<(), ApiError> {
    if is_first { Ok(()) } else { Err(ApiError::invalid(format!("the upload has the part {name:?} twice"))) }
}

async fn receive(
    context: &Context,
    tenant: &Tenant,
    pace: &mut Pace,
    mut part: Field<'_>,
) -> Result<BlobUpload, ApiError> {
    let mut upload = blobs::begin_upload(context, tenant, 0).await?;
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(bad_form)? {
        pace.seen(piece.len());
        upload = upload.write(&piece).await?;
    }
    Ok(upload)
}

async fn read_text(pace: &mut Pace, mut part: Field<'_>, name: &str) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(bad_form)? {
        if bytes.len() + piece.len() > TEXT_BYTES_MAX {
            return Err(ApiError::invalid(format!("the part {name:?} has more than {TEXT_BYTES_MAX} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    String::from_utf8(bytes).map_err(|_| ApiError::invalid(format!("the part {name:?} is not UTF-8")))
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn bad_form(error: MultipartError) -> ApiError {
    ApiError::invalid(format!(
        "the upload was interrupted or is not multipart/form-data: {}",
        error.body_text()
    ))
}
