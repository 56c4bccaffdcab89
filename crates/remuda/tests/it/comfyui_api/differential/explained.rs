//! The differences that have a reason. `normalize` takes each of them out of both observations, and nothing else; `REASONS` is
//! what `docs/comfyui.md` says of them.

use serde_json::{Map, Value, json};

pub(super) const REASONS: &[&str] = &[
    "`number` in answers, history and queue, and `priority` in `/api/jobs`, are the time of submission, not a count",
    "Previews have other numbers in the names of their temporary files",
    "`execution_cached` in `/history` lists no nodes; the message on the socket does.",
    "A request on which ComfyUI's handler fails (500) is refused with 400 and a reason; `null` for `extra_data` counts as absent.",
    "`/history` shows the graph as it was submitted, ComfyUI with its numbers converted (`\"64\"` becomes 64).",
    "A prompt that failed or was interrupted has no outputs; ComfyUI shows what was saved before.",
    "A prompt that is tried again, because its server was lost or out of memory, starts again: `execution_start` comes once for each attempt.",
    "A picture is saved again, under the next number, even if nothing has changed; ComfyUI answers with the file of the run before.",
    "A picture with a mask has the same pixels and texts, packed differently",
    "Outputs from the cache are shown without a `client_id` too; servers before 0.30.0 show none.",
    "Errors of validation have the words of 0.30.0 in front of every server, and an empty `traceback`.",
    "Servers before 0.30.0 accept some values that are in no list, and fail when the node runs.",
    "`null` for `prompt_id` counts as absent; servers before 0.30.0 run such a prompt under the id `None`.",
];

/// The server's name for the content of a file that was loaded; two encoders pack one picture differently.
pub(super) fn packed_masks(seen: &mut Value) {
    each_object(seen, &mut |object| drop(object.remove("is_changed")));
}

/// Takes every explained difference out of what a server and a plane in front of it show.
pub(super) fn normalize(bare: &mut Value, plane: &mut Value, version: &str) {
    failed_handlers(bare, plane);
    submitted_numbers(bare, plane);
    retries(plane);
    saved_again(bare, plane);
    if version != "0.30.0" {
        uncached_outputs(bare, plane);
        older_words(bare, plane);
        null_ids(bare, plane);
    }
    for seen in [bare, plane] {
        sort_sets(seen);
        tracebacks_of_validation(seen);
        queue_numbers(seen);
        temporary_names(seen);
        cached_nodes_in_history(seen);
        outputs_of_failures(seen);
    }
}

/// ComfyUI lists these in the order of a set, which is random: outputs to execute, nodes executed so far, cached nodes, and
/// errors of a node.
fn sort_sets(seen: &mut Value) {
    each_object(seen, &mut |object| {
        for key in ["executed", "current_outputs", "nodes", "errors", "dependent_outputs"] {
            if let Some(Value::Array(items)) = object.get_mut(key) {
                items.sort_by_key(Value::to_string);
            }
        }
    });
    if let Some(Value::Array(outputs)) = seen["history"].pointer_mut("/prompt/4") {
        outputs.sort_by_key(Value::to_string);
    }
    if let Some(details) = seen["answer"]["error"]["details"].as_str() {
        let mut lines: Vec<&str> = details.lines().collect();
        lines.sort_unstable();
        seen["answer"]["error"]["details"] = lines.join("\n").into();
    }
}

/// ComfyUI shows its own code, which the plane does not have.
fn tracebacks_of_validation(seen: &mut Value) {
    each_object(&mut seen["answer"], &mut |object| {
        if object.get("traceback").is_some_and(Value::is_array) {
            object.insert("traceback".to_owned(), json!([]));
        }
    });
}

/// A fleet has no counter of its own that survives restarts; the time is one. Its sign says whether it is in front.
fn queue_numbers(seen: &mut Value) {
    if seen["has_number"] == true {
        return;
    }
    for path in ["/answer/number", "/history/prompt/0", "/job/priority"] {
        if let Some(number) = seen.pointer_mut(path).filter(|number| number.is_number()) {
            *number = if number.as_f64() < Some(0.0) { "(in front)" } else { "(a number)" }.into();
        }
    }
}

/// A server counts the previews of all its users, a plane those of one tenant on all servers.
fn temporary_names(seen: &mut Value) {
    each_object(seen, &mut |object| {
        if object.get("filename").and_then(Value::as_str).is_some_and(|it| it.starts_with("ComfyUI_temp_")) {
            object.insert("filename".to_owned(), "(temporary)".into());
        }
    });
}

/// It would be a record more for each prompt, and nothing reads it.
fn cached_nodes_in_history(seen: &mut Value) {
    for path in ["/history/status/messages/1/1/nodes", "/job/execution_status/messages/1/1/nodes"] {
        if let Some(nodes) = seen.pointer_mut(path) {
            *nodes = json!([]);
        }
    }
}

