//! Whether ComfyUI would run a graph: its `validate_prompt`, asked of what the servers say about their classes. Every
//! output is checked with all that feeds it. One valid output is enough: the others are left out and reported.
//!
//! ```text
//!  output ──▶ its inputs, by name ──┬─ missing, but required ─────────▶ error of this node
//!                                   ├─ value ──convert, range, list──▶ error of this node, or well
//!                                   └─ link ──slot, type──▶ the node behind it, first; invalid: so is this one
//! ```
//!
//! A node is checked once, and nothing recurses: a chain of nodes may be long. Where ComfyUI answers in random order (it goes
//! through sets), the order is that of ids and of names.

use serde_json::{Map, Value as Json, json};

use super::graph::{Feed, Graph, Input, Node};
use super::json_tree::{Tree, Value};
use super::node_catalog::{Bounds, ClassRule, InputKind, InputRule, MATCH_TYPE, NodeCatalog, OwnChecks};
use super::python;
use super::shape::model_file;
use super::verdict::{DEPENDENT_MAX, GraphVerdict, PromptRefusal, REPORTED_NODES_MAX};

/// Longer lists are not written out in an error.
const LIST_MAX: usize = 20;
/// A value that stands for a stored file.
const ASSET_KEY: &str = "__type";
/// A value that is not to be taken for a link.
const WRAPPED_VALUE: &str = "__value__";

/// What a graph is checked against.
#[derive(Clone, Copy, Debug)]
pub struct GraphCheck<'a> {
    pub catalog: &'a NodeCatalog,
    /// Only these outputs are wanted.
    pub targets: Option<&'a [String]>,
    /// A worker may come that has classes and model files which none has now.
    pub may_come: bool,
    /// Input files come here first, or are known to the servers: one that no server lists is missing.
    pub knows_files: bool,
}

/// Checks the outputs of a graph and everything that feeds them.
pub(super) fn validate(
    tree: &Tree<'_>,
    graph: &Graph<'_>,
    check: &GraphCheck<'_>,
) -> Result<GraphVerdict, PromptRefusal> {
    let outputs = outputs(graph, check)?;
    let mut validation = Validation {
        tree,
        graph,
        check,
        verdicts: vec![None; graph.nodes.len()],
        path_at: vec![None; graph.nodes.len()],
        invalid: Vec::new(),
    };
    let (mut good, mut failed, mut details) = (Vec::new(), Vec::new(), Vec::new());
    // How many outputs had failed when a node was found invalid: those that follow depend on it, as ComfyUI counts.
    let mut failed_before = Vec::new();
    for output in outputs {
        validation.walk(output);
        let (is_valid, reasons) = validation.verdict(output);
        if is_valid {
            good.push(graph.nodes[output].id.to_owned());
            continue;
        }
        details.extend(reasons.iter().take(REPORTED_NODES_MAX).map(summary));
        failed_before.resize(validation.invalid.len(), failed.len());
        failed.push(graph.nodes[output].id);
    }
    let mut node_errors = Map::new();
    for (at, node) in validation.invalid.iter().enumerate().take(REPORTED_NODES_MAX) {
        let first = failed_before.get(at).copied().unwrap_or_default();
        let dependent: Vec<_> = failed[first..].iter().take(DEPENDENT_MAX).collect();
        let Node { id, class, .. } = graph.nodes[*node];
        let (_, reasons) = validation.verdict(*node);
        let entry = json!({ "errors": reasons, "dependent_outputs": dependent, "class_type": class });
        node_errors.insert(id.to_owned(), entry);
    }
    if good.is_empty() {
        details.truncate(REPORTED_NODES_MAX);
        return Err(PromptRefusal::failed(&details, node_errors));
    }
    Ok(GraphVerdict { outputs: good, node_errors })
}

