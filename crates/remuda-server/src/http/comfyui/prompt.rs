//! A job as ComfyUI's clients know it: a prompt with an id, a number, and whoever submitted it.

use std::collections::BTreeMap;

use remuda_core::id::{JobId, Tenant};
use remuda_core::record::{Accepted, Life, StateRow};
use remuda_core::time::Timestamp;
use remuda_store::StoreError;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::Context;

pub(super) const SERVICE: &str = "comfyui";

/// The label of jobs that the door itself has run; nobody asked for them as prompts.
pub(super) const DOORS_OWN: &str = "remuda.door";

/// Under what a client's own id is kept as the key of its job.
pub(super) fn key(id: &str) -> String {
    format!("prompt/{id}")
}

#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) job: JobId,
    pub(super) id: String,
    pub(super) client: Option<String>,
    pub(super) number: Value,
    pub(super) accepted_at: Timestamp,
    pub(super) life: Life,
}

impl Prompt {
    /// Nothing if it is a job that ComfyUI does not run.
    pub(super) fn of(accepted: &Accepted, life: Life) -> Option<Prompt> {
        if accepted.service.as_str() != SERVICE || accepted.labels.contains_key(DOORS_OWN) {
            return None;
        }
        let job = accepted.id;
        Some(Prompt {
            job,
            id: id(job, &accepted.metadata),
            client: client(&accepted.metadata),
            number: number(job, accepted.priority, &accepted.metadata),
            accepted_at: accepted.accepted_at,
            life,
        })
    }

    pub(super) async fn read(context: &Context, job: JobId) -> Result<Option<(Tenant, Prompt)>, StoreError> {
        let found = context.store.job(job).await?;
        Ok(found.and_then(|(accepted, life)| Some((accepted.tenant.clone(), Prompt::of(&accepted, life)?))))
    }

    /// By the client's own id, or by the job's.
    pub(super) async fn find(
        context: &Context,
        tenant: &Tenant,
        id: &str,
    ) -> Result<Option<Prompt>, StoreError> {
        let by_key = context.store.by_key(tenant, &key(id)).await?;
        let Some(job) = by_key.map(|(job, _)| job).or_else(|| id.parse().ok()) else { return Ok(None) };
        let found = Prompt::read(context, job).await?;
        Ok(found.filter(|(owner, _)| owner == tenant).map(|(_, prompt)| prompt))
    }

    pub(super) fn is_open(&self) -> bool {
        self.life.state.is_open()
    }

    /// Whether it belongs into the history: a prompt that was taken out of the queue before it ran leaves no trace.
    pub(super) fn is_history(&self) -> bool {
        match self.life.state {
            StateRow::Queued { .. } | StateRow::Running { .. } => false,
            StateRow::Cancelled { .. } => self.life.attempt.0 > 0,
            StateRow::Completed { .. } | StateRow::Failed { .. } => true,
        }
    }

    /// `[number, id, graph, extra_data, [output nodes]]`
    pub(super) fn tuple(&self, workflow: &Workflow, output_classes: &BTreeMap<String, bool>) -> Value {
        let mut extra = workflow.extra.clone();
        if let Some(client) = &self.client {
            extra.insert("client_id".to_owned(), client.as_str().into());
        }
        extra.insert("create_time".to_owned(), self.accepted_at.as_millis().into());
        json!([self.number, self.id, workflow.graph, extra, workflow.outputs(output_classes)])
    }
}

pub(super) fn id(job: JobId, metadata: &Map<String, Value>) -> String {
    metadata.get("prompt_id").and_then(Value::as_str).map_or_else(|| job.to_string(), str::to_owned)
}

pub(super) fn client(metadata: &Map<String, Value>) -> Option<String> {
    metadata.get("client_id").and_then(Value::as_str).map(str::to_owned)
}

