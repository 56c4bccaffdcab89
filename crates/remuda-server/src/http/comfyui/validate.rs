//! Validates a graph against the fleet's node classes: required inputs and numeric bounds. As in ComfyUI, one valid output
//! is enough; invalid ones are reported and left out. Choices and link types are left to the servers: a class may accept
//! more than it lists, and the list may be older than a file.

use std::collections::{BTreeMap, HashSet};

use remuda_core::workflow::{GraphNode, InputGraph, link_source};
use serde_json::{Map, Value, json};

use super::error::ComfyuiError;

/// Inputs of these types appear in the graph under other names.
const DYNAMIC: &str = "COMFY_";
/// Limits on reported nodes and on dependent outputs per node; all of a graph of thousands would make an unbounded answer.
const REPORTED_NODES_MAX: usize = 100;
const DEPENDENT_MAX: usize = 100;

/// The part of a graph that can run.
#[derive(Debug)]
pub(super) struct ValidGraph {
    /// Errors per node, in ComfyUI's format.
    pub(super) node_errors: Value,
    /// The valid output nodes.
    pub(super) outputs: Vec<String>,
}

/// Fails if no valid output is left.
pub(super) fn check(
    graph: &InputGraph,
    classes: &Map<String, Value>,
    outputs: Vec<String>,
) -> Result<ValidGraph, ComfyuiError> {
    let mut errors: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (id, node) in &graph.nodes {
        let found = classes.get(node.class()).map(|info| input_errors(node, info)).unwrap_or_default();
        if !found.is_empty() {
            errors.insert(id, found);
        }
    }
    if errors.is_empty() {
        return Ok(ValidGraph { node_errors: json!({}), outputs });
    }
    let links = GraphLinks::read(graph);
    let indexes: BTreeMap<usize, &str> =
        outputs.iter().filter_map(|output| Some((links.index(output)?, output.as_str()))).collect();
    let bad = errors.keys().filter_map(|id| links.index(id));
    let invalid = reachable(&links.after, bad);
    let needed = reachable(&links.before, indexes.keys().copied());
    let (mut node_errors, mut details) = (Map::new(), Vec::new());
    for (id, reasons) in errors {
        let Some(index) = links.index(id).filter(|index| needed.contains(index)) else { continue };
        if node_errors.len() == REPORTED_NODES_MAX {
            break;
        }
        let after = reachable(&links.after, [index]);
        let dependent = indexes.iter().filter(|(index, _)| after.contains(index));
        let dependent: Vec<&str> = dependent.map(|(_, output)| *output).take(DEPENDENT_MAX).collect();
        let class = graph.nodes.get(id).map(GraphNode::class);
        details.extend(reasons.iter().map(summary));
        let error = json!({ "errors": reasons, "dependent_outputs": dependent, "class_type": class });
        node_errors.insert(id.to_owned(), error);
    }
    let is_good = |output: &&String| links.index(output).is_none_or(|index| !invalid.contains(&index));
    let good: Vec<String> = outputs.iter().filter(is_good).cloned().collect();
    if !good.is_empty() || node_errors.is_empty() {
        return Ok(ValidGraph { node_errors: node_errors.into(), outputs: good });
    }
    Err(ComfyuiError::Prompt {
        kind: "prompt_outputs_failed_validation",
        message: "Prompt outputs failed validation".to_owned(),
        details: details.join("\n"),
        node_errors: node_errors.into(),
    })
}

fn summary(reason: &Value) -> String {
    let field = |key: &str| reason[key].as_str().unwrap_or_default();
    format!("{}: {}", field("message"), field("details"))
}

/// Links between nodes, by index.
struct GraphLinks<'g> {
    indexes: BTreeMap<&'g str, usize>,
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
}

