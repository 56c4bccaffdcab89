//! The nodes of a workflow, each with what ComfyUI needs of it and nothing else; what stands in the inputs is not looked at
//! here and is passed on in the very words in which it came: a seed of twenty digits stays that seed.

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde::Serialize;
use serde_json::value::RawValue;

use super::read_members;
use crate::json::{Members, Text};
use remuda_net::text::one_line;

#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) extra: Extra,
    /// Output nodes to run, if not all of them.
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

/// The `extra_data` that came with the workflow, as it came.
#[derive(Debug, Default)]
pub(super) struct Extra(pub(super) Members<Box<RawValue>>);

impl Graph {
    pub(super) fn read(workflow: &RawValue) -> Result<Self, ServiceFailure> {
        if !is_object(workflow) {
            return Err(wrong("it is no JSON object"));
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

/// `prompt` is the graph itself, and not a node that somebody called so.
fn is_wrapped(inner: &RawValue) -> bool {
    let class = last(&read_members(inner), "class_type").map(text).unwrap_or_default();
    is_object(inner) && class.0.is_none()
}

fn nodes(members: Members<Box<RawValue>>) -> Result<BTreeMap<String, Node>, ServiceFailure> {
    if last(&members, "nodes").is_some_and(|nodes| nodes.get().starts_with('[')) {
        return Err(wrong(
            "it is in the format of the web interface, which only that can run: export it there with \"Export (API)\"",
        ));
    }
    if members.0.is_empty() {
        return Err(wrong("it has no nodes"));
    }
    members.0.into_iter().map(|(id, node)| Node::read(&id, &node).map(|node| (id, node))).collect()
}

impl Node {
    fn read(id: &str, node: &RawValue) -> Result<Self, ServiceFailure> {
        let fields = read_members(node);
        let class = last(&fields, "class_type").map(text).unwrap_or_default();
        let Some(class) = class.0.filter(|class| !class.is_empty()) else {
            return Err(wrong(&format!("node {} has no text as class_type", one_line(id, 40))));
        };
        let inputs = match last(&fields, "inputs") {
            None => BTreeMap::new(),
            Some(inputs) if is_object(inputs) => read_members(inputs).0.into_iter().collect(),
            Some(_) => {
                return Err(wrong(&format!(
                    "node {} ({}): inputs is no object",
                    one_line(id, 40),
                    one_line(&class, 80)
                )));
            }
        };
        // Only shown, so what is odd is left out rather than refused.
        let meta = last(&fields, "_meta").filter(|meta| is_object(meta) && is_sound(meta));
        Ok(Node { class, inputs, meta: meta.map(ToOwned::to_owned) })
    }
}

/// `null` means all; an empty list, or one that names nothing, would be refused by the server with fewer words.
fn targets(
    told: Option<&RawValue>,
    nodes: &BTreeMap<String, Node>,
) -> Result<Option<Vec<String>>, ServiceFailure> {
    let Some(told) = told.filter(|told| told.get() != "null") else { return Ok(None) };
    match serde_json::from_str::<Vec<String>>(told.get()) {
        Ok(targets) if !targets.is_empty() && targets.iter().all(|id| nodes.contains_key(id)) => {
            Ok(Some(targets))
        }
        _ => Err(wrong("partial_execution_targets is no list of ids of its nodes")),
    }
}

/// What stands under a key; if it stands there twice, the last, as to Python.
fn last<'a>(members: &'a Members<Box<RawValue>>, key: &str) -> Option<&'a RawValue> {
    members.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| &**value)
}

fn text(value: &RawValue) -> Text {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn is_object(value: &RawValue) -> bool {
    value.get().trim_start().starts_with('{')
}

/// Whether the strict reader takes it: no number beyond a double, no endless nesting.
fn is_sound(value: &RawValue) -> bool {
    serde_json::from_str::<serde_json::Value>(value.get()).is_ok()
}

fn wrong(why: &str) -> ServiceFailure {
    ServiceFailure::new(ServiceFault::Graph, format!("ComfyUI cannot run this workflow: {why}"))
}
