//! Checks of a submitted workflow: a graph in API format, of node classes that some worker has, with files that the caller
//! may use. Each error names the nodes concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use axum::http::StatusCode;
use remuda_comfyui::json::JsonMembers;
use remuda_core::workflow::{self, ExaminedWorkflow, InvalidKind, InvalidWorkflow};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::super::{ApiError, Caller, Context};
use super::asset::{self, Asset};

/// An asset reference stands in place of a file name.
const ASSET_TYPE_KEY: &str = "__type";
const ASSET_TYPE: &str = "core/ASSET";

/// A valid workflow with its asset references resolved.
#[derive(Debug)]
pub(super) struct ValidWorkflow {
    pub(super) workflow: Arc<RawValue>,
    pub(super) examined: ExaminedWorkflow,
}

impl ValidWorkflow {
    pub(super) async fn check(
        context: &Context,
        caller: &Caller,
        given: &RawValue,
    ) -> Result<ValidWorkflow, ApiError> {
        let examined = workflow::examine(given.get(), &context.limits).map_err(invalid_workflow)?;
        if examined.service.is_none() || is_wrapped(given) {
            return Err(not_a_graph(given));
        }
        check_classes(context, given, &examined).await?;
        if !given.get().contains(ASSET_TYPE_KEY) {
            return Ok(ValidWorkflow { workflow: Arc::from(given.to_owned()), examined });
        }
        let workflow = resolve(context, caller, given).await?;
        // The hash must depend on the content of files, not on their asset ids.
        let examined = workflow::examine(workflow.get(), &context.limits).map_err(invalid_workflow)?;
        Ok(ValidWorkflow { workflow, examined })
    }
}

