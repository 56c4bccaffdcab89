//! Results of the last prompt, keyed by class, inputs, and everything upstream. Ids and titles do not count. A new
//! prompt drops every result that it does not need.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::files::Disk;
use super::graph::{Graph, Node, link};
use super::nodes::{Catalogue, Data};

/// Identifies a result.
pub(super) type Signature = blake3::Hash;

/// What an output node displays, and which node displayed it first.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) output: Value,
    pub(super) node: String,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) shown: Option<Shown>,
    pub(super) results: Arc<Vec<Data>>,
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<Signature, Entry>,
    /// For signatures of nodes that are never cached.
    nonce: u64,
}

/// A node without `inputs`: the original raises an exception, and its executor dies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NoInputs;

impl Cache {
    /// Computes the signatures of all nodes of a prompt and drops all other results.
    pub(super) fn prepare(
        &mut self,
        graph: &Graph,
        catalogue: &Catalogue,
        disk: &Disk,
    ) -> Result<HashMap<String, Signature>, NoInputs> {
        if graph.nodes().iter().any(|node| node.inputs.is_none()) {
            return Err(NoInputs);
        }
        let mut signing = Signing { graph, catalogue, disk, nonce: &mut self.nonce, known: HashMap::new() };
        for node in graph.nodes() {
            signing.sign(node, &mut Vec::new());
        }
        let signatures = signing.known;
        let needed: HashSet<&Signature> = signatures.values().collect();
        self.entries.retain(|signature, _| needed.contains(signature));
        Ok(signatures)
    }

    pub(super) fn get(&self, signature: &Signature) -> Option<&Entry> {
        self.entries.get(signature)
    }

    pub(super) fn put(&mut self, signature: Signature, entry: Entry) {
        self.entries.insert(signature, entry);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

struct Signing<'a> {
    graph: &'a Graph,
    catalogue: &'a Catalogue,
    disk: &'a Disk,
    nonce: &'a mut u64,
    known: HashMap<String, Signature>,
}

impl<'a> Signing<'a> {
    fn sign(&mut self, node: &'a Node, above: &mut Vec<&'a str>) -> Signature {
        if let Some(known) = self.known.get(&node.id) {
            return *known;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(node.class.as_bytes());
        let class = self.catalogue.class(&node.class);
        let names =
            class.map(|class| class.inputs.as_slice()).unwrap_or_default().iter().map(|input| input.name);
        above.push(&node.id);
        for name in names {
            let Some(value) = node.input(name) else { continue };
            hasher.update(b"\0").update(name.as_bytes()).update(b"\0");
            let from = link(value).and_then(|(from, slot)| Some((self.graph.node(from)?, slot)));
            match from {
                // A cycle outside the executed part is never looked up.
                Some((from, _)) if above.contains(&from.id.as_str()) => {}
                Some((from, slot)) => {
                    let signature = self.sign(from, above);
                    hasher.update(signature.as_bytes()).update(&slot.to_le_bytes());
                }
                None => {
                    hasher.update(value.to_string().as_bytes());
                }
            }
        }
        above.pop();
        if class.is_some_and(|class| class.is_never_cached) {
            *self.nonce += 1;
            hasher.update(&self.nonce.to_le_bytes());
        }
        if node.class == "LoadImage"
            && let Some(bytes) =
                node.input("image").and_then(Value::as_str).and_then(|name| self.disk.annotated(name))
        {
            hasher.update(&bytes);
        }
        let signature = hasher.finalize();
        self.known.insert(node.id.clone(), signature);
        signature
    }
}
