//! Checks of a submitted workflow: a graph in API format that a server of the fleet would run, with files that the caller
//! may use. Each error names the nodes concerned.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::StatusCode;
use remuda_comfyui::json::JsonMembers;
use remuda_core::id::Tenant;
use remuda_core::workflow::{GraphNode, InputGraph, InvalidKind, InvalidWorkflow, PromptRefusal, Workflow};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::super::comfyui::FleetCheck;
use super::super::{ApiError, Caller, Context, comfyui};
use super::asset::{self, Asset};

/// An asset reference stands in place of a file name.
const ASSET_TYPE_KEY: &str = "__type";
const ASSET_TYPE: &str = "core/ASSET";

/// Parses a submitted workflow, resolves its asset references, and checks its graph as a server of the fleet would.
/// `waits`: the job waits for what no worker has.
pub(super) async fn parse(
    context: &Context,
    caller: &Caller,
    tenant: &Tenant,
    given: &RawValue,
    waits: bool,
) -> Result<Workflow, ApiError> {
    let fleet = context.comfyui.fleet_check(context, waits).await?;
    let check = fleet.graph_check(None);
    let resolved = resolve(context, caller, tenant, given, &fleet).await;
    let parsed = resolved.and_then(|resolved| {
        Workflow::parse_checked(resolved, &context.limits, check.as_ref()).map_err(invalid_workflow)
    });
    if parsed.is_err() {
        // What is wrong with the workflow itself comes before what this fleet says about it.
        Workflow::parse(given.to_owned(), &context.limits).map_err(invalid_workflow)?;
    }
    parsed
}

/// Adds the content hash to each asset reference, so that a worker can fetch it and
/// the workflow's hash depends on the content of files, not on their asset ids.
async fn resolve(
    context: &Context,
    caller: &Caller,
    tenant: &Tenant,
    given: &RawValue,
    fleet: &FleetCheck,
) -> Result<Box<RawValue>, ApiError> {
    let mut graph = InputGraph::read(given).ok_or_else(|| not_a_graph(false))?;
    // `{"prompt": graph, …}` is not a workflow of this API.
    if graph.wrapper.is_some() || !graph.is_graph() {
        let is_list = |name| graph.nodes.get(name).is_some_and(GraphNode::is_list);
        return Err(not_a_graph(is_list("nodes") && is_list("links")));
    }
    let has_references = given.get().contains(ASSET_TYPE_KEY);
    if has_references {
        let assets = find_assets(context, caller, &graph).await?;
        for (_, value) in graph.nodes.values_mut().flat_map(|node| node.inputs_mut()) {
            let replaced = replace_references(value, &mut |id| reference(assets.get(&id?)?));
            if let Some(replaced) = replaced {
                *value = replaced;
            }
        }
    }
    // An uploaded asset may also be named by its file name. Each may cost a question to the store.
    let has_names = graph.nodes.len() <= context.limits.nodes_max && {
        comfyui::resolve_files(context, tenant, &mut graph, &fleet.classes.classes).await?
    };
    Ok(if has_references || has_names { graph.write() } else { given.to_owned() })
}

fn reference(asset: &Asset) -> Option<Box<RawValue>> {
    let info = json!({ "id": asset.id.to_string(), "hash": asset.hash, "file_path": asset.meta.file_path });
    to_raw_value(&json!({ ASSET_TYPE_KEY: ASSET_TYPE, "info": info })).ok()
}

fn problem(code: &'static str, message: impl Into<String>, node_errors: &Value) -> ApiError {
    let mut problem = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message);
    problem.detail = json!({ "node_errors": node_errors });
    problem
}

