//! The OpenAPI document as served: the contract, unchanged, with our additions merged over it.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Map, Value};

/// Converted from the published `openapi.yaml`, otherwise unchanged.
const CONTRACT: &str = include_str!("contract.json");
/// Merged over the contract: objects member by member, other values replace. Only adds.
const ADDITIONS: &str = include_str!("additions.json");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let read = |text| serde_json::from_str(text).expect("it is part of the program, and a test reads it");
    let mut document: Value = read(CONTRACT);
    merge(&mut document, read(ADDITIONS));
    document.to_string()
});

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

fn merge(into: &mut Value, added: Value) {
    match (into, added) {
        (Value::Object(into), Value::Object(added)) => {
            for (key, value) in added {
                merge(into.entry(key).or_insert(Value::Object(Map::new())), value);
            }
        }
        (into, added) => *into = added,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every member of the contract that is missing or different in the document.
    fn changed(contract: &Value, document: &Value, path: &str, found: &mut Vec<String>) {
        match (contract, document) {
            (Value::Object(contract), Value::Object(document)) => {
                for (key, value) in contract {
                    let served = document.get(key).unwrap_or(&Value::Null);
                    changed(value, served, &format!("{path}/{key}"), found);
                }
            }
            (contract, document) if contract != document => found.push(path.to_owned()),
            _ => {}
        }
    }

    #[test]
    fn document_contains_the_contract_and_only_adds_to_it() {
        let contract: Value = serde_json::from_str(CONTRACT).unwrap();
        let document: Value = serde_json::from_str(&DOCUMENT).unwrap();
        let mut found = Vec::new();
        changed(&contract, &document, "", &mut found);
        // Programs that read the stream by its schema treat it as a list of such frames. `servers` is ours to define.
        let frames =
            "/paths//api/v2/jobs/{id}/events/get/responses/200/content/text/event-stream/schema/type";
        assert_eq!(found, [frames, "/servers"]);
    }
}