/// The wanted output nodes. A class that no server describes may be an output.
fn outputs(graph: &Graph<'_>, check: &GraphCheck<'_>) -> Result<Vec<usize>, PromptRefusal> {
    let order = graph.usual_order();
    let unknown = order.iter().map(|at| &graph.nodes[*at]).find(|node| !check.catalog.has_class(node.class));
    if let Some(node) = unknown.filter(|_| !check.may_come) {
        return Err(PromptRefusal::unknown_class(node));
    }
    let is_wanted = |id: &str| check.targets.is_none_or(|targets| targets.iter().any(|target| target == id));
    let is_output = |at: &usize| {
        let node = &graph.nodes[*at];
        check.catalog.is_output(node.class).unwrap_or(true) && is_wanted(node.id)
    };
    let outputs: Vec<usize> = order.into_iter().filter(is_output).collect();
    if outputs.is_empty() { Err(PromptRefusal::no_outputs()) } else { Ok(outputs) }
}

fn summary(reason: &Json) -> String {
    let field = |key: &str| reason[key].as_str().unwrap_or_default();
    format!("{}: {}", field("message"), field("details"))
}

/// ComfyUI raises this while it checks a node.
struct Exception {
    kind: &'static str,
    text: String,
}

#[derive(Clone)]
struct NodeVerdict {
    is_valid: bool,
    reasons: Vec<Json>,
}

/// A node that is being checked.
struct Visit {
    node: usize,
    inputs_visited: usize,
    is_valid: bool,
    reasons: Vec<Json>,
}

enum Linked {
    Well,
    Wrong(Json),
    /// The source has to be checked first.
    To(usize),
}

struct Validation<'c, 'a> {
    tree: &'c Tree<'a>,
    graph: &'c Graph<'a>,
    check: &'c GraphCheck<'c>,
    verdicts: Vec<Option<NodeVerdict>>,
    /// Where a node that is being checked stands on the path.
    path_at: Vec<Option<usize>>,
    /// Nodes with errors of their own, in the order in which they were found.
    invalid: Vec<usize>,
}

impl Validation<'_, '_> {
    fn verdict(&self, node: usize) -> (bool, &[Json]) {
        let verdict = self.verdicts[node].as_ref();
        verdict.map_or((true, &[]), |verdict| (verdict.is_valid, &verdict.reasons))
    }

    fn record(&mut self, node: usize, verdict: NodeVerdict) {
        let had_errors = self.verdicts[node].as_ref().is_some_and(|known| !known.reasons.is_empty());
        if !verdict.reasons.is_empty() && !had_errors {
            self.invalid.push(node);
        }
        self.verdicts[node] = Some(verdict);
    }

    /// Checks an output and everything that feeds it.
    fn walk(&mut self, output: usize) {
        let mut path: Vec<Visit> = Vec::new();
        self.enter(output, &mut path);
        while let Some(visit) = path.last_mut() {
            match self.next_input(visit) {
                Ok(Some(source)) => match &self.verdicts[source] {
                    Some(verdict) => visit.is_valid &= verdict.is_valid,
                    None => match self.path_at[source] {
                        Some(start) => {
                            visit.is_valid = false;
                            self.record_cycle(&path[start..]);
                        }
                        None => self.enter(source, &mut path),
                    },
                },
                Ok(None) => self.leave(&mut path),
                Err(exception) => self.fail(exception, &mut path),
            }
        }
    }

    fn enter(&mut self, node: usize, path: &mut Vec<Visit>) {
        if self.verdicts[node].is_none() {
            self.path_at[node] = Some(path.len());
            path.push(Visit { node, inputs_visited: 0, is_valid: true, reasons: Vec::new() });
        }
    }

    fn leave(&mut self, path: &mut Vec<Visit>) {
        let Some(Visit { node, mut is_valid, mut reasons, .. }) = path.pop() else { return };
        self.path_at[node] = None;
        // A cycle through this node has put its error there.
        if let Some(known) = &self.verdicts[node] {
            is_valid = false;
            reasons.splice(0..0, known.reasons.iter().cloned());
        }
        is_valid &= reasons.is_empty();
        self.record(node, NodeVerdict { is_valid, reasons });
        if let Some(parent) = path.last_mut() {
            parent.is_valid &= is_valid;
        }
    }

