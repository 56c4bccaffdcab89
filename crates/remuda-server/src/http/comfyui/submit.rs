//! `POST /prompt`: validates a prompt, with errors in ComfyUI's format, and submits it as a job under the client's own id if
//! it sent one.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use remuda_core::id::{Tenant, WorkflowHash};
use remuda_core::refusal::Refusal;
use remuda_core::workflow::{
    GraphCheck, InputGraph, InvalidKind, InvalidWorkflow, JobKeys, MissingModel, PromptRefusal, RawMembers,
    Workflow,
};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context, request_key};
use super::error::ComfyuiError;
use super::prompt::{self, Prompt, SERVICE};
use super::uploads;
use crate::intake::{IntakeError, SubmitFields, Submitted};
use crate::plane_handle::PlaneError;

/// Runs before all prompts of the same tenant that have no priority.
pub(super) const FRONT_PRIORITY: i8 = 10;
/// Copied into every event of the job.
const CLIENT_BYTES_MAX: usize = 200;
/// API keys and tokens have a few hundred bytes.
const SECRET_BYTES_MAX: usize = 4096;

pub(super) async fn submit(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let key = request_key::read(&headers)?;
    let fields: RawMembers = serde_json::from_slice(&body).map_err(|error| {
        ComfyuiError::prompt("invalid_prompt", "The request is not a JSON object", error.to_string())
    })?;
    let Some(given) = fields.get("prompt") else {
        return Err(ComfyuiError::prompt("no_prompt", "No prompt provided", "No prompt provided"));
    };
    let mut prompt_fields = PromptFields::read(&fields)?;
    let mut graph = read_graph(given)?;
    let workflow = prompt_fields.parse(&context, &tenant, &mut graph).await?;
    let node_errors = workflow.verdict().map(|verdict| verdict.node_errors.clone()).unwrap_or_default();
    let node_errors = Value::Object(node_errors);
    let workflow_hash = workflow.facts().workflow_hash;
    if let Some(known) = prompt_fields.find_existing(&context, &tenant, workflow_hash).await? {
        return Ok(accepted(&known.id, &known.number, &node_errors));
    }
    let mut submit = SubmitFields::new(tenant.clone());
    submit.token = caller.token();
    submit.service = SERVICE.parse().ok();
    // A stock client cannot know its priority limit, so the priority is capped instead of refused.
    submit.priority =
        if prompt_fields.is_in_front { FRONT_PRIORITY.min(context.access.priority_max(&caller)) } else { 0 };
    submit.metadata = prompt_fields.metadata();
    submit.options.wait_for_capability = prompt_fields.waits;
    // The id of a prompt is its key; a client that names none may send a key in the header.
    let own_id = prompt_fields.id.as_deref().map(prompt::idempotency_key);
    submit.idempotency_key = own_id.or_else(|| key.map(|key| format!("prompt-key/{key}")));
    let (priority, metadata) = (submit.priority, submit.metadata.clone());
    let workflow = workflow.with_keys(std::mem::take(&mut prompt_fields.keys));
    match context.intake().submit(workflow, submit).await {
        Ok(Submitted { job, .. }) => {
            let number = prompt::queue_number(job, priority, &metadata);
            Ok(accepted(&prompt::prompt_id(job, &metadata), &number, &node_errors))
        }
        // A concurrent request used the same id first.
        Err(IntakeError::Plane(PlaneError::Refused(Refusal::KeyConflict { .. })))
            if prompt_fields.id.is_some() =>
        {
            match prompt_fields.find_existing(&context, &tenant, workflow_hash).await? {
                Some(known) => Ok(accepted(&known.id, &known.number, &node_errors)),
                None => Err(prompt_fields.id_conflict()),
            }
        }
        Err(IntakeError::Plane(PlaneError::Refused(refusal @ Refusal::NoCapability { .. }))) => {
            Err(ComfyuiError::refused(no_capability(&graph, &refusal)))
        }
        Err(other) => Err(other.into()),
    }
}

fn accepted(id: &str, number: &Value, node_errors: &Value) -> Json<Value> {
    Json(json!({ "prompt_id": id, "number": number, "node_errors": node_errors }))
}

