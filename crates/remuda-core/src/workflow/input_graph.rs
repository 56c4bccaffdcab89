//! The graph of a workflow with its inputs as they were written: for those who check nodes one by one, or replace inputs.
//! A value that is not replaced keeps its text, so that a seed of twenty digits keeps all of them.
//!
//! It is lenient: it holds what is not a node too, and every reader says in its own words what it does not accept. Of
//! repeated keys the last one counts, as in Python.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};

/// The members of an object, each as its text.
pub type RawMembers = BTreeMap<String, Box<RawValue>>;

/// The member of a wrapper that is the graph.
pub(super) const WRAPPED: &str = "prompt";

#[derive(Clone, Debug)]
pub struct InputGraph {
    /// What the graph is wrapped in, as ComfyUI's own clients send it: `{"prompt": graph, "extra_data": …}`.
    pub wrapper: Option<RawMembers>,
    pub nodes: BTreeMap<String, GraphNode>,
}

/// A member of a graph; not necessarily a node.
#[derive(Clone, Debug, Default)]
pub struct GraphNode {
    /// `None` unless `class_type` is a text.
    pub class: Option<String>,
    /// `None` if there are none, or if they are not an object; they are then among the `fields`.
    pub inputs: Option<RawMembers>,
    /// The other fields.
    pub fields: RawMembers,
    /// The text of a member that is no object.
    no_object: Option<Box<RawValue>>,
}

impl InputGraph {
    /// `None` if the workflow is not an object.
    pub fn read(workflow: &RawValue) -> Option<InputGraph> {
        super::reads::count();
        let mut whole = members(workflow)?;
        let inner = whole.get(WRAPPED).and_then(|inner| members(inner));
        // A node whose id is `prompt` is not a wrapper.
        match inner.filter(|inner| !inner.contains_key("class_type")) {
            None => Some(InputGraph::new(None, whole)),
            Some(inner) => {
                whole.remove(WRAPPED);
                Some(InputGraph::new(Some(whole), inner))
            }
        }
    }

    /// As `read`, for a graph that was taken out of its wrapper before.
    pub fn read_bare(graph: &RawValue) -> Option<InputGraph> {
        super::reads::count();
        Some(InputGraph::new(None, members(graph)?))
    }

    fn new(wrapper: Option<RawMembers>, nodes: RawMembers) -> InputGraph {
        let nodes = nodes.into_iter().map(|(id, node)| (id, GraphNode::read(node)));
        InputGraph { wrapper, nodes: nodes.collect() }
    }

    /// Whether any member has a class: the others are then meant as nodes too.
    pub fn is_graph(&self) -> bool {
        self.nodes.values().any(|node| node.fields.contains_key("class_type"))
    }

    pub fn write(&self) -> Box<RawValue> {
        let nodes: BTreeMap<&str, Box<RawValue>> =
            self.nodes.iter().map(|(id, node)| (id.as_str(), node.write())).collect();
        let Some(wrapper) = &self.wrapper else { return raw(&nodes) };
        let mut whole: BTreeMap<&str, &RawValue> =
            wrapper.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
        let nodes = raw(&nodes);
        whole.insert(WRAPPED, &nodes);
        raw(&whole)
    }
}

impl GraphNode {
    fn read(node: Box<RawValue>) -> GraphNode {
        let Some(mut fields) = members(&node) else {
            return GraphNode { no_object: Some(node), ..GraphNode::default() };
        };
        let class = fields.get("class_type").and_then(|class| serde_json::from_str(class.get()).ok());
        let inputs = fields.get("inputs").and_then(|inputs| members(inputs));
        if inputs.is_some() {
            fields.remove("inputs");
        }
        GraphNode { class, inputs, fields, no_object: None }
    }

    /// The class of a node that was checked to have one.
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or_default()
    }

    pub fn input(&self, name: &str) -> Option<&RawValue> {
        self.inputs.as_ref()?.get(name).map(|value| &**value)
    }

    pub fn inputs(&self) -> impl Iterator<Item = (&String, &Box<RawValue>)> {
        self.inputs.iter().flatten()
    }

    pub fn inputs_mut(&mut self) -> impl Iterator<Item = (&String, &mut Box<RawValue>)> {
        self.inputs.iter_mut().flatten()
    }

    /// Whether this member is a list, such as `nodes` in the format of the web interface.
    pub fn is_list(&self) -> bool {
        self.no_object.as_ref().is_some_and(|text| text.get().starts_with('['))
    }

    /// Whether there are inputs that are not an object.
    pub fn has_bad_inputs(&self) -> bool {
        self.fields.contains_key("inputs")
    }

    fn write(&self) -> Box<RawValue> {
        if let Some(text) = &self.no_object {
            return text.clone();
        }
        let mut fields: BTreeMap<&str, &RawValue> =
            self.fields.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
        let inputs = self.inputs.as_ref().map(raw);
        fields.extend(inputs.as_deref().map(|inputs| ("inputs", inputs)));
        raw(&fields)
    }
}

/// The node that an input links to: a link is a list of a string and a number.
pub fn link_source(input: &RawValue) -> Option<String> {
    if !input.get().starts_with('[') {
        return None;
    }
    let (source, _): (String, f64) = serde_json::from_str(input.get()).ok()?;
    Some(source)
}

pub(super) fn members(value: &RawValue) -> Option<RawMembers> {
    serde_json::from_str(value.get()).ok()
}

fn raw(value: &impl serde::Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("texts can be written")
}
