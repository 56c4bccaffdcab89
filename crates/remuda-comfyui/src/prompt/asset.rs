//! Files that a workflow references by content: `{"__type": "core/ASSET", "info": {"hash": "blake3:…", "file_path"}}` instead
//! of a file name. They are uploaded to the server first, and their names then replace the references.

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde_json::Value;

use remuda_net::text::one_line;

const TYPE: &str = "core/ASSET";
const HASH_PREFIX: &str = "blake3:";

/// Half of the hash: enough to avoid collisions, and still readable.
const HASH_DIGITS_IN_NAME: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AssetRef {
    /// `blake3:` and 64 lower-case hexadecimal digits.
    pub hash: String,
    /// The original file name.
    pub file_path: Option<String>,
    /// What the submitted graph had in its place, if that was a name.
    pub name: Option<String>,
}

impl AssetRef {
    /// The name to upload it under. It contains the hash, so that equal names mean equal content, and the extension, by which
    /// loaders choose the format. It has no folder, because some loaders list only the input folder itself.
    pub fn upload_name(&self) -> String {
        let digits = self.hash.trim_start_matches(HASH_PREFIX);
        let extension =
            self.file_path.as_deref().and_then(|path| path.rsplit_once('.')).map(|(_, extension)| extension);
        let extension = extension
            .filter(|it| (1..=8).contains(&it.len()) && it.bytes().all(|b| b.is_ascii_alphanumeric()));
        let digits = &digits[..digits.len().min(HASH_DIGITS_IN_NAME)];
        match extension {
            Some(extension) => format!("remuda-{digits}.{}", extension.to_ascii_lowercase()),
            None => format!("remuda-{digits}"),
        }
    }

    /// Parses an asset reference; `None` for other values.
    fn read(value: &Value) -> Option<Result<Self, ServiceFailure>> {
        if value.get("__type")?.as_str()? != TYPE {
            return None;
        }
        let info = &value["info"];
        let hash = info["hash"].as_str().and_then(normalize);
        let file_path = info["file_path"].as_str().map(ToOwned::to_owned);
        let name = info["name"].as_str().map(ToOwned::to_owned);
        let wrong = || {
            ServiceFailure::new(
                ServiceFault::Graph,
                "an asset has no hash of the form blake3:<64 hex digits>",
            )
        };
        Some(hash.map(|hash| AssetRef { hash, file_path, name }).ok_or_else(wrong))
    }
}

fn normalize(hash: &str) -> Option<String> {
    let hash = hash.to_ascii_lowercase();
    let digits = hash.strip_prefix(HASH_PREFIX)?;
    (digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// Adds the asset references in a value, at any depth. Returns whether there were any.
pub(super) fn collect(value: &Value, found: &mut BTreeMap<String, AssetRef>) -> Result<bool, ServiceFailure> {
    if let Some(asset) = AssetRef::read(value) {
        let asset = asset?;
        found.entry(asset.hash.clone()).or_insert(asset);
        return Ok(true);
    }
    let mut any = false;
    match value {
        Value::Array(items) => {
            for item in items {
                any |= collect(item, found)?;
            }
        }
        Value::Object(members) => {
            for member in members.values() {
                any |= collect(member, found)?;
            }
        }
        _ => {}
    }
    Ok(any)
}

/// Replaces asset references at any depth by names.
pub(super) fn replace(value: &mut Value, placed: &BTreeMap<String, String>) -> Result<(), ServiceFailure> {
    if let Some(asset) = AssetRef::read(value) {
        let asset = asset?;
        let name = placed.get(&asset.hash).ok_or_else(|| missing(&asset))?;
        *value = Value::String(name.clone());
        return Ok(());
    }
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| replace(item, placed)),
        Value::Object(members) => members.values_mut().try_for_each(|member| replace(member, placed)),
        _ => Ok(()),
    }
}

fn missing(asset: &AssetRef) -> ServiceFailure {
    let name =
        asset.file_path.as_deref().map(|path| format!(" ({})", one_line(path, 80))).unwrap_or_default();
    ServiceFailure::new(
        ServiceFault::Missing,
        format!("asset {}{name} was not uploaded to this server", asset.hash),
    )
}
