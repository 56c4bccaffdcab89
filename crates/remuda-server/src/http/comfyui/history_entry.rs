//! What became of a prompt, as `/history` tells it: outputs under the names by which `/view` finds them, and the last words.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::document::Shelf;
use remuda_core::id::JobId;
use remuda_core::record::StateRow;
use remuda_store::StoreError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::Context;
use super::prompt::{Prompt, Workflow};

/// A result as workers give it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Given {
    #[serde(default)]
    pub(super) outputs: Vec<Output>,
    #[serde(default)]
    values: Vec<Said>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Output {
    pub(super) node: String,
    pub(super) key: String,
    pub(super) name: String,
    /// `output`, `temp`, or `socket` for what was only sent.
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    pub(super) hash: String,
}

#[derive(Debug, Deserialize)]
struct Said {
    node: String,
    key: String,
    value: Value,
}

impl Given {
    pub(super) fn read(result: Option<&RawValue>) -> Given {
        result.and_then(|result| serde_json::from_str(result.get()).ok()).unwrap_or_default()
    }

    /// `{node: {key: [{filename, subfolder, type}]}}`
    pub(super) fn by_node(&self, job: JobId) -> BTreeMap<String, Map<String, Value>> {
        let mut nodes: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for output in self.outputs.iter().filter(|output| output.kind != "socket") {
            let list = nodes.entry(output.node.clone()).or_default().entry(&output.key).or_insert(json!([]));
            if let Value::Array(list) = list {
                list.push(file(job, &output.node, &output.name, &output.kind));
            }
        }
        for said in &self.values {
            nodes.entry(said.node.clone()).or_default().insert(said.key.clone(), said.value.clone());
        }
        nodes
    }
}

/// How a file is named here: the job and the node tell it from every other of its name.
pub(super) fn file(job: JobId, node: &str, name: &str, kind: &str) -> Value {
    json!({ "filename": name, "subfolder": format!("{job}/{node}"), "type": kind })
}

/// The whole entry.
pub(super) async fn entry(
    context: &Context,
    prompt: &Prompt,
    output_classes: &BTreeMap<String, bool>,
) -> Result<Value, StoreError> {
    let workflow = context.store.workflow(prompt.job).await?;
    let mut workflow = workflow.map(|body| Workflow::read(&body)).unwrap_or_default();
    let Ended { outputs, words } = Ended::read(context, prompt).await?;
    workflow.gave(outputs.keys());
    let is_success = matches!(prompt.life.state, StateRow::Completed { .. });
    let meta: Map<String, Value> = outputs
        .keys()
        .map(|node| {
            let about =
                json!({ "node_id": node, "display_node": node, "parent_node": null, "real_node_id": node });
            (node.clone(), about)
        })
        .collect();
    let messages: Vec<Value> = words.iter().map(|(kind, data)| json!([kind, data])).collect();
    Ok(json!({
        "prompt": prompt.tuple(&workflow, output_classes),
        "outputs": outputs,
        "status": {
            "status_str": if is_success { "success" } else { "error" }, "completed": is_success, "messages": messages,
        },
        "meta": meta,
    }))
}

/// A prompt's end: what it gave, and what is said of it.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outputs: BTreeMap<String, Map<String, Value>>,
    /// `execution_start`, `execution_cached`, and the last word.
    pub(super) words: Vec<(&'static str, Value)>,
}

impl Ended {
    pub(super) async fn read(context: &Context, prompt: &Prompt) -> Result<Ended, StoreError> {
        let result = context.store.result(prompt.job).await?;
        let outputs = Given::read(result.as_deref()).by_node(prompt.job);
        let error = context.store.document(Shelf::Comfyui, &last_words_id(prompt.job)).await?;
        let error = error.and_then(|kept| serde_json::from_str(kept.body.get()).ok());
        Ok(Ended { outputs, words: words(prompt, error) })
    }
}

/// Under what the service's own words about a failure are kept.
pub(super) fn last_words_id(job: JobId) -> String {
    format!("words/{job}")
}

fn words(prompt: &Prompt, said: Option<Map<String, Value>>) -> Vec<(&'static str, Value)> {
    let id = &prompt.id;
    let last = prompt.life.tries.last();
    let started = last.map_or(prompt.life.changed_at, |attempt| attempt.started_at).as_millis();
    let ended = prompt.life.changed_at.as_millis();
    let mut words = vec![
        ("execution_start", json!({ "prompt_id": id, "timestamp": started })),
        ("execution_cached", json!({ "nodes": [], "prompt_id": id, "timestamp": started })),
    ];
    let said = said.map(|mut said| {
        said.insert("prompt_id".to_owned(), id.as_str().into());
        Value::Object(said)
    });
    match &prompt.life.state {
        StateRow::Completed { .. } => {
            words.push(("execution_success", json!({ "prompt_id": id, "timestamp": ended })));
        }
        StateRow::Failed { cause, message, .. } => {
            let plain = || {
                json!({
                    "prompt_id": id, "node_id": null, "node_type": null, "executed": [], "exception_message": message,
                    "exception_type": format!("remuda.{}", cause.as_str()), "traceback": [], "current_inputs": {},
                    "current_outputs": [], "timestamp": ended,
                })
            };
            words.push(("execution_error", said.unwrap_or_else(plain)));
        }
        StateRow::Cancelled { .. } => {
            let plain = || json!({ "prompt_id": id, "node_id": null, "node_type": null, "executed": [], "timestamp": ended });
            words.push(("execution_interrupted", said.unwrap_or_else(plain)));
        }
        StateRow::Queued { .. } | StateRow::Running { .. } => {}
    }
    words
}

/// Outputs of a job that are stored already, while it runs and after.
pub(super) async fn stored_outputs(context: &Context, job: JobId) -> Result<Vec<Output>, StoreError> {
    if let Some(result) = context.store.result(job).await? {
        return Ok(Given::read(Some(&result)).outputs);
    }
    let doing = context.live_attempts.find(job);
    Ok(so_far(doing.map(|doing| doing.outputs).as_deref().unwrap_or_default()))
}

pub(super) fn so_far(outputs: &[Arc<RawValue>]) -> Vec<Output> {
    outputs.iter().filter_map(|output| serde_json::from_str(output.get()).ok()).collect()
}