fn invalid_workflow(invalid: InvalidWorkflow) -> ApiError {
    if invalid.kind() == InvalidKind::TooLarge {
        return invalid.into();
    }
    if let InvalidWorkflow::Refused(refusal) = &invalid {
        return refused(refusal);
    }
    let message = format!("the workflow is invalid: {invalid}");
    let about =
        |node: &str, field: &str, reason: &str| json!({ node: [{ "field": field, "reason": reason }] });
    let node_errors = match &invalid {
        InvalidWorkflow::NoClass { node } => about(node, "class_type", "missing_class_type"),
        InvalidWorkflow::BadInputs { node } => about(node, "inputs", "not_an_object"),
        InvalidWorkflow::DanglingLink { node, input, .. } => about(node, input, "dangling_link"),
        InvalidWorkflow::Loop { nodes } => {
            let of = |node: &String| (node.clone(), json!([{ "field": null, "reason": "loop" }]));
            Value::Object(nodes.iter().map(of).collect())
        }
        _ => json!({}),
    };
    problem("invalid_workflow", message, &node_errors)
}

fn not_a_graph(is_web_format: bool) -> ApiError {
    if is_web_format {
        let message =
            "the workflow is in the format of the web interface: export it there with \"Export (API)\"";
        return problem("workflow_format_ui", message, &json!({}));
    }
    problem(
        "invalid_workflow",
        "no node of the workflow has a class_type: export it in API format",
        &json!({}),
    )
}

/// Errors of a server in the form of this API: `{node: [{"field", "reason", ..}]}`.
fn node_errors(refused: &Map<String, Value>) -> Value {
    let of = |error: &Value| {
        let kind = error["type"].as_str().unwrap_or_default();
        let reason = match kind {
            "required_input_missing" => "missing_input",
            "dependency_cycle" => "loop",
            _ if error["details"] == "'inputs'" => "missing_input",
            _ if error["extra_info"]["exception_type"] == "KeyError" => "dangling_link",
            other => other,
        };
        let text = |key: &str| error[key].as_str().unwrap_or_default();
        json!({
            "field": error["extra_info"]["input_name"], "reason": reason,
            "message": format!("{}: {}", text("message"), text("details")),
        })
    };
    let nodes = refused.iter().map(|(id, node)| {
        let errors = node["errors"].as_array().into_iter().flatten().map(of);
        (id.clone(), errors.collect::<Value>())
    });
    Value::Object(nodes.collect())
}

/// What a server of the fleet would refuse.
fn refused(refusal: &PromptRefusal) -> ApiError {
    let class = &refusal.error["extra_info"]["class_type"];
    if let (Some(node), Some(class)) = (refusal.error["extra_info"]["node_id"].as_str(), class.as_str()) {
        let error = json!({ "field": "class_type", "reason": "unknown_node_class", "class_type": class });
        let message = format!("no worker of the fleet has the node class {class}");
        return problem("invalid_workflow", message, &json!({ node: [error] }));
    }
    let first = refusal.node_errors.iter().next().map(|(id, node)| (id, node, &node["errors"][0]));
    let message = match first {
        Some((id, node, error)) if error["type"] == "required_input_missing" => {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (class, input) = (text(&node["class_type"]), text(&error["details"]));
            format!("Node {id} ({class}): required input '{input}' is not connected")
        }
        _ => refusal.to_string(),
    };
    problem("invalid_workflow", message, &node_errors(&refusal.node_errors))
}

/// Errors of outputs that are left out, in the form of this API.
pub(super) fn left_out(workflow: &Workflow) -> Option<Value> {
    let verdict = workflow.verdict().filter(|verdict| !verdict.node_errors.is_empty())?;
    Some(node_errors(&verdict.node_errors))
}

fn members(value: &RawValue) -> JsonMembers<Box<RawValue>> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

/// The graph of a workflow, wrapped or not.
pub(super) fn graph_only(workflow: &RawValue) -> Option<Box<RawValue>> {
    let graph = InputGraph::read(workflow)?;
    Some(InputGraph { wrapper: None, ..graph }.write())
}

