//! The progress of a prompt's nodes, as in `progress_state`: every node touched so far, in that order.

use serde_json::{Map, Value, json};

#[derive(Debug)]
struct Entry {
    node: String,
    value: Value,
    max: Value,
    is_finished: bool,
}

#[derive(Debug, Default)]
pub(super) struct Progress(Vec<Entry>);

impl Progress {
    /// A node starts. The original sends these two numbers as floats, and those of the nodes as integers.
    pub(super) fn start(&mut self, node: &str) {
        self.set(node, json!(0.0), json!(1.0), false);
    }

    pub(super) fn update(&mut self, node: &str, value: u64, max: u64) {
        self.set(node, value.into(), max.into(), false);
    }

    /// A node is done; a cached one never started and counts 1 of 1.
    pub(super) fn finish(&mut self, node: &str) {
        match self.0.iter_mut().find(|entry| entry.node == node) {
            Some(entry) => {
                entry.value = entry.max.clone();
                entry.is_finished = true;
            }
            None => self.set(node, 1.into(), 1.into(), true),
        }
    }

    fn set(&mut self, node: &str, value: Value, max: Value, is_finished: bool) {
        match self.0.iter_mut().find(|entry| entry.node == node) {
            Some(entry) => (entry.value, entry.max, entry.is_finished) = (value, max, is_finished),
            None => self.0.push(Entry { node: node.to_owned(), value, max, is_finished }),
        }
    }

    pub(super) fn to_json(&self, prompt: &str) -> Value {
        let nodes: Map<String, Value> =
            self.0.iter().map(|entry| (entry.node.clone(), entry.to_json(prompt))).collect();
        json!({"prompt_id": prompt, "nodes": nodes})
    }
}

impl Entry {
    fn to_json(&self, prompt: &str) -> Value {
        json!({
            "value": self.value, "max": self.max, "state": if self.is_finished { "finished" } else { "running" },
            "node_id": self.node, "prompt_id": prompt, "display_node_id": self.node, "parent_node_id": null,
            "real_node_id": self.node,
        })
    }
}
