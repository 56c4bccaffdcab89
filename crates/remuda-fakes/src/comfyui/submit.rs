//! `POST /prompt`: what is accepted, what is refused, and what makes the original raise an exception.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

use super::Version;
use super::faults::Fault;
use super::graph::{BadGraph, Graph, Ordered};
use super::queue::{Item, Number};
use super::routes::answer;
use super::server::{Server, now_ms};
use super::validate::{Invalid, error, missing_class, validate};
use super::values::{is_truthy, python_str};
use crate::connection::Switch;

/// A foreign prompt: two seconds of GPU time.
const FOREIGN: &str = r#"{"1":{"class_type":"EmptyImage","inputs":{"width":64,"height":64,"batch_size":1,"color":1}},
"2":{"class_type":"RemudaSleep","inputs":{"image":["1",0],"seconds":1.0,"steps":2,"preview":false}},
"3":{"class_type":"PreviewImage","inputs":{"images":["2",0]}}}"#;
const FOREIGN_COUNT: usize = 2;

pub(super) async fn submit(server: &Arc<Server>, body: &Bytes, switch: &Switch) -> Response {
    let refused = |error: Value, node_errors: Value| {
        server.estate.tally.change().prompts_refused += 1;
        answer::json(StatusCode::BAD_REQUEST, &json!({"error": error, "node_errors": node_errors}))
    };
    let Ok(fields) = serde_json::from_slice::<Ordered<&RawValue>>(body) else {
        return match odd_body(server, body) {
            Odd::NoPrompt => {
                refused(error("no_prompt", "No prompt provided", "No prompt provided"), json!({}))
            }
            Odd::Trips => answer::trouble(),
        };
    };
    let Ok(number) = number(server, &fields) else { return answer::trouble() };
    let Some(raw) = fields.get("prompt") else {
        return refused(error("no_prompt", "No prompt provided", "No prompt provided"), json!({}));
    };
    let id = match prompt_id(server, &fields) {
        Ok(id) => id,
        Err(invalid) => return refused(invalid, json!({})),
    };
    // It replaces nodes before it looks at the graph, and a list has none.
    if server.options().version >= Version::V0_30_0 && raw.get().starts_with('[') {
        return answer::trouble();
    }
    let mut graph = match Graph::parse(raw) {
        Ok(graph) => graph,
        Err(BadGraph::Trips) => return answer::trouble(),
        Err(BadGraph::MissingClass { id, title }) => {
            return refused(missing_class(server.options().version, &id, title.as_deref()), json!({}));
        }
    };
    let targets = value(&fields, "partial_execution_targets");
    let targets = targets.as_ref().and_then(Value::as_array).map(Vec::as_slice);
    let version = server.options().version;
    let valid = match validate(&mut graph, &server.catalogue, &server.estate.disk, version, targets) {
        Ok(valid) => valid,
        Err(Invalid { error, node_errors }) => return refused(error, node_errors),
    };
    let Some(extra) = extra_data(&fields) else { return answer::trouble() };

    let faults = drawn(server, &graph);
    for fault in faults.iter().filter(|fault| fault.is_at_submission()) {
        server.estate.count_fault(*fault);
    }
    if faults.contains(&Fault::RefuseSubmit) {
        return answer::trouble();
    }
    if faults.contains(&Fault::ForeignPrompts) {
        push_foreign(server);
    }
    let (has_twin, is_lost) = (faults.contains(&Fault::Duplicate), faults.contains(&Fault::LostSubmitAnswer));
    let item = Arc::new(Item { number, id, graph, extra, outputs: valid.outputs, faults });
    let pushed = push(server, &item);
    if has_twin {
        push_twin(server, &item, raw);
    }
    if is_lost {
        switch.cut();
        return std::future::pending().await;
    }
    if pushed.is_err() {
        return answer::trouble();
    }
    let told = json!({"prompt_id": item.id, "number": number.to_json(), "node_errors": valid.node_errors});
    answer::json(StatusCode::OK, &told)
}

fn push(server: &Server, item: &Arc<Item>) -> Result<(), super::queue::Uncomparable> {
    {
        let mut counts = server.estate.tally.change();
        counts.prompts_accepted += 1;
        counts.drawn.entry(item.id.clone()).or_default().extend(&item.faults);
    }
    server.queue.push(Arc::clone(item))?;
    server.tell_status();
    Ok(())
}

