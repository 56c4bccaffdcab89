//! Checks of a submitted workflow: a graph in API format, of node classes that some worker has, with files that the caller
//! may use. Each error names the nodes concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use axum::http::StatusCode;
use remuda_comfyui::json::JsonMembers;
use remuda_core::id::Tenant;
use remuda_core::workflow::{GraphNode, InputGraph, InvalidKind, InvalidWorkflow, Workflow, link_source};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::super::{ApiError, Caller, Context, comfyui};
use super::asset::{self, Asset};

/// An asset reference stands in place of a file name.
const ASSET_TYPE_KEY: &str = "__type";
const ASSET_TYPE: &str = "core/ASSET";

/// Parses a submitted workflow and resolves its asset references.
pub(super) async fn parse(
    context: &Context,
    caller: &Caller,
    tenant: &Tenant,
    given: &RawValue,
) -> Result<Workflow, ApiError> {
    let resolved = resolve(context, caller, tenant, given).await;
    let parsed =
        resolved.and_then(|resolved| Workflow::parse(resolved, &context.limits).map_err(invalid_workflow));
    if parsed.is_err() {
        // What is wrong with the workflow itself comes before what this fleet says about it.
        Workflow::parse(given.to_owned(), &context.limits).map_err(invalid_workflow)?;
    }
    parsed
}

/// Checks the graph against the fleet, and adds the content hash to each asset reference, so that a worker can fetch it and
/// the workflow's hash depends on the content of files, not on their asset ids.
async fn resolve(
    context: &Context,
    caller: &Caller,
    tenant: &Tenant,
    given: &RawValue,
) -> Result<Box<RawValue>, ApiError> {
    let mut graph = InputGraph::read(given).ok_or_else(|| not_a_graph(false))?;
    // `{"prompt": graph, …}` is not a workflow of this API.
    if graph.wrapper.is_some() || !graph.is_graph() {
        let is_list = |name| graph.nodes.get(name).is_some_and(GraphNode::is_list);
        return Err(not_a_graph(is_list("nodes") && is_list("links")));
    }
    check_classes(context, &graph).await?;
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
        let merged = context.comfyui.classes(context).await;
        comfyui::resolve_files(context, tenant, &mut graph, &merged.classes).await?
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

async fn check_classes(context: &Context, graph: &InputGraph) -> Result<(), ApiError> {
    let service = "comfyui".parse()?;
    let classes = graph.nodes.values().map(|node| node.class().to_owned()).collect();
    let unknown = context.plane.read(move |plane, _| plane.unknown_classes(&service, classes)).await?;
    if unknown.is_empty() {
        return check_inputs(&context.comfyui.classes(context).await.classes, graph);
    }
    let mut node_errors = Map::new();
    for (id, node) in graph.nodes.iter().filter(|(_, node)| unknown.contains(node.class())) {
        let error =
            json!({ "field": "class_type", "reason": "unknown_node_class", "class_type": node.class() });
        node_errors.insert(id.clone(), json!([error]));
    }
    let named: Vec<_> = unknown.iter().map(String::as_str).collect();
    let message = format!("no worker of the fleet has the node class {}", named.join(", "));
    Err(problem("invalid_workflow", message, &Value::Object(node_errors)))
}

/// Checks that every executed node has its required inputs, as far as servers reported their classes.
fn check_inputs(classes: &Map<String, Value>, graph: &InputGraph) -> Result<(), ApiError> {
    if classes.is_empty() {
        return Ok(());
    }
    let mut node_errors = Map::new();
    let mut message = String::new();
    for id in executed_nodes(classes, graph) {
        let node = &graph.nodes[id];
        let class = node.class();
        let Some(required) = classes.get(class).and_then(|info| info["input"]["required"].as_object()) else {
            continue;
        };
        // Dynamic inputs appear under other names in the graph.
        let is_plain = |spec: &Value| !spec[0].as_str().is_some_and(|kind| kind.starts_with("COMFY_"));
        let missing = required.iter().filter(|(name, spec)| is_plain(spec) && node.input(name).is_none());
        let missing: Vec<_> = missing.map(|(name, _)| name).collect();
        if let Some(first) = missing.first().filter(|_| message.is_empty()) {
            message = format!("Node {id} ({class}): required input '{first}' is not connected");
        }
        if !missing.is_empty() {
            let errors = missing.iter().map(|name| json!({ "field": name, "reason": "missing_input" }));
            node_errors.insert(id.to_owned(), errors.collect());
        }
    }
    if node_errors.is_empty() {
        Ok(())
    } else {
        Err(problem("invalid_workflow", message, &node_errors.into()))
    }
}

/// The nodes that lead to an output; servers check no others either.
fn executed_nodes<'a>(classes: &Map<String, Value>, graph: &'a InputGraph) -> BTreeSet<&'a str> {
    let is_output =
        |node: &GraphNode| classes.get(node.class()).is_none_or(|class| class["output_node"] == true);
    let outputs = graph.nodes.iter().filter(|(_, node)| is_output(node));
    let mut next: Vec<&str> = outputs.map(|(id, _)| id.as_str()).collect();
    let mut executed = BTreeSet::new();
    while let Some(id) = next.pop() {
        if executed.insert(id) {
            let sources = graph.nodes[id].inputs().filter_map(|(_, input)| link_source(input));
            next.extend(sources.filter_map(|id| Some(graph.nodes.get_key_value(&id)?.0.as_str())));
        }
    }
    executed
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
    fn required_inputs_are_checked_for_executed_nodes() {
        let classes = json!({
            "Load": { "input": { "required": { "name": ["STRING"], "more": ["COMFY_AUTOGROW_V3"] } } },
            "Save": { "output_node": true, "input": { "required": { "images": ["IMAGE"] }, "optional": { "x": ["INT"] } } },
        });
        let classes = classes.as_object().unwrap();
        let check = |graph: Value| {
            let graph = InputGraph::read(&to_raw_value(&graph).unwrap()).unwrap();
            check_inputs(classes, &graph)
                .map_err(|problem| (problem.message, problem.detail["node_errors"].clone()))
        };
        let (load, save) = (
            json!({ "class_type": "Load", "inputs": { "name": "a" } }),
            |from: &str| json!({ "class_type": "Save", "inputs": { "images": [from, 0] } }),
        );
        assert_eq!(check(json!({ "1": load, "2": save("1") })), Ok(()));
        let graph_only = json!({ "class_type": "Load" });
        assert_eq!(
            check(json!({ "1": load, "2": save("1"), "3": graph_only })),
            Ok(()),
            "nothing comes of it"
        );
        let (message, errors) = check(json!({ "1": graph_only, "2": save("1") })).unwrap_err();
        assert_eq!(message, "Node 1 (Load): required input 'name' is not connected");
        assert_eq!(errors, json!({ "1": [{ "field": "name", "reason": "missing_input" }] }));
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
