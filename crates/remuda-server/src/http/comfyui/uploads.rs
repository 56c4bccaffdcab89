//! Files that clients send by name: `/upload/image` and its kin. The content becomes a blob; the name, a document of the
//! tenant. A graph that names such a file gets it by its hash, and whichever server runs it is brought the content.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::multipart::{Field, MultipartRejection};
use axum::extract::{Multipart, State};
use axum::http::StatusCode;
use remuda_core::document::{Document, Shelf};
use remuda_core::id::Tenant;
use remuda_core::plane::Event;
use remuda_store::StoreError;
use remuda_store::blobs::{BlobHash, Stored};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::super::blobs::{self, Pace};
use super::super::{ApiError, Caller, Context};
use super::error::Refused;
use super::node_classes::is_upload;
use super::submit::Graph;
use super::view;

/// Longer names no file system has, and deeper folders nobody makes.
const NAME_BYTES_MAX: usize = 255;
const FOLDER_BYTES_MAX: usize = 512;
/// Fields beside the file are short words, and there are four of them.
const FIELD_BYTES_MAX: usize = 16 << 10;
const PARTS_MAX: usize = 20;
/// Files of one name with other content; nobody has so many.
const RENAMES_MAX: u32 = 10_000;
/// Names of one kind that a tenant has; every list of choices has all of them.
const NAMES_MAX: usize = 10_000;
const KINDS: [&str; 3] = ["input", "temp", "output"];

/// One at a time gets its name: two files of one name must not become one.
pub(super) type Naming = Mutex<()>;

/// What a name stands for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Upload {
    pub(super) folder: String,
    pub(super) name: String,
    pub(super) hash: String,
    pub(super) size_bytes: u64,
}

fn mark(tenant: &Tenant, kind: &str) -> String {
    format!("file/{tenant}/{kind}")
}

fn id(tenant: &Tenant, kind: &str, folder: &str, name: &str) -> String {
    format!("{}/{folder}/{name}", mark(tenant, kind))
}

pub(super) async fn find(
    context: &Context,
    tenant: &Tenant,
    kind: &str,
    folder: &str,
    name: &str,
) -> Result<Option<Upload>, StoreError> {
    let kept = context.store.document(Shelf::Comfyui, &id(tenant, kind, folder, name)).await?;
    Ok(kept.and_then(|kept| serde_json::from_str(kept.body.get()).ok()))
}

/// Names of all files a tenant sent, with their folders.
pub(super) async fn names(context: &Context, tenant: &Tenant) -> Result<Vec<String>, StoreError> {
    let kept = context.store.marked(Shelf::Comfyui, &mark(tenant, "input")).await?;
    let read = kept.iter().filter_map(|kept| serde_json::from_str::<Upload>(kept.body.get()).ok());
    Ok(read.map(|it| path(&it.folder, &it.name)).collect())
}

fn path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// A form as it came: the file is stored already, whatever the other fields say.
#[derive(Debug, Default)]
pub(super) struct Form {
    file: Option<(String, Stored)>,
    fields: BTreeMap<String, String>,
}

impl Form {
    /// A form with a file in it, where that is to lie, and what was stored of it.
    pub(super) async fn of_a_file(
        context: &Context,
        parts: Result<Multipart, MultipartRejection>,
    ) -> Result<(Form, Place, Stored), Refused> {
        let parts = parts.map_err(|rejection| ApiError::bad_request(rejection.body_text()))?;
        let form = Form::read(context, parts).await?;
        let Some((name, stored)) = &form.file else {
            return Err(ApiError::bad_request("the form has no file named image").into());
        };
        let (place, stored) = (Place::read(&form, name)?, *stored);
        Ok((form, place, stored))
    }

    /// Whether it takes the place of what has its name.
    pub(super) fn overwrites(&self) -> bool {
        matches!(self.field("overwrite"), "true" | "1")
    }

    async fn read(context: &Context, mut parts: Multipart) -> Result<Form, ApiError> {
        let (mut form, mut pace) = (Form::default(), Pace::new(context));
        for _ in 0..PARTS_MAX {
            match pace.wait(parts.next_field()).await?.map_err(|error| broken(&error))? {
                Some(part) => form.take(context, &mut pace, part).await?,
                None => return Ok(form),
            }
        }
        Err(ApiError::bad_request(format!("the form has more than {PARTS_MAX} parts")))
    }

