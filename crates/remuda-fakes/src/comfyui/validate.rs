//! Validates a graph, with the original's messages. A missing model appears as `value_not_in_list`, which tells a wrong
//! server from a broken graph. One valid output is enough: the invalid ones are reported and left out.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Version;
use super::faults::Fault;
use super::files::Disk;
use super::graph::{Graph, Node, at_slot};
use super::nodes::{Catalogue, Input, Kind, python_list};
use super::values::{is_truthy, python_str, python_type};

/// Longer combos are not written out in an error.
const LIST_MAX: usize = 20;

/// A graph that can run, at least in part.
#[derive(Debug)]
pub(super) struct Valid {
    pub(super) outputs: Vec<String>,
    pub(super) node_errors: Value,
}

/// Why nothing of it can run.
#[derive(Debug)]
pub(super) struct Invalid {
    pub(super) error: Value,
    pub(super) node_errors: Value,
}

pub(super) fn error(kind: &str, message: &str, details: &str) -> Value {
    json!({"type": kind, "message": message, "details": details, "extra_info": {}})
}

/// Checks every output and everything upstream; values of another type are converted in the graph.
pub(super) fn validate(
    graph: &mut Graph,
    catalogue: &Catalogue,
    disk: &Disk,
    version: Version,
    targets: Option<&[Value]>,
) -> Result<Valid, Invalid> {
    let refuse = |error| Err(Invalid { error, node_errors: json!({}) });
    let mut outputs = Vec::new();
    for node in graph.nodes() {
        let Some(class) = catalogue.class(&node.class) else {
            return refuse(unknown_class(version, node));
        };
        let is_wanted = targets.is_none_or(|targets| targets.iter().any(|target| target == &node.id));
        if class.is_output && is_wanted {
            outputs.push(node.id.clone());
        }
    }
    if outputs.is_empty() {
        return refuse(error("prompt_no_outputs", "Prompt has no outputs", ""));
    }
    let mut check = Check {
        graph,
        catalogue,
        disk,
        version,
        verdicts: HashMap::new(),
        order: Vec::new(),
        converted: Vec::new(),
    };
    let (mut good, mut node_errors, mut details) = (Vec::new(), Map::new(), Vec::new());
    for output in &outputs {
        let verdict = match check.node(output, &mut Vec::new()) {
            Ok(verdict) => verdict,
            Err(exception) => {
                check.remember(output, Verdict { is_valid: false, reasons: vec![exception.to_json()] })
            }
        };
        if verdict.is_valid {
            good.push(output.clone());
            continue;
        }
        details.extend(verdict.reasons.iter().map(summary));
        check.collect(output, &mut node_errors);
    }
    let converted = check.converted;
    if good.is_empty() {
        let error = error(
            "prompt_outputs_failed_validation",
            "Prompt outputs failed validation",
            &details.join("\n"),
        );
        return Err(Invalid { error, node_errors: node_errors.into() });
    }
    for (id, input, value) in converted {
        graph.convert(&id, &input, &value);
    }
    Ok(Valid { outputs: good, node_errors: node_errors.into() })
}

fn summary(reason: &Value) -> String {
    format!("{}: {}", python_str(&reason["message"]), python_str(&reason["details"]))
}

#[derive(Clone, Debug)]
struct Verdict {
    is_valid: bool,
    reasons: Vec<Value>,
}

/// The original raises an exception while it checks a node.
struct Exception {
    kind: &'static str,
    text: String,
}

impl Exception {
    fn to_json(&self) -> Value {
        let frame = "  File \"<comfyui>/execution.py\", line 1043, in validate_prompt\n    <code line>\n";
        json!({
            "type": "exception_during_validation", "message": "Exception when validating node", "details": self.text,
            "extra_info": {"exception_type": self.kind, "traceback": [frame]},
        })
    }
}

struct Check<'a> {
    graph: &'a Graph,
    catalogue: &'a Catalogue,
    disk: &'a Disk,
    version: Version,
    verdicts: HashMap<String, Verdict>,
    order: Vec<String>,
    converted: Vec<(String, String, Value)>,
}

impl<'a> Check<'a> {
    fn remember(&mut self, id: &str, verdict: Verdict) -> Verdict {
        if self.verdicts.insert(id.to_owned(), verdict.clone()).is_none() {
            self.order.push(id.to_owned());
        }
        verdict
    }

