//! A workflow on its way from a client to a service. [`Workflow::parse`] parses, checks and hashes it once, at the border;
//! from there the value travels, and its text is passed on byte for byte.
//!
//! ```text
//!  text ──parse──▶ tree, members sorted ──▶ keys: taken out of extra_data, never stored
//!                         │ ──canonical──▶ workflow_hash, content hashes
//!                         │
//!                         ├─ {"prompt": graph, …}: that graph, without its wrapper
//!                         ├─ some value has a class_type: graph ──links, loops──▶ shape, classes, model files
//!                         └─ otherwise ─────────────────────────────────────────▶ shape, model files
//! ```
//!
//! Who changes inputs or looks at single nodes reads the text as an [`InputGraph`] first, changes it, and parses what it
//! writes. [`reads`] counts both, and nothing else in this code base reads the text of a workflow on its way.
//!
//! A workflow that is refused here never reaches a worker. With a [`GraphCheck`] the graph is also held against what the
//! servers of the fleet say about their node classes, as ComfyUI does it: `validate`.

mod canonical;
mod graph;
mod input_graph;
mod invalid;
mod json_tree;
mod keys;
mod node_catalog;
mod parse;
mod python;
mod reads;
mod shape;
mod validate;
mod verdict;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::value::RawValue;

pub use self::input_graph::{GraphNode, InputGraph, RawMembers, link_source};
pub use self::invalid::{InvalidKind, InvalidWorkflow};
pub use self::keys::JobKeys;
pub use self::node_catalog::NodeCatalog;
pub use self::reads::reads;
pub use self::shape::model_file;
pub use self::validate::GraphCheck;
pub use self::verdict::{GraphVerdict, MissingModel, PromptRefusal, describe as describe_node_errors};

use self::graph::Graph;
use self::input_graph::WRAPPED;
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

/// A workflow that was parsed, checked and hashed.
#[derive(Clone, Debug)]
pub struct Workflow {
    text: Arc<RawValue>,
    keys: JobKeys,
    facts: WorkflowFacts,
    verdict: Option<GraphVerdict>,
}

/// What is known about a valid workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowFacts {
    pub workflow_hash: WorkflowHash,
    /// The hash of the whole body; differs from `workflow_hash` if the graph is wrapped.
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
    /// Texts anywhere in it that look like the name of a blob: assets and attachments.
    pub content_hashes: BTreeSet<String>,
}

impl Workflow {
    /// Keys in `extra_data` are taken out of the text and are no part of its hashes.
    pub fn parse(text: impl Into<Arc<RawValue>>, limits: &WorkflowLimits) -> Result<Self, InvalidWorkflow> {
        Workflow::parse_checked(text, limits, None)
    }

    /// As `parse`, and asks whether the servers of the fleet would run the graph. Outputs that they would leave out are not
    /// wanted from then on, so that a worker gets a prompt that is valid.
    pub fn parse_checked(
        text: impl Into<Arc<RawValue>>,
        limits: &WorkflowLimits,
        check: Option<&GraphCheck<'_>>,
    ) -> Result<Self, InvalidWorkflow> {
        let text = text.into();
        let Examined { facts, keys, verdict, wrapping } = examine(text.get(), limits, check)?;
        let text = match &keys {
            Some(_) => keys::without_keys(&text).unwrap_or(text),
            None => text,
        };
        let targets = check.and_then(|check| check.targets);
        let is_partial = verdict.as_ref().is_some_and(|verdict| !verdict.node_errors.is_empty());
        let text = match &verdict {
            Some(verdict) if is_partial || targets.is_some() => {
                with_targets(&text, wrapping, &verdict.outputs)
            }
            _ => text,
        };
        Ok(Workflow { text, keys: keys.unwrap_or_default(), facts, verdict })
    }

    /// What of it runs; `None` if that was not asked.
    pub fn verdict(&self) -> Option<&GraphVerdict> {
        self.verdict.as_ref()
    }