    async fn take(&mut self, context: &Context, pace: &mut Pace, part: Field<'_>) -> Result<(), ApiError> {
        let name = part.name().unwrap_or_default().to_owned();
        match part.file_name().map(str::to_owned) {
            Some(_) if name == "image" && self.file.is_some() => {
                return Err(ApiError::bad_request("the form has the file image twice: send one at a time"));
            }
            Some(file_name) if name == "image" => {
                self.file = Some((file_name, store(context, pace, part).await?));
            }
            _ => {
                let text = text(pace, part).await?;
                self.fields.insert(name, text);
            }
        }
        Ok(())
    }

    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

fn broken(error: &axum::extract::multipart::MultipartError) -> ApiError {
    ApiError::new(error.status(), "bad_request", format!("the form cannot be read: {error}"))
}

async fn text(pace: &mut Pace, mut part: Field<'_>) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(|error| broken(&error))? {
        if bytes.len() + piece.len() > FIELD_BYTES_MAX {
            return Err(ApiError::bad_request("a field of the form is too long"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn store(context: &Context, pace: &mut Pace, mut part: Field<'_>) -> Result<Stored, ApiError> {
    let _place = blobs::place(context)?;
    let mut upload = context.blobs.begin().await?;
    while let Some(piece) = pace.wait(part.chunk()).await?.map_err(|error| broken(&error))? {
        pace.seen(piece.len());
        upload = upload.write(&piece).await?;
    }
    Ok(upload.finish(None, context.plane.clock.now()).await?)
}

pub(super) async fn image(
    State(context): State<Context>,
    caller: Caller,
    parts: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, Refused> {
    let tenant = caller.tenant(None)?;
    let (form, place, stored) = Form::of_a_file(&context, parts).await?;
    Ok(Json(place.keep(&context, &tenant, &stored, form.overwrites()).await?))
}

/// Where a file is to lie.
#[derive(Debug)]
pub(super) struct Place {
    kind: &'static str,
    folder: String,
    name: String,
}

impl Place {
    pub(super) fn read(form: &Form, name: &str) -> Result<Place, ApiError> {
        let is_odd = |text: &str| text.chars().any(char::is_control) || text.contains('\\');
        let kind = Some(form.field("type")).filter(|kind| !kind.is_empty()).unwrap_or("input");
        let Some(kind) = KINDS.into_iter().find(|known| *known == kind) else {
            return Err(ApiError::bad_request("type is input, temp or output"));
        };
        if name.is_empty() || name.contains('/') || matches!(name, "." | "..") || is_odd(name) {
            return Err(ApiError::bad_request("the file needs a plain name, without folders"));
        }
        let folder = form.field("subfolder");
        let parts: Vec<&str> = folder.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if folder.starts_with('/') || parts.contains(&"..") || is_odd(folder) {
            return Err(ApiError::bad_request("subfolder is a path below the folder of files, without .."));
        }
        let folder = parts.join("/");
        if name.len() > NAME_BYTES_MAX || folder.len() > FOLDER_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "a name has at most {NAME_BYTES_MAX} bytes, a subfolder {FOLDER_BYTES_MAX}"
            )));
        }
        Ok(Place { kind, folder, name: name.to_owned() })
    }

    /// Under its name, or under the next that is free: `name (1).png`. The same content keeps its name. The answer is as
    /// ComfyUI gives it.
    pub(super) async fn keep(
        &self,
        context: &Context,
        tenant: &Tenant,
        stored: &Stored,
        is_overwritten: bool,
    ) -> Result<Value, Refused> {
        let hash = stored.hash.to_string();
        let _one_at_a_time = context.comfyui.naming.lock().await;
        for number in 0..RENAMES_MAX {
            let name = numbered(&self.name, number);
            let known = find(context, tenant, self.kind, &self.folder, &name).await?;
            match known {
                Some(known) if known.hash == hash => return Ok(self.told(&known)),
                Some(_) if !is_overwritten => continue,
                Some(_) => {}
                None => room(context.store.marked(Shelf::Comfyui, &mark(tenant, self.kind)).await?.len())?,
            }
            let upload = Upload { folder: self.folder.clone(), name, hash, size_bytes: stored.size_bytes };
            let document = Document {
                shelf: Shelf::Comfyui,
                id: id(tenant, self.kind, &upload.folder, &upload.name),
                tenant: Some(tenant.clone()),
                mark: mark(tenant, self.kind),
                expires_at: None,
                body: Arc::from(to_raw_value(&upload).map_err(|error| ApiError::invalid(error.to_string()))?),
            };
            context.plane.request(Event::Keep(Arc::new(document))).await?;
            return Ok(self.told(&upload));
        }
        let message = format!("there are {RENAMES_MAX} other files named {}", self.name);
        Err(ApiError::new(StatusCode::CONFLICT, "refused", message).into())
    }
}

impl Place {
    fn told(&self, upload: &Upload) -> Value {
        json!({ "name": upload.name, "subfolder": upload.folder, "type": self.kind })
    }
}

/// Whether there is room for one more name.
fn room(count: usize) -> Result<(), ApiError> {
    if count < NAMES_MAX {
        return Ok(());
    }
    let message = format!("{NAMES_MAX} files have names already: send it under one of them, with overwrite");
    Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message))
}

