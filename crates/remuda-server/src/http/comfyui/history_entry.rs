//! One entry of `/history`: outputs under the names by which `/view` finds them, and the final messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::document::Collection;
use remuda_core::id::JobId;
use remuda_core::record::StateRow;
use remuda_store::StoreError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::Context;
use super::prompt::{Prompt, PromptWorkflow};

/// The result of a ComfyUI job, as workers report it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ComfyResult {
    #[serde(default)]
    pub(super) outputs: Vec<StoredOutput>,
    #[serde(default)]
    values: Vec<NodeValue>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct StoredOutput {
    pub(super) node: String,
    pub(super) key: String,
    pub(super) name: String,
    /// `output`, `temp`, or `socket` for images that were sent over the websocket only.
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    pub(super) hash: String,
}

#[derive(Debug, Deserialize)]
struct NodeValue {
    node: String,
    key: String,
    value: Value,
}

impl ComfyResult {
    pub(super) fn read(result: Option<&RawValue>) -> ComfyResult {
        result.and_then(|result| serde_json::from_str(result.get()).ok()).unwrap_or_default()
    }

    /// `{node: {key: [{filename, subfolder, type}]}}`
    pub(super) fn by_node(&self, job: JobId) -> BTreeMap<String, Map<String, Value>> {
        let mut nodes: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for output in self.outputs.iter().filter(|output| output.kind != "socket") {
            let list = nodes.entry(output.node.clone()).or_default().entry(&output.key).or_insert(json!([]));
            if let Value::Array(list) = list {
                list.push(file_ref(job, &output.node, &output.name, &output.kind));
            }
        }
        for error in &self.values {
            nodes.entry(error.node.clone()).or_default().insert(error.key.clone(), error.value.clone());
        }
        nodes
    }
}

/// How clients name a file: job and node distinguish it from every other file of that name.
pub(super) fn file_ref(job: JobId, node: &str, name: &str, kind: &str) -> Value {
    json!({ "filename": name, "subfolder": format!("{job}/{node}"), "type": kind })
}

/// The complete history entry.
pub(super) async fn history_entry(
    context: &Context,
    prompt: &Prompt,
    output_classes: &BTreeMap<String, bool>,
) -> Result<Value, StoreError> {
    let workflow = context.store.workflow(prompt.job).await?;
    let mut workflow = workflow.map(|body| PromptWorkflow::read(&body)).unwrap_or_default();
    let EndedPrompt { outputs, messages } = EndedPrompt::read(context, prompt).await?;
    workflow.default_outputs(outputs.keys());
    let is_success = matches!(prompt.life.state, StateRow::Completed { .. });
    let meta: Map<String, Value> = outputs
        .keys()
        .map(|node| {
            let about =
                json!({ "node_id": node, "display_node": node, "parent_node": null, "real_node_id": node });
            (node.clone(), about)
        })
        .collect();
    let messages: Vec<Value> = messages.iter().map(|(kind, data)| json!([kind, data])).collect();
    Ok(json!({
        "prompt": prompt.queue_tuple(&workflow, output_classes),
        "outputs": outputs,
        "status": {
            "status_str": if is_success { "success" } else { "error" }, "completed": is_success, "messages": messages,
        },
        "meta": meta,
    }))
}

/// The outputs and messages of an ended prompt.
#[derive(Debug)]
pub(super) struct EndedPrompt {
    pub(super) outputs: BTreeMap<String, Map<String, Value>>,
    /// `execution_start`, `execution_cached` and the final message.
    pub(super) messages: Vec<(&'static str, Value)>,
}

impl EndedPrompt {
    pub(super) async fn read(context: &Context, prompt: &Prompt) -> Result<EndedPrompt, StoreError> {
        let result = context.store.result(prompt.job).await?;
        let outputs = ComfyResult::read(result.as_deref()).by_node(prompt.job);
        let error = context.store.document(Collection::Comfyui, &final_error_id(prompt.job)).await?;
        let error = error.and_then(|kept| serde_json::from_str(kept.body.get()).ok());
        Ok(EndedPrompt { outputs, messages: final_messages(prompt, error) })
    }
}

/// Document id of the error message that the service sent.
pub(super) fn final_error_id(job: JobId) -> String {
    format!("error/{job}")
}

fn final_messages(prompt: &Prompt, error: Option<Map<String, Value>>) -> Vec<(&'static str, Value)> {
    let id = &prompt.id;
    let last = prompt.life.attempts.last();
    let started = last.map_or(prompt.life.changed_at, |attempt| attempt.started_at).as_millis();
    let ended = prompt.life.changed_at.as_millis();
    let mut messages = vec![
        ("execution_start", json!({ "prompt_id": id, "timestamp": started })),
        ("execution_cached", json!({ "nodes": [], "prompt_id": id, "timestamp": started })),
    ];
    let error = error.map(|mut error| {
        error.insert("prompt_id".to_owned(), id.as_str().into());
        Value::Object(error)
    });
    match &prompt.life.state {
        StateRow::Completed { .. } => {
            messages.push(("execution_success", json!({ "prompt_id": id, "timestamp": ended })));
        }
        state @ (StateRow::Failed { .. } | StateRow::Expired { .. }) => {
            let (cause, message) = state.failure().expect("it failed");
            let plain = || {
                json!({
                    "prompt_id": id, "node_id": null, "node_type": null, "executed": [], "exception_message": message,
                    "exception_type": format!("remuda.{}", cause.as_str()), "traceback": [], "current_inputs": {},
                    "current_outputs": [], "timestamp": ended,
                })
            };
            messages.push(("execution_error", error.unwrap_or_else(plain)));
        }
        StateRow::Cancelled { .. } => {
            let plain = || json!({ "prompt_id": id, "node_id": null, "node_type": null, "executed": [], "timestamp": ended });
            messages.push(("execution_interrupted", error.unwrap_or_else(plain)));
        }
        StateRow::Queued { .. } | StateRow::Running { .. } => {}
    }
    messages
}

/// Outputs of a job that are stored so far, while it runs and after it ended.
pub(super) async fn stored_outputs(context: &Context, job: JobId) -> Result<Vec<StoredOutput>, StoreError> {
    if let Some(result) = context.store.result(job).await? {
        return Ok(ComfyResult::read(Some(&result)).outputs);
    }
    let doing = context.live_attempts.find(job);
    Ok(parse_outputs(doing.map(|doing| doing.outputs).as_deref().unwrap_or_default()))
}

pub(super) fn parse_outputs(outputs: &[Arc<RawValue>]) -> Vec<StoredOutput> {
    outputs.iter().filter_map(|output| serde_json::from_str(output.get()).ok()).collect()
}
