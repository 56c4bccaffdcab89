//! Whether a graph can run, as far as the fleet's classes tell: inputs that must be there, numbers within their bounds. One
//! good output is enough, as in ComfyUI: the bad ones are told and left out. Choices and types of links are left to the
//! servers: a class may take more than it lists, and what is listed may be older than a file.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::error::Refused;
use super::submit::{Graph, Node};

/// Inputs of these kinds are given under other names than their own.
const DYNAMIC: &str = "COMFY_";
/// Nodes that are told to be wrong, and outputs that are told with each: nobody mends more at once, and all of them of a
/// graph of thousands would be an answer without end.
const TOLD_MAX: usize = 100;
const DEPENDENT_MAX: usize = 100;

/// A graph of which something can run.
#[derive(Debug)]
pub(super) struct Sound {
    /// What is wrong with which node, in ComfyUI's words.
    pub(super) node_errors: Value,
    /// The outputs that are left.
    pub(super) outputs: Vec<String>,
}

/// Refused if no output is left.
pub(super) fn check(
    graph: &Graph,
    classes: &Map<String, Value>,
    outputs: Vec<String>,
) -> Result<Sound, Refused> {
    let mut errors: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (id, node) in &graph.nodes {
        let found = classes.get(&node.class).map(|info| wrong(node, info)).unwrap_or_default();
        if !found.is_empty() {
            errors.insert(id, found);
        }
    }
    if errors.is_empty() {
        return Ok(Sound { node_errors: json!({}), outputs });
    }
    let links = Links::read(graph);
    let places: BTreeMap<usize, &str> =
        outputs.iter().filter_map(|output| Some((links.place(output)?, output.as_str()))).collect();
    let bad = errors.keys().filter_map(|id| links.place(id));
    let spoilt = reach(&links.after, bad);
    let needed = reach(&links.before, places.keys().copied());
    let (mut told, mut details) = (Map::new(), Vec::new());
    for (id, reasons) in errors {
        let Some(place) = links.place(id).filter(|place| needed.contains(place)) else { continue };
        if told.len() == TOLD_MAX {
            break;
        }
        let after = reach(&links.after, [place]);
        let dependent = places.iter().filter(|(place, _)| after.contains(place));
        let dependent: Vec<&str> = dependent.map(|(_, output)| *output).take(DEPENDENT_MAX).collect();
        let class = graph.nodes.get(id).map(|node| node.class.as_str());
        details.extend(reasons.iter().map(summary));
        let error = json!({ "errors": reasons, "dependent_outputs": dependent, "class_type": class });
        told.insert(id.to_owned(), error);
    }
    let is_good = |output: &&String| links.place(output).is_none_or(|place| !spoilt.contains(&place));
    let good: Vec<String> = outputs.iter().filter(is_good).cloned().collect();
    if !good.is_empty() || told.is_empty() {
        return Ok(Sound { node_errors: told.into(), outputs: good });
    }
    Err(Refused::Prompt {
        kind: "prompt_outputs_failed_validation",
        message: "Prompt outputs failed validation".to_owned(),
        details: details.join("\n"),
        node_errors: told.into(),
    })
}

fn summary(reason: &Value) -> String {
    let word = |key: &str| reason[key].as_str().unwrap_or_default();
    format!("{}: {}", word("message"), word("details"))
}

/// Which node feeds which, by their places in the graph.
struct Links<'g> {
    places: BTreeMap<&'g str, usize>,
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
}

impl<'g> Links<'g> {
    fn read(graph: &'g Graph) -> Links<'g> {
        let places = graph.nodes.keys().enumerate().map(|(place, id)| (id.as_str(), place)).collect();
        let none = vec![Vec::new(); graph.nodes.len()];
        let mut links = Links { places, before: none.clone(), after: none };
        for (to, node) in graph.nodes.values().enumerate() {
            for given in node.inputs.values().filter(|value| value.get().starts_with('[')) {
                let source = serde_json::from_str::<(String, f64)>(given.get()).ok();
                if let Some(from) = source.and_then(|(from, _)| links.place(&from)) {
                    links.before[to].push(from);
                    links.after[from].push(to);
                }
            }
        }
        links
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied()
    }
}

/// These nodes and all that can be reached from them.
fn reach(links: &[Vec<usize>], from: impl IntoIterator<Item = usize>) -> HashSet<usize> {
    let mut next: Vec<usize> = from.into_iter().collect();
    let mut seen: HashSet<usize> = next.iter().copied().collect();
    while let Some(place) = next.pop() {
        next.extend(links[place].iter().copied().filter(|place| seen.insert(*place)));
    }
    seen
}

fn wrong(node: &Node, info: &Value) -> Vec<Value> {
    let required = info["input"]["required"].as_object().into_iter().flatten();
    let mut reasons = Vec::new();
    for (name, spec) in required {
        if spec[0].as_str().is_some_and(|kind| kind.starts_with(DYNAMIC)) {
            continue;
        }
        match node.inputs.get(name) {
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

    fn graph(nodes: &Value) -> Graph {
        Graph::read(&to_raw_value(nodes).unwrap()).unwrap()
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
    fn one_good_output_is_enough_and_the_bad_ones_are_told() {
        let nodes = json!({
            "1": {"class_type": "Empty", "inputs": {"width": 8, "name": "a"}},
            "2": {"class_type": "Empty", "inputs": {"width": ["1", 0], "name": "a"}},
            "3": {"class_type": "Save", "inputs": {"images": ["1", 0]}},
            "4": {"class_type": "Save", "inputs": {"images": ["5", 0]}},
            "5": {"class_type": "Custom", "inputs": {}},
        });
        let graph = graph(&nodes);
        let told = check(&graph, &classes(), outputs(&["3", "4"])).unwrap();
        assert_eq!(told.outputs, ["4"]);
        let told = told.node_errors;
        assert_eq!(told["1"]["errors"][0]["type"], "value_smaller_than_min", "{told}");
        assert_eq!(told["1"]["dependent_outputs"], json!(["3"]), "{told}");
        let Err(Refused::Prompt { node_errors, details, .. }) = check(&graph, &classes(), outputs(&["3"]))
        else {
            panic!("nothing of it can run");
        };
        assert_eq!(node_errors["1"]["class_type"], "Empty");
        assert_eq!(details, "Value 8 smaller than min of 16: width");
        assert_eq!(check(&graph, &classes(), outputs(&["4"])).unwrap().node_errors, json!({}));
    }

    /// Every output hangs on every bad node: the answer must not be their product.
    ///
    /// Faults: X7.
    #[test]
    fn what_is_told_of_a_large_graph_is_bounded() {
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
        let Err(Refused::Prompt { node_errors, details, .. }) =
            check(&graph(&nodes.into()), &classes(), ends)
        else {
            panic!("nothing of it can run");
        };
        let told = node_errors.as_object().unwrap();
        assert_eq!((told.len(), details.lines().count()), (TOLD_MAX, TOLD_MAX), "each is told once");
        assert!(told.values().all(|it| it["dependent_outputs"].as_array().unwrap().len() == DEPENDENT_MAX));
    }

    #[test]
    fn what_must_be_there_is_missed() {
        let nodes = json!({"3": {"class_type": "Save", "inputs": {}}});
        let Err(Refused::Prompt { node_errors, .. }) = check(&graph(&nodes), &classes(), outputs(&["3"]))
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