/// The assets that the graph names, by their ids.
async fn find_assets(
    context: &Context,
    caller: &Caller,
    graph: &InputGraph,
) -> Result<BTreeMap<String, Asset>, ApiError> {
    let mut known: BTreeMap<String, Asset> = BTreeMap::new();
    let mut node_errors: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for AssetReference { node, input, id } in asset_references(graph) {
        let reason = match &id {
            Some(id) if known.contains_key(id) => continue,
            Some(id) => match asset::find(context, caller, id).await {
                Ok(asset) => {
                    known.insert(id.clone(), asset);
                    continue;
                }
                Err(problem) if problem.status == StatusCode::NOT_FOUND => "missing_asset",
                Err(problem) => return Err(problem),
            },
            None => "malformed_asset_reference",
        };
        let error = json!({ "field": input, "reason": reason, "asset_id": id });
        node_errors.entry(node).or_default().push(error);
    }
    if let Some((node, _)) = node_errors.first_key_value() {
        let message =
            format!("node {node:?} names an asset that does not exist or is not yours: upload it again");
        return Err(problem("missing_asset", message, &json!(node_errors)));
    }
    Ok(known)
}

/// An asset reference in an input.
#[derive(Debug)]
struct AssetReference {
    node: String,
    input: String,
    /// `None` if the reference has no id.
    id: Option<String>,
}

fn asset_references(graph: &InputGraph) -> Vec<AssetReference> {
    let mut named = Vec::new();
    for (node, fields) in &graph.nodes {
        for (input, value) in fields.inputs() {
            replace_references(value, &mut |id| {
                named.push(AssetReference { node: node.clone(), input: input.clone(), id });
                None
            });
        }
    }
    named
}

/// Deeper workflows are refused by any limit.
const DEPTH_MAX: usize = 126;

/// Calls `replace` for every asset reference in a value; `None` if nothing changed.
fn replace_references(
    value: &RawValue,
    replace: &mut impl FnMut(Option<String>) -> Option<Box<RawValue>>,
) -> Option<Box<RawValue>> {
    replace_below(DEPTH_MAX, value, replace)
}

fn replace_below(
    depth_left: usize,
    value: &RawValue,
    replace: &mut impl FnMut(Option<String>) -> Option<Box<RawValue>>,
) -> Option<Box<RawValue>> {
    let depth_left = depth_left.checked_sub(1)?;
    let text = value.get();
    if !text.contains(ASSET_TYPE_KEY) {
        return None;
    }
    if text.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
        let walked: Vec<_> = items.iter().map(|item| replace_below(depth_left, item, replace)).collect();
        let is_changed = walked.iter().any(Option::is_some);
        let items: Vec<_> = walked.into_iter().zip(items).map(|(new, old)| new.unwrap_or(old)).collect();
        return is_changed.then(|| to_raw_value(&items).ok())?;
    }
    let members = members(value).0;
    let of = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| &**value);
    let text_of = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    if of(ASSET_TYPE_KEY).and_then(text_of).is_some_and(|kind| kind == ASSET_TYPE) {
        let info = of("info").map(|info| self::members(info).0).unwrap_or_default();
        let id = info.iter().find(|(key, _)| key == "id").and_then(|(_, id)| text_of(id));
        return replace(id);
    }
    let walked: Vec<_> = members.iter().map(|(_, value)| replace_below(depth_left, value, replace)).collect();
    if walked.iter().all(Option::is_none) {
        return None;
    }
    let mut text = String::with_capacity(text.len());
    for (new, (key, old)) in walked.iter().zip(&members) {
        let before = if text.is_empty() { '{' } else { ',' };
        let key = serde_json::to_string(key).ok()?;
        write!(text, "{before}{key}:{}", new.as_ref().unwrap_or(old).get()).ok()?;
    }
    text.push('}');
    RawValue::from_string(text).ok()
}

#[cfg(test)]
mod tests {
    use remuda_core::workflow::{GraphCheck, NodeCatalog, WorkflowLimits};

    use super::*;