    /// An exception ends the check of a node; each node that needs it reports it.
    fn fail(&mut self, Exception { kind, text }: Exception, path: &mut Vec<Visit>) {
        let Some(Visit { node, .. }) = path.pop() else { return };
        self.path_at[node] = None;
        let reason = match path.last_mut() {
            Some(parent) => {
                parent.is_valid = false;
                let (input, rule) = self.input_at(parent.node, parent.inputs_visited - 1).unwrap_or_default();
                let config = rule.map_or(Json::Null, |rule| rule.config.clone());
                let link = input.map(|input| self.json(input.value));
                json!({
                    "type": "exception_during_inner_validation", "message": "Exception when validating inner node",
                    "details": text,
                    "extra_info": {
                        "input_name": input.map(|input| input.name), "input_config": config,
                        "exception_message": text, "exception_type": kind, "traceback": [], "linked_node": link,
                    },
                })
            }
            None => json!({
                "type": "exception_during_validation", "message": "Exception when validating node", "details": text,
                "extra_info": { "exception_type": kind, "traceback": [] },
            }),
        };
        self.record(node, NodeVerdict { is_valid: false, reasons: vec![reason] });
    }

    /// Every node of the cycle gets its error.
    fn record_cycle(&mut self, cycle: &[Visit]) {
        let nodes: Vec<usize> = cycle.iter().take(REPORTED_NODES_MAX).map(|visit| visit.node).collect();
        let ids: Vec<&str> = nodes.iter().map(|at| self.graph.nodes[*at].id).collect();
        let shown = nodes.iter().chain(nodes.first()).map(|at| &self.graph.nodes[*at]);
        let details =
            shown.map(|node| format!("{} ({})", node.id, node.class)).collect::<Vec<_>>().join(" -> ");
        for (node, id) in nodes.iter().zip(&ids) {
            let reason = json!({
                "type": "dependency_cycle", "message": "Dependency cycle detected", "details": details,
                "extra_info": { "node_id": id, "cycle_nodes": ids },
            });
            self.record(*node, NodeVerdict { is_valid: false, reasons: vec![reason] });
        }
    }

    /// The class of a node; `None` if no server describes it.
    fn class(&self, node: usize) -> Option<&ClassRule> {
        self.check.catalog.class(self.graph.nodes[node].class)
    }

    /// An input in the order in which they are checked: those of the class by name, then all that are given, if the class
    /// may have others. `None` after the last.
    fn input_at(&self, node: usize, at: usize) -> Option<(Option<&Input<'_>>, Option<&InputRule>)> {
        let given = self.graph.inputs(node);
        let Some(class) = self.class(node) else { return Some((Some(given.get(at)?), None)) };
        if let Some((name, rule)) = class.inputs.get(at) {
            let found = given.binary_search_by(|input| input.name.cmp(name));
            return Some((found.ok().map(|at| &given[at]), Some(rule)));
        }
        let other = given.get(at - class.inputs.len()).filter(|_| class.is_dynamic())?;
        Some((Some(other).filter(|input| class.input(input.name).is_none()), None))
    }

    /// Goes through inputs of a node up to a link that is well in itself: its source is next. `None` after the last input.
    fn next_input(&self, visit: &mut Visit) -> Result<Option<usize>, Exception> {
        let node = visit.node;
        if !self.graph.nodes[node].has_inputs {
            return Err(key_error(&json!("inputs")));
        }
        while let Some((input, rule)) = self.input_at(node, visit.inputs_visited) {
            visit.inputs_visited += 1;
            let is_missing =
                input.is_none() && rule.is_some_and(|rule| rule.is_required && rule.is_checked());
            if is_missing {
                let name = self.class(node).map_or("", |class| &class.inputs[visit.inputs_visited - 1].0);
                visit.reasons.push(missing(name));
            }
            let Some(input) = input else { continue };
            match (input.value, rule) {
                (Value::Array(_), _) => match self.link(node, input, rule)? {
                    Linked::Well => {}
                    Linked::Wrong(reason) => visit.reasons.push(reason),
                    Linked::To(source) => return Ok(Some(source)),
                },
                (_, Some(rule)) => visit.reasons.extend(self.value(node, input, rule)?),
                (_, None) => {}
            }
        }
        Ok(None)
    }

