use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::multipart::{Field, MultipartRejection};
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use remuda_core::document::{Collection, Document};
use remuda_core::id::Tenant;
use remuda_core::plane::PlaneEvent;
use remuda_core::time::Timestamp;
use remuda_core::workflow::InputGraph;
use remuda_store::StoreError;
use remuda_store::blobs::{BlobHash, StoredBlob};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::super::blobs::{self, Pace};
use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::node_classes::is_upload;
use super::view;

/// File systems have no longer names.
const NAME_BYTES_MAX: usize = 255;
const FOLDER_BYTES_MAX: usize = 512;
/// The other form fields are four short words.
const FIELD_BYTES_MAX: usize = 16 << 10;
const PARTS_MAX: usize = 20;
/// Files with the same name and different content.
const RENAMES_MAX: u32 = 10_000;
/// File names of one kind per tenant; every list of choices contains all of them.
const NAMES_MAX: usize = 10_000;
pub(super) const KINDS: [&str; 3] = ["input", "temp", "output"];

/// Serializes naming: two files with one name must not become one.
pub(super) type NameLock = Mutex<()>;

/// The file behind a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UploadedFile {
    pub(super) folder: String,
    pub(super) name: String,
    pub(super) hash: String,
    pub(super) size_bytes: u64,
}

fn index_key(tenant: &Tenant, kind: &str) -> String {
    format!("file/{tenant}/{kind}")
}

fn id(tenant: &Tenant, kind: &str, folder: &str, name: &str) -> String {
    format!("{}/{folder}/{name}", index_key(tenant, kind))
}

pub(super) async fn find(
    context: &Context,
    tenant: &Tenant,
    kind: &str,
    folder: &str,
    name: &str,
) -> Result<Option<UploadedFile>, StoreError> {
    let Some(folder) = resolve_folder(folder) else { return Ok(None) };
    let kept = context.store.document(Collection::Comfyui, &id(tenant, kind, &folder, name)).await?;
    Ok(kept.and_then(|kept| serde_json::from_str(kept.body.get()).ok()))
}

/// The folder that a path leads to, as a server resolves it; `None` if it leads out of the folder of files.
fn resolve_folder(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!path.starts_with('/')).then(|| parts.join("/"))
}

/// Paths of all input files of a tenant.
pub(super) async fn names(context: &Context, tenant: &Tenant) -> Result<Vec<String>, StoreError> {
    let kept = context.store.find_by_index_key(Collection::Comfyui, &index_key(tenant, "input")).await?;
    let read = kept.iter().filter_map(|kept| serde_json::from_str::<UploadedFile>(kept.body.get()).ok());
    Ok(read.map(|it| path(&it.folder, &it.name)).collect())
}

/// Names of all files of a kind that are in no folder. Uploads have no time: those with a number come in its order.
pub(super) async fn top_names(
    context: &Context,
    tenant: &Tenant,
    kind: &str,
) -> Result<Vec<String>, StoreError> {
    let kept = context.store.find_by_index_key(Collection::Comfyui, &index_key(tenant, kind)).await?;
    let read = kept.iter().filter_map(|kept| serde_json::from_str::<UploadedFile>(kept.body.get()).ok());
    Ok(read.filter(|it| it.folder.is_empty()).map(|it| it.name).collect())
}

fn path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// A received form. Its file is already stored, whatever the other fields contain.
#[derive(Debug, Default)]
pub(super) struct UploadForm {
    file: Option<(String, StoredBlob)>,
    fields: BTreeMap<String, String>,
}

impl UploadForm {
    /// Reads a form that must contain a file; returns its location and the stored blob.
    pub(super) async fn read_file(
        context: &Context,
        tenant: &Tenant,
        parts: Result<Multipart, MultipartRejection>,
    ) -> Result<(UploadForm, FileLocation, StoredBlob), ComfyuiError> {
        let parts = parts.map_err(|rejection| ApiError::bad_request(rejection.body_text()))?;
        let form = UploadForm::read(context, tenant, parts).await?;
        let Some((name, stored)) = &form.file else {
            return Err(ApiError::bad_request("the form has no file named image").into());
        };
        let (location, stored) = (FileLocation::read(&form, name)?, *stored);
        Ok((form, location, stored))
    }

    /// True if an existing file with the name is to be replaced.
    pub(super) fn overwrites(&self) -> bool {
        matches!(self.field("overwrite"), "true" | "1")
    }

