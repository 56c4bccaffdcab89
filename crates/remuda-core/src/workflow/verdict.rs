//! What ComfyUI would answer to a graph: which outputs run, and the errors of the others in ComfyUI's own format.

use std::fmt;

use serde_json::{Map, Value, json};

use super::graph::Node;
use super::invalid::shown;

/// Limits on reported nodes and on dependent outputs per node; all of a graph of thousands would make an unbounded answer.
pub(super) const REPORTED_NODES_MAX: usize = 100;
pub(super) const DEPENDENT_MAX: usize = 100;

/// What of a graph runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphVerdict {
    /// Valid outputs, in the order of the text.
    pub outputs: Vec<String>,
    /// `{node: {"errors", "dependent_outputs", "class_type"}}` of outputs that are left out.
    pub node_errors: Map<String, Value>,
}

/// Why nothing of a graph can run, as ComfyUI says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRefusal {
    /// `{"type", "message", "details", "extra_info"}`
    pub error: Value,
    pub node_errors: Map<String, Value>,
}

/// A model file that a node names and no worker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingModel<'a> {
    pub node: &'a str,
    pub class: &'a str,
    pub input: &'a str,
    pub file: String,
}

impl PromptRefusal {
    pub fn new(kind: &str, message: &str, details: &str, extra_info: Value) -> PromptRefusal {
        let mut error = json!({ "type": kind, "message": message, "details": details });
        error["extra_info"] = extra_info;
        PromptRefusal { error, node_errors: Map::new() }
    }

    pub fn no_outputs() -> PromptRefusal {
        PromptRefusal::new("prompt_no_outputs", "Prompt has no outputs", "", json!({}))
    }

    pub fn no_class(node: &str, title: Option<&str>) -> PromptRefusal {
        let named = title.map_or_else(|| format!("ID #{node}"), str::to_owned);
        let message = format!(
            "Node '{named}' has no class_type. The workflow may be corrupted or a custom node is missing."
        );
        let extra = json!({ "node_id": node, "class_type": null, "node_title": title });
        PromptRefusal::new("missing_node_type", &message, &format!("Node ID '#{node}'"), extra)
    }

    /// No worker lists this class.
    pub fn missing_class(node: &str, class: &str) -> PromptRefusal {
        PromptRefusal::titled_class(node, class, class)
    }

    pub(super) fn unknown_class(node: &Node<'_>) -> PromptRefusal {
        PromptRefusal::titled_class(node.id, node.class, node.title.unwrap_or(node.class))
    }

    fn titled_class(node: &str, class: &str, title: &str) -> PromptRefusal {
        let message = format!("Node '{title}' not found. The custom node may not be installed.");
        let extra = json!({ "node_id": node, "class_type": class, "node_title": title });
        PromptRefusal::new("missing_node_type", &message, &format!("Node ID '#{node}'"), extra)
    }

    /// No worker lists these files. What a server would list instead is not known; `why` says it in our words.
    pub fn missing_models(missing: &[MissingModel<'_>], why: &str) -> PromptRefusal {
        let mut node_errors = Map::new();
        for MissingModel { node, class, input, file } in missing.iter().take(REPORTED_NODES_MAX) {
            let error = json!({
                "type": "value_not_in_list", "message": "Value not in list", "details": format!("{input}: {why}"),
                "extra_info": { "input_name": input, "input_config": null, "received_value": file },
            });
            let entry = node_errors
                .entry(*node)
                .or_insert_with(|| json!({ "errors": [], "dependent_outputs": [], "class_type": class }));
            if let Some(errors) = entry["errors"].as_array_mut() {
                errors.push(error);
            }
        }
        PromptRefusal::failed(&[why.to_owned()], node_errors)
    }

    pub(super) fn failed(details: &[String], node_errors: Map<String, Value>) -> PromptRefusal {
        let message = "Prompt outputs failed validation";
        let details = details.join("\n");
        let refusal = PromptRefusal::new("prompt_outputs_failed_validation", message, &details, json!({}));
        PromptRefusal { node_errors, ..refusal }
    }
}

/// For people: the first error with its node, and how many more there are.
impl fmt::Display for PromptRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let errors: Vec<String> = describe(&self.node_errors).collect();
        match errors.split_first() {
            Some((first, [])) => f.write_str(first),
            Some((first, rest)) => write!(f, "{first} (and {} more)", rest.len()),
            None => match (text(&self.error["message"]), text(&self.error["details"])) {
                (message, details) if details.is_empty() => f.write_str(&message),
                (message, details) => write!(f, "{message} ({details})"),
            },
        }
    }
}

/// One line for each error: `node "1" (KSampler): Value 0 smaller than min of 1: steps`.
pub fn describe(node_errors: &Map<String, Value>) -> impl Iterator<Item = String> {
    node_errors.iter().flat_map(|(id, node)| {
        let class = node["class_type"].as_str().unwrap_or_default();
        let errors = node["errors"].as_array().into_iter().flatten();
        errors.map(move |error| format!("node \"{}\" ({class}): {}", shown(id), describe_error(error)))
    })
}

/// Python's exceptions say little to people.
fn describe_error(error: &Value) -> String {
    let text = |key: &str| error[key].as_str().unwrap_or_default();
    let key = shown(text("details").trim_matches('\''));
    match error["extra_info"]["exception_type"].as_str() {
        Some("KeyError") if key == "inputs" => "it has no inputs".to_owned(),
        Some("KeyError") => format!("an input links to node \"{key}\", which is not there"),
        Some("IndexError") => "an input links to an output that is not there".to_owned(),
        _ => format!("{}: {}", shown(text("message")), shown(text("details"))),
    }
}
