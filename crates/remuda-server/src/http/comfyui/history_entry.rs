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
use super::output_names::{JobNames, ServerFile};
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
    /// As the user named it.
    #[serde(rename = "subfolder", default)]
    pub(super) folder: String,
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
    fn by_node(&self, job: JobId, names: &JobNames) -> BTreeMap<String, Map<String, Value>> {
        let mut nodes: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for output in self.outputs.iter().filter(|output| output.kind != "socket") {
            let list = nodes.entry(output.node.clone()).or_default().entry(&output.key).or_insert(json!([]));
            if let Value::Array(list) = list {
                list.push(names.file_ref(job, &ServerFile::of(output), &output.kind));
            }
        }
        for error in &self.values {
            nodes.entry(error.node.clone()).or_default().insert(error.key.clone(), error.value.clone());
        }
        nodes
    }
}

/// How clients name a file that has no name of its own: job and node distinguish it from every other file of that name.
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
    let EndedPrompt { outputs, messages, .. } = EndedPrompt::read(context, prompt).await?;
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
    /// Images that a node sent over its socket.
    pub(super) socket_images: Vec<StoredOutput>,
}

impl EndedPrompt {
    pub(super) async fn read(context: &Context, prompt: &Prompt) -> Result<EndedPrompt, StoreError> {
        // A success has none, and it is what clients wait for most often.
        let error = match prompt.life.state {
            StateRow::Completed { .. } => None,
            _ => final_error(context, prompt.job).await?,
        };
        EndedPrompt::read_result(context, prompt, error, JobNames::default()).await
    }

    /// The end of a run of which the error and some names are known: they are not read again.
    pub(super) async fn read_result(
        context: &Context,
        prompt: &Prompt,
        error: Option<Map<String, Value>>,
        known: JobNames,
    ) -> Result<EndedPrompt, StoreError> {
        let result = context.store.result(prompt.job).await?;
        let result = ComfyResult::read(result.as_deref());
        let names = match prompt.is_named && !known.has_all(&result.outputs) {
            true => {
                let names = &context.comfyui.output_names;
                names.assign(context, &prompt.tenant, prompt.job, &result.outputs).await?
            }
            false => known,
        };
        let outputs = result.by_node(prompt.job, &names);
        let socket_images = result.outputs.into_iter().filter(|output| output.kind == "socket").collect();
        Ok(EndedPrompt { outputs, messages: final_messages(prompt, error), socket_images })
    }
}

/// The error that the service sent.
async fn final_error(context: &Context, job: JobId) -> Result<Option<Map<String, Value>>, StoreError> {
    let kept = context.store.document(Collection::Comfyui, &final_error_id(job)).await?;
    Ok(kept.and_then(|kept| serde_json::from_str(kept.body.get()).ok()))
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
    let mut error = error.unwrap_or_default();
    let is_reported = !error.is_empty();
    error.insert("prompt_id".to_owned(), id.as_str().into());
    if !is_reported {
        error.insert("timestamp".to_owned(), ended.into());
        if let Some(node) = prompt.life.failing_node() {
            error.insert("node_id".to_owned(), node.id.as_str().into());
            error.insert("node_type".to_owned(), node.class.as_deref().unwrap_or_default().into());
            error.extend(node.exception.as_deref().map(|it| ("exception_type".to_owned(), it.into())));
        }
    }
    match &prompt.life.state {
        StateRow::Completed { .. } => {
            messages.push(("execution_success", json!({ "prompt_id": id, "timestamp": ended })));
        }
        state @ (StateRow::Failed { .. } | StateRow::Expired { .. }) => {
            let (cause, message) = state.failure().expect("it failed");
            complete_place(&mut error);
            let kind = format!("remuda.{}", cause.as_str());
            for (key, missing) in [("exception_message", message), ("exception_type", &*kind)] {
                if !error.get(key).is_some_and(Value::is_string) {
                    error.insert(key.to_owned(), missing.into());
                }
            }
            complete_texts(&mut error, "traceback");
            error.entry("current_inputs").or_insert(json!({}));
            error.entry("current_outputs").or_insert(json!([]));
            messages.push(("execution_error", Value::Object(error)));
        }
        StateRow::Cancelled { .. } => {
            complete_place(&mut error);
            messages.push(("execution_interrupted", Value::Object(error)));
        }
        StateRow::Queued { .. } | StateRow::Running { .. } => {}
    }
    messages
}

/// Makes every field that says where a run stopped a text. The web interface refuses the whole list of jobs if one error in
/// it names no node, and an error of the plane has none: such a node is called `""`.
fn complete_place(error: &mut Map<String, Value>) {
    for key in ["node_id", "node_type"] {
        let text = match error.get(key) {
            Some(Value::String(_)) => continue,
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        error.insert(key.to_owned(), text.into());
    }
    complete_texts(error, "executed");
}

/// Makes a field a list of texts.
fn complete_texts(error: &mut Map<String, Value>, key: &str) {
    let mut list = error.get_mut(key).map(Value::take).unwrap_or_default();
    match list.as_array_mut() {
        Some(items) => items.retain(Value::is_string),
        None => list = json!([]),
    }
    error.insert(key.to_owned(), list);
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

#[cfg(test)]
mod tests {
    use remuda_core::cause::Cause;
    use remuda_core::id::{Attempt, JobId};
    use remuda_core::record::JobStatus;
    use remuda_core::time::Timestamp;

    use super::*;

    fn last_message(state: StateRow, error: Option<Value>) -> (&'static str, Value) {
        let life = JobStatus {
            state,
            attempt: Attempt(1),
            failures: 0,
            infra_failures: 0,
            crashed_workers: Default::default(),
            attempts: Vec::new(),
            changed_at: Timestamp::from_millis(9),
        };
        let prompt = Prompt {
            job: JobId::from_u128(1),
            id: "p".to_owned(),
            tenant: "t".parse().unwrap(),
            client: None,
            is_named: true,
            number: json!(1),
            accepted_at: Timestamp::ZERO,
            life,
        };
        let error = error.and_then(|error| error.as_object().cloned());
        final_messages(&prompt, error).pop().unwrap()
    }

    /// The web interface reads these with a schema, and refuses a list in which one does not fit.
    #[test]
    fn every_end_says_where_it_was_in_texts() {
        let failed =
            || StateRow::Failed { cause: Cause::Plane, message: "why".to_owned(), was_stopped: false };
        let cancelled = || StateRow::Cancelled { message: "why".to_owned() };
        let odd = json!({"node_id": 4, "node_type": null, "executed": ["1", 2, null], "traceback": "x", "exception_type": 1});
        for (state, error, node) in [
            (failed(), None, ""),
            (failed(), Some(odd.clone()), "4"),
            (StateRow::Expired { was_running: true }, None, ""),
            (cancelled(), None, ""),
            (cancelled(), Some(odd), "4"),
        ] {
            let (kind, message) = last_message(state, error);
            assert_eq!((&message["node_id"], &message["node_type"]), (&json!(node), &json!("")), "{message}");
            let texts = |key: &str| message[key].as_array().unwrap().iter().all(Value::is_string);
            assert!(texts("executed") && message["prompt_id"] == "p", "{message}");
            if kind == "execution_error" {
                assert!(texts("traceback"), "{message}");
                assert!(
                    message["exception_message"].is_string() && message["exception_type"].is_string(),
                    "{message}"
                );
            }
        }
        let (_, message) = last_message(failed(), None);
        assert_eq!(
            (&message["exception_message"], &message["exception_type"]),
            (&json!("why"), &json!("remuda.plane"))
        );
        assert_eq!(message["timestamp"], 9);
    }
}