/// An error in the workflow itself, independent of any worker.
fn invalid_workflow(invalid: InvalidWorkflow) -> ComfyuiError {
    if let InvalidWorkflow::Refused(refusal) = invalid {
        return ComfyuiError::Refused(refusal);
    }
    match invalid.kind() {
        InvalidKind::TooLarge => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", invalid.to_string()).into()
        }
        InvalidKind::Malformed => {
            ComfyuiError::prompt("invalid_prompt", "The prompt cannot be read", invalid.to_string())
        }
        InvalidKind::Invalid => ComfyuiError::prompt(
            "prompt_outputs_failed_validation",
            "Prompt outputs failed validation",
            invalid.to_string(),
        ),
    }
}

/// What no worker has, as one server would say it; servers that do not describe their classes are known by their lists.
fn no_capability(graph: &InputGraph, refusal: &Refusal) -> PromptRefusal {
    let Refusal::NoCapability { models, classes } = refusal else { return PromptRefusal::no_outputs() };
    if let Some((id, node)) = graph.nodes.iter().find(|(_, node)| classes.contains(node.class())) {
        return PromptRefusal::missing_class(id, node.class());
    }
    let mut missing = Vec::new();
    for (id, node) in &graph.nodes {
        for (input, value) in node.inputs() {
            let named = serde_json::from_str::<String>(value.get()).unwrap_or_default();
            if models.contains(&named.replace('\\', "/")) {
                missing.push(MissingModel { node: id, class: node.class(), input, file: named });
            }
        }
    }
    PromptRefusal::missing_models(&missing, &refusal.to_string())
}

/// Fields of the request other than the graph.
struct PromptFields {
    id: Option<String>,
    client: Option<String>,
    number: Option<f64>,
    is_in_front: bool,
    extra: Map<String, Value>,
    keys: JobKeys,
    targets: Option<Vec<String>>,
    /// Accepted even if no worker has what it needs: an addition of ours.
    waits: bool,
}

impl PromptFields {
    fn read(fields: &RawMembers) -> Result<PromptFields, ComfyuiError> {
        let value = |key: &str| -> Value {
            fields.get(key).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
        };
        let id = match value("prompt_id") {
            Value::Null => None,
            Value::String(id) if Uuid::try_parse(&id).is_ok_and(|uuid| uuid.to_string() == id) => Some(id),
            _ => {
                return Err(ComfyuiError::prompt(
                    "invalid_prompt_id",
                    "prompt_id must be a valid UUID",
                    "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one",
                ));
            }
        };
        let mut extra = match value("extra_data") {
            Value::Null => Map::new(),
            Value::Object(extra) => extra,
            _ => return Err(bad_request("extra_data must be an object")),
        };
        let mut keys = JobKeys::default();
        for name in JobKeys::NAMES {
            if let Some(Value::String(secret)) = extra.remove(name) {
                if secret.len() > SECRET_BYTES_MAX {
                    return Err(bad_request(&format!("{name} has at most {SECRET_BYTES_MAX} bytes")));
                }
                keys.insert(name, secret);
            }
        }
        let client = match (value("client_id"), extra.remove("client_id").unwrap_or_default()) {
            (Value::Null, Value::Null) => None,
            (Value::Null, Value::String(client)) | (Value::String(client), _)
                if client.len() <= CLIENT_BYTES_MAX =>
            {
                Some(client)
            }
            _ => {
                return Err(bad_request(&format!(
                    "client_id must be a text of at most {CLIENT_BYTES_MAX} bytes"
                )));
            }
        };
        let number = match value("number") {
            Value::Null => None,
            Value::Number(number) => number.as_f64(),
            Value::String(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
                text.trim().parse().ok()
            }
            _ => return Err(bad_request("number must be a number")),
        };
        let targets = match value("partial_execution_targets") {
            Value::Null => None,
            Value::Array(list) if list.is_empty() => return Err(ComfyuiError::no_outputs()),
            list => {
                let list = serde_json::from_value(list);
                Some(list.map_err(|_| bad_request("partial_execution_targets must be a list of node ids"))?)
            }
        };
        let is_in_front = value("front") == true || number.is_some_and(|number| number < 0.0);
        let waits = value("wait_for_capability") == true;
        Ok(PromptFields { id, client, number, is_in_front, extra, keys, targets, waits })
    }

