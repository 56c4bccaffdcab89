//! Validates a JSON value against a schema of an OpenAPI 3.0 document, as far as the contract uses it.

use serde_json::Value;

/// All violations with their paths.
pub(super) fn wrong(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(document, schema, value, "$", &mut found);
    found
}

/// The target of a `$ref`.
pub(super) fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => resolved(document, document.pointer(path.strip_prefix('#').unwrap()).unwrap()),
        None => schema,
    }
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let schema = resolved(document, schema);
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(document, part, value, at, found);
    }
    let is_of = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("{at}: the contract has a type that is not known here: {other}"),
        None => true,
    };
    if !is_of {
        found.push(format!("{at}: {value} is no {}", schema["type"]));
        return;
    }
    if let Some(words) = schema["enum"].as_array().filter(|words| !words.contains(value)) {
        found.push(format!("{at}: {value} is none of {words:?}"));
    }
    if let Some(number) = value.as_f64() {
        let is_within = schema["minimum"].as_f64().is_none_or(|least| number >= least)
            && schema["maximum"].as_f64().is_none_or(|most| number <= most);
        if !is_within {
            found.push(format!("{at}: {number} is out of bounds"));
        }
    }
    if let Some(text) = value.as_str().filter(|text| !has_format(schema["format"].as_str(), text)) {
        found.push(format!("{at}: {text:?} is no {}", schema["format"]));
    }
    check_members(document, schema, value, at, found);
}

fn check_members(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for item in value.as_array().into_iter().flatten().filter(|_| schema["items"].is_object()) {
        check(document, &schema["items"], item, &format!("{at}[]"), found);
    }
    let Some(members) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, member) in members {
        let at = format!("{at}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Bool(false)) => found.push(format!("{at}: unknown")),
            (Value::Null, Value::Object(_)) => {
                check(document, &schema["additionalProperties"], member, &at, found);
            }
            (Value::Null, _) => {}
            (schema, _) => check(document, schema, member, &at, found),
        }
    }
}

fn has_format(format: Option<&str>, text: &str) -> bool {
    match format {
        Some("date-time") => is_moment(text),
        Some("uri") => reqwest::Url::parse(text).is_ok(),
        Some("uri-reference") => text.starts_with('/') || reqwest::Url::parse(text).is_ok(),
        _ => true,
    }
}

/// RFC 3339, in UTC.
fn is_moment(text: &str) -> bool {
    let pattern = "0000-00-00T00:00:00.000Z";
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(is, should)| match should {
            b'0' => is.is_ascii_digit(),
            other => is == other,
        })
}

#[test]
fn schema_violations_are_reported() {
    let document = serde_json::json!({ "components": { "schemas": {
        "Colour": { "type": "string", "enum": ["red", "blue"] },
        "Horse": { "type": "object", "required": ["name"], "additionalProperties": false, "properties": {
            "name": { "type": "string" },
            "colour": { "allOf": [{ "$ref": "#/components/schemas/Colour" }], "nullable": true },
            "age": { "type": "integer", "minimum": 0, "maximum": 40 },
            "born_at": { "type": "string", "format": "date-time" },
            "races": { "type": "array", "items": { "type": "number" } },
        } },
    } } });
    let schema = serde_json::json!({ "$ref": "#/components/schemas/Horse" });
    for (horse, wrongs) in [
        (r#"{"name":"a","colour":null,"age":3,"born_at":"2026-11-15T12:03:10.042Z","races":[1.5]}"#, 0),
        (r#"{"name":"a","colour":"green"}"#, 1),
        (r#"{"colour":"red"}"#, 1),
        (r#"{"name":null,"age":41,"born_at":"yesterday","races":["x"],"wings":2}"#, 5),
        (r#"{"name":"a","age":1.5}"#, 1),
        (r"[]", 1),
    ] {
        let found = wrong(&document, &schema, &serde_json::from_str(horse).unwrap());
        assert_eq!(found.len(), wrongs, "{horse}: {found:?}");
    }
}