impl<'g> GraphLinks<'g> {
    fn read(graph: &'g InputGraph) -> GraphLinks<'g> {
        let indexes = graph.nodes.keys().enumerate().map(|(index, id)| (id.as_str(), index)).collect();
        let none = vec![Vec::new(); graph.nodes.len()];
        let mut links = GraphLinks { indexes, before: none.clone(), after: none };
        for (to, node) in graph.nodes.values().enumerate() {
            for (_, given) in node.inputs() {
                if let Some(from) = link_source(given).and_then(|from| links.index(&from)) {
                    links.before[to].push(from);
                    links.after[from].push(to);
                }
            }
        }
        links
    }

    fn index(&self, id: &str) -> Option<usize> {
        self.indexes.get(id).copied()
    }
}

/// The given nodes and all nodes reachable from them.
fn reachable(links: &[Vec<usize>], from: impl IntoIterator<Item = usize>) -> HashSet<usize> {
    let mut next: Vec<usize> = from.into_iter().collect();
    let mut seen: HashSet<usize> = next.iter().copied().collect();
    while let Some(index) = next.pop() {
        next.extend(links[index].iter().copied().filter(|index| seen.insert(*index)));
    }
    seen
}

fn input_errors(node: &GraphNode, info: &Value) -> Vec<Value> {
    let required = info["input"]["required"].as_object().into_iter().flatten();
    let mut reasons = Vec::new();
    for (name, spec) in required {
        if spec[0].as_str().is_some_and(|kind| kind.starts_with(DYNAMIC)) {
            continue;
        }
        match node.input(name) {
            None => reasons.push(json!({
                "type": "required_input_missing", "message": "Required input is missing", "details": name,
                "extra_info": { "input_name": name },
            })),
            Some(value) => reasons.extend(out_of_bounds(name, spec, value.get())),
        }
    }
    reasons
}

fn out_of_bounds(name: &str, spec: &Value, given: &str) -> Option<Value> {
    if !matches!(spec[0].as_str(), Some("INT" | "FLOAT")) {
        return None;
    }
    let value: Value = serde_json::from_str(given).ok()?;
    let number = value.as_f64()?;
    let (kind, words, limit) = match (spec[1]["min"].as_f64(), spec[1]["max"].as_f64()) {
        (Some(min), _) if number < min => ("value_smaller_than_min", "smaller than min of", &spec[1]["min"]),
        (_, Some(max)) if number > max => ("value_bigger_than_max", "bigger than max of", &spec[1]["max"]),
        _ => return None,
    };
    Some(json!({
        "type": kind, "message": format!("Value {value} {words} {limit}"), "details": name,
        "extra_info": { "input_name": name, "input_config": spec, "received_value": value },
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    fn graph(nodes: &Value) -> InputGraph {
        super::super::submit::read_graph(&to_raw_value(nodes).unwrap()).unwrap()
    }

    fn classes() -> Map<String, Value> {
        let classes = json!({
            "Empty": {"input": {"required": {"width": ["INT", {"min": 16, "max": 64}], "name": ["STRING", {}]}}},
            "Save": {"input": {"required": {"images": ["IMAGE"], "more": ["COMFY_AUTOGROW_V3", {}]}, "optional": {"x": ["INT", {}]}}},
        });
        classes.as_object().unwrap().clone()
    }

    fn outputs(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn one_valid_output_is_enough_and_invalid_ones_are_reported() {
        let nodes = json!({
            "1": {"class_type": "Empty", "inputs": {"width": 8, "name": "a"}},
            "2": {"class_type": "Empty", "inputs": {"width": ["1", 0], "name": "a"}},
            "3": {"class_type": "Save", "inputs": {"images": ["1", 0]}},
            "4": {"class_type": "Save", "inputs": {"images": ["5", 0]}},
            "5": {"class_type": "Custom", "inputs": {}},
        });
        let graph = graph(&nodes);
        let valid = check(&graph, &classes(), outputs(&["3", "4"])).unwrap();
        assert_eq!(valid.outputs, ["4"]);
        let errors = valid.node_errors;
        assert_eq!(errors["1"]["errors"][0]["type"], "value_smaller_than_min", "{errors}");
        assert_eq!(errors["1"]["dependent_outputs"], json!(["3"]), "{errors}");
        let Err(ComfyuiError::Prompt { node_errors, details, .. }) =
            check(&graph, &classes(), outputs(&["3"]))
        else {
            panic!("nothing of it can run");
        };
        assert_eq!(node_errors["1"]["class_type"], "Empty");
        assert_eq!(details, "Value 8 smaller than min of 16: width");
        assert_eq!(check(&graph, &classes(), outputs(&["4"])).unwrap().node_errors, json!({}));
    }

    /// Every output depends on every invalid node: the answer must not be their product.
    ///
    /// Faults: X7.
    #[test]
    fn errors_of_a_large_graph_are_bounded() {
        let mut nodes = Map::new();
        let mut last = json!("none");
        for number in 0..3000 {
            nodes.insert(
                format!("a{number}"),
                json!({"class_type": "Empty", "inputs": {"width": 8, "name": last}}),
            );
            last = json!([format!("a{number}"), 0]);
        }
        let ends: Vec<String> = (0..3000).map(|number| format!("z{number}")).collect();
        for id in &ends {
            nodes.insert(id.clone(), json!({"class_type": "Save", "inputs": {"images": last}}));
        }
        let Err(ComfyuiError::Prompt { node_errors, details, .. }) =
            check(&graph(&nodes.into()), &classes(), ends)
        else {
            panic!("nothing of it can run");
        };
        let reported = node_errors.as_object().unwrap();
        assert_eq!(
            (reported.len(), details.lines().count()),
            (REPORTED_NODES_MAX, REPORTED_NODES_MAX),
            "each is reported once"
        );
        assert!(
            reported.values().all(|it| it["dependent_outputs"].as_array().unwrap().len() == DEPENDENT_MAX)
        );
    }

    #[test]
    fn missing_required_input_is_reported() {
        let nodes = json!({"3": {"class_type": "Save", "inputs": {}}});
        let Err(ComfyuiError::Prompt { node_errors, .. }) =
            check(&graph(&nodes), &classes(), outputs(&["3"]))
        else {
            panic!("nothing of it can run");
        };
        let errors = node_errors["3"]["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(
            (&errors[0]["type"], &errors[0]["details"]),
            (&json!("required_input_missing"), &json!("images"))
        );
    }
}
