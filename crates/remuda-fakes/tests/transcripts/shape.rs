//! Makes two answers comparable: what differs from run to run becomes the same word in both.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A message or an answer without what differs from run to run.
pub(crate) fn plain(value: &Value) -> Value {
    match value {
        // What the test node calls it is its own.
        Value::Object(map) if map.values().any(|value| value == &json!(["NaN"])) => json!("<nan>"),
        Value::Object(map) => {
            let plain = map.iter().map(|(key, value)| (key.clone(), member(key, value)));
            Value::Object(plain.collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(plain).collect()),
        other => other.clone(),
    }
}

fn member(key: &str, value: &Value) -> Value {
    match (key, value) {
        ("timestamp" | "create_time" | "execution_start_time" | "execution_end_time", _) => json!("<time>"),
        ("traceback", Value::Array(frames)) => json!(if frames.is_empty() { "<none>" } else { "<frames>" }),
        ("current_inputs", Value::Object(_)) => json!("<inputs>"),
        ("prompt_id" | "sid", Value::String(id)) => json!(without_chance(id)),
        ("id", Value::String(id)) => json!(without_chance(id)),
        // Sets in the original: their order is an accident.
        ("executed" | "current_outputs" | "dependent_outputs", Value::Array(list)) => sorted(list),
        ("node_type" | "class_type", Value::String(class)) => json!(class_name(class)),
        ("exception_message", Value::String(message)) => json!(said(message)),
        ("filename" | "name", Value::String(name)) => json!(file(name)),
        ("number" | "priority", Value::Number(number)) => numbered(number),
        ("nodes", Value::Object(nodes)) => progress(nodes),
        ("nodes", Value::String(compacted)) => json!(compacted.trim_start_matches("(compacted) ")),
        ("prompt", _) | ("workflow", _) if is_graph(value) => json!("<graph>"),
        ("queue_running" | "queue_pending", Value::Array(items)) => items.iter().map(queued).collect(),
        ("prompt", Value::Array(_)) => queued(value),
        (_, value) => plain(value),
    }
}

fn sorted(list: &[Value]) -> Value {
    let mut list: Vec<String> = list.iter().map(ToString::to_string).collect();
    list.sort_unstable();
    list.into()
}

fn is_graph(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with('<'))
        || value.as_object().is_some_and(|map| map.values().any(|node| node.get("class_type").is_some()))
}

/// Ids that a server makes up.
fn without_chance(id: &str) -> &str {
    if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) { "<made up>" } else { id }
}

fn class_name(class: &str) -> &str {
    if class.starts_with("Research") || class.starts_with("Remuda") { "<test node>" } else { class }
}

/// What test nodes say is their own; what the server adds is not.
fn said(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    if message.contains("This error means you ran out of memory on your GPU.") {
        return "<hint for lack of memory>".to_owned();
    }
    match first {
        "research: deliberate failure" | "failed on request" => "<deliberate>".to_owned(),
        first => first.to_owned(),
    }
}

/// Without the counter, and without the letters of chance.
pub(crate) fn file(name: &str) -> String {
    let Some(stem) = name.strip_suffix("_.png") else { return name.to_owned() };
    let Some((prefix, number)) = stem.rsplit_once('_') else { return name.to_owned() };
    let is_counter = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    match prefix.strip_prefix("ComfyUI_temp_") {
        _ if !is_counter => name.to_owned(),
        Some(_) => "ComfyUI_temp_<letters>_#.png".to_owned(),
        None => format!("{prefix}_#.png"),
    }
}

/// Counters go on from what was recorded before; numbers of the client's own are as they are.
fn numbered(number: &serde_json::Number) -> Value {
    match number.as_i64() {
        Some(count) if count < 0 => json!("<front>"),
        Some(_) => json!("<counted>"),
        None => number.clone().into(),
    }
}

/// A queue entry: number, id, graph, extra_data, outputs; some recordings keep only the first two.
fn queued(item: &Value) -> Value {
    let Some(fields) = item.as_array() else { return plain(item) };
    let plain = fields.iter().enumerate().map(|(at, field)| match (at, field) {
        (0, Value::Number(number)) => numbered(number),
        (2, _) => json!("<graph>"),
        (_, field) => plain(field),
    });
    plain.collect()
}

