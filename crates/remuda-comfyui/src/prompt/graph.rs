//! The nodes of a workflow with only the fields that ComfyUI needs. Inputs stay raw text and are passed on unchanged, so that
//! a seed of twenty digits keeps all of them.

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde::Serialize;
use serde_json::value::RawValue;

use super::read_members;
use crate::json::{JsonMembers, Text};
use remuda_net::text::one_line;

#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) extra: Extra,
    /// Output nodes to run; `None` means all.
    pub(super) targets: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Node {
    #[serde(rename = "class_type")]
    pub(super) class: String,
    pub(super) inputs: BTreeMap<String, Box<RawValue>>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub(super) meta: Option<Box<RawValue>>,
}

/// The unchecked `extra_data` of the workflow.
#[derive(Debug, Default)]
pub(super) struct Extra(pub(super) JsonMembers<Box<RawValue>>);

impl Graph {
    pub(super) fn read(workflow: &RawValue) -> Result<Self, ServiceFailure> {
        if !is_object(workflow) {
            return Err(invalid("it is not a JSON object"));
        }
        let members = read_members(workflow);
        let Some(inner) = last(&members, "prompt").filter(|inner| is_wrapped(inner)) else {
            return Ok(Graph { nodes: nodes(members)?, extra: Extra::default(), targets: None });
        };
        let extra = Extra(last(&members, "extra_data").map(read_members).unwrap_or_default());
        let nodes = nodes(read_members(inner))?;
        let targets = targets(last(&members, "partial_execution_targets"), &nodes)?;
        Ok(Graph { nodes, extra, targets })
    }
}

/// Whether `prompt` is the graph, and not a node with that id.
fn is_wrapped(inner: &RawValue) -> bool {
    let class = last(&read_members(inner), "class_type").map(text).unwrap_or_default();
    is_object(inner) && class.0.is_none()
}

fn nodes(members: JsonMembers<Box<RawValue>>) -> Result<BTreeMap<String, Node>, ServiceFailure> {
    if last(&members, "nodes").is_some_and(|nodes| nodes.get().starts_with('[')) {
        return Err(invalid(
            "it is in the format of the web interface; export it there with \"Export (API)\"",
        ));
    }
    if members.0.is_empty() {
        return Err(invalid("it has no nodes"));
    }
    members.0.into_iter().map(|(id, node)| Node::read(&id, &node).map(|node| (id, node))).collect()
}

impl Node {
    fn read(id: &str, node: &RawValue) -> Result<Self, ServiceFailure> {
        let fields = read_members(node);
        let class = last(&fields, "class_type").map(text).unwrap_or_default();
        let Some(class) = class.0.filter(|class| !class.is_empty()) else {
            let id = one_line(id, 40);
            return Err(invalid(&format!("node {id} has no string `class_type`")).at_node(id, None));
        };
        let inputs = match last(&fields, "inputs") {
            None => BTreeMap::new(),
            Some(inputs) if is_object(inputs) => read_members(inputs).0.into_iter().collect(),
            Some(_) => {
                let (id, class) = (one_line(id, 40), one_line(&class, 80));
                let why = format!("node {id} ({class}): `inputs` is not an object");
                return Err(invalid(&why).at_node(id, Some(class)));
            }
        };
        // Used only for display, so an invalid value is dropped instead of refused.
        let meta = last(&fields, "_meta").filter(|meta| is_object(meta) && is_valid(meta));
        Ok(Node { class, inputs, meta: meta.map(ToOwned::to_owned) })
    }
}

/// `null` means all. ComfyUI would refuse an empty list or unknown ids with a less helpful message.
fn targets(
    listed: Option<&RawValue>,
    nodes: &BTreeMap<String, Node>,
) -> Result<Option<Vec<String>>, ServiceFailure> {
    let Some(listed) = listed.filter(|listed| listed.get() != "null") else { return Ok(None) };
    match serde_json::from_str::<Vec<String>>(listed.get()) {
        Ok(targets) if !targets.is_empty() && targets.iter().all(|id| nodes.contains_key(id)) => {
            Ok(Some(targets))
        }
        _ => Err(invalid("partial_execution_targets is not a list of its node ids")),
    }
}

/// The value of a key; of repeated keys the last one, as in Python.
fn last<'a>(members: &'a JsonMembers<Box<RawValue>>, key: &str) -> Option<&'a RawValue> {
    members.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| &**value)
}

fn text(value: &RawValue) -> Text {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn is_object(value: &RawValue) -> bool {
    value.get().trim_start().starts_with('{')
}

/// Whether the strict parser accepts it: no number beyond a double, no excessive nesting.
fn is_valid(value: &RawValue) -> bool {
    serde_json::from_str::<serde_json::Value>(value.get()).is_ok()
}

fn invalid(why: &str) -> ServiceFailure {
    ServiceFailure::new(ServiceFault::Graph, format!("ComfyUI cannot run this workflow: {why}"))
}
