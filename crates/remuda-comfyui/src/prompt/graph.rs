//! The nodes of a workflow with only the fields that ComfyUI needs. Inputs stay raw text and are passed on unchanged, so that
//! a seed of twenty digits keeps all of them.

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_core::workflow::{GraphNode, InputGraph, RawMembers};
use serde::Serialize;
use serde_json::value::RawValue;

use remuda_net::text::one_line;

#[derive(Debug)]
pub(super) struct SentGraph {
    pub(super) nodes: BTreeMap<String, SentNode>,
    /// The unchecked `extra_data` of the workflow.
    pub(super) extra: RawMembers,
    /// Output nodes to run; `None` means all.
    pub(super) targets: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(super) struct SentNode {
    #[serde(rename = "class_type")]
    pub(super) class: String,
    pub(super) inputs: RawMembers,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub(super) meta: Option<Box<RawValue>>,
}

impl SentGraph {
    pub(super) fn read(workflow: &RawValue) -> Result<Self, ServiceFailure> {
        let graph = InputGraph::read(workflow).ok_or_else(|| invalid("it is not a JSON object"))?;
        if graph.nodes.get("nodes").is_some_and(GraphNode::is_list) {
            return Err(invalid(
                "it is in the format of the web interface; export it there with \"Export (API)\"",
            ));
        }
        if graph.nodes.is_empty() {
            return Err(invalid("it has no nodes"));
        }
        let nodes =
            graph.nodes.into_iter().map(|(id, node)| SentNode::read(&id, node).map(|node| (id, node)));
        let nodes = nodes.collect::<Result<_, _>>()?;
        let wrapper = graph.wrapper.unwrap_or_default();
        let extra = wrapper.get("extra_data").and_then(|extra| serde_json::from_str(extra.get()).ok());
        let targets = targets(wrapper.get("partial_execution_targets").map(|listed| &**listed), &nodes)?;
        Ok(SentGraph { nodes, extra: extra.unwrap_or_default(), targets })
    }
}

impl SentNode {
    fn read(id: &str, node: GraphNode) -> Result<Self, ServiceFailure> {
        let has_bad_inputs = node.has_bad_inputs();
        let GraphNode { class, inputs, mut fields, .. } = node;
        let id = one_line(id, 40);
        let Some(class) = class.filter(|class| !class.is_empty()) else {
            return Err(invalid(&format!("node {id} has no string `class_type`")).at_node(id, None));
        };
        if has_bad_inputs {
            let class = one_line(&class, 80);
            let why = format!("node {id} ({class}): `inputs` is not an object");
            return Err(invalid(&why).at_node(id, Some(class)));
        }
        // Used only for display, so an invalid value is dropped instead of refused.
        let meta = fields.remove("_meta").filter(|meta| is_valid_object(meta));
        Ok(SentNode { class, inputs: inputs.unwrap_or_default(), meta })
    }
}

/// `null` means all. ComfyUI would refuse an empty list or unknown ids with a less helpful message.
fn targets(
    listed: Option<&RawValue>,
    nodes: &BTreeMap<String, SentNode>,
) -> Result<Option<Vec<String>>, ServiceFailure> {
    let Some(listed) = listed.filter(|listed| listed.get() != "null") else { return Ok(None) };
    match serde_json::from_str::<Vec<String>>(listed.get()) {
        Ok(targets) if !targets.is_empty() && targets.iter().all(|id| nodes.contains_key(id)) => {
            Ok(Some(targets))
        }
        _ => Err(invalid("partial_execution_targets is not a list of its node ids")),
    }
}

/// Whether the strict parser accepts it: no number beyond a double, no excessive nesting.
fn is_valid_object(value: &RawValue) -> bool {
    serde_json::from_str::<serde_json::Value>(value.get()).is_ok_and(|value| value.is_object())
}

fn invalid(why: &str) -> ServiceFailure {
    ServiceFailure::new(ServiceFault::Graph, format!("ComfyUI cannot run this workflow: {why}"))
}
