//! `/settings` and `/userdata`: settings, saved workflows and styles. Each is a document of the tenant, found by its path.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use remuda_core::document::{Collection, Document};
use remuda_core::id::Tenant;
use remuda_core::plane::PlaneEvent;
use remuda_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::queue::query;

/// A large workflow has less than half of this.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Limits per tenant. Listing reads all files.
const FILES_MAX: usize = 500;
const FILES_BYTES_MAX: usize = 32 << 20;
const PATH_BYTES_MAX: usize = 512;
const SETTINGS_BYTES_MAX: usize = 1 << 20;

fn settings_id(tenant: &Tenant) -> String {
    format!("settings/{tenant}")
}

async fn read_settings(context: &Context, tenant: &Tenant) -> Result<Map<String, Value>, StoreError> {
    let document = context.store.document(Collection::Comfyui, &settings_id(tenant)).await?;
    Ok(document.and_then(|document| serde_json::from_str(document.body.get()).ok()).unwrap_or_default())
}

pub(super) async fn settings(
    State(context): State<Context>,
    caller: Caller,
) -> Result<Json<Map<String, Value>>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    Ok(Json(read_settings(&context, &tenant).await?))
}

pub(super) async fn setting(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    Ok(Json(read_settings(&context, &tenant).await?.remove(&id).unwrap_or_default()))
}

pub(super) async fn set_all(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let new: Map<String, Value> = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("settings are a JSON object: {error}")))?;
    change_settings(&context, &tenant, new).await
}

/// The body is the JSON value itself, whatever its content type.
pub(super) async fn set_one(
    State(context): State<Context>,
    caller: Caller,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let value: Value = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("a setting is a JSON value: {error}")))?;
    change_settings(&context, &tenant, Map::from_iter([(id, value)])).await
}

async fn change_settings(
    context: &Context,
    tenant: &Tenant,
    new: Map<String, Value>,
) -> Result<StatusCode, ComfyuiError> {
    // Serialized: two concurrent changes must not undo each other.
    let _guard = context.comfyui.name_lock.lock().await;
    let mut settings = read_settings(context, tenant).await?;
    settings.extend(new);
    let body = to_raw_value(&settings).map_err(|error| ApiError::invalid(error.to_string()))?;
    if body.get().len() > SETTINGS_BYTES_MAX {
        return Err(ApiError::too_large(SETTINGS_BYTES_MAX).into());
    }
    let document = Document {
        collection: Collection::Comfyui,
        id: settings_id(tenant),
        tenant: Some(tenant.clone()),
        index_key: String::new(),
        expires_at: None,
        body: Arc::from(body),
    };
    context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
    Ok(StatusCode::OK)
}

/// A stored file.
#[derive(Debug, Serialize, Deserialize)]
struct UserFile {
    path: String,
    text: String,
    modified_millis: u64,
    created_millis: u64,
}

impl UserFile {
    fn info(&self) -> Value {
        let seconds = |millis: u64| millis as f64 / 1000.0;
        json!({
            "path": self.path, "size": self.text.len(), "modified": seconds(self.modified_millis),
            "created": seconds(self.created_millis),
        })
    }
}

fn index_key(tenant: &Tenant) -> String {
    format!("userdata/{tenant}")
}

fn id(tenant: &Tenant, path: &str) -> String {
    format!("{}/{path}", index_key(tenant))
}

/// Normalizes a path and refuses one that leaves the folder of the tenant.
fn check_path(path: &str) -> Result<String, ApiError> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let is_odd = parts.contains(&"..") || path.chars().any(char::is_control) || path.contains('\\');
    if parts.is_empty() || is_odd || path.len() > PATH_BYTES_MAX {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "the path leads outside your own folder",
        ));
    }
    Ok(parts.join("/"))
}

async fn read_file(context: &Context, tenant: &Tenant, path: &str) -> Result<Option<UserFile>, StoreError> {
    let document = context.store.document(Collection::Comfyui, &id(tenant, path)).await?;
    Ok(document.and_then(|document| serde_json::from_str(document.body.get()).ok()))
}

async fn put_file(context: &Context, tenant: &Tenant, file: &UserFile) -> Result<(), ComfyuiError> {
    let document = Document {
        collection: Collection::Comfyui,
        id: id(tenant, &file.path),
        tenant: Some(tenant.clone()),
        index_key: index_key(tenant),
        expires_at: None,
        body: Arc::from(to_raw_value(file).map_err(|error| ApiError::invalid(error.to_string()))?),
    };
    context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
    Ok(())
}

async fn delete_file(context: &Context, tenant: &Tenant, path: &str) -> Result<(), ComfyuiError> {
    context
        .plane
        .request(PlaneEvent::DeleteDocument { collection: Collection::Comfyui, id: id(tenant, path) })
        .await?;
    Ok(())
}