    /// Lists the reasons of all invalid nodes so far under this output.
    fn collect(&self, output: &str, node_errors: &mut Map<String, Value>) {
        for id in &self.order {
            let Some(verdict) = self.verdicts.get(id).filter(|verdict| !verdict.reasons.is_empty()) else {
                continue;
            };
            let class = self.graph.node(id).map(|node| node.class.as_str());
            let entry = node_errors.entry(id.clone()).or_insert_with(
                || json!({"errors": verdict.reasons, "dependent_outputs": [], "class_type": class}),
            );
            if let Some(outputs) = entry["dependent_outputs"].as_array_mut() {
                outputs.push(output.into());
            }
        }
    }

    fn node(&mut self, id: &'a str, above: &mut Vec<&'a str>) -> Result<Verdict, Exception> {
        if let Some(verdict) = self.verdicts.get(id) {
            return Ok(verdict.clone());
        }
        if let Some(start) = above.iter().position(|other| *other == id) {
            if self.version >= Version::V0_30_0 {
                self.cycle(&above[start..]);
            }
            // Before, the original recurses until its stack overflows, and then has no reason to give.
            return Ok(Verdict { is_valid: false, reasons: Vec::new() });
        }
        let node = self.graph.node(id).ok_or_else(|| missing_key(id))?;
        if node.inputs.is_none() {
            return Err(missing_key("inputs"));
        }
        let class = self.catalogue.class(&node.class).ok_or_else(|| missing_key(&node.class))?;
        above.push(id);
        let (mut is_valid, mut reasons) = (true, Vec::new());
        for input in &class.inputs {
            let Some(value) = node.input(input.name) else {
                reasons.push(reason(
                    "required_input_missing",
                    "Required input is missing",
                    input.name,
                    input,
                    Map::new(),
                    false,
                ));
                continue;
            };
            match value {
                Value::Array(_) => match self.link(node, input, above)? {
                    Linked::Well => {}
                    Linked::BadAbove => is_valid = false,
                    Linked::Wrong(wrong) => reasons.push(wrong),
                },
                value => reasons.extend(self.value(&node.id, input, value)?),
            }
        }
        above.pop();
        if let Some(cycle) = self.verdicts.get(id) {
            reasons.splice(0..0, cycle.reasons.iter().cloned());
        }
        let verdict = Verdict { is_valid: is_valid && reasons.is_empty(), reasons };
        Ok(self.remember(id, verdict))
    }

    /// Every node of a cycle gets the same error.
    fn cycle(&mut self, ids: &[&str]) {
        let class = |id: &str| self.graph.node(id).map(|node| node.class.clone()).unwrap_or_default();
        let path: Vec<String> =
            ids.iter().chain(ids.first()).map(|id| format!("{id} ({})", class(id))).collect();
        for id in ids {
            let reason = json!({
                "type": "dependency_cycle", "message": "Dependency cycle detected", "details": path.join(" -> "),
                "extra_info": {"node_id": id, "cycle_nodes": ids},
            });
            self.remember(id, Verdict { is_valid: false, reasons: vec![reason] });
        }
    }

