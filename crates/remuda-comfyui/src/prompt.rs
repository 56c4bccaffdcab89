//! A workflow made ready for ComfyUI: what is known to kill or confuse its executor is mended or refused here, before it
//! is sent, because the server itself accepts all of it with a 200.
//!
//! | what | because |
//! |---|---|
//! | every node has a class and an object of inputs | a loose node without inputs kills the worker thread |
//! | no chain of links is longer than Python can follow | a longer one, in loose nodes, kills it as well |
//! | our own id, a lower-case UUID; no `number` | newer servers take no other; equal pairs of both kill the worker thread |
//! | our own `client_id`, a text | a list ends the process; without one a cached run has no outputs |
//! | `extra_data` holds only what ComfyUI reads, in the type it expects | others break the job list for everybody |
//! | assets become the names under which they were placed | a loader knows files, not hashes |
//! | `filename_prefix` begins with a folder of this attempt | two runs never write one file, and a save is never answered from the cache with files that are gone |

mod asset;
mod chain;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use uuid::Uuid;

pub use self::asset::{Asset, assets};

use self::chain::CHAIN_MAX;
use self::graph::{Extra, Graph};
use super::json;
use super::tag::{TAG, Tag};
use remuda_net::text::one_line;

/// As nodes call what they save if nobody says otherwise.
const NAME_OF_THE_NAMELESS: &str = "/ComfyUI";

/// What is sent, and what is needed to tell people how far it is.
#[derive(Clone, Debug)]
pub struct Prompt {
    id: String,
    body: Vec<u8>,
    nodes: BTreeMap<String, Node>,
}

/// A node as people know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub class: String,
    /// What its author called it.
    pub title: Option<String>,
    /// How many steps it will take, if an input says so.
    pub steps: Option<f64>,
}

impl Node {
    pub fn name(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.class)
    }
}

impl Prompt {
    /// `placed` says for each asset's hash under which name it was uploaded. Takes a bare graph, or one wrapped as
    /// `{"prompt": graph, "extra_data": {..}}`.
    pub fn prepare(
        workflow: &RawValue,
        tag: &Tag,
        service_job_id: &str,
        client_id: &str,
        placed: &BTreeMap<String, String>,
    ) -> Result<Prompt, ServiceFailure> {
        if !is_canonical(service_job_id) {
            return Err(ServiceFailure::new(
                ServiceFault::Lost,
                format!("{service_job_id:?} is no lower-case UUID"),
            ));
        }
        let mut graph = Graph::read(workflow)?;
        if chain::is_too_long(&graph.nodes) {
            let message =
                format!("more than {CHAIN_MAX} nodes in one chain are more than ComfyUI can follow");
            return Err(ServiceFailure::new(ServiceFault::Graph, message));
        }
        let folder = folder(tag);
        for (id, node) in &mut graph.nodes {
            for (name, value) in &mut node.inputs {
                let at = |failure: ServiceFailure| {
                    ServiceFailure::new(
                        failure.fault,
                        format!(
                            "node {}, input {}: {}",
                            one_line(id, 40),
                            one_line(name, 80),
                            failure.message
                        ),
                    )
                };
                // Also the check that every number in it is one that Python reads as a number.
                let mut tree: Value = serde_json::from_str(value.get()).map_err(|error| {
                    at(ServiceFailure::new(ServiceFault::Graph, format!("no sound JSON: {error}")))
                })?;
                let is_placed = asset::place(&mut tree, placed).map_err(at)?;
                let is_prefixed = name == "filename_prefix" && prefix(&mut tree, &folder);
                if is_placed || is_prefixed {
                    *value = raw(&tree);
                }
            }
        }
        let tag = json!(tag);
        Ok(Prompt::write(&graph, &tag, service_job_id, client_id))
    }

    /// A prompt of our own making, which needs no mending.
    pub(super) fn own(graph: &Value, tag: &Value, id: &str, client_id: &str) -> Prompt {
        let graph = Graph::read(&raw(graph)).expect("our own graphs are sound");
        Prompt::write(&graph, tag, id, client_id)
    }

    fn write(graph: &Graph, tag: &Value, id: &str, client_id: &str) -> Prompt {
        let mut extra: BTreeMap<&str, Box<RawValue>> = graph.extra.sound().collect();
        extra.insert(TAG, raw(tag));
        let body = Body {
            prompt: &graph.nodes,
            prompt_id: id,
            client_id,
            extra_data: extra,
            partial_execution_targets: graph.targets.as_deref(),
        };
        let body = serde_json::to_vec(&body).expect("texts and JSON values can be written");
        let nodes = graph.nodes.iter().map(|(id, node)| (id.clone(), node.known())).collect();
        Prompt { id: id.to_owned(), body, nodes }
    }

    /// The `service_job_id`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What is posted to `/prompt`.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
    }
}

#[derive(Serialize)]
struct Body<'a> {
    prompt: &'a BTreeMap<String, graph::Node>,
    prompt_id: &'a str,
    client_id: &'a str,
    extra_data: BTreeMap<&'a str, Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_execution_targets: Option<&'a [String]>,
}

impl graph::Node {
    fn known(&self) -> Node {
        let meta: Option<Value> = self.meta.as_ref().and_then(|meta| serde_json::from_str(meta.get()).ok());
        let title = meta.as_ref().and_then(|meta| meta["title"].as_str()).map(|title| one_line(title, 60));
        let steps = self.inputs.get("steps").and_then(|steps| serde_json::from_str(steps.get()).ok());
        Node { class: one_line(&self.class, 60), title: title.filter(|title| !title.is_empty()), steps }
    }
}

impl Extra {
    /// What ComfyUI reads of it, as far as it has the type that it expects.
    fn sound(&self) -> impl Iterator<Item = (&str, Box<RawValue>)> {
        self.0.0.iter().filter_map(|(key, value)| {
            let value: Value = serde_json::from_str(value.get()).ok()?;
            let sound = match (key.as_str(), value) {
                ("extra_pnginfo", Value::Object(mut info)) => {
                    // The job list looks into it.
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
            Some((key.as_str(), raw(&sound)))
        })
    }
}

/// The folder for what this attempt saves. The end of a job's id: its beginning is the time, which jobs share.
fn folder(tag: &Tag) -> String {
    let job = tag.job.to_string();
    format!("remuda/{}-{}", &job[24..], tag.attempt)
}

/// Puts the folder in front of a prefix, whose own folders stay below it: none of them leads out again.
fn prefix(value: &mut Value, folder: &str) -> bool {
    let Value::String(text) = value else { return false };
    // On Windows `\` parts folders too; elsewhere it is a letter of a name, so it is kept where nothing depends on it.
    let leads_out = |part: &str| part.split('\\').any(|part| part.trim() == "..");
    let parts = text.split('/').filter(|part| !matches!(part.trim(), "" | ".") && !leads_out(part));
    let mut path = folder.to_owned();
    parts.clone().for_each(|part| path.extend(["/", part]));
    if parts.count() == 0 {
        path.push_str(NAME_OF_THE_NAMELESS);
    }
    *text = path;
    true
}

fn is_canonical(id: &str) -> bool {
    Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == id)
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("a JSON value can be written")
}

fn read_members(text: &RawValue) -> json::Members<Box<RawValue>> {
    serde_json::from_str(text.get()).unwrap_or_default()
}
