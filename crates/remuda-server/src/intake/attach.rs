//! Replaces file names in inputs of a graph by references to attached content. All other text of the workflow stays unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use remuda_store::blobs::BlobHash;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

type Members = BTreeMap<String, Box<RawValue>>;

/// The workflow with references in place of names.
pub(super) fn attach(
    workflow: &RawValue,
    attachments: &BTreeMap<String, BlobHash>,
) -> Result<Arc<RawValue>, String> {
    let mut body = members(workflow).ok_or("attachments need a graph that names them")?;
    let mut used = BTreeSet::new();
    // As in `examine`: a wrapped graph stands under `prompt`.
    let wrapped = body.get("prompt").and_then(|inner| members(inner));
    match wrapped.filter(|inner| !inner.contains_key("class_type")) {
        Some(mut graph) => {
            refer(&mut graph, attachments, &mut used)?;
            body.insert("prompt".to_owned(), raw(&graph)?);
        }
        None => refer(&mut body, attachments, &mut used)?,
    }
    if let Some(name) = attachments.keys().find(|name| !used.contains(*name)) {
        return Err(format!(
            "attachment {name:?}: no input of the graph is that name; put it where the file is meant, such as \
             \"image\": {name:?}"
        ));
    }
    Ok(Arc::from(raw(&body)?))
}

fn refer(
    graph: &mut Members,
    attachments: &BTreeMap<String, BlobHash>,
    used: &mut BTreeSet<String>,
) -> Result<(), String> {
    for node in graph.values_mut() {
        let Some(mut fields) = members(node) else { continue };
        let Some(mut inputs) = fields.get("inputs").and_then(|inputs| members(inputs)) else { continue };
        let mut is_changed = false;
        for value in inputs.values_mut() {
            let Ok(name) = serde_json::from_str::<String>(value.get()) else { continue };
            let Some(hash) = attachments.get(&name) else { continue };
            let info = json!({ "hash": hash.to_string(), "file_path": name });
            *value = raw(&json!({ "__type": "core/ASSET", "info": info }))?;
            used.insert(name);
            is_changed = true;
        }
        if is_changed {
            fields.insert("inputs".to_owned(), raw(&inputs)?);
            *node = raw(&fields)?;
        }
    }
    Ok(())
}

fn members(value: &RawValue) -> Option<Members> {
    serde_json::from_str(value.get()).ok()
}

fn raw(value: &impl serde::Serialize) -> Result<Box<RawValue>, String> {
    to_raw_value(value).map_err(|error| format!("the workflow cannot be serialized: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_becomes_a_reference_and_other_text_is_unchanged() {
        let hash = BlobHash::from_content(b"picture");
        let given: BTreeMap<_, _> = [("photo.png".to_owned(), hash)].into();
        let graph = r#"{"1":{"class_type":"LoadImage","inputs":{"image":"photo.png","n":12345678901234567890123}},"2":{"class_type":"Note"}}"#;
        let reference = format!(
            r#"{{"1":{{"class_type":"LoadImage","inputs":{{"image":{{"__type":"core/ASSET","info":{{"file_path":"photo.png","hash":"{hash}"}}}},"n":12345678901234567890123}}}},"2":{{"class_type":"Note"}}}}"#
        );
        let attached = |workflow: &str| {
            let workflow = RawValue::from_string(workflow.to_owned()).unwrap();
            attach(&workflow, &given).map(|it| it.get().to_owned())
        };
        assert_eq!(attached(graph).unwrap(), reference);
        let wrapped = format!(r#"{{"extra_data":{{}},"prompt":{graph}}}"#);
        assert_eq!(attached(&wrapped).unwrap(), format!(r#"{{"extra_data":{{}},"prompt":{reference}}}"#));
        let problem =
            attached(r#"{"1":{"class_type":"LoadImage","inputs":{"image":"other.png"}}}"#).unwrap_err();
        assert!(problem.contains("\"photo.png\": no input"), "{problem}");
    }
}
