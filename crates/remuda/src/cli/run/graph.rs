//! A ComfyUI graph whose inputs can be found by name and changed. Unchanged values are passed on byte for byte, so that a
//! seed of twenty digits keeps its value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use remuda_config::closest_name;
use remuda_net::terminal::escape_control;

type Members = BTreeMap<String, Box<RawValue>>;

/// How many valid names an error message lists.
const CHOICES_MAX: usize = 30;
/// Inputs that make one copy differ from the next.
const SEEDS: [&str; 2] = ["seed", "noise_seed"];

#[derive(Clone, Debug)]
pub(super) struct EditableGraph {
    /// The enclosing object, if the graph is wrapped: `{"prompt": graph, "extra_data": {..}}`.
    wrapper: Option<Members>,
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug)]
struct Node {
    class: String,
    title: Option<String>,
    fields: Members,
    inputs: Members,
}

/// An input of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputRef {
    pub(super) node: String,
    pub(super) input: String,
}

impl EditableGraph {
    /// None if the workflow is not a graph in ComfyUI's API format.
    pub(super) fn read(workflow: &RawValue) -> Option<EditableGraph> {
        let members = members(workflow)?;
        if let Some(nodes) = nodes(&members) {
            return Some(EditableGraph { wrapper: None, nodes });
        }
        let nodes = nodes(&self::members(members.get("prompt")?)?)?;
        Some(EditableGraph { wrapper: Some(members), nodes })
    }

    /// Finds the input `NODE.INPUT`. Titles and inputs may contain dots, so every dot is tried as the separator.
    pub(super) fn find(&self, key: &str) -> Result<InputRef, String> {
        let cuts: Vec<_> = key.match_indices('.').map(|(at, _)| (&key[..at], &key[at + 1..])).collect();
        let mut problem = None;
        for (name, input) in cuts.iter().rev() {
            match self.node(name) {
                Ok(node) if self.nodes[node].inputs.contains_key(*input) => {
                    return Ok(InputRef { node: node.to_owned(), input: (*input).to_owned() });
                }
                Ok(node) => problem = Some(self.no_input(node, input)),
                Err(unknown) => problem = problem.or(Some(unknown)),
            }
        }
        Err(problem.unwrap_or_else(|| format!("write it as NODE.INPUT, not as {:?}", escape_control(key))))
    }

    /// The id of the node with this id, title or class.
    fn node(&self, name: &str) -> Result<&str, String> {
        if let Some((id, _)) = self.nodes.get_key_value(name) {
            return Ok(id);
        }
        let ids = |is_meant: &dyn Fn(&Node) -> bool| -> Vec<&str> {
            self.nodes.iter().filter(|(_, node)| is_meant(node)).map(|(id, _)| id.as_str()).collect()
        };
        let mut found = ids(&|node| node.title.as_deref() == Some(name));
        if found.is_empty() {
            found = ids(&|node| node.class == name);
        }
        match found.as_slice() {
            [id] => Ok(id),
            [] => Err(self.no_node(name)),
            many => {
                let ids = escape_control(&many.join(", "));
                Err(format!(
                    "{} nodes are called {:?}: use one of the ids {ids}",
                    many.len(),
                    escape_control(name)
                ))
            }
        }
    }

    fn no_node(&self, name: &str) -> String {
        let names = self.nodes.iter().flat_map(|(id, node)| {
            [Some(id), node.title.as_ref(), Some(&node.class)].into_iter().flatten().map(String::as_str)
        });
        let hint = hint(name, names);
        let all = self.nodes.iter().map(|(id, node)| format!("{id} ({})", node.name()));
        format!("there is no node {:?}{hint} There are {}", escape_control(name), listed(all))
    }

    fn no_input(&self, id: &str, input: &str) -> String {
        let node = &self.nodes[id];
        let hint = hint(input, node.inputs.keys().map(String::as_str));
        let all = listed(node.inputs.keys().cloned());
        let (name, input) = (escape_control(node.name()), escape_control(input));
        format!("node {} ({name}) has no input {input:?}{hint} It has {all}", escape_control(id))
    }

    pub(super) fn set(&mut self, input_ref: &InputRef, value: &impl Serialize) {
        let value = to_raw_value(value).expect("JSON values can be serialised");
        if let Some(node) = self.nodes.get_mut(&input_ref.node) {
            node.inputs.insert(input_ref.input.clone(), value);
        }
    }

    /// Replaces each seed that is a number and was not set on the command line.
    pub(super) fn replace_seeds(&mut self, chosen: &BTreeSet<InputRef>, mut next: impl FnMut() -> u64) {
        for (id, node) in &mut self.nodes {
            for (name, value) in &mut node.inputs {
                let input_ref = InputRef { node: id.clone(), input: name.clone() };
                let is_number = matches!(serde_json::from_str(value.get()), Ok(Value::Number(_)));
                if SEEDS.contains(&name.as_str()) && is_number && !chosen.contains(&input_ref) {
                    *value = to_raw_value(&next()).expect("a number can be serialised");
                }
            }
        }
    }

    pub(super) fn to_json(&self) -> Box<RawValue> {
        let nodes: BTreeMap<&str, Members> =
            self.nodes.iter().map(|(id, node)| (id.as_str(), node.to_json())).collect();
        let Some(wrapper) = &self.wrapper else { return raw(&nodes) };
        let mut wrapper = wrapper.clone();
        wrapper.insert("prompt".to_owned(), raw(&nodes));
        raw(&wrapper)
    }
}

impl Node {
    fn read(node: &RawValue) -> Option<Node> {
        let fields = members(node)?;
        let class = serde_json::from_str(fields.get("class_type")?.get()).ok()?;
        let title = fields.get("_meta").and_then(|meta| {
            let meta: Value = serde_json::from_str(meta.get()).ok()?;
            meta["title"].as_str().map(str::to_owned)
        });
        let inputs = fields.get("inputs").and_then(|inputs| members(inputs)).unwrap_or_default();
        Some(Node { class, title, fields, inputs })
    }

    fn name(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.class)
    }

    fn to_json(&self) -> Members {
        let mut fields = self.fields.clone();
        fields.insert("inputs".to_owned(), raw(&self.inputs));
        fields
    }
}

fn members(value: &RawValue) -> Option<Members> {
    serde_json::from_str(value.get()).ok()
}

/// The members as nodes; None unless every member is one.
fn nodes(members: &Members) -> Option<BTreeMap<String, Node>> {
    let nodes = members.iter().map(|(id, node)| Node::read(node).map(|node| (id.clone(), node)));
    nodes.collect::<Option<BTreeMap<_, _>>>().filter(|nodes| !nodes.is_empty())
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("texts and JSON values can be serialised")
}

fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    closest_name(written, names)
        .map_or_else(|| ".".to_owned(), |name| format!(": did you mean {:?}?", escape_control(name)))
}

fn listed(all: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = all.map(|one| escape_control(&one)).collect();
    let more = all.len().saturating_sub(CHOICES_MAX);
    if all.is_empty() {
        return "none".to_owned();
    }
    all.truncate(CHOICES_MAX);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

/// A value from the command line: JSON if it is a number, true, false, null, a list or an object, otherwise text.
pub(super) fn parse_value(typed: &str) -> Box<RawValue> {
    match serde_json::from_str::<Box<RawValue>>(typed) {
        Ok(json) if !json.get().starts_with('"') => json,
        Ok(_) | Err(_) => raw(&typed),
    }
}

#[cfg(test)]
mod tests;
