//! Examining a workflow once, before it is accepted: is it valid, what is its hash, what does it require.
//!
//! ```text
//!  body ──parse──▶ tree, keys sorted ──canonical──▶ workflow_hash
//!                         │
//!                         ├─ {"prompt": graph, …}: that graph, without its envelope
//!                         ├─ some value has a class_type: graph ──links, loops──▶ shape, classes, model files
//!                         └─ otherwise ─────────────────────────────────────────▶ shape, model files
//! ```
//!
//! A workflow that is refused here never reaches a worker. Whether a node class or model file exists is not checked: that
//! differs between workers. The body itself is passed on byte for byte.

mod canonical;
mod graph;
mod invalid;
mod json_tree;
mod parse;
mod shape;

use std::collections::BTreeSet;

pub use self::invalid::{InvalidKind, InvalidWorkflow};
pub use self::shape::model_file;

use self::graph::Graph;
use self::json_tree::Value;
use crate::id::{Hash, Service, Shape, WorkflowHash};

/// Bounds on the memory and time that one body can cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkflowLimits {
    /// 64 by default: API-format graphs are four deep, and reading keeps a few hundred bytes of stack per level.
    /// More than 126 counts as 126, where the JSON reader itself stops.
    pub depth_max: usize,
    /// 10,000 by default: the largest graphs people share have a few hundred nodes.
    pub nodes_max: usize,
    /// A million JSON values by default, which is a hundred for each of 10,000 nodes; each costs about 100 bytes at worst.
    pub values_max: usize,
    /// 8 MiB by default: a graph of a thousand nodes has half a MiB; images are uploaded, not inlined.
    pub bytes_max: usize,
}

impl Default for WorkflowLimits {
    fn default() -> Self {
        WorkflowLimits { depth_max: 64, nodes_max: 10_000, values_max: 1_000_000, bytes_max: 8 << 20 }
    }
}

/// What is known about a valid workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedWorkflow {
    pub workflow_hash: WorkflowHash,
    /// The hash of the whole body; differs from `workflow_hash` if the graph has an envelope.
    pub body_hash: Hash,
    pub shape: Shape,
    /// `comfyui` if it is a graph in ComfyUI's API format; otherwise unknown.
    pub service: Option<Service>,
    /// Model files it names, with `/` between folders; without a graph also the values of keys named `model`.
    pub models: BTreeSet<String>,
    /// Node classes of the graph.
    pub classes: BTreeSet<String>,
    /// Nodes of the graph.
    pub nodes: usize,
}

/// Parses, validates, hashes and classifies a workflow.
pub fn examine(body: &str, limits: &WorkflowLimits) -> Result<ExaminedWorkflow, InvalidWorkflow> {
    let tree = parse::parse(body, limits)?;
    let Value::Object(members) = &tree.root else {
        return Err(InvalidWorkflow::NotAnObject);
    };
    let members = tree.members(members);
    if members.is_empty() {
        return Err(InvalidWorkflow::Empty);
    }
    let body_hash = canonical::hash(&tree, &tree.root, body.len());
    let wrapped = graph::wrapped(&tree, members);
    let members = wrapped.map_or(members, |(_, members)| members);
    if !graph::is_graph(&tree, members) {
        let (shape, models) = shape::for_value(&tree);
        return Ok(ExaminedWorkflow {
            workflow_hash: body_hash,
            body_hash,
            shape,
            service: None,
            models,
            classes: BTreeSet::new(),
            nodes: 0,
        });
    }
    let graph = Graph::read(&tree, members, limits.nodes_max)?;
    let (shape, models) = shape::for_graph(&tree, &graph, &graph.sources_first()?);
    Ok(ExaminedWorkflow {
        workflow_hash: wrapped.map_or(body_hash, |(graph, _)| canonical::hash(&tree, graph, body.len())),
        body_hash,
        shape,
        service: Some("comfyui".parse().expect("a plain word is a service name")),
        models,
        classes: graph.classes(),
        nodes: graph.nodes.len(),
    })
}

/// The hash of a JSON value, independent of key order, number format, escapes and white space.
pub fn canonical_hash(value: &str, limits: &WorkflowLimits) -> Result<Hash, InvalidWorkflow> {
    let tree = parse::parse(value, limits)?;
    Ok(canonical::hash(&tree, &tree.root, value.len()))
}

#[cfg(test)]
mod tests;