    /// Puts uploaded files into the graph and checks it as a server of the fleet would. Outputs that are invalid are left
    /// out: a worker refuses a prompt that its server would accept only in part.
    async fn parse(
        &self,
        context: &Context,
        tenant: &Tenant,
        graph: &mut InputGraph,
    ) -> Result<Workflow, ComfyuiError> {
        let fleet = context.comfyui.fleet_check(context, self.waits).await?;
        // Each node may cost a question to the store.
        if graph.nodes.len() <= context.limits.nodes_max {
            uploads::resolve_files(context, tenant, graph, &fleet.classes.classes).await?;
        }
        // Clients of this API upload their files here.
        let check = fleet.graph_check(self.targets.as_deref());
        let check = check.map(|check| GraphCheck { knows_files: true, ..check });
        let outputs = fleet.classes.output_nodes(graph, self.targets.as_deref());
        let text = self.workflow(graph, &outputs, check.is_some())?;
        Workflow::parse_checked(text, &context.limits, check.as_ref()).map_err(invalid_workflow)
    }

    /// The workflow that is stored and sent to a worker. The check adds the outputs that are wanted.
    fn workflow(
        &self,
        graph: &InputGraph,
        outputs: &[String],
        is_checked: bool,
    ) -> Result<Box<RawValue>, ComfyuiError> {
        let mut whole: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
        let raw = |value: &Value| to_raw_value(value).map_err(|error| bad_request(&error.to_string()));
        whole.insert("prompt", graph.write());
        if !self.extra.is_empty() {
            whole.insert("extra_data", raw(&json!(self.extra))?);
        }
        if !outputs.is_empty() {
            whole.insert(prompt::OUTPUTS, raw(&json!(outputs))?);
        }
        if let Some(targets) = self.targets.as_ref().filter(|_| !is_checked) {
            whole.insert("partial_execution_targets", raw(&json!(targets))?);
        }
        to_raw_value(&whole).map_err(|error| bad_request(&error.to_string()))
    }

    fn metadata(&self) -> Map<String, Value> {
        let mut metadata = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            metadata.extend(value.map(|value| (key.to_owned(), value)));
        };
        put("prompt_id", self.id.as_deref().map(Value::from));
        put("client_id", self.client.as_deref().map(Value::from));
        put("number", self.number.map(Value::from));
        let is_marked = self.id.is_some() || self.client.is_some();
        put(prompt::SURFACE, (!is_marked).then(|| SERVICE.into()));
        metadata
    }

    /// The existing prompt with this id; a different graph under the same id is an error.
    async fn find_existing(
        &self,
        context: &Context,
        tenant: &Tenant,
        workflow_hash: WorkflowHash,
    ) -> Result<Option<Prompt>, ComfyuiError> {
        let Some(id) = &self.id else { return Ok(None) };
        let Some((job, _)) = context.store.job_by_key(tenant, &prompt::idempotency_key(id)).await? else {
            return Ok(None);
        };
        let Some((accepted, life)) = context.store.job(job).await? else { return Ok(None) };
        if workflow_hash != accepted.workflow_hash {
            return Err(self.id_conflict());
        }
        Ok(Prompt::from_record(&accepted, life))
    }

    fn id_conflict(&self) -> ComfyuiError {
        let details = format!("{} is the id of another prompt", self.id.as_deref().unwrap_or_default());
        ComfyuiError::prompt("invalid_prompt_id", "prompt_id is taken", details)
    }
}

fn bad_request(details: &str) -> ComfyuiError {
    ComfyuiError::prompt("invalid_prompt", "The request is invalid", details)
}

/// The nodes with the fields that ComfyUI reads.
pub(super) fn read_graph(raw: &RawValue) -> Result<InputGraph, ComfyuiError> {
    let mut graph = match InputGraph::read_bare(raw) {
        Some(graph) if !graph.nodes.is_empty() => graph,
        None if raw.get() != "[]" => return Err(bad_request("prompt must be an object of nodes")),
        Some(_) | None => return Err(ComfyuiError::no_outputs()),
    };
    for (id, node) in &mut graph.nodes {
        if node.class().is_empty() {
            let title =
                node.fields.get("_meta").and_then(|meta| serde_json::from_str::<Value>(meta.get()).ok());
            let title = title.as_ref().and_then(|meta| meta["title"].as_str());
            return Err(ComfyuiError::refused(PromptRefusal::no_class(id, title)));
        }
        if node.has_bad_inputs() {
            let details = format!("Node ID '#{id}'");
            return Err(ComfyuiError::prompt("invalid_prompt", "inputs must be an object", details));
        }
        node.fields.retain(|name, _| matches!(name.as_str(), "class_type" | "_meta"));
    }
    Ok(graph)
}