    async fn read(context: &Context, tenant: &Tenant, mut parts: Multipart) -> Result<UploadForm, ApiError> {
        let (mut form, mut pace) = (UploadForm::default(), Pace::new(context));
        for _ in 0..PARTS_MAX {
            match pace.wait(parts.next_field()).await?.map_err(|error| bad_form(&error))? {
                Some(part) => form.take(context, tenant, &mut pace, part).await?,
                None => return Ok(form),
            }
        }
        Err(ApiError::bad_request(format!("the form has more than {PARTS_MAX} parts")))
    }

    async fn take(
        &mut self,
        context: &Context,
        tenant: &Tenant,
        pace: &mut Pace,
        part: Field<'_>,
    ) -> Result<(), ApiError> {
        let name = part.name().unwrap_or_default().to_owned();
        match part.file_name().map(str::to_owned) {
            Some(_) if name == "image" && self.file.is_some() => {
                return Err(ApiError::bad_request("the form has the file image twice: send one at a time"));
            }
            Some(file_name) if name == "image" => {
                self.file = Some((file_name, store_file(context, tenant, pace, part).await?));
            }
            _ => {
                let text = read_text(pace, part).await?;
                self.fields.insert(name, text);
            }
        }
        Ok(())
    }

    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

fn bad_form(error: &axum::extract::multipart::MultipartError) -> ApiError {
    ApiError::new(error.status(), "bad_request", format!("the form cannot be read: {error}"))
}

async fn read_text(pace: &mut Pace, mut part: Field<'_>) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(|error| bad_form(&error))? {
        if bytes.len() + piece.len() > FIELD_BYTES_MAX {
            return Err(ApiError::bad_request("a field of the form is too long"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn store_file(
    context: &Context,
    tenant: &Tenant,
    pace: &mut Pace,
    mut part: Field<'_>,
) -> Result<StoredBlob, ApiError> {
    let _permit = blobs::upload_permit(context)?;
    let mut upload = blobs::begin_upload(context, tenant, 0).await?;
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(|error| bad_form(&error))? {
        pace.seen(piece.len());
        upload = upload.write(&piece).await?;
    }
    Ok(upload.finish(None, context.plane.clock.now()).await?)
}

pub(super) async fn upload(
    State(context): State<Context>,
    caller: Caller,
    parts: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let (form, location, stored) = UploadForm::read_file(&context, &tenant, parts).await?;
    Ok(Json(location.store(&context, &tenant, stored.hash, &stored, form.overwrites()).await?))
}

/// Kind, folder and name of an uploaded file.
#[derive(Debug)]
pub(super) struct FileLocation {
    kind: &'static str,
    folder: String,
    name: String,
}

impl FileLocation {
    pub(super) fn read(form: &UploadForm, name: &str) -> Result<FileLocation, ApiError> {
        let is_odd = |text: &str| text.chars().any(char::is_control) || text.contains('\\');
        let kind = Some(form.field("type")).filter(|kind| !kind.is_empty()).unwrap_or("input");
        let Some(kind) = KINDS.into_iter().find(|known| *known == kind) else {
            return Err(ApiError::bad_request("type is input, temp or output"));
        };
        if name.is_empty() || name.contains('/') || matches!(name, "." | "..") || is_odd(name) {
            return Err(ApiError::bad_request("the file needs a plain name, without folders"));
        }
        let folder = resolve_folder(form.field("subfolder")).filter(|folder| !is_odd(folder));
        let Some(folder) = folder else {
            return Err(ApiError::bad_request("subfolder is a path below the folder of files"));
        };
        if name.len() > NAME_BYTES_MAX || folder.len() > FOLDER_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "a name has at most {NAME_BYTES_MAX} bytes, a subfolder {FOLDER_BYTES_MAX}"
            )));
        }
        Ok(FileLocation { kind, folder, name: name.to_owned() })
    }

    /// Stores the file under its name, or under the next free one: `name (1).png`. A name under which exactly the sent content
    /// is stored is used again; a mask is sent, and stored as another file. The answer has the format of ComfyUI.
    pub(super) async fn store(
        &self,
        context: &Context,
        tenant: &Tenant,
        sent: BlobHash,
        stored: &StoredBlob,
        overwrite: bool,
    ) -> Result<Value, ComfyuiError> {
        let (sent, hash) = (sent.to_string(), stored.hash.to_string());
        let _guard = context.comfyui.name_lock.lock().await;
        for number in 0..RENAMES_MAX {
            let name = numbered_name(&self.name, number);
            let known = find(context, tenant, self.kind, &self.folder, &name).await?;
            match known {
                Some(known) if known.hash == if overwrite { &*hash } else { &*sent } => {
                    return Ok(self.response(&known));
                }
                Some(_) if !overwrite => continue,
                Some(_) => {}
                None => check_quota(
                    context
                        .store
                        .find_by_index_key(Collection::Comfyui, &index_key(tenant, self.kind))
                        .await?
                        .len(),
                )?,
            }
            let upload =
                UploadedFile { folder: self.folder.clone(), name, hash, size_bytes: stored.size_bytes };
            let document = Document {
                collection: Collection::Comfyui,
                id: id(tenant, self.kind, &upload.folder, &upload.name),
                tenant: Some(tenant.clone()),
                index_key: index_key(tenant, self.kind),
                expires_at: None,
                body: Arc::from(to_raw_value(&upload).map_err(|error| ApiError::invalid(error.to_string()))?),
            };
            context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
            return Ok(self.response(&upload));
        }
        let message = format!("there are {RENAMES_MAX} other files named {}", self.name);
        Err(ApiError::new(StatusCode::CONFLICT, "refused", message).into())
    }
}

impl FileLocation {
    fn response(&self, upload: &UploadedFile) -> Value {
        json!({ "name": upload.name, "subfolder": upload.folder, "type": self.kind })
    }
}

/// Refuses another name when the tenant has too many.
fn check_quota(count: usize) -> Result<(), ApiError> {
    if count < NAMES_MAX {
        return Ok(());
    }
    let message = format!("{NAMES_MAX} files have names already: send it under one of them, with overwrite");
    Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message))
}