    fn link(&mut self, node: &'a Node, input: &Input, above: &mut Vec<&'a str>) -> Result<Linked, Exception> {
        let value = node.input(input.name).unwrap_or(&Value::Null);
        let [from, slot] = value.as_array().map_or(&[][..], Vec::as_slice) else {
            let message = "Bad linked input, must be a length-2 list of [node_id, slot_index]";
            let extra = Map::from_iter([("received_value".to_owned(), value.clone())]);
            return Ok(Linked::Wrong(reason("bad_linked_input", message, input.name, input, extra, true)));
        };
        let from_id = match from {
            Value::String(id) => id.as_str(),
            Value::Array(_) | Value::Object(_) => {
                let text = format!("unhashable type: '{}'", python_type(from));
                return Err(Exception { kind: "TypeError", text });
            }
            other => return Err(Exception { kind: "KeyError", text: python_str(other) }),
        };
        let from_node = self.graph.node(from_id).ok_or_else(|| missing_key(from_id))?;
        let results = self.catalogue.class(&from_node.class).map_or(&[][..], |class| class.results);
        if let Some(kind) = not_an_index(slot) {
            let text = format!("tuple indices must be integers or slices, not {kind}");
            return Err(Exception { kind: "TypeError", text });
        }
        let received = slot.as_i64().and_then(|slot| at_slot(results, slot));
        let Some(received) = received else {
            return Err(Exception { kind: "IndexError", text: "tuple index out of range".to_owned() });
        };
        if !matches!(input.kind, Kind::Link(wanted) if wanted == *received) {
            let details = format!(
                "{}, received_type({received}) mismatch input_type({})",
                input.name,
                input.type_name()
            );
            let extra = Map::from_iter([
                ("received_type".to_owned(), json!(received)),
                ("linked_node".to_owned(), value.clone()),
            ]);
            let message = "Return type mismatch between linked nodes";
            return Ok(Linked::Wrong(reason("return_type_mismatch", message, &details, input, extra, true)));
        }
        match self.node(&from_node.id, above) {
            Ok(verdict) if verdict.is_valid => Ok(Linked::Well),
            Ok(_) => Ok(Linked::BadAbove),
            Err(exception) => {
                let reasons = vec![json!({
                    "type": "exception_during_inner_validation", "message": "Exception when validating inner node",
                    "details": exception.text,
                    "extra_info": {
                        "input_name": input.name, "input_config": input.to_json(),
                        "exception_message": exception.text, "exception_type": exception.kind, "traceback": [],
                        "linked_node": value,
                    },
                })];
                self.remember(from_id, Verdict { is_valid: false, reasons });
                Ok(Linked::BadAbove)
            }
        }
    }

    /// Checks a literal value.
    fn value(&mut self, id: &str, input: &Input, given: &Value) -> Result<Vec<Value>, Exception> {
        let value = given;
        if matches!(input.kind, Kind::File) && !value.is_string() {
            let text = format!("'{}' object has no attribute 'endswith'", python_type(value));
            return Err(Exception { kind: "AttributeError", text });
        }
        // How a list is given that is no link.
        let value = value.get("__value__").unwrap_or(value);
        let converted = match convert(&input.kind, value) {
            Ok(converted) => converted,
            Err(why) => {
                let kind = input.type_name();
                let message = format!("Failed to convert an input value to a {kind} value");
                let details = format!("{}, {}, {why}", input.name, python_str(value));
                let extra = Map::from_iter([
                    ("received_value".to_owned(), value.clone()),
                    ("exception_message".to_owned(), why.into()),
                ]);
                return Ok(vec![reason("invalid_input_type", &message, &details, input, extra, true)]);
            }
        };
        if converted != *given {
            self.converted.push((id.to_owned(), input.name.to_owned(), converted.clone()));
        }
        Ok(match &input.kind {
            Kind::Choice(choices) => {
                not_in_list(self.version, input, choices, &converted).into_iter().collect()
            }
            // The first server with such lists left them to the node.
            Kind::Options(choices) if self.version > Version::V0_3_75 => {
                not_in_list(self.version, input, choices, &converted).into_iter().collect()
            }
            Kind::File if self.disk.annotated(converted.as_str().unwrap_or_default()).is_none() => {
                vec![unfit(input, &format!("Invalid image file: {}", python_str(&converted)))]
            }
            Kind::Fault => {
                let names = converted.as_str().unwrap_or_default().split(',').map(str::trim);
                let unknown =
                    names.filter(|name| *name != "none").find_map(|name| name.parse::<Fault>().err());
                unknown.map(|unknown| unfit(input, &unknown.to_string())).into_iter().collect()
            }
            _ => out_of_range(input, &converted),
        })
    }
}

fn unknown_class(version: Version, node: &Node) -> Value {
    let Node { id, class, title, .. } = node;
    let details = format!("Node ID '#{id}'");
    if version < Version::V0_30_0 {
        let message = format!("Cannot execute because node {class} does not exist.");
        return error("invalid_prompt", &message, &details);
    }
    let title = title.as_deref().unwrap_or(class);
    let message = format!("Node '{title}' not found. The custom node may not be installed.");
    let mut told = error("missing_node_type", &message, &details);
    told["extra_info"] = json!({"node_id": id, "class_type": class, "node_title": title});
    told
}

pub(super) fn missing_class(version: Version, id: &str, title: Option<&str>) -> Value {
    let details = format!("Node ID '#{id}'");
    if version < Version::V0_30_0 {
        let message = "Cannot execute because a node is missing the class_type property.";
        return error("invalid_prompt", message, &details);
    }
    let named = title.map_or_else(|| format!("ID #{id}"), str::to_owned);
    let message = format!(
        "Node '{named}' has no class_type. The workflow may be corrupted or a custom node is missing."
    );
    let mut told = error("missing_node_type", &message, &details);
    told["extra_info"] = json!({"node_id": id, "class_type": null, "node_title": title});
    told
}