    #[test]
    fn only_asset_references_are_rewritten() {
        let given = r#"{"2": {"class_type":"L","inputs":{"image":{"__type":"core/ASSET","info":{"id":"x"}},"seed": 18446744073709551617}},
            "1": {"class_type":"M","inputs":{"list":[1.50, {"__type":"core/ASSET","info":{}}],"kind":{"__type":"other"}}}}"#;
        let given = RawValue::from_string(given.to_owned()).unwrap();
        let named: Vec<_> = asset_references(&InputGraph::read(&given).unwrap())
            .into_iter()
            .map(|it| (it.node, it.input, it.id))
            .collect();
        let [one, two] = [("1", "list", None), ("2", "image", Some("x"))]
            .map(|(node, input, id)| (node.to_owned(), input.to_owned(), id.map(str::to_owned)));
        assert_eq!(named, [one, two]);
        let put = replace_references(&given, &mut |id| {
            id.map(|_| RawValue::from_string("\"y\"".to_owned()).unwrap())
        });
        let put = put.unwrap().get().replace(char::is_whitespace, "");
        let expected = given.get().replace(char::is_whitespace, "");
        let expected = expected.replace(r#"{"__type":"core/ASSET","info":{"id":"x"}}"#, "\"y\"");
        assert_eq!(put, expected);
        assert!(replace_references(&given, &mut |_| None).is_none());
    }

    /// Faults: B4.
    #[test]
    fn errors_of_servers_name_node_field_and_reason() {
        let mut catalog = NodeCatalog::default();
        let load = json!({ "input": { "required": { "name": ["STRING"], "n": ["INT", { "max": 3 }] } }, "output": ["IMAGE"] });
        catalog.add("Load", &load);
        catalog
            .add("Save", &json!({ "output_node": true, "input": { "required": { "images": ["IMAGE"] } } }));
        let check = GraphCheck { catalog: &catalog, targets: None, may_come: false, knows_files: false };
        let parse = |graph: Value| {
            let parsed = Workflow::parse_checked(
                to_raw_value(&graph).unwrap(),
                &WorkflowLimits::default(),
                Some(&check),
            );
            parsed.map_err(|invalid| {
                let problem = invalid_workflow(invalid);
                (problem.message, problem.detail["node_errors"].clone())
            })
        };
        let load = |inputs: Value| json!({ "class_type": "Load", "inputs": inputs });
        let save = |from: &str| json!({ "class_type": "Save", "inputs": { "images": [from, 0] } });
        let good = load(json!({ "name": "a", "n": 1 }));
        let workflow = parse(json!({ "1": good, "2": save("1"), "3": { "class_type": "Load" } })).unwrap();
        assert_eq!(left_out(&workflow), None, "nothing comes of node 3");
        let (message, errors) = parse(json!({ "1": load(json!({ "n": 9 })), "2": save("1") })).unwrap_err();
        assert!(message.starts_with("node \"1\" (Load): Value 9 bigger than max of 3"), "{message}");
        let reason = |at: usize| (errors["1"][at]["field"].clone(), errors["1"][at]["reason"].clone());
        assert_eq!(reason(0), (json!("n"), json!("value_bigger_than_max")));
        assert_eq!(reason(1), (json!("name"), json!("missing_input")));
        let (message, _) = parse(json!({ "1": load(json!({ "n": 1 })), "2": save("1") })).unwrap_err();
        assert_eq!(message, "Node 1 (Load): required input 'name' is not connected");
        let (message, errors) = parse(json!({ "1": good, "2": save("9") })).unwrap_err();
        assert_eq!(errors["2"][0]["reason"], "dangling_link", "{message}");
        let (message, errors) = parse(json!({ "1": { "class_type": "No" }, "2": save("1") })).unwrap_err();
        assert_eq!(message, "no worker of the fleet has the node class No");
        let unknown = json!({ "field": "class_type", "reason": "unknown_node_class", "class_type": "No" });
        assert_eq!(errors, json!({ "1": [unknown] }));
        let workflow = parse(json!({ "1": good, "2": save("1"), "3": save("9") })).unwrap();
        assert_eq!(left_out(&workflow).unwrap()["3"][0]["reason"], "dangling_link");
    }

    #[test]
    fn workflow_is_shown_without_its_wrapper() {
        for (stored, shown) in [
            (r#"{"1":{"class_type":"A"}}"#, r#"{"1":{"class_type":"A"}}"#),
            (r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{}}"#, r#"{"1":{"class_type":"A"}}"#),
            (r#"{"prompt":{"class_type":"A"}}"#, r#"{"prompt":{"class_type":"A"}}"#),
        ] {
            let stored = RawValue::from_string(stored.to_owned()).unwrap();
            assert_eq!(graph_only(&stored).unwrap().get(), shown);
        }
    }
}