fn numbered_name(name: &str, number: u32) -> String {
    match (number, name.rsplit_once('.')) {
        (0, _) => name.to_owned(),
        (_, Some((stem, ending))) if !stem.is_empty() => format!("{stem} ({number}).{ending}"),
        (_, _) => format!("{name} ({number})"),
    }
}

/// Replaces names of uploaded files by references to their content, wherever an input takes a file; returns whether there was
/// one. A name that was not uploaded here may exist on the servers themselves and stays.
pub(in super::super) async fn resolve_files(
    context: &Context,
    tenant: &Tenant,
    graph: &mut InputGraph,
    classes: &Map<String, Value>,
) -> Result<bool, ApiError> {
    let mut has_changed = false;
    for node in graph.nodes.values_mut() {
        let class = node.class().to_owned();
        for (input, value) in node.inputs_mut() {
            if !value.get().starts_with('"') || !takes_file(classes, &class, input) {
                continue;
            }
            let Ok(named) = serde_json::from_str::<String>(value.get()) else { continue };
            if let Some(asset) = find_asset(context, tenant, &named).await? {
                *value = to_raw_value(&asset).map_err(|error| ApiError::invalid(error.to_string()))?;
                has_changed = true;
            }
        }
    }
    Ok(has_changed)
}

/// True if the input accepts uploads, or its class is a known loader.
fn takes_file(classes: &Map<String, Value>, class: &str, input: &str) -> bool {
    let sections = classes.get(class).and_then(|info| info["input"].as_object());
    let spec = sections.and_then(|sections| sections.values().find_map(|inputs| inputs.get(input)));
    spec.is_some_and(is_upload)
        || (class.starts_with("Load") && ["image", "mask", "audio", "video", "file"].contains(&input))
}

async fn find_asset(context: &Context, tenant: &Tenant, named: &str) -> Result<Option<Value>, ApiError> {
    let (path, kind) = split_annotation(named).unwrap_or((named, "input"));
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let hash = match find(context, tenant, kind, folder, name).await? {
        Some(upload) => Some(upload.hash),
        None if kind == "input" => find_asset_name(context, tenant, path).await?,
        None => view::find_output(context, tenant, folder, name, kind).await?,
    };
    let Some(hash) = hash.filter(|hash| hash.parse::<BlobHash>().is_ok()) else { return Ok(None) };
    let info = json!({ "hash": hash, "file_path": path, "name": named });
    Ok(Some(json!({ "__type": "core/ASSET", "info": info })))
}

fn asset_name_id(tenant: &Tenant, path: &str) -> String {
    format!("asset/{tenant}/{path}")
}