/// Queues the same prompt under the same id again, as a proxy does that repeats a request.
fn push_twin(server: &Server, item: &Item, raw: &RawValue) {
    let Ok(graph) = Graph::parse(raw) else { return };
    let number = Number::Counted(server.number.fetch_add(1, Ordering::Relaxed));
    let twin = Item {
        number,
        id: item.id.clone(),
        graph,
        extra: item.extra.clone(),
        outputs: item.outputs.clone(),
        faults: BTreeSet::new(),
    };
    // It has its own number, so the two can be compared.
    let _ = push(server, &Arc::new(twin));
}

fn push_foreign(server: &Server) {
    for _ in 0..FOREIGN_COUNT {
        let Ok(graph) = RawValue::from_string(FOREIGN.to_owned()).map(|raw| Graph::parse(&raw)) else {
            return;
        };
        let Ok(graph) = graph else { return };
        let number = Number::Counted(-server.number.fetch_add(1, Ordering::Relaxed) - 1);
        let extra = Map::from_iter([
            ("client_id".to_owned(), "someone-else".into()),
            ("create_time".to_owned(), now_ms().into()),
        ]);
        let id = uuid::Uuid::new_v4().to_string();
        let foreign =
            Item { number, id, graph, extra, outputs: vec!["3".to_owned()], faults: BTreeSet::new() };
        let _ = push(server, &Arc::new(foreign));
    }
}

/// The faults of this prompt: drawn, and requested by its nodes.
fn drawn(server: &Server, graph: &Graph) -> BTreeSet<Fault> {
    let mut faults = server.estate.draw();
    let asked = graph.nodes().iter().filter(|node| node.class == "RemudaFault");
    for names in asked.filter_map(|node| node.input("fault")?.as_str()) {
        faults.extend(names.split(',').filter_map(|name| name.trim().parse::<Fault>().ok()));
    }
    faults
}

enum Odd {
    NoPrompt,
    Trips,
}

/// A body that is not an object: indexed as Python would.
fn odd_body(server: &Server, body: &Bytes) -> Odd {
    let has = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Array(list)) => (list.contains(&"number".into()), list.contains(&"prompt".into())),
        Ok(Value::String(text)) => (text.contains("number"), text.contains("prompt")),
        _ => return Odd::Trips,
    };
    match has {
        (true, _) => Odd::Trips,
        (false, has_prompt) => {
            server.number.fetch_add(1, Ordering::Relaxed);
            if has_prompt { Odd::Trips } else { Odd::NoPrompt }
        }
    }
}

fn value(fields: &Ordered<&RawValue>, key: &str) -> Option<Value> {
    serde_json::from_str(fields.get(key)?.get()).ok()
}

/// The counter also advances for prompts that are refused later, but not if the client chose the number.
fn number(server: &Server, fields: &Ordered<&RawValue>) -> Result<Number, ()> {
    if let Some(number) = value(fields, "number") {
        let chosen = match number {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(truth) => Some(f64::from(u8::from(truth))),
            _ => None,
        };
        return chosen.map(Number::Chosen).ok_or(());
    }
    let number = server.number.fetch_add(1, Ordering::Relaxed);
    let is_front = value(fields, "front").as_ref().is_some_and(is_truthy);
    Ok(Number::Counted(if is_front { -number } else { number }))
}

fn prompt_id(server: &Server, fields: &Ordered<&RawValue>) -> Result<String, Value> {
    let own = || uuid::Uuid::new_v4().to_string();
    let Some(id) = value(fields, "prompt_id") else { return Ok(own()) };
    if server.options().version < Version::V0_30_0 {
        return Ok(python_str(&id));
    }
    match id {
        Value::Null => Ok(own()),
        Value::String(id) if is_canonical_uuid(&id) => Ok(id),
        _ => Err(error(
            "invalid_prompt_id",
            "prompt_id must be a valid UUID",
            "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one",
        )),
    }
}

pub(super) fn is_canonical_uuid(id: &str) -> bool {
    uuid::Uuid::parse_str(id).is_ok_and(|uuid| uuid.to_string() == id)
}

/// As given, without two secrets, with the client and the time; `None` where the original raises an exception.
fn extra_data(fields: &Ordered<&RawValue>) -> Option<Map<String, Value>> {
    let mut extra = match value(fields, "extra_data") {
        None => Map::new(),
        Some(Value::Object(extra)) => extra,
        Some(_) => return None,
    };
    if let Some(client) = value(fields, "client_id") {
        extra.insert("client_id".to_owned(), client);
    }
    extra.remove("api_key_comfy_org");
    extra.remove("auth_token_comfy_org");
    extra.insert("create_time".to_owned(), now_ms().into());
    Some(extra)
}