/// `1:finished 1.0/1.0, 2:running 0.0/1.0`, and only what belongs to it.
fn progress(nodes: &Map<String, Value>) -> Value {
    if !nodes.values().all(|node| node.get("state").is_some()) {
        return plain(&Value::Object(nodes.clone()));
    }
    let told: BTreeMap<&String, String> = nodes
        .iter()
        .map(|(id, node)| {
            let expected = json!({
                "value": node["value"], "max": node["max"], "state": node["state"], "node_id": id,
                "prompt_id": node["prompt_id"], "display_node_id": id, "parent_node_id": null, "real_node_id": id,
            });
            assert_eq!(node, &expected, "progress of a node");
            (id, format!("{id}:{} {}/{}", node["state"].as_str().unwrap_or("?"), node["value"], node["max"]))
        })
        .collect();
    told.into_values().collect::<Vec<_>>().join(", ").into()
}

/// Brings an answer into the shorter form that a recording keeps of it.
pub(crate) fn abridge(recorded: &Value, actual: &Value) -> Value {
    match (recorded, actual) {
        (Value::String(text), _) if text.starts_with('<') => recorded.clone(),
        // An entry of history of which only the outcome was kept.
        (Value::String(_), Value::Object(entry)) if entry.contains_key("status") => {
            entry["status"]["status_str"].clone()
        }
        // Only the last message.
        (Value::Array(_), Value::Object(entry)) if entry.contains_key("status") => {
            entry["status"]["messages"]
                .as_array()
                .and_then(|messages| messages.last())
                .cloned()
                .unwrap_or_default()
        }
        (Value::Object(kept), Value::Object(entry))
            if entry.contains_key("status") && entry.contains_key("meta") =>
        {
            abridge_entry(kept, entry)
        }
        // Only the keys.
        (Value::Array(keys), Value::Object(map)) => {
            keys.iter().filter(|key| key.as_str().is_some_and(|key| map.contains_key(key))).cloned().collect()
        }
        (Value::Object(kept), Value::Object(map)) => {
            let members = map.iter().map(|(key, value)| {
                (key.clone(), kept.get(key).map_or_else(|| value.clone(), |kept| abridge(kept, value)))
            });
            Value::Object(members.collect())
        }
        // Only the first few, and how many there are.
        (Value::Array(kept), Value::Array(list)) if kept.last().is_some_and(is_count) => {
            let mut few = list[..list.len().min(kept.len() - 1)].to_vec();
            few.push(json!(format!("<{} items>", list.len())));
            few.into()
        }
        (Value::Array(kept), Value::Array(list)) if kept.len() == 2 && list.len() == 5 => {
            list[..2].iter().cloned().collect()
        }
        (Value::Array(kept), Value::Array(list)) if kept.len() == list.len() => {
            kept.iter().zip(list).map(|(kept, item)| abridge(kept, item)).collect()
        }
        _ => actual.clone(),
    }
}

fn is_count(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.ends_with(" items>"))
}

fn abridge_entry(kept: &Map<String, Value>, entry: &Map<String, Value>) -> Value {
    let known =
        ["prompt", "outputs", "status", "meta", "status_str", "last", "prompt[3]", "prompt[4]", "keys"];
    if !kept.keys().any(|key| known.contains(&key.as_str())) {
        return entry["outputs"].clone();
    }
    let members = kept.keys().map(|key| {
        let value = match key.as_str() {
            "status_str" => entry["status"]["status_str"].clone(),
            "last" => entry["status"]["messages"].as_array().unwrap().last().unwrap()[0].clone(),
            "prompt[3]" => entry["prompt"][3].clone(),
            "prompt[4]" => entry["prompt"][4].clone(),
            "keys" => json!(["prompt", "outputs", "status", "meta"]),
            key => entry.get(key).cloned().unwrap_or_default(),
        };
        (key.clone(), value)
    });
    Value::Object(members.collect())
}