/// `?dir=workflows&recurse=true&full_info=true`
pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let asked = query(&uri);
    let Some(folder) = asked.get("dir").filter(|folder| !folder.is_empty()) else {
        return Err(ApiError::bad_request("Directory not provided").into());
    };
    let is = |key: &str| asked.get(key).is_some_and(|value| value == "true");
    let prefix = format!("{}/", check_path(folder)?);
    let documents = context.store.find_by_index_key(Collection::Comfyui, &index_key(&tenant)).await?;
    let files =
        documents.iter().filter_map(|document| serde_json::from_str::<UserFile>(document.body.get()).ok());
    let listed: Vec<Value> = files
        .filter_map(|mut file| {
            let path = file.path.strip_prefix(&prefix)?.to_owned();
            if path.contains('/') && !is("recurse") {
                return None;
            }
            file.path.clone_from(&path);
            Some(match (is("full_info"), is("split")) {
                (true, _) => file.info(),
                (false, true) => std::iter::once(&*path).chain(path.split('/')).collect(),
                (false, false) => path.into(),
            })
        })
        .collect();
    if listed.is_empty() {
        return Err(ApiError::not_found("Directory not found").into());
    }
    Ok(Json(listed).into_response())
}

pub(super) async fn get(
    State(context): State<Context>,
    caller: Caller,
    Path(path): Path<String>,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let path = check_path(&path)?;
    let Some(file) = read_file(&context, &tenant, &path).await? else {
        return Err(ApiError::not_found("there is no such file").into());
    };
    // Plain text, never rendered as a page.
    let kind = if path.ends_with(".json") { "application/json" } else { "text/plain; charset=utf-8" };
    let kind = if path.ends_with(".css") { "text/css; charset=utf-8" } else { kind };
    Ok(([(header::CONTENT_TYPE, kind), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], file.text)
        .into_response())
}

pub(super) async fn put(
    State(context): State<Context>,
    caller: Caller,
    Path(path): Path<String>,
    uri: Uri,
    body: Bytes,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let path = check_path(&path)?;
    let asked = query(&uri);
    if body.len() > FILE_BYTES_MAX {
        return Err(ApiError::too_large(FILE_BYTES_MAX).into());
    }
    let text = String::from_utf8(body.into())
        .map_err(|_| ApiError::bad_request("only text is file here; files for nodes go to /upload/image"))?;
    let _guard = context.comfyui.name_lock.lock().await;
    let known = read_file(&context, &tenant, &path).await?;
    if known.is_some() && asked.get("overwrite").is_some_and(|value| value == "false") {
        return Err(ApiError::new(StatusCode::CONFLICT, "refused", "File already exists").into());
    }
    let now = context.plane.clock.now().as_millis();
    let created_millis = known.map_or(now, |known| known.created_millis);
    let file = UserFile { path, text, modified_millis: now, created_millis };
    check_quota(&context, &tenant, &file).await?;
    put_file(&context, &tenant, &file).await?;
    Ok(response(&asked, &file))
}

/// Refuses a file that exceeds the tenant's limits.
async fn check_quota(context: &Context, tenant: &Tenant, file: &UserFile) -> Result<(), ComfyuiError> {
    let id = id(tenant, &file.path);
    let own = to_raw_value(file).map_err(|error| ApiError::invalid(error.to_string()))?;
    let others = context.store.find_by_index_key(Collection::Comfyui, &index_key(tenant)).await?;
    let others = others.iter().filter(|other| other.id != id);
    let (count, bytes) = others
        .fold((1, own.get().len()), |(count, bytes), other| (count + 1, bytes + other.body.get().len()));
    if count > FILES_MAX || bytes > FILES_BYTES_MAX {
        let message =
            format!("at most {FILES_MAX} files of {FILES_BYTES_MAX} bytes in all are file: delete some");
        return Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message).into());
    }
    Ok(())
}

fn response(asked: &std::collections::BTreeMap<String, String>, file: &UserFile) -> Response {
    match asked.get("full_info").map(String::as_str) {
        Some("true") => Json(file.info()).into_response(),
        _ => Json(json!(file.path)).into_response(),
    }
}

pub(super) async fn delete(
    State(context): State<Context>,
    caller: Caller,
    Path(path): Path<String>,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let path = check_path(&path)?;
    if read_file(&context, &tenant, &path).await?.is_none() {
        return Err(ApiError::not_found("there is no such file").into());
    }
    delete_file(&context, &tenant, &path).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rename(
    State(context): State<Context>,
    caller: Caller,
    Path((from, to)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let (from, to) = (check_path(&from)?, check_path(&to)?);
    let asked = query(&uri);
    let _guard = context.comfyui.name_lock.lock().await;
    let Some(mut file) = read_file(&context, &tenant, &from).await? else {
        return Err(ApiError::not_found("there is no such file").into());
    };
    let is_taken = read_file(&context, &tenant, &to).await?.is_some();
    if is_taken && asked.get("overwrite").is_some_and(|value| value == "false") {
        return Err(ApiError::new(StatusCode::CONFLICT, "refused", "File already exists").into());
    }
    file.path = to;
    put_file(&context, &tenant, &file).await?;
    if file.path != from {
        delete_file(&context, &tenant, &from).await?;
    }
    Ok(response(&asked, &file))
}