    /// A request to one model: its texts are not searched for other models.
    #[must_use]
    pub fn for_model(mut self, model: &str) -> Self {
        self.facts.models = [model.to_owned()].into();
        self
    }

    /// Adds keys that came beside the workflow. Those in the workflow itself win.
    #[must_use]
    pub fn with_keys(mut self, keys: JobKeys) -> Self {
        self.keys = keys.merged(std::mem::take(&mut self.keys));
        self
    }

    /// The text to store and to send, without keys.
    pub fn text(&self) -> &Arc<RawValue> {
        &self.text
    }

    pub fn facts(&self) -> &WorkflowFacts {
        &self.facts
    }

    pub fn into_parts(self) -> (Arc<RawValue>, JobKeys, WorkflowFacts) {
        (self.text, self.keys, self.facts)
    }
}

/// The wanted outputs of a graph, in the object around it.
const TARGETS: &str = "partial_execution_targets";

/// The text with the wanted outputs in it, which are no part of its hashes.
fn with_targets(text: &Arc<RawValue>, wrapping: Wrapping, targets: &[String]) -> Arc<RawValue> {
    let listed = serde_json::Value::from(targets);
    let written = match wrapping {
        Wrapping::Bare => format!("{{\"{WRAPPED}\":{text},\"{TARGETS}\":{listed}}}"),
        Wrapping::WithTargets => {
            reads::count();
            let mut whole = input_graph::members(text).unwrap_or_default();
            whole
                .extend(RawValue::from_string(listed.to_string()).map(|listed| (TARGETS.to_owned(), listed)));
            return serde_json::value::to_raw_value(&whole).map_or_else(|_| text.clone(), Arc::from);
        }
        Wrapping::Wrapped => match text.get().trim_end().strip_suffix('}') {
            Some(open) => format!("{open},\"{TARGETS}\":{listed}}}"),
            None => return text.clone(),
        },
    };
    RawValue::from_string(written).map_or_else(|_| text.clone(), Arc::from)
}

/// What stands around a graph.
#[derive(Clone, Copy)]
enum Wrapping {
    Bare,
    Wrapped,
    /// The wrapper lists wanted outputs.
    WithTargets,
}

/// What is known about a workflow after one reading.
struct Examined {
    facts: WorkflowFacts,
    /// If it has any.
    keys: Option<JobKeys>,
    /// If a graph was checked.
    verdict: Option<GraphVerdict>,
    wrapping: Wrapping,
}

fn examine(
    text: &str,
    limits: &WorkflowLimits,
    check: Option<&GraphCheck<'_>>,
) -> Result<Examined, InvalidWorkflow> {
    let mut tree = parse::parse(text, limits)?;
    match &tree.root {
        Value::Object(members) if tree.members(members).is_empty() => return Err(InvalidWorkflow::Empty),
        Value::Object(_) => {}
        _ => return Err(InvalidWorkflow::NotAnObject),
    }
    let keys = keys::take(&mut tree);
    let Value::Object(members) = &tree.root else { return Err(InvalidWorkflow::NotAnObject) };
    let body = tree.members(members);
    let body_hash = Hash::digest(&canonical::text(&tree, &tree.root, text.len()));
    let content_hashes = content_hashes(&tree);
    let wrapped = graph::wrapped(&tree, body);
    let members = wrapped.map_or(body, |(_, members)| members);
    if !graph::is_graph(&tree, members) {
        let (shape, models) = shape::for_value(&tree);
        let facts = WorkflowFacts {
            workflow_hash: body_hash,
            body_hash,
            shape,
            service: None,
            models,
            classes: BTreeSet::new(),
            nodes: 0,
            content_hashes,
        };
        return Ok(Examined { facts, keys, verdict: None, wrapping: Wrapping::Bare });
    }
    let graph = Graph::read(&tree, members, limits.nodes_max)?;
    let listed = wrapped.and_then(|_| targets(&tree, body));
    let check = check.map(|check| GraphCheck { targets: check.targets.or(listed.as_deref()), ..*check });
    let verdict = check.map(|check| validate::validate(&tree, &graph, &check)).transpose();
    let verdict = verdict.map_err(|refusal| InvalidWorkflow::Refused(Box::new(refusal)))?;
    let Order { all, runs } = Order::new(&graph, verdict.as_ref())?;
    let (shape, models) = shape::for_graph(&tree, &graph, &all, |node| runs[node]);
    let graph_hash = |graph| Hash::digest(&canonical::text(&tree, graph, text.len()));
    let facts = WorkflowFacts {
        workflow_hash: wrapped.map_or(body_hash, |(graph, _)| graph_hash(graph)),
        body_hash,
        shape,
        service: Some("comfyui".parse().expect("a plain word is a service name")),
        models,
        classes: graph.classes(),
        nodes: graph.nodes.len(),
        content_hashes,
    };
    let wrapping = match wrapped {
        Some(_) if json_tree::member(body, TARGETS).is_some() => Wrapping::WithTargets,
        Some(_) => Wrapping::Wrapped,
        None => Wrapping::Bare,
    };
    Ok(Examined { facts, keys, verdict, wrapping })
}