/// Only what a completed attempt made is fetched: another attempt may follow a failed one.
fn outputs_of_failures(seen: &mut Value) {
    if seen["history"]["status"]["status_str"] != "error" {
        return;
    }
    remove_outputs(seen);
    if let Some(messages) = seen["messages"].as_array_mut() {
        messages.retain(|message| message["type"] != "executed");
    }
}

/// A client learns more from a reason.
fn failed_handlers(bare: &mut Value, plane: &mut Value) {
    let is_explained = plane["status"] == 400 || plane["name"] == "null for extra data";
    if bare["status"] == 500 && is_explained {
        (*bare, *plane) = (Value::Null, Value::Null);
    }
}

/// The plane stores what was submitted, byte for byte, and compares it with what is submitted again.
fn submitted_numbers(bare: &Value, plane: &mut Value) {
    for path in ["/history/prompt/2", "/job/workflow/prompt"] {
        let (Some(expected), Some(shown)) = (bare.pointer(path), plane.pointer_mut(path)) else { continue };
        for (id, node) in shown.as_object_mut().into_iter().flatten() {
            for (input, value) in node["inputs"].as_object_mut().into_iter().flatten() {
                let converted = &expected[id]["inputs"][input];
                if converted.is_number() && to_number(value) == converted.as_i64() {
                    *value = converted.clone();
                }
            }
        }
    }
}

/// As ComfyUI reads a value for a whole number.
fn to_number(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_f64().map(|number| number.trunc() as i64),
        Value::Object(wrapped) => wrapped.get("__value__")?.as_i64(),
        _ => None,
    }
}

/// What came before the last attempt.
fn retries(plane: &mut Value) {
    let Some(Value::Array(messages)) = plane.get_mut("messages") else { return };
    let starts = |message: &Value| message["type"] == "execution_start";
    let (first, last) = (messages.iter().position(starts), messages.iter().rposition(starts));
    if let (Some(first), Some(last)) = (first, last) {
        messages.drain(first..last);
    }
}

/// Each attempt has a folder of its own, so a save node is never cached: its file might be gone.
fn saved_again(bare: &mut Value, plane: &mut Value) {
    if bare["name"] != "picture saved twice" {
        return;
    }
    for seen in [bare, plane] {
        let pixels: Vec<Value> = seen["files"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| it["picture"]["pixels"].clone())
            .collect();
        *seen = json!({ "status": seen["status"], "pixels": pixels, "history": { "status": seen["history"]["status"]["status_str"] } });
    }
}

/// The worker always has a client id of its own.
fn uncached_outputs(bare: &mut Value, plane: &mut Value) {
    let is_bug = bare["name"] == "previewed twice without client" && bare["history"]["outputs"] == json!({});
    if !is_bug {
        return;
    }
    remove_outputs(bare);
    remove_outputs(plane);
}

/// All prompts without an id would be one, and each would replace the one before in the history.
fn null_ids(bare: &mut Value, plane: &Value) {
    if bare["name"] == "null for the id" && plane["id_is_uuid"] == true {
        bare["id_is_uuid"] = true.into();
    }
}

/// Files, and where they are named.
fn remove_outputs(seen: &mut Value) {
    seen["files"] = Value::Null;
    for of in ["history", "job"] {
        if let Some(members) = seen[of].as_object_mut() {
            members.retain(|key, _| {
                !["outputs", "meta", "outputs_count", "preview_output"].contains(&key.as_str())
            });
        }
    }
}

/// Classes that are missing, cycles, and values that are no texts; some values were checked by the node itself.
fn older_words(bare: &mut Value, plane: &mut Value) {
    const REWORDED: [&str; 7] =
        ["class", "cycle", "itself", "loops", "in the list", "null for a model", "many errors"];
    let name = bare["name"].as_str().unwrap_or_default().to_owned();
    if !REWORDED.iter().any(|word| name.contains(word)) {
        return;
    }
    let has_failed = bare["history"]["status"]["status_str"] == "error";
    if name.contains("in the list") && plane["status"] == 400 && (bare["status"] == 400 || has_failed) {
        (*bare, *plane) = (Value::Null, Value::Null);
        return;
    }
    for seen in [bare, plane] {
        if let Some(answer) = seen["answer"].as_object_mut() {
            answer.retain(|key, _| !["error", "node_errors"].contains(&key.as_str()));
        }
    }
}

fn each_object(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_object(item, change)),
        Value::Object(members) => {
            change(members);
            members.values_mut().for_each(|member| each_object(member, change));
        }
        _ => {}
    }
}
