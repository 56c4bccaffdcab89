//! `POST /prompt`. What is wrong is told in ComfyUI's own words; what is right becomes a job, under the client's own id if it
//! has one.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use remuda_core::id::Tenant;
use remuda_core::refusal::Refusal;
use remuda_core::workflow::{self, InvalidWorkflow};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::super::{ApiError, Caller, Context};
use super::error::Refused;
use super::prompt::{self, Prompt, SERVICE};
use super::uploads;
use super::validate::{self, Sound};
use crate::intake::{NotTaken, Request, Taken};
use crate::job_secrets::{self, Keys};
use crate::plane_handle::PlaneError;

/// Before everything of the same tenant that nobody hurries.
pub(super) const FRONT: i8 = 10;
/// It is on every event of the job.
const CLIENT_BYTES_MAX: usize = 200;
/// A key or a token has a few hundred.
const SECRET_BYTES_MAX: usize = 4096;

type Fields = BTreeMap<String, Box<RawValue>>;

pub(super) async fn submit(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let tenant = caller.tenant(None)?;
    let fields: Fields = serde_json::from_slice(&body).map_err(|error| {
        Refused::prompt("invalid_prompt", "The request is no JSON object", error.to_string())
    })?;
    let Some(graph) = fields.get("prompt") else {
        return Err(Refused::prompt("no_prompt", "No prompt provided", "No prompt provided"));
    };
    let mut asked = Asked::read(&fields)?;
    let mut graph = Graph::read(graph)?;
    // Before anything that takes longer the larger a graph is.
    workflow::examine(graph.write()?.get(), &context.limits).map_err(|invalid| broken(&invalid))?;
    let outputs = context.comfyui.classes.check(&context, &graph, asked.targets.as_deref()).await?;
    let classes = context.comfyui.classes.merged(&context).await;
    let Sound { node_errors, outputs } = validate::check(&graph, &classes.classes, outputs)?;
    // What cannot run is left out; a worker takes no prompt that its server takes only in part.
    if node_errors != json!({}) {
        asked.targets = Some(outputs.clone());
    }
    uploads::place(&context, &tenant, &mut graph, &classes.classes).await?;
    let workflow = asked.workflow(&graph, &outputs)?;
    if let Some(known) = asked.known(&context, &tenant, &workflow).await? {
        return Ok(told(&known.id, &known.number, &node_errors));
    }
    let mut request = Request::new(workflow, tenant.clone());
    request.service = SERVICE.parse().ok();
    // A stock client knows of no such limit, and is served as well as may be.
    request.priority = if asked.is_in_front { FRONT.min(context.access.priority_max(&caller)) } else { 0 };
    request.metadata = asked.metadata();
    request.keys.clone_from(&asked.keys);
    request.idempotency_key = asked.id.as_deref().map(prompt::key);
    let (priority, metadata, workflow) =
        (request.priority, request.metadata.clone(), request.workflow.clone());
    match context.intake().take(request).await {
        Ok(Taken { job, .. }) => {
            let number = prompt::number(job, priority, &metadata);
            Ok(told(&prompt::id(job, &metadata), &number, &node_errors))
        }
        // Somebody else was quicker with the same id.
        Err(NotTaken::Plane(PlaneError::Refused(Refusal::KeyConflict { .. }))) => {
            match asked.known(&context, &tenant, &workflow).await? {
                Some(known) => Ok(told(&known.id, &known.number, &node_errors)),
                None => Err(asked.taken_id()),
            }
        }
        Err(NotTaken::Workflow(invalid)) => Err(broken(&invalid)),
        Err(other) => Err(other.into()),
    }
}

fn told(id: &str, number: &Value, node_errors: &Value) -> Json<Value> {
    Json(json!({ "prompt_id": id, "number": number, "node_errors": node_errors }))
}

/// What cannot run wherever it is tried.
fn broken(invalid: &InvalidWorkflow) -> Refused {
    match invalid.kind() {
        workflow::InvalidKind::TooLarge => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", invalid.to_string()).into()
        }
        workflow::InvalidKind::Malformed => {
            Refused::prompt("invalid_prompt", "The prompt cannot be read", invalid.to_string())
        }
        workflow::InvalidKind::Invalid => Refused::prompt(
            "prompt_outputs_failed_validation",
            "Prompt outputs failed validation",
            invalid.to_string(),
        ),
    }
}

/// What stands beside the graph.
struct Asked {
    id: Option<String>,
    client: Option<String>,
    number: Option<f64>,
    is_in_front: bool,
    extra: Map<String, Value>,
    keys: Keys,
    targets: Option<Vec<String>>,
}

impl Asked {
    fn read(fields: &Fields) -> Result<Asked, Refused> {
        let value = |key: &str| -> Value {
            fields.get(key).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
        };
        let id = match value("prompt_id") {
            Value::Null => None,
            Value::String(id) if Uuid::try_parse(&id).is_ok_and(|uuid| uuid.to_string() == id) => Some(id),
            _ => {
                return Err(Refused::prompt(
                    "invalid_prompt_id",
                    "prompt_id must be a valid UUID",
                    "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one",
                ));
            }
        };
        let mut extra = match value("extra_data") {
            Value::Null => Map::new(),
            Value::Object(extra) => extra,
            _ => return Err(wrong("extra_data must be an object")),
        };
        let mut keys = Keys::new();
        for name in job_secrets::NAMES {
            if let Some(Value::String(secret)) = extra.remove(name) {
                if secret.len() > SECRET_BYTES_MAX {
                    return Err(wrong(&format!("{name} has at most {SECRET_BYTES_MAX} bytes")));
                }
                keys.insert(name.to_owned(), secret);
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
                return Err(wrong(&format!("client_id must be a text of at most {CLIENT_BYTES_MAX} bytes")));
            }
        };
        let number = match value("number") {
            Value::Null => None,
            Value::Number(number) => number.as_f64(),
            Value::String(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
                text.trim().parse().ok()
            }
            _ => return Err(wrong("number must be a number")),
        };
        let targets = match value("partial_execution_targets") {
            Value::Null => None,
            Value::Array(list) if list.is_empty() => return Err(Refused::no_outputs()),
            list => {
                let list = serde_json::from_value(list);
                Some(list.map_err(|_| wrong("partial_execution_targets must be a list of node ids"))?)
            }
        };
        let is_in_front = value("front") == true || number.is_some_and(|number| number < 0.0);
        Ok(Asked { id, client, number, is_in_front, extra, keys, targets })
    }