/// The outputs that the submitter wants; `None` if all.
fn targets(tree: &json_tree::Tree<'_>, body: &[json_tree::Member<'_>]) -> Option<Vec<String>> {
    let Value::Array(listed) = json_tree::member(body, TARGETS)? else { return None };
    let text = |value: &Value<'_>| match value {
        Value::Text(id) => Some((**id).to_owned()),
        _ => None,
    };
    Some(tree.elements(listed).iter().filter_map(text).collect())
}

/// The nodes of a graph, each after those that feed it.
struct Order {
    all: Vec<usize>,
    /// Whether a node runs, by its index.
    runs: Vec<bool>,
}

impl Order {
    /// Nodes that do not run need not be sound: ComfyUI does not look at them either. If one is not, or an output is left
    /// out, only the others count.
    fn new(graph: &Graph<'_>, verdict: Option<&GraphVerdict>) -> Result<Order, InvalidWorkflow> {
        let count = graph.nodes.len();
        let all = graph.sources_first(0..count);
        let Some(verdict) = verdict else { return Ok(Order { all: all?, runs: vec![true; count] }) };
        let running = graph.sources_first(verdict.outputs.iter().filter_map(|id| graph.find(id)))?;
        let mut runs = vec![false; count];
        running.iter().for_each(|node| runs[*node] = true);
        let is_whole = verdict.node_errors.is_empty();
        let all = all.ok().filter(|_| is_whole).unwrap_or(running);
        Ok(Order { all, runs })
    }
}

/// The name of a blob: this and 64 hexadecimal digits.
const CONTENT_HASH: &str = "blake3:";
const CONTENT_HASH_BYTES: usize = CONTENT_HASH.len() + 64;

/// May find too many, but never too few: blobs that are named are protected from deletion. Only long texts can hold such a
/// name, so nearly none has to be searched.
fn content_hashes(tree: &json_tree::Tree<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut search = |text: &str| {
        if text.len() < CONTENT_HASH_BYTES {
            return;
        }
        for (at, _) in text.match_indices(CONTENT_HASH) {
            found.extend(text.get(at..at + CONTENT_HASH_BYTES).map(str::to_owned));
        }
    };
    for (name, value) in &tree.members {
        search(name);
        if let Value::Text(text) = value {
            search(text);
        }
    }
    for value in &tree.elements {
        if let Value::Text(text) = value {
            search(text);
        }
    }
    found
}

/// The hash of a JSON value, independent of key order, number format, escapes and white space.
#[cfg(test)]
fn canonical_hash(value: &str, limits: &WorkflowLimits) -> Result<Hash, InvalidWorkflow> {
    let tree = parse::parse(value, limits)?;
    Ok(Hash::digest(&canonical::text(&tree, &tree.root, value.len())))
}

#[cfg(test)]
mod tests;