/// The content of the newest asset of the Comfy API v2 that was uploaded under this name.
async fn find_asset_name(
    context: &Context,
    tenant: &Tenant,
    path: &str,
) -> Result<Option<String>, StoreError> {
    let document = context.store.document(Collection::Comfyui, &asset_name_id(tenant, path)).await?;
    let now = context.plane.clock.now();
    let live = document.filter(|document| document.is_live(now));
    Ok(live.and_then(|document| serde_json::from_str(document.body.get()).ok()))
}

/// The document by which a graph may name an asset by its file name; a later asset of the same name replaces it.
pub(in super::super) fn asset_name(
    tenant: &Tenant,
    path: &str,
    hash: BlobHash,
    expires_at: Option<Timestamp>,
) -> Option<Document> {
    if path.len() > NAME_BYTES_MAX + FOLDER_BYTES_MAX {
        return None;
    }
    Some(Document {
        collection: Collection::Comfyui,
        id: asset_name_id(tenant, path),
        tenant: Some(tenant.clone()),
        index_key: String::new(),
        expires_at,
        body: Arc::from(to_raw_value(&hash.to_string()).ok()?),
    })
}

/// Splits `name [output]` into the name and its kind, if it has one.
pub(super) fn split_annotation(named: &str) -> Option<(&str, &'static str)> {
    KINDS.into_iter().find_map(|kind| Some((named.strip_suffix(&format!("[{kind}]"))?.trim_end(), kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_names_are_numbered_as_in_comfyui() {
        for (name, number, expected) in [
            ("a.png", 0, "a.png"),
            ("a.png", 1, "a (1).png"),
            ("a.b.png", 2, "a.b (2).png"),
            ("a", 1, "a (1)"),
            (".png", 1, ".png (1)"),
        ] {
            assert_eq!(numbered_name(name, number), expected);
        }
    }

    #[test]
    fn number_of_names_is_bounded() {
        assert!(check_quota(NAMES_MAX - 1).is_ok());
        assert_eq!(check_quota(NAMES_MAX).unwrap_err().status, StatusCode::INSUFFICIENT_STORAGE);
    }

    #[test]
    fn name_may_carry_its_kind() {
        assert_eq!(split_annotation("a.png"), None);
        assert_eq!(split_annotation("sub/a.png [input]"), Some(("sub/a.png", "input")));
        assert_eq!(split_annotation("a.png [output]"), Some(("a.png", "output")));
        assert_eq!(split_annotation("a.png[temp]"), Some(("a.png", "temp")));
    }

    #[test]
    fn only_file_inputs_are_resolved() {
        let classes = json!({
            "LoadImage": {"input": {"required": {"image": [["a"], {"image_upload": true}]}}},
            "CLIPTextEncode": {"input": {"required": {"text": ["STRING", {"multiline": true}]}}},
            "Custom": {"input": {"optional": {"clip": ["COMBO", {"video_upload": true}]}}},
        });
        let classes = classes.as_object().unwrap();
        assert!(takes_file(classes, "LoadImage", "image") && takes_file(classes, "Custom", "clip"));
        assert!(takes_file(&Map::new(), "LoadAudio", "audio"));
        assert!(!takes_file(classes, "CLIPTextEncode", "text"));
        assert!(!takes_file(classes, "LoadImage", "other"));
    }

    #[test]
    fn location_is_below_the_upload_folder() {
        let place = |name: &str, folder: &str, kind: &str| {
            let fields = [("subfolder", folder), ("type", kind)];
            let fields = fields.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            FileLocation::read(&UploadForm { file: None, fields }, name)
                .map(|place| (place.folder, place.name))
        };
        let ok = |folder: &str, name: &str| (folder.to_owned(), name.to_owned());
        assert_eq!(place("a.png", "", "").unwrap(), ok("", "a.png"));
        assert_eq!(place("höhe.png", "x//y/", "temp").unwrap(), ok("x/y", "höhe.png"));
        assert_eq!(place("a.png", "./x/../y/.", "").unwrap(), ok("y", "a.png"), "as a server resolves it");
        for (name, folder, kind) in [
            ("", "", ""),
            ("..", "", ""),
            ("x/a.png", "", ""),
            ("a\n.png", "", ""),
            ("a.png", "../x", ""),
            ("a.png", "x/../../x", ""),
            ("a.png", "/etc", ""),
            ("a.png", "x\\..", ""),
            ("a.png", "", "models"),
        ] {
            assert!(place(name, folder, kind).is_err(), "{name:?} in {folder:?} as {kind}");
        }
    }
}