    fn link(&self, node: usize, input: &Input<'_>, rule: Option<&InputRule>) -> Result<Linked, Exception> {
        let rule = rule.filter(|rule| rule.is_checked());
        let value = self.json(input.value);
        let [from, slot] = value.as_array().map_or(&[][..], Vec::as_slice) else {
            return Ok(rule.map_or(Linked::Well, |rule| Linked::Wrong(bad_link(input.name, rule, &value))));
        };
        let source = match (&input.feed, from) {
            (Feed::Link { source, .. }, _) => *source,
            // Of an input that is not described it is data.
            (Feed::Constant(_), _) if rule.is_none() => return Ok(Linked::Well),
            (_, Json::String(id)) => self.graph.find(id).ok_or_else(|| key_error(from))?,
            (_, Json::Array(_) | Json::Object(_)) => {
                let text = format!("unhashable type: '{}'", python::type_name(from));
                return Err(Exception { kind: "TypeError", text });
            }
            (_, other) => return Err(key_error(other)),
        };
        let Some(class) = self.class(source) else { return Ok(Linked::To(source)) };
        let received = class.output_at(slot).map_err(|(kind, text)| Exception { kind, text })?;
        let is_foreign = |class: Option<&ClassRule>| class.is_none_or(|it| it.own == OwnChecks::Unknown);
        let (Some(rule), Some(received)) = (rule, received) else { return Ok(Linked::To(source)) };
        if is_foreign(Some(class)) || is_foreign(self.class(node)) || fits(received, rule.type_value()) {
            return Ok(Linked::To(source));
        }
        Ok(Linked::Wrong(type_mismatch(input.name, rule, received, &value)))
    }

    /// Checks a value that stands in the graph itself.
    fn value(&self, node: usize, input: &Input<'_>, rule: &InputRule) -> Result<Option<Json>, Exception> {
        let Some(class) = self.class(node) else { return Ok(None) };
        let mut value = self.json(input.value);
        if value.get(ASSET_KEY).is_some() {
            return Ok(None);
        }
        if let Some(inner) = value.get_mut(WRAPPED_VALUE) {
            value = inner.take();
        }
        let converted = match &rule.kind {
            InputKind::Int(_) => python::int(&value),
            InputKind::Float(_) => python::float(&value),
            _ => Ok(value.clone()),
        };
        let value = match converted {
            Ok(converted) => converted,
            Err(why) => return Ok(Some(not_converted(input.name, rule, &value, &why))),
        };
        if let OwnChecks::File { input: file, word } = class.own
            && file == input.name
        {
            return check_file(input.name, rule, &value, word)
                .map(|wrong| wrong.filter(|_| self.check.knows_files));
        }
        if !class.own.leaves_value(input.name) {
            return Ok(None);
        }
        Ok(match &rule.kind {
            InputKind::Int(bounds) | InputKind::Float(bounds) => {
                out_of_range(input.name, rule, bounds, &value)
            }
            InputKind::Choice(_) => self.not_in_list(input.name, rule, &value),
            _ => None,
        })
    }

