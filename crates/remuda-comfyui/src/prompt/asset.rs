//! Files that a workflow refers to by what is in them: `{"__type": "core/ASSET", "info": {"hash": "blake3:…", "file_path"}}`,
//! where a file name would stand. They are brought to the server first, and their names then take their place.

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde_json::Value;
use serde_json::value::RawValue;

use super::graph::Graph;
use remuda_net::text::one_line;

const TYPE: &str = "core/ASSET";
const HASH_PREFIX: &str = "blake3:";

/// Half of the hash: enough that no two files ever share a name, and people can still read it.
const HASH_DIGITS_IN_NAME: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asset {
    /// `blake3:` and 64 lower-case digits.
    pub hash: String,
    /// What its owner called it.
    pub file_path: Option<String>,
}

impl Asset {
    /// The name to upload it under: it tells the content, so that same name means same bytes; and it keeps the ending, by
    /// which loaders choose how to read. No folder: loaders that offer a choice list only the input folder itself.
    pub fn name(&self) -> String {
        let digits = self.hash.trim_start_matches(HASH_PREFIX);
        let ending =
            self.file_path.as_deref().and_then(|path| path.rsplit_once('.')).map(|(_, ending)| ending);
        let ending =
            ending.filter(|it| (1..=8).contains(&it.len()) && it.bytes().all(|b| b.is_ascii_alphanumeric()));
        let digits = &digits[..digits.len().min(HASH_DIGITS_IN_NAME)];
        match ending {
            Some(ending) => format!("remuda-{digits}.{}", ending.to_ascii_lowercase()),
            None => format!("remuda-{digits}"),
        }
    }

    /// An asset, if the value is meant as one.
    fn read(value: &Value) -> Option<Result<Self, ServiceFailure>> {
        if value.get("__type")?.as_str()? != TYPE {
            return None;
        }
        let info = &value["info"];
        let hash = info["hash"].as_str().and_then(normal);
        let file_path = info["file_path"].as_str().map(ToOwned::to_owned);
        let wrong = || {
            ServiceFailure::new(ServiceFault::Graph, "an asset without a hash of the form blake3:<64 digits>")
        };
        Some(hash.map(|hash| Asset { hash, file_path }).ok_or_else(wrong))
    }
}

fn normal(hash: &str) -> Option<String> {
    let hash = hash.to_ascii_lowercase();
    let digits = hash.strip_prefix(HASH_PREFIX)?;
    (digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// What must be placed on the server before the workflow can run, each file once.
pub fn assets(workflow: &RawValue) -> Result<Vec<Asset>, ServiceFailure> {
    let graph = Graph::read(workflow)?;
    let mut found = BTreeMap::new();
    for value in graph.nodes.values().flat_map(|node| node.inputs.values()) {
        // Nearly no value has one, and reading a text for a word is quicker than building a tree.
        if value.get().contains("__type")
            && let Ok(tree) = serde_json::from_str(value.get())
        {
            find(&tree, &mut found)?;
        }
    }
    Ok(found.into_values().collect())
}

fn find(value: &Value, found: &mut BTreeMap<String, Asset>) -> Result<(), ServiceFailure> {
    if let Some(asset) = Asset::read(value) {
        let asset = asset?;
        found.entry(asset.hash.clone()).or_insert(asset);
        return Ok(());
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| find(item, found)),
        Value::Object(members) => members.values().try_for_each(|member| find(member, found)),
        _ => Ok(()),
    }
}

/// Puts names in place of assets, however deep they stand. Says whether there were any.
pub(super) fn place(value: &mut Value, placed: &BTreeMap<String, String>) -> Result<bool, ServiceFailure> {
    if let Some(asset) = Asset::read(value) {
        let asset = asset?;
        let name = placed.get(&asset.hash).ok_or_else(|| missing(&asset))?;
        *value = Value::String(name.clone());
        return Ok(true);
    }
    let mut any = false;
    match value {
        Value::Array(items) => {
            for item in items {
                any |= place(item, placed)?;
            }
        }
        Value::Object(members) => {
            for member in members.values_mut() {
                any |= place(member, placed)?;
            }
        }
        _ => {}
    }
    Ok(any)
}

fn missing(asset: &Asset) -> ServiceFailure {
    let name =
        asset.file_path.as_deref().map(|path| format!(" ({})", one_line(path, 80))).unwrap_or_default();
    ServiceFailure::new(
        ServiceFault::Missing,
        format!("the asset {}{name} was not brought to this server", asset.hash),
    )
}