fn numbered(name: &str, number: u32) -> String {
    match (number, name.rsplit_once('.')) {
        (0, _) => name.to_owned(),
        (_, Some((stem, ending))) if !stem.is_empty() => format!("{stem} ({number}).{ending}"),
        (_, _) => format!("{name} ({number})"),
    }
}

/// Puts the hash of what was sent in place of its name, wherever a node asks for a file. What was not sent here may lie on
/// the servers themselves, and keeps its name.
pub(super) async fn place(
    context: &Context,
    tenant: &Tenant,
    graph: &mut Graph,
    classes: &Map<String, Value>,
) -> Result<(), Refused> {
    for node in graph.nodes.values_mut() {
        for (input, value) in &mut node.inputs {
            if !value.get().starts_with('"') || !takes_file(classes, &node.class, input) {
                continue;
            }
            let Ok(named) = serde_json::from_str::<String>(value.get()) else { continue };
            if let Some(asset) = asset(context, tenant, &named).await? {
                *value = to_raw_value(&asset).map_err(|error| ApiError::invalid(error.to_string()))?;
            }
        }
    }
    Ok(())
}

/// Whether an input names a file: it says that files can be sent for it, or its class loads something.
fn takes_file(classes: &Map<String, Value>, class: &str, input: &str) -> bool {
    let sections = classes.get(class).and_then(|info| info["input"].as_object());
    let spec = sections.and_then(|sections| sections.values().find_map(|inputs| inputs.get(input)));
    spec.is_some_and(is_upload)
        || (class.starts_with("Load") && ["image", "mask", "audio", "video", "file"].contains(&input))
}

async fn asset(context: &Context, tenant: &Tenant, named: &str) -> Result<Option<Value>, Refused> {
    let (path, kind) = annotated(named);
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let hash = match find(context, tenant, kind, folder, name).await? {
        Some(upload) => Some(upload.hash),
        None if kind == "input" => None,
        None => view::output(context, tenant, folder, name, kind).await?,
    };
    let Some(hash) = hash.filter(|hash| hash.parse::<BlobHash>().is_ok()) else { return Ok(None) };
    let info = json!({ "hash": hash, "file_path": path, "name": named });
    Ok(Some(json!({ "__type": "core/ASSET", "info": info })))
}

/// `name [output]` is of another kind than `name`.
fn annotated(named: &str) -> (&str, &'static str) {
    for kind in KINDS {
        if let Some(path) = named.strip_suffix(&format!("[{kind}]")) {
            return (path.trim_end(), kind);
        }
    }
    (named, "input")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_taken_are_counted_up_as_comfyui_does() {
        for (name, number, expected) in [
            ("a.png", 0, "a.png"),
            ("a.png", 1, "a (1).png"),
            ("a.b.png", 2, "a.b (2).png"),
            ("a", 1, "a (1)"),
            (".png", 1, ".png (1)"),
        ] {
            assert_eq!(numbered(name, number), expected);
        }
    }

    #[test]
    fn names_are_bounded() {
        assert!(room(NAMES_MAX - 1).is_ok());
        assert_eq!(room(NAMES_MAX).unwrap_err().status, StatusCode::INSUFFICIENT_STORAGE);
    }

    #[test]
    fn a_name_may_say_of_which_kind_it_is() {
        assert_eq!(annotated("a.png"), ("a.png", "input"));
        assert_eq!(annotated("sub/a.png [input]"), ("sub/a.png", "input"));
        assert_eq!(annotated("a.png [output]"), ("a.png", "output"));
        assert_eq!(annotated("a.png[temp]"), ("a.png", "temp"));
    }

    #[test]
    fn only_inputs_that_ask_for_files_are_looked_up() {
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
    fn a_place_is_below_the_folder_of_files() {
        let place = |name: &str, folder: &str, kind: &str| {
            let fields = [("subfolder", folder), ("type", kind)];
            let fields = fields.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            Place::read(&Form { file: None, fields }, name).map(|place| (place.folder, place.name))
        };
        let ok = |folder: &str, name: &str| (folder.to_owned(), name.to_owned());
        assert_eq!(place("a.png", "", "").unwrap(), ok("", "a.png"));
        assert_eq!(place("höhe.png", "x//y/", "temp").unwrap(), ok("x/y", "höhe.png"));
        for (name, folder, kind) in [
            ("", "", ""),
            ("..", "", ""),
            ("x/a.png", "", ""),
            ("a\n.png", "", ""),
            ("a.png", "../x", ""),
            ("a.png", "/etc", ""),
            ("a.png", "x\\..", ""),
            ("a.png", "", "models"),
        ] {
            assert!(place(name, folder, kind).is_err(), "{name:?} in {folder:?} as {kind}");
        }
    }
}
