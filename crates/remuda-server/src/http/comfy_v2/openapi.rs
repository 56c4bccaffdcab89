//! The part of the OpenAPI document about this API: the contract, unchanged, with our additions merged over it.

use serde_json::{Map, Value};

/// Converted from the published `openapi.yaml`, otherwise unchanged.
const CONTRACT: &str = include_str!("contract.json");
/// Merged over the contract: objects member by member, other values replace. Only adds.
const ADDITIONS: &str = include_str!("additions.json");

pub(in crate::http) fn document() -> Value {
    let read = |text| serde_json::from_str(text).expect("it is part of the program, and a test reads it");
    let mut document: Value = read(CONTRACT);
    merge(&mut document, read(ADDITIONS));
    document
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
        let mut found = Vec::new();
        changed(&contract, &document(), "", &mut found);
        // Programs that read the stream by its schema treat it as a list of such frames. `servers` is ours to define. The
        // contract's example of a hash is none.
        let expected = [
            "/components/parameters/BlakeHash/example",
            "/paths//api/v2/assets/post/requestBody/content/multipart/form-data/schema/properties/expected_hash/example",
            "/paths//api/v2/assets/from-hash/post/requestBody/content/application/json/schema/properties/hash/example",
            "/paths//api/v2/jobs/{id}/events/get/responses/200/content/text/event-stream/schema/type",
            "/servers",
        ];
        assert_eq!(found, expected);
    }
}
