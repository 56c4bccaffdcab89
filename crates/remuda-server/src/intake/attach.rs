//! Replaces file names in inputs of a graph by references to attached content. All other text of the workflow stays unchanged.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::workflow::{GraphCheck, InputGraph, Workflow, WorkflowLimits};
use remuda_store::blobs::BlobHash;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::IntakeError;

/// Parses a workflow in which names of attachments stand for files, and checks its graph.
pub fn parse_with_attachments(
    workflow: Box<RawValue>,
    attachments: &BTreeMap<String, BlobHash>,
    limits: &WorkflowLimits,
    check: Option<&GraphCheck<'_>>,
) -> Result<Workflow, IntakeError> {
    if attachments.is_empty() {
        return Ok(Workflow::parse_checked(workflow, limits, check)?);
    }
    let attached = attach(&workflow, attachments)
        .map_err(IntakeError::Invalid)
        .and_then(|attached| Ok(Workflow::parse_checked(attached, limits, check)?));
    if attached.is_err() {
        // What is wrong with the workflow as it was sent is the better explanation.
        Workflow::parse(workflow, limits)?;
    }
    attached
}

/// The workflow with references in place of names.
fn attach(workflow: &RawValue, attachments: &BTreeMap<String, BlobHash>) -> Result<Box<RawValue>, String> {
    let mut graph = InputGraph::read(workflow).ok_or("attachments need a graph that names them")?;
    let mut used = BTreeSet::new();
    for (_, value) in graph.nodes.values_mut().flat_map(|node| node.inputs_mut()) {
        let Ok(name) = serde_json::from_str::<String>(value.get()) else { continue };
        let Some(hash) = attachments.get(&name) else { continue };
        let info = json!({ "hash": hash.to_string(), "file_path": name });
        *value = to_raw_value(&json!({ "__type": "core/ASSET", "info": info }))
            .map_err(|error| format!("the workflow cannot be serialized: {error}"))?;
        used.insert(name);
    }
    if let Some(name) = attachments.keys().find(|name| !used.contains(*name)) {
        return Err(format!(
            "attachment {name:?}: no input of the graph is that name; put it where the file is meant, such as \
             \"image\": {name:?}"
        ));
    }
    Ok(graph.write())
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