/// Lower runs first. The time it was submitted, unless the client chose another; below zero if it goes in front.
pub(super) fn number(job: JobId, priority: i8, metadata: &Map<String, Value>) -> Value {
    if let Some(number) = metadata.get("number") {
        return number.clone();
    }
    let text = job.to_string();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    let millis = i64::from_str_radix(&digits, 16).unwrap_or(0);
    if priority > 0 { (-millis).into() } else { millis.into() }
}

/// A workflow as it was submitted: a graph, and perhaps what goes with it.
#[derive(Clone, Debug, Default)]
pub(super) struct Workflow {
    pub(super) graph: Value,
    pub(super) extra: Map<String, Value>,
    /// Nodes that give something, as it was known when it was submitted.
    outputs: Option<Vec<String>>,
}

/// Where a submission at the door notes which nodes give something: servers that knew may be gone later.
pub(super) const OUTPUTS: &str = "outputs_to_execute";

impl Workflow {
    pub(super) fn read(body: &RawValue) -> Workflow {
        let mut whole: Value = serde_json::from_str(body.get()).unwrap_or_default();
        let is_wrapped = whole["prompt"].is_object() && !whole["prompt"]["class_type"].is_string();
        if !is_wrapped {
            name_assets(&mut whole);
            return Workflow { graph: whole, ..Workflow::default() };
        }
        let mut graph = whole["prompt"].take();
        name_assets(&mut graph);
        let extra = match whole["extra_data"].take() {
            Value::Object(extra) => extra,
            _ => Map::new(),
        };
        let mut list = |key: &str| serde_json::from_value(whole[key].take()).ok();
        let outputs = list(OUTPUTS).or_else(|| list("partial_execution_targets"));
        Workflow { graph, extra, outputs }
    }

    /// Nodes that gave something; if nothing was noted, that tells as much, and the same whichever servers are there later.
    pub(super) fn gave<'a>(&mut self, nodes: impl Iterator<Item = &'a String>) {
        self.outputs.get_or_insert_with(|| nodes.cloned().collect());
    }

    /// Nodes that give something: as noted, or all that are known to.
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

/// Puts the names under which files were sent back in place of their hashes: that is how the client knows them.
fn name_assets(value: &mut Value) {
    if value["__type"] == "core/ASSET"
        && let Some(name) = value["info"]["name"].as_str().or(value["info"]["file_path"].as_str())
    {
        *value = name.into();
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(name_assets),
        Value::Object(members) => members.values_mut().for_each(name_assets),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_is_shown_as_it_was_submitted_with_files_under_their_names() {
        let asset = json!({"__type": "core/ASSET", "info": {"hash": "blake3:00", "file_path": "sub/a.png"}});
        let graph = json!({"1": {"class_type": "LoadImage", "inputs": {"image": asset, "x": ["2", 0]}}});
        let body =
            json!({"prompt": graph, "extra_data": {"a": 1}, "partial_execution_targets": ["1"]}).to_string();
        let workflow = Workflow::read(&RawValue::from_string(body).unwrap());
        assert_eq!(workflow.graph["1"]["inputs"], json!({"image": "sub/a.png", "x": ["2", 0]}));
        assert_eq!(workflow.extra["a"], 1);
        assert_eq!(workflow.outputs(&BTreeMap::new()), ["1"]);
        let called_so = json!({"prompt": {"class_type": "SaveImage", "inputs": {}}}).to_string();
        let workflow = Workflow::read(&RawValue::from_string(called_so).unwrap());
        let known = BTreeMap::from([("SaveImage".to_owned(), true)]);
        assert_eq!(workflow.outputs(&known), ["prompt"]);
    }

    #[test]
    fn who_goes_in_front_has_a_number_below_zero() {
        let job = JobId::from_u128(0x0193_e7a0_5b1c_7d52 << 64);
        let plain = number(job, 0, &Map::new());
        assert_eq!(plain, 0x0193_e7a0_5b1c_i64);
        assert_eq!(number(job, 10, &Map::new()).as_i64(), plain.as_i64().map(|it| -it));
        let chosen = Map::from_iter([("number".to_owned(), json!(2.5))]);
        assert_eq!(number(job, 0, &chosen), 2.5);
    }
}
