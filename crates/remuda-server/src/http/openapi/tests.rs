use super::super::routes;
use super::*;

/// Every value of a member with this name, anywhere.
fn find_all<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get(name));
            members.values().for_each(|value| find_all(value, name, found));
        }
        Value::Array(items) => items.iter().for_each(|value| find_all(value, name, found)),
        _ => {}
    }
}

#[test]
fn document_describes_every_route_with_its_parameters() {
    for route in routes::all() {
        let name = format!("{} {}", route.method, route.path);
        let operation = &WHOLE["paths"][route.path][route.method.to_ascii_lowercase()];
        assert!(operation["summary"].is_string(), "{name}");
        assert!(operation["responses"].is_object(), "{name}");
        if route.path.starts_with("/api/v2/") {
            assert!(route.answers.is_empty(), "{name}: the contract has its answers");
            continue;
        }
        assert!(!route.answers.is_empty(), "{name} has no answers");
        let parameters = operation["parameters"].as_array().unwrap();
        let counted = route.path.matches('{').count() + route.query.len() + route.headers.len();
        assert_eq!(parameters.len(), counted, "{name}");
    }
    let cancel = &WHOLE["paths"]["/remuda/v1/jobs/{id}/cancel"]["post"];
    assert_eq!(
        (&cancel["parameters"][0]["name"], &cancel["parameters"][0]["in"]),
        (&json!("id"), &json!("path"))
    );
    assert!(cancel["responses"]["409"]["description"].as_str().unwrap().starts_with("`ended`: "));
    assert_eq!(WHOLE["paths"]["/health/live"]["get"]["security"], json!([]));
    assert_eq!(NATIVE_PART["paths"]["/remuda/v1/jobs"], WHOLE["paths"]["/remuda/v1/jobs"]);
}

#[test]
fn every_reference_leads_to_a_part_and_every_part_is_used() {
    for (surfaces, document) in [(&[NATIVE, OPENAI, COMFYUI][..], &*WHOLE), (&[NATIVE][..], &*NATIVE_PART)] {
        let mut references = Vec::new();
        find_all(document, "$ref", &mut references);
        let references: BTreeSet<&str> = references.into_iter().filter_map(Value::as_str).collect();
        for reference in &references {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
        }
        for surface in surfaces {
            let parts: Value = serde_json::from_str(surface.parts).unwrap();
            for name in parts["schemas"].as_object().unwrap().keys() {
                let reference = format!("#/components/schemas/{name}");
                assert!(references.contains(reference.as_str()), "{name} is used by nothing");
            }
            let used: BTreeSet<String> =
                surface.routes.iter().flat_map(|route| parameter_keys(route).into_iter().flatten()).collect();
            for key in parts["parameters"].as_object().unwrap().keys() {
                assert!(used.contains(key), "parameter {key:?} is used by no route");
            }
        }
    }
}

#[test]
fn operation_ids_are_unique() {
    let mut ids = Vec::new();
    find_all(&WHOLE, "operationId", &mut ids);
    let unique: BTreeSet<&str> = ids.iter().filter_map(|id| id.as_str()).collect();
    assert_eq!(unique.len(), ids.len());
    assert_eq!(ids.len(), routes::all().count());
}

#[test]
fn token_is_optional_only_while_none_exists() {
    assert!(secured(&WHOLE, true)["security"].as_array().unwrap().contains(&json!({})));
    assert!(!secured(&WHOLE, false)["security"].as_array().unwrap().contains(&json!({})));
}
