//! Prepares a workflow for ComfyUI: input that is known to crash or confuse its executor is corrected or refused before it
//! is sent, because the server itself accepts all of it with status 200.
//!
//! | rule | reason |
//! |---|---|
//! | every node has a class and an object of inputs | an unconnected node without inputs kills the worker thread |
//! | no chain of links is longer than Python can follow | a longer one among unconnected nodes kills it as well |
//! | our own id, a lower-case UUID; no `number` | newer servers accept no other; two prompts with equal id and number kill the worker thread |
//! | our own `client_id`, a text | a list crashes the process; without one a cached run has no outputs |
//! | `extra_data` holds only what ComfyUI reads, in the type it expects | anything else breaks the job list of all clients |
//! | assets are replaced by the names under which they were uploaded | loaders accept file names, not hashes |
//! | `filename_prefix` begins with a folder of this attempt | two runs never write the same file, and a save node is never answered from the cache with deleted files |

mod asset;
mod chain;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_core::workflow::{JobKeys, RawMembers};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use uuid::Uuid;

pub use self::asset::AssetRef;

use self::chain::CHAIN_MAX;
use self::graph::{SentGraph, SentNode};
use super::prompt_node::PromptNode;
use super::restore::attempt_folder;
use super::tag::{PromptTag, TAG};
use remuda_net::text::one_line;

/// The input that says where a node saves its files.
const PREFIX_INPUT: &str = "filename_prefix";
/// ComfyUI's own default for `filename_prefix`.
const DEFAULT_PREFIX: &str = "/ComfyUI";

/// The request body, and the nodes for progress messages.
#[derive(Clone, Debug)]
pub struct PreparedPrompt {
    id: String,
    body: Vec<u8>,
    nodes: BTreeMap<String, PromptNode>,
}

/// A workflow that was read for ComfyUI. Its assets are uploaded before the rest is prepared.
#[derive(Debug)]
pub struct PromptDraft {
    graph: SentGraph,
    /// Inputs to rewrite, by node and name.
    rewritten: BTreeMap<(String, String), Value>,
    assets: Vec<AssetRef>,
}

impl PromptDraft {
    /// Accepts a bare graph, or one wrapped as `{"prompt": graph, "extra_data": {..}}`. The keys become part of `extra_data`.
    pub fn read(workflow: &RawValue, keys: &JobKeys) -> Result<PromptDraft, ServiceFailure> {
        let mut graph = SentGraph::read(workflow)?;
        graph.extra.extend(keys.iter().map(|(name, key)| (name.to_owned(), raw(&key.into()))));
        if chain::is_too_long(&graph.nodes) {
            let message = format!("a chain of more than {CHAIN_MAX} nodes is too long for ComfyUI");
            return Err(ServiceFailure::new(ServiceFault::Graph, message));
        }
        let (mut rewritten, mut assets) = (BTreeMap::new(), BTreeMap::new());
        for (id, node) in &graph.nodes {
            for (name, value) in &node.inputs {
                // This also checks that Python can parse every number in it.
                let tree: Value = serde_json::from_str(value.get()).map_err(|error| {
                    let failure = ServiceFailure::new(ServiceFault::Graph, format!("invalid JSON: {error}"));
                    at_input(id, name, &failure)
                })?;
                let has_assets =
                    asset::collect(&tree, &mut assets).map_err(|failure| at_input(id, name, &failure))?;
                if has_assets || (name == PREFIX_INPUT && tree.is_string()) {
                    rewritten.insert((id.clone(), name.clone()), tree);
                }
            }
        }
        Ok(PromptDraft { graph, rewritten, assets: assets.into_values().collect() })
    }

    /// The files that must be uploaded before the workflow can run, each once.
    pub fn assets(&self) -> &[AssetRef] {
        &self.assets
    }

    /// `placed` maps each asset's hash to its uploaded name.
    pub fn prepare(
        mut self,
        tag: &PromptTag,
        service_job_id: &str,
        client_id: &str,
        placed: &BTreeMap<String, String>,
    ) -> Result<PreparedPrompt, ServiceFailure> {
        if !is_canonical(service_job_id) {
            return Err(ServiceFailure::new(
                ServiceFault::Lost,
                format!("{service_job_id:?} is not a lower-case UUID"),
            ));
        }
        let folder = attempt_folder(tag.job, tag.attempt);
        for ((id, name), mut tree) in self.rewritten {
            asset::replace(&mut tree, placed).map_err(|failure| at_input(&id, &name, &failure))?;
            if name == PREFIX_INPUT {
                prefix(&mut tree, &folder);
            }
            if let Some(value) = self.graph.nodes.get_mut(&id).and_then(|node| node.inputs.get_mut(&name)) {
                *value = raw(&tree);
            }
        }
        Ok(PreparedPrompt::write(&self.graph, &json!(tag), service_job_id, client_id))
    }
}