/// True for `{"prompt": graph, …}`, which is not a workflow of this API.
fn is_wrapped(given: &RawValue) -> bool {
    let prompt = members(given).0.into_iter().find(|(key, _)| key == "prompt");
    prompt.is_some_and(|(_, prompt)| !members(&prompt).0.iter().any(|(key, _)| key == "class_type"))
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

fn not_a_graph(given: &RawValue) -> ApiError {
    let members = members(given);
    let is_list = |name| members.0.iter().any(|(key, value)| key == name && value.get().starts_with('['));
    if is_list("nodes") && is_list("links") {
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

async fn check_classes(
    context: &Context,
    given: &RawValue,
    examined: &ExaminedWorkflow,
) -> Result<(), ApiError> {
    let Some(service) = examined.service.clone() else { return Ok(()) };
    let classes = examined.classes.clone();
    let unknown = context.plane.read(move |plane, _| plane.unknown_classes(&service, classes)).await?;
    if unknown.is_empty() {
        return check_inputs(&context.comfyui.classes(context).await.classes, given);
    }
    let mut node_errors = Map::new();
    for (id, node) in members(given).0 {
        let class = members(&node).0.into_iter().find(|(key, _)| key == "class_type");
        let class: Option<String> = class.and_then(|(_, class)| serde_json::from_str(class.get()).ok());
        if let Some(class) = class.filter(|class| unknown.contains(class)) {
            let error = json!({ "field": "class_type", "reason": "unknown_node_class", "class_type": class });
            node_errors.insert(id, json!([error]));
        }
    }
    let named: Vec<_> = unknown.iter().map(String::as_str).collect();
    let message = format!("no worker of the fleet has the node class {}", named.join(", "));
    Err(problem("invalid_workflow", message, &Value::Object(node_errors)))
}

/// Checks that every executed node has its required inputs, as far as servers reported their classes.
fn check_inputs(classes: &Map<String, Value>, given: &RawValue) -> Result<(), ApiError> {
    if classes.is_empty() {
        return Ok(());
    }
    let graph: Map<String, Value> = serde_json::from_str(given.get()).unwrap_or_default();
    let mut node_errors = Map::new();
    let mut message = String::new();
    for id in executed_nodes(classes, &graph) {
        let Some(class) = graph[id]["class_type"].as_str() else { continue };
        let Some(required) = classes.get(class).and_then(|info| info["input"]["required"].as_object()) else {
            continue;
        };
        // Dynamic inputs appear under other names in the graph.
        let is_plain = |spec: &Value| !spec[0].as_str().is_some_and(|kind| kind.starts_with("COMFY_"));
        let missing =
            required.iter().filter(|(name, spec)| is_plain(spec) && graph[id]["inputs"].get(name).is_none());
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
fn executed_nodes<'a>(classes: &Map<String, Value>, graph: &'a Map<String, Value>) -> BTreeSet<&'a str> {
    let gives = |node: &Value| {
        let class = node["class_type"].as_str().and_then(|class| classes.get(class));
        class.is_none_or(|class| class["output_node"] == true)
    };
    let mut next: Vec<&str> =
        graph.iter().filter(|(_, node)| gives(node)).map(|(id, _)| id.as_str()).collect();
    let mut executed = BTreeSet::new();
    while let Some(id) = next.pop() {
        if executed.insert(id) {
            let inputs = graph[id]["inputs"].as_object().into_iter().flat_map(Map::values);
            let links =
                inputs.filter_map(|input| input.as_array().filter(|link| link.len() == 2)?[0].as_str());
            next.extend(links.filter(|id| graph.contains_key(*id)));
        }
    }
    executed
}

fn members(value: &RawValue) -> JsonMembers<Box<RawValue>> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

/// The graph of a workflow, wrapped or not.
pub(super) fn graph_only(workflow: &RawValue) -> Value {
    let whole: Value = serde_json::from_str(workflow.get()).unwrap_or_default();
    let prompt =
        whole.get("prompt").filter(|prompt| prompt.is_object() && prompt.get("class_type").is_none());
    prompt.cloned().unwrap_or(whole)
}

/// Adds the content hash to each asset reference, so that a worker can fetch it. All other text stays unchanged.
async fn resolve(context: &Context, caller: &Caller, given: &RawValue) -> Result<Arc<RawValue>, ApiError> {
    let mut known: BTreeMap<String, Asset> = BTreeMap::new();
    let mut node_errors: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for AssetReference { node, input, id } in asset_references(given) {
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
    let mut put = |_: &RawValue, id: Option<String>| {
        let asset = known.get(&id?)?;
        let info =
            json!({ "id": asset.id.to_string(), "hash": asset.hash, "file_path": asset.meta.file_path });
        to_raw_value(&json!({ ASSET_TYPE_KEY: ASSET_TYPE, "info": info })).ok()
    };
    Ok(replace_references(given, &mut put).map_or_else(|| Arc::from(given.to_owned()), Arc::from))
}

/// An asset reference in an input.
#[derive(Debug)]
struct AssetReference {
    node: String,
    input: String,
    /// `None` if the reference has no id.
    id: Option<String>,
}

fn asset_references(graph: &RawValue) -> Vec<AssetReference> {
    let mut named = Vec::new();
    for (node, value) in members(graph).0 {
        let inputs = members(&value).0.into_iter().find(|(key, _)| key == "inputs");
        for (input, value) in inputs.map(|(_, inputs)| members(&inputs).0).unwrap_or_default() {
            replace_references(&value, &mut |_, id| {
                named.push(AssetReference { node: node.clone(), input: input.clone(), id });
                None
            });
        }
    }
    named
}

/// Calls `replace` for every asset reference in a value; `None` if nothing changed. The limits were checked before, so
/// recursion depth is bounded.
fn replace_references(
    value: &RawValue,
    replace: &mut impl FnMut(&RawValue, Option<String>) -> Option<Box<RawValue>>,
) -> Option<Box<RawValue>> {
    let text = value.get();
    if !text.contains(ASSET_TYPE_KEY) {
        return None;
    }
    if text.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
        let walked: Vec<_> = items.iter().map(|item| replace_references(item, replace)).collect();
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
        return replace(value, id);
    }
    let walked: Vec<_> = members.iter().map(|(_, value)| replace_references(value, replace)).collect();
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
        let named: Vec<_> =
            asset_references(&given).into_iter().map(|it| (it.node, it.input, it.id)).collect();
        let [two, one] = [("2", "image", Some("x")), ("1", "list", None)]
            .map(|(node, input, id)| (node.to_owned(), input.to_owned(), id.map(str::to_owned)));
        assert_eq!(named, [two, one]);
        let put = replace_references(&given, &mut |_, id| {
            id.map(|_| RawValue::from_string("\"y\"".to_owned()).unwrap())
        });
        let put = put.unwrap().get().replace(char::is_whitespace, "");
        let expected = given.get().replace(char::is_whitespace, "");
        let expected = expected.replace(r#"{"__type":"core/ASSET","info":{"id":"x"}}"#, "\"y\"");
        assert_eq!(put, expected);
        assert!(replace_references(&given, &mut |_, _| None).is_none());
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
            let given = to_raw_value(&graph).unwrap();
            check_inputs(classes, &given)
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
            assert_eq!(graph_only(&stored).to_string(), shown);
        }
    }
}