fn not_an_index(slot: &Value) -> Option<&'static str> {
    (!slot.is_i64() && !slot.is_u64() && !slot.is_boolean()).then(|| python_type(slot))
}

enum Linked {
    Well,
    BadAbove,
    Wrong(Value),
}

fn missing_key(key: &str) -> Exception {
    Exception { kind: "KeyError", text: format!("'{key}'") }
}

fn reason(
    kind: &str,
    message: &str,
    details: &str,
    input: &Input,
    mut extra: Map<String, Value>,
    has_config: bool,
) -> Value {
    extra.insert("input_name".to_owned(), input.name.into());
    if has_config {
        extra.entry("input_config").or_insert_with(|| input.to_json());
    }
    json!({"type": kind, "message": message, "details": details, "extra_info": extra})
}

/// A value that the class itself rejects.
fn unfit(input: &Input, why: &str) -> Value {
    let details = format!("{} - {why}", input.name);
    reason(
        "custom_validation_failed",
        "Custom validation failed for node",
        &details,
        input,
        Map::new(),
        false,
    )
}

fn convert(kind: &Kind, value: &Value) -> Result<Value, String> {
    let not_a = |what: &str| Err(format!("{what}: '{}'", python_str(value)));
    match (kind, value) {
        (Kind::Int, Value::Number(number)) => {
            let whole = number.as_i64().map(Value::from).or_else(|| number.as_u64().map(Value::from));
            Ok(whole.unwrap_or_else(|| (number.as_f64().unwrap_or_default() as i64).into()))
        }
        (Kind::Int, Value::Bool(truth)) => Ok(u8::from(*truth).into()),
        (Kind::Int, Value::String(text)) => match text.trim().parse::<i64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => not_a("invalid literal for int() with base 10"),
        },
        (Kind::Float, Value::String(text)) => match text.trim().parse::<f64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => not_a("could not convert string to float"),
        },
        (Kind::Int, other) => Err(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            python_type(other)
        )),
        (Kind::Float, Value::Null | Value::Object(_)) => {
            Err(format!("float() argument must be a string or a real number, not '{}'", python_type(value)))
        }
        (Kind::Float, Value::Number(number)) => Ok(number.as_f64().unwrap_or_default().into()),
        (Kind::Text, Value::String(_)) => Ok(value.clone()),
        (Kind::Text, other) => Ok(python_str(other).into()),
        (Kind::Bool, other) => Ok(is_truthy(other).into()),
        (_, other) => Ok(other.clone()),
    }
}

fn out_of_range(input: &Input, value: &Value) -> Vec<Value> {
    let Some(number) = value.as_f64().filter(|_| matches!(input.kind, Kind::Int | Kind::Float)) else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    let mut check = |bound: &str, kind: &str, words: &str, is_beyond: fn(f64, f64) -> bool| {
        let limit = &input.config[bound];
        if limit.as_f64().is_some_and(|limit| is_beyond(number, limit)) {
            let message = format!("Value {value} {words} {limit}");
            let extra = Map::from_iter([("received_value".to_owned(), value.clone())]);
            reasons.push(reason(kind, &message, input.name, input, extra, true));
        }
    };
    check("min", "value_smaller_than_min", "smaller than min of", |value, limit| value < limit);
    check("max", "value_bigger_than_max", "bigger than max of", |value, limit| value > limit);
    reasons
}

fn not_in_list(version: Version, input: &Input, choices: &[String], value: &Value) -> Option<Value> {
    if choices.iter().any(|choice| value == choice) {
        return None;
    }
    let mut extra = Map::from_iter([("received_value".to_owned(), value.clone())]);
    let list = if choices.len() > LIST_MAX {
        extra.insert("input_config".to_owned(), Value::Null);
        format!("(list of length {})", choices.len())
    } else {
        python_list(choices)
    };
    let given = match value {
        Value::String(_) => format!("'{}'", python_str(value)),
        _ if version < Version::V0_30_0 => format!("'{}'", python_str(value)),
        _ => python_str(value),
    };
    let details = format!("{}: {given} not in {list}", input.name);
    Some(reason("value_not_in_list", "Value not in list", &details, input, extra, true))
}