fn at_input(id: &str, name: &str, failure: &ServiceFailure) -> ServiceFailure {
    let (id, name) = (one_line(id, 40), one_line(name, 80));
    let message = format!("node {id}, input {name}: {}", failure.message);
    ServiceFailure::new(failure.fault, message).at_node(id, None)
}

impl PreparedPrompt {
    /// A prompt that we built ourselves, which needs no checks.
    pub(super) fn from_trusted(graph: &Value, tag: &Value, id: &str, client_id: &str) -> PreparedPrompt {
        let graph = SentGraph::read(&raw(graph)).expect("our own graphs are valid");
        PreparedPrompt::write(&graph, tag, id, client_id)
    }

    fn write(graph: &SentGraph, tag: &Value, id: &str, client_id: &str) -> PreparedPrompt {
        let mut extra: BTreeMap<&str, Box<RawValue>> = valid_entries(&graph.extra).collect();
        extra.insert(TAG, raw(tag));
        let body = Body {
            prompt: &graph.nodes,
            prompt_id: id,
            client_id,
            extra_data: extra,
            partial_execution_targets: graph.targets.as_deref(),
        };
        let body = serde_json::to_vec(&body).expect("strings and JSON values can be serialized");
        let nodes = describe(graph);
        PreparedPrompt { id: id.to_owned(), body, nodes }
    }

    /// The `service_job_id`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The body for `POST /prompt`.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn nodes(&self) -> &BTreeMap<String, PromptNode> {
        &self.nodes
    }
}

#[derive(Serialize)]
struct Body<'a> {
    prompt: &'a BTreeMap<String, SentNode>,
    prompt_id: &'a str,
    client_id: &'a str,
    extra_data: BTreeMap<&'a str, Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_execution_targets: Option<&'a [String]>,
}

/// The nodes of a graph that a server has in its queue; `None` if it is not one of ours.
pub(super) fn describe_graph(graph: &RawValue) -> Option<BTreeMap<String, PromptNode>> {
    SentGraph::read(graph).ok().as_ref().map(describe)
}

fn describe(graph: &SentGraph) -> BTreeMap<String, PromptNode> {
    graph.nodes.iter().map(|(id, node)| (id.clone(), node.describe())).collect()
}

impl SentNode {
    fn describe(&self) -> PromptNode {
        let meta: Option<Value> = self.meta.as_ref().and_then(|meta| serde_json::from_str(meta.get()).ok());
        let title = meta.as_ref().and_then(|meta| meta["title"].as_str()).map(|title| one_line(title, 60));
        let steps = self.inputs.get("steps").and_then(|steps| serde_json::from_str(steps.get()).ok());
        PromptNode { class: one_line(&self.class, 60), title: title.filter(|title| !title.is_empty()), steps }
    }
}

/// What ComfyUI reads of `extra_data`, as far as it has the type that it expects.
fn valid_entries(extra: &RawMembers) -> impl Iterator<Item = (&str, Box<RawValue>)> {
    extra.iter().filter_map(|(key, value)| {
        let value: Value = serde_json::from_str(value.get()).ok()?;
        let valid = match (key.as_str(), value) {
            ("extra_pnginfo", Value::Object(mut info)) => {
                // ComfyUI's job list reads this field.
                if !info.get("workflow").is_none_or(Value::is_object) {
                    info.remove("workflow");
                }
                Value::Object(info)
            }
            (
                "preview_method" | "api_key_comfy_org" | "auth_token_comfy_org" | "comfy_usage_source",
                text @ Value::String(_),
            ) => text,
            _ => return None,
        };
        Some((key.as_str(), raw(&valid)))
    })
}

/// Prepends the folder to a prefix. Folders of the prefix stay below it; `..` is removed.
fn prefix(value: &mut Value, folder: &str) {
    let Value::String(text) = value else { return };
    // On Windows `\` separates folders too; elsewhere it is part of a name and is not changed.
    let leads_out = |part: &str| part.split('\\').any(|part| part.trim() == "..");
    let parts = text.split('/').filter(|part| !matches!(part.trim(), "" | ".") && !leads_out(part));
    let mut path = folder.to_owned();
    parts.clone().for_each(|part| path.extend(["/", part]));
    if parts.count() == 0 {
        path.push_str(DEFAULT_PREFIX);
    }
    *text = path;
}

fn is_canonical(id: &str) -> bool {
    Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == id)
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("a JSON value can be serialized")
}
