//! A job as ComfyUI clients see it: a prompt with an id, a queue number and the client that submitted it.

use std::collections::BTreeMap;

use remuda_core::id::{JobId, Tenant};
use remuda_core::record::{AcceptedJob, JobStatus, StateRow};
use remuda_core::time::Timestamp;
use remuda_store::StoreError;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::Context;

pub(in crate::http) const SERVICE: &str = "comfyui";

/// The idempotency key that holds a client's own prompt id.
pub(super) fn idempotency_key(id: &str) -> String {
    format!("prompt/{id}")
}

#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) job: JobId,
    pub(super) id: String,
    pub(super) tenant: Tenant,
    pub(super) client: Option<String>,
    /// Submitted through this API: its outputs get names as in ComfyUI.
    pub(super) is_named: bool,
    pub(super) number: Value,
    pub(super) accepted_at: Timestamp,
    pub(super) life: JobStatus,
}

impl Prompt {
    /// `None` for a job that ComfyUI does not run.
    pub(super) fn from_record(accepted: &AcceptedJob, life: JobStatus) -> Option<Prompt> {
        if accepted.service.as_str() != SERVICE {
            return None;
        }
        let job = accepted.id;
        Some(Prompt {
            job,
            id: prompt_id(job, &accepted.metadata),
            tenant: accepted.tenant.clone(),
            client: client_id(&accepted.metadata),
            is_named: is_named(&accepted.metadata),
            number: queue_number(job, accepted.priority, &accepted.metadata),
            accepted_at: accepted.accepted_at,
            life,
        })
    }

    pub(super) async fn read(context: &Context, job: JobId) -> Result<Option<(Tenant, Prompt)>, StoreError> {
        let found = context.store.job(job).await?;
        Ok(found.and_then(|(accepted, life)| {
            Some((accepted.tenant.clone(), Prompt::from_record(&accepted, life)?))
        }))
    }

    /// Finds a prompt by the client's id or by the job id.
    pub(super) async fn find(
        context: &Context,
        tenant: &Tenant,
        id: &str,
    ) -> Result<Option<Prompt>, StoreError> {
        let by_key = context.store.job_by_key(tenant, &idempotency_key(id)).await?;
        let Some(job) = by_key.map(|(job, _)| job).or_else(|| id.parse().ok()) else { return Ok(None) };
        let found = Prompt::read(context, job).await?;
        Ok(found.filter(|(owner, _)| owner == tenant).map(|(_, prompt)| prompt))
    }

    pub(super) fn is_open(&self) -> bool {
        self.life.state.is_open()
    }

    /// True if the prompt belongs in the history: a prompt that was deleted from the queue before it ran does not.
    pub(super) fn is_history(&self) -> bool {
        match self.life.state {
            StateRow::Queued { .. } | StateRow::Running { .. } => false,
            StateRow::Cancelled { .. } => self.life.attempt.0 > 0,
            StateRow::Completed { .. } | StateRow::Failed { .. } | StateRow::Expired { .. } => true,
        }
    }

    /// `[number, id, graph, extra_data, [output nodes]]`
    pub(super) fn queue_tuple(
        &self,
        workflow: &PromptWorkflow,
        output_classes: &BTreeMap<String, bool>,
    ) -> Value {
        let mut extra = workflow.extra.clone();
        if let Some(client) = &self.client {
            extra.insert("client_id".to_owned(), client.as_str().into());
        }
        extra.insert("create_time".to_owned(), self.accepted_at.as_millis().into());
        json!([self.number, self.id, workflow.graph, extra, workflow.outputs(output_classes)])
    }
}

pub(super) fn prompt_id(job: JobId, metadata: &Map<String, Value>) -> String {
    metadata.get("prompt_id").and_then(Value::as_str).map_or_else(|| job.to_string(), str::to_owned)
}

/// Metadata of a prompt that has neither an id nor a client of its own.
pub(super) const SURFACE: &str = "surface";

/// True if the job was submitted through this API.
pub(super) fn is_named(metadata: &Map<String, Value>) -> bool {
    ["prompt_id", "client_id", SURFACE].iter().any(|key| metadata.contains_key(*key))
}

pub(super) fn client_id(metadata: &Map<String, Value>) -> Option<String> {
    metadata.get("client_id").and_then(Value::as_str).map(str::to_owned)
}

/// Lower numbers run first. The submission time, unless the client chose a number; negative if the prompt was put in front.
pub(super) fn queue_number(job: JobId, priority: i8, metadata: &Map<String, Value>) -> Value {
    if let Some(number) = metadata.get("number") {
        return number.clone();
    }
    let text = job.to_string();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    let millis = i64::from_str_radix(&digits, 16).unwrap_or(0);
    if priority > 0 { (-millis).into() } else { millis.into() }
}