    fn not_in_list(&self, name: &str, rule: &InputRule, value: &Json) -> Option<Json> {
        let InputKind::Choice(choices) = &rule.kind else { return None };
        let list = choices.list.as_ref()?;
        let values = match value {
            Json::Array(values) if choices.is_multiple => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let may_come = |value: &Json| self.check.may_come && value.as_str().and_then(model_file).is_some();
        let is_wrong = |value: &&Json| !choices.contain(value) && !may_come(value);
        let wrong: Vec<String> = values.iter().filter(is_wrong).map(python::repr).collect();
        if wrong.is_empty() {
            return None;
        }
        let (config, list) = match list.len() {
            length if length > LIST_MAX => (Json::Null, format!("(list of length {length})")),
            _ => (rule.config.clone(), python::repr(&json!(list))),
        };
        Some(json!({
            "type": "value_not_in_list", "message": "Value not in list",
            "details": format!("{name}: {} not in {list}", wrong.join(", ")),
            "extra_info": { "input_name": name, "input_config": config, "received_value": value },
        }))
    }

    fn json(&self, value: &Value<'_>) -> Json {
        self.tree.to_json(value)
    }
}

/// As far as it can be known: a server lists the files of one folder.
fn check_file(name: &str, rule: &InputRule, value: &Json, word: &str) -> Result<Option<Json>, Exception> {
    let Json::String(file) = value else {
        let text = format!("'{}' object has no attribute 'endswith'", python::type_name(value));
        return Err(Exception { kind: "AttributeError", text });
    };
    let is_listed = match &rule.kind {
        InputKind::Choice(choices) => choices.contain(value),
        _ => true,
    };
    if is_listed || file.contains(['/', '\\']) || file.ends_with(']') {
        return Ok(None);
    }
    Ok(Some(json!({
        "type": "custom_validation_failed", "message": "Custom validation failed for node",
        "details": format!("{name} - Invalid {word} file: {file}"), "extra_info": { "input_name": name },
    })))
}

fn key_error(key: &Json) -> Exception {
    Exception { kind: "KeyError", text: python::repr(key) }
}

fn missing(name: &str) -> Json {
    json!({
        "type": "required_input_missing", "message": "Required input is missing", "details": name,
        "extra_info": { "input_name": name },
    })
}

fn bad_link(name: &str, rule: &InputRule, value: &Json) -> Json {
    json!({
        "type": "bad_linked_input",
        "message": "Bad linked input, must be a length-2 list of [node_id, slot_index]", "details": name,
        "extra_info": { "input_name": name, "input_config": rule.config, "received_value": value },
    })
}

fn type_mismatch(name: &str, rule: &InputRule, received: &Json, link: &Json) -> Json {
    let (received_text, wanted) = (python::str(received), python::str(rule.type_value()));
    json!({
        "type": "return_type_mismatch", "message": "Return type mismatch between linked nodes",
        "details": format!("{name}, received_type({received_text}) mismatch input_type({wanted})"),
        "extra_info": {
            "input_name": name, "input_config": rule.config, "received_type": received, "linked_node": link,
        },
    })
}

fn not_converted(name: &str, rule: &InputRule, value: &Json, why: &str) -> Json {
    let kind = python::str(rule.type_value());
    json!({
        "type": "invalid_input_type", "message": format!("Failed to convert an input value to a {kind} value"),
        "details": format!("{name}, {}, {why}", python::str(value)),
        "extra_info": {
            "input_name": name, "input_config": rule.config, "received_value": value, "exception_message": why,
        },
    })
}

fn out_of_range(name: &str, rule: &InputRule, bounds: &Bounds, value: &Json) -> Option<Json> {
    let number = value.as_f64()?;
    let limit = |bound: &Option<Json>| bound.as_ref().and_then(Json::as_f64);
    let (kind, words, limit) = match (limit(&bounds.min), limit(&bounds.max)) {
        (Some(min), _) if number < min => ("value_smaller_than_min", "smaller than min of", &bounds.min),
        (_, Some(max)) if number > max => ("value_bigger_than_max", "bigger than max of", &bounds.max),
        _ => return None,
    };
    let limit = limit.as_ref().map(python::str).unwrap_or_default();
    Some(json!({
        "type": kind, "message": format!("Value {} {words} {limit}", python::str(value)), "details": name,
        "extra_info": { "input_name": name, "input_config": rule.config, "received_value": value },
    }))
}

/// Whether an output of one type may feed an input of another: each is a name, several names with commas, or the list of a
/// combo.
fn fits(received: &Json, wanted: &Json) -> bool {
    if received == wanted {
        return true;
    }
    let (Some(received), Some(wanted)) = (received.as_str(), wanted.as_str()) else {
        let is_any = |kind: &Json| kind.as_str().is_some_and(|name| matches!(name, "*" | MATCH_TYPE));
        return is_any(received) || is_any(wanted) || (received.is_array() && wanted == "COMBO");
    };
    let names = |kind: &str| kind.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
    let (received, wanted) = (names(received), names(wanted));
    let is_any = |names: &[String]| names.iter().any(|name| matches!(name.as_str(), "*" | MATCH_TYPE));
    is_any(&received) || is_any(&wanted) || received.iter().any(|name| wanted.contains(name))
}

#[cfg(test)]
mod tests;
