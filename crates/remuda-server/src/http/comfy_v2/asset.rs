//! An asset: a record with owner, name and expiry, over a blob, which has none of them.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::document::{Collection, Document};
use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::PlaneEvent;
use remuda_core::time::Timestamp;
use remuda_store::blobs::BlobHash;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context, comfyui, lost};
use super::links::Links;
use super::output;

const FILE_PATH_CHARS_MAX: usize = 4096;
const CONTENT_TYPE_BYTES_MAX: usize = 255;
const TAGS_MAX: usize = 32;
const TAG_CHARS_MAX: usize = 128;
/// In seconds, as the contract specifies.
const EXPIRES_IN_SECONDS: std::ops::RangeInclusive<u64> = 60..=604_800;

#[derive(Clone, Debug)]
pub(super) struct Asset {
    pub(super) id: Uuid,
    pub(super) tenant: Tenant,
    pub(super) hash: BlobHash,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) meta: AssetMeta,
    /// The job that produced it, if it was not uploaded.
    pub(super) job: Option<JobId>,
    /// The content, if it is so short that it is part of the job's result.
    pub(super) text: Option<String>,
}

/// Stored metadata of an asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AssetMeta {
    pub(super) size_bytes: u64,
    pub(super) content_type: String,
    pub(super) file_path: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tags: Vec<String>,
    pub(super) created_at: Timestamp,
}

/// Fields of a request that creates an asset.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AssetFields {
    pub(super) hash: Option<String>,
    pub(super) file_path: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) expires_in: Option<u64>,
    #[serde(skip)]
    pub(super) content_type: Option<String>,
}

impl AssetFields {
    /// Every field is stored, so every field has a limit.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let refuse = |message: String| Err(ApiError::invalid(message));
        let path = self.file_path.as_deref();
        let is_within = |text: &str, max: usize| !text.is_empty() && text.chars().count() <= max;
        if path.is_some_and(|path| !is_within(path, FILE_PATH_CHARS_MAX) || path.contains('\0')) {
            return refuse(format!(
                "file_path has 1 to {FILE_PATH_CHARS_MAX} characters, and no NUL among them"
            ));
        }
        let is_type = |text: &str| {
            text.len() <= CONTENT_TYPE_BYTES_MAX
                && text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty())
                && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        if !self.content_type.as_deref().is_none_or(is_type) {
            return refuse("content_type is a media type such as image/png".to_owned());
        }
        if self.tags.len() > TAGS_MAX || self.tags.iter().any(|tag| !is_within(tag, TAG_CHARS_MAX)) {
            return refuse(format!("at most {TAGS_MAX} tags of 1 to {TAG_CHARS_MAX} characters each"));
        }
        if self.expires_in.is_some_and(|seconds| !EXPIRES_IN_SECONDS.contains(&seconds)) {
            let (least, most) = (EXPIRES_IN_SECONDS.start(), EXPIRES_IN_SECONDS.end());
            return refuse(format!("expires_in is a number of seconds from {least} to {most}"));
        }
        Ok(())
    }
}

impl Asset {
    /// Creates a record. It lives at least as long as earlier records of the same content.
    pub(super) fn create(
        context: &Context,
        tenant: Tenant,
        hash: BlobHash,
        size_bytes: u64,
        fields: AssetFields,
        known: &[Asset],
    ) -> Asset {
        let now = context.plane.clock.now();
        let keep_for = fields.expires_in.map_or(context.retention, Duration::from_secs);
        let expires_at =
            known.iter().filter_map(|asset| asset.expires_at).fold(now.plus(keep_for), Timestamp::max);
        let content_type = fields.content_type.or_else(|| Some(known.first()?.meta.content_type.clone()));
        let content_type = content_type.unwrap_or_else(|| "application/octet-stream".to_owned());
        let meta = AssetMeta {
            size_bytes,
            content_type,
            file_path: fields.file_path,
            tags: fields.tags,
            created_at: now,
        };
        // With the time of its creation: after a restore it shows whether the asset is lost.
        let id = Uuid::from_u128(context.plane.new_job_id().as_u128());
        Asset { id, tenant, hash, expires_at: Some(expires_at), meta, job: None, text: None }
    }