    /// What is stored and handed to a worker.
    fn workflow(&self, graph: &Graph, outputs: &[String]) -> Result<Arc<RawValue>, Refused> {
        let mut whole: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
        let raw = |value: &Value| to_raw_value(value).map_err(|error| wrong(&error.to_string()));
        whole.insert("prompt", graph.write()?);
        if !self.extra.is_empty() {
            whole.insert("extra_data", raw(&json!(self.extra))?);
        }
        if !outputs.is_empty() {
            whole.insert(prompt::OUTPUTS, raw(&json!(outputs))?);
        }
        if let Some(targets) = &self.targets {
            whole.insert("partial_execution_targets", raw(&json!(targets))?);
        }
        to_raw_value(&whole).map(Arc::from).map_err(|error| wrong(&error.to_string()))
    }

    fn metadata(&self) -> Map<String, Value> {
        let mut metadata = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            metadata.extend(value.map(|value| (key.to_owned(), value)));
        };
        put("prompt_id", self.id.as_deref().map(Value::from));
        put("client_id", self.client.as_deref().map(Value::from));
        put("number", self.number.map(Value::from));
        metadata
    }

    /// The prompt that has this id already; with another graph that is a mistake.
    async fn known(
        &self,
        context: &Context,
        tenant: &Tenant,
        workflow: &RawValue,
    ) -> Result<Option<Prompt>, Refused> {
        let Some(id) = &self.id else { return Ok(None) };
        let Some((job, _)) = context.store.by_key(tenant, &prompt::key(id)).await? else { return Ok(None) };
        let Some((accepted, life)) = context.store.job(job).await? else { return Ok(None) };
        let examined =
            workflow::examine(workflow.get(), &context.limits).map_err(|invalid| broken(&invalid))?;
        if examined.workflow_hash != accepted.workflow_hash {
            return Err(self.taken_id());
        }
        Ok(Prompt::of(&accepted, life))
    }

    fn taken_id(&self) -> Refused {
        let details = format!("{} is the id of another prompt", self.id.as_deref().unwrap_or_default());
        Refused::prompt("invalid_prompt_id", "prompt_id is taken", details)
    }
}

fn wrong(details: &str) -> Refused {
    Refused::prompt("invalid_prompt", "The request cannot be taken", details)
}

/// The nodes, with inputs in the very words in which they came.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: BTreeMap<String, Node>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) class: String,
    pub(super) inputs: BTreeMap<String, Box<RawValue>>,
    meta: Option<Box<RawValue>>,
}

impl Graph {
    pub(super) fn read(raw: &RawValue) -> Result<Graph, Refused> {
        if raw.get() == "[]" {
            return Err(Refused::no_outputs());
        }
        let nodes: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(raw.get()).map_err(|_| wrong("prompt must be an object of nodes"))?;
        if nodes.is_empty() {
            return Err(Refused::no_outputs());
        }
        let nodes = nodes.into_iter().map(|(id, node)| Ok((id.clone(), Node::read(&id, &node)?)));
        Ok(Graph { nodes: nodes.collect::<Result<_, Refused>>()? })
    }

    fn write(&self) -> Result<Box<RawValue>, Refused> {
        let mut written: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
        let odd = |error: serde_json::Error| wrong(&error.to_string());
        for (id, node) in &self.nodes {
            let mut fields: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
            fields.insert("class_type", to_raw_value(&node.class).map_err(odd)?);
            fields.insert("inputs", to_raw_value(&node.inputs).map_err(odd)?);
            if let Some(meta) = &node.meta {
                fields.insert("_meta", meta.clone());
            }
            written.insert(id, to_raw_value(&fields).map_err(odd)?);
        }
        to_raw_value(&written).map_err(odd)
    }
}

impl Node {
    fn read(id: &str, raw: &RawValue) -> Result<Node, Refused> {
        let mut fields: Fields = serde_json::from_str(raw.get()).unwrap_or_default();
        let class = fields.get("class_type").and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let Some(class) = class.filter(|class| !class.is_empty()) else {
            let message = "Cannot execute because a node is missing the class_type property.";
            return Err(Refused::prompt("invalid_prompt", message, format!("Node ID '#{id}'")));
        };
        let inputs = match fields.remove("inputs") {
            // To ComfyUI a loose node without inputs is poison; here it is a node without inputs.
            None => BTreeMap::new(),
            Some(raw) => serde_json::from_str(raw.get()).map_err(|_| {
                Refused::prompt("invalid_prompt", "inputs must be an object", format!("Node ID '#{id}'"))
            })?,
        };
        Ok(Node { class, inputs, meta: fields.remove("_meta") })
    }
}