/// A stored workflow as ComfyUI clients see it: the graph and the fields submitted with it.
#[derive(Clone, Debug, Default)]
pub(super) struct PromptWorkflow {
    pub(super) graph: Value,
    pub(super) extra: Map<String, Value>,
    /// Output nodes, as determined at submission.
    outputs: Option<Vec<String>>,
}

/// Field in which a submission records its output nodes: the servers that know them may be gone later.
pub(super) const OUTPUTS: &str = "outputs_to_execute";

impl PromptWorkflow {
    pub(super) fn read(body: &RawValue) -> PromptWorkflow {
        let mut whole: Value = serde_json::from_str(body.get()).unwrap_or_default();
        let is_wrapped = whole["prompt"].is_object() && !whole["prompt"]["class_type"].is_string();
        if !is_wrapped {
            restore_file_names(&mut whole);
            return PromptWorkflow { graph: whole, ..PromptWorkflow::default() };
        }
        let mut graph = whole["prompt"].take();
        restore_file_names(&mut graph);
        let extra = match whole["extra_data"].take() {
            Value::Object(extra) => extra,
            _ => Map::new(),
        };
        let mut list = |key: &str| serde_json::from_value(whole[key].take()).ok();
        // Of several outputs only those are wanted.
        let outputs = list("partial_execution_targets").or_else(|| list(OUTPUTS));
        PromptWorkflow { graph, extra, outputs }
    }

    /// Uses the nodes that produced outputs if none were recorded; the answer then does not depend on which servers are connected.
    pub(super) fn default_outputs<'a>(&mut self, nodes: impl Iterator<Item = &'a String>) {
        self.outputs.get_or_insert_with(|| nodes.cloned().collect());
    }

    /// The recorded output nodes, or all nodes of known output classes.
    fn outputs(&self, output_classes: &BTreeMap<String, bool>) -> Vec<&str> {
        if let Some(outputs) = &self.outputs {
            return outputs.iter().map(String::as_str).collect();
        }
        let nodes = self.graph.as_object().into_iter().flatten();
        let gives = |node: &Value| {
            node["class_type"].as_str().is_some_and(|class| output_classes.get(class) == Some(&true))
        };
        nodes.filter(|(_, node)| gives(node)).map(|(id, _)| id.as_str()).collect()
    }
}

/// Replaces asset references by the file names under which the client uploaded them.
fn restore_file_names(value: &mut Value) {
    if value["__type"] == "core/ASSET"
        && let Some(name) = value["info"]["name"].as_str().or(value["info"]["file_path"].as_str())
    {
        *value = name.into();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(restore_file_names),
        Value::Object(members) => members.values_mut().for_each(restore_file_names),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflow_is_shown_with_file_names_instead_of_assets() {
        let asset = json!({"__type": "core/ASSET", "info": {"hash": "blake3:00", "file_path": "sub/a.png"}});
        let graph = json!({"1": {"class_type": "LoadImage", "inputs": {"image": asset, "x": ["2", 0]}}});
        let body =
            json!({"prompt": graph, "extra_data": {"a": 1}, "partial_execution_targets": ["1"]}).to_string();
        let workflow = PromptWorkflow::read(&RawValue::from_string(body).unwrap());
        assert_eq!(workflow.graph["1"]["inputs"], json!({"image": "sub/a.png", "x": ["2", 0]}));
        assert_eq!(workflow.extra["a"], 1);
        assert_eq!(workflow.outputs(&BTreeMap::new()), ["1"]);
        let called_so = json!({"prompt": {"class_type": "SaveImage", "inputs": {}}}).to_string();
        let workflow = PromptWorkflow::read(&RawValue::from_string(called_so).unwrap());
        let known = BTreeMap::from([("SaveImage".to_owned(), true)]);
        assert_eq!(workflow.outputs(&known), ["prompt"]);
    }

    #[test]
    fn prompt_in_front_has_a_negative_number() {
        let job = JobId::from_u128(0x0193_e7a0_5b1c_7d52 << 64);
        let plain = queue_number(job, 0, &Map::new());
        assert_eq!(plain, 0x0193_e7a0_5b1c_i64);
        assert_eq!(queue_number(job, 10, &Map::new()).as_i64(), plain.as_i64().map(|it| -it));
        let chosen = Map::from_iter([("number".to_owned(), json!(2.5))]);
        assert_eq!(queue_number(job, 0, &chosen), 2.5);
    }
}