    fn read(document: &Document) -> Option<Asset> {
        Some(Asset {
            id: document.id.parse().ok()?,
            tenant: document.tenant.clone()?,
            hash: document.index_key.parse().ok()?,
            expires_at: document.expires_at,
            meta: serde_json::from_str(document.body.get()).ok()?,
            job: None,
            text: None,
        })
    }

    /// Durable once this returns.
    pub(super) async fn store(&self, context: &Context) -> Result<(), ApiError> {
        let body = to_raw_value(&self.meta).map_err(|error| ApiError::invalid(error.to_string()))?;
        let document = Document {
            collection: Collection::Asset,
            id: self.id.to_string(),
            tenant: Some(self.tenant.clone()),
            index_key: self.hash.to_string(),
            expires_at: self.expires_at,
            body: Arc::from(body),
        };
        context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
        for document in self.name_documents() {
            context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
        }
        Ok(())
    }

    /// Graphs may name it by its path, and by the last part of that.
    fn name_documents(&self) -> Vec<Document> {
        let path = self.meta.file_path.as_deref().unwrap_or_default();
        let names = std::collections::BTreeSet::from([path, path.rsplit('/').next().unwrap_or_default()]);
        let named = names.into_iter().filter(|name| !name.is_empty());
        named.filter_map(|name| comfyui::asset_name(&self.tenant, name, self.hash, self.expires_at)).collect()
    }

    /// The asset in the format of the contract; `created_new` only in the answer to its creation.
    pub(super) fn to_json(&self, links: &Links, created_new: Option<bool>) -> Value {
        let never = Timestamp::from_millis(253_402_300_799_000);
        let mut json = json!({
            "id": self.id.to_string(),
            "hash": self.hash,
            "size_bytes": self.meta.size_bytes,
            "content_type": self.meta.content_type,
            "file_path": self.meta.file_path,
            "tags": self.meta.tags,
            "created_at": self.meta.created_at.to_string(),
            "url": links.content(self.id),
            // The URL is valid as long as the asset.
            "url_expires_at": self.expires_at.unwrap_or(never).to_string(),
            "expires_at": self.expires_at.map(|at| at.to_string()),
        });
        if let Some(created_new) = created_new {
            json["created_new"] = created_new.into();
        }
        if let Some(job) = self.job {
            json["job_id"] = job.to_string().into();
        }
        json
    }
}

/// The asset with this id, if the caller may see it.
pub(super) async fn find(context: &Context, caller: &Caller, id: &str) -> Result<Asset, ApiError> {
    let found = match id.parse::<Uuid>() {
        Ok(uuid) if output::is_output_id(uuid) => output::find(context, caller, uuid).await?,
        Ok(uuid) => {
            let document = context.store.document(Collection::Asset, &uuid.to_string()).await?;
            let now = context.plane.clock.now();
            document.filter(|document| document.is_live(now)).and_then(|document| Asset::read(&document))
        }
        Err(_) => None,
    };
    if found.is_none()
        && let Some(lost) = id.parse().ok().and_then(|id| lost::asset(context, id))
    {
        return Err(lost);
    }
    found.filter(|asset| caller.may_see(&asset.tenant)).ok_or_else(not_found)
}

/// All assets of the caller with this content, oldest id first.
pub(super) async fn with_content(
    context: &Context,
    caller: &Caller,
    hash: BlobHash,
) -> Result<Vec<Asset>, ApiError> {
    let now = context.plane.clock.now();
    let documents = context.store.find_by_index_key(Collection::Asset, &hash.to_string()).await?;
    let current = documents.iter().filter(|document| document.is_live(now));
    Ok(current
        .filter_map(|document| Asset::read(document))
        .filter(|asset| caller.may_see(&asset.tenant))
        .collect())
}

/// Not found, expired or owned by another tenant: the answer does not tell which.
pub(super) fn not_found() -> ApiError {
    ApiError::not_found("there is no such asset; it may have expired")
}

pub(super) fn blob_not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "blob_not_found", "there is no content of this hash: upload it")
}
