//! A ComfyUI graph whose inputs can be found by name and changed. Unchanged values are passed on byte for byte, so that a
//! seed of twenty digits keeps its value.

use std::collections::BTreeSet;

use remuda_core::workflow::{GraphNode, InputGraph};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use remuda_config::closest_name;
use remuda_net::terminal::escape_control;

/// How many valid names an error message lists.
const CHOICES_MAX: usize = 30;
/// Inputs that make one copy differ from the next.
const SEEDS: [&str; 2] = ["seed", "noise_seed"];

#[derive(Clone, Debug)]
pub(super) struct EditableGraph(InputGraph);

/// An input of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputRef {
    pub(super) node: String,
    pub(super) input: String,
}

impl EditableGraph {
    /// None if the workflow is not a graph in ComfyUI's API format.
    pub(super) fn read(workflow: &RawValue) -> Option<EditableGraph> {
        let graph = InputGraph::read(workflow)?;
        let is_graph = !graph.nodes.is_empty() && graph.nodes.values().all(|node| node.class.is_some());
        is_graph.then_some(EditableGraph(graph))
    }

    /// Finds the input `NODE.INPUT`. Titles and inputs may contain dots, so every dot is tried as the separator.
    pub(super) fn find(&self, key: &str) -> Result<InputRef, String> {
        let cuts: Vec<_> = key.match_indices('.').map(|(at, _)| (&key[..at], &key[at + 1..])).collect();
        let mut problem = None;
        for (name, input) in cuts.iter().rev() {
            match self.node(name) {
                Ok(node) if self.0.nodes[node].input(input).is_some() => {
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
        if let Some((id, _)) = self.0.nodes.get_key_value(name) {
            return Ok(id);
        }
        let ids = |is_meant: &dyn Fn(&GraphNode) -> bool| -> Vec<&str> {
            self.0.nodes.iter().filter(|(_, node)| is_meant(node)).map(|(id, _)| id.as_str()).collect()
        };
        let mut found = ids(&|node| title(node).as_deref() == Some(name));
        if found.is_empty() {
            found = ids(&|node| node.class() == name);
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
        let names =
            self.0.nodes.iter().flat_map(|(id, node)| {
                [Some(id.clone()), title(node), node.class.clone()].into_iter().flatten()
            });
        let names: Vec<String> = names.collect();
        let hint = hint(name, names.iter().map(String::as_str));
        let all = self.0.nodes.iter().map(|(id, node)| format!("{id} ({})", display_name(node)));
        format!("there is no node {:?}{hint} There are {}", escape_control(name), listed(all))
    }

    fn no_input(&self, id: &str, input: &str) -> String {
        let node = &self.0.nodes[id];
        let hint = hint(input, node.inputs().map(|(name, _)| name.as_str()));
        let all = listed(node.inputs().map(|(name, _)| name.clone()));
        let (name, input) = (escape_control(&display_name(node)), escape_control(input));
        format!("node {} ({name}) has no input {input:?}{hint} It has {all}", escape_control(id))
    }

    pub(super) fn set(&mut self, input_ref: &InputRef, value: &impl Serialize) {
        let value = to_raw_value(value).expect("JSON values can be serialised");
        if let Some(node) = self.0.nodes.get_mut(&input_ref.node) {
            node.inputs.get_or_insert_default().insert(input_ref.input.clone(), value);
        }
    }

    /// Replaces each seed that is a number and was not set on the command line.
    pub(super) fn replace_seeds(&mut self, chosen: &BTreeSet<InputRef>, mut next: impl FnMut() -> u64) {
        for (id, node) in &mut self.0.nodes {
            for (name, value) in node.inputs_mut() {
                let input_ref = InputRef { node: id.clone(), input: name.clone() };
                let is_number = matches!(serde_json::from_str(value.get()), Ok(Value::Number(_)));
                if SEEDS.contains(&name.as_str()) && is_number && !chosen.contains(&input_ref) {
                    *value = to_raw_value(&next()).expect("a number can be serialised");
                }
            }
        }
    }

    pub(super) fn to_json(&self) -> Box<RawValue> {
        self.0.write()
    }
}

/// The title given by the author.
fn title(node: &GraphNode) -> Option<String> {
    let meta: Value = serde_json::from_str(node.fields.get("_meta")?.get()).ok()?;
    meta["title"].as_str().map(str::to_owned)
}

fn display_name(node: &GraphNode) -> String {
    title(node).unwrap_or_else(|| node.class().to_owned())
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
