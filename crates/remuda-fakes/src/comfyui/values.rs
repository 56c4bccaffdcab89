//! JSON as the original writes it: NaN appears unquoted, which strict parsers refuse.

use serde_json::Value;

/// Stands for NaN in a `Value`, which cannot represent it.
const NAN: &str = "\u{e000}NaN\u{e000}";
const NAN_QUOTED: &str = "\"\u{e000}NaN\u{e000}\"";

pub(super) fn nan() -> Value {
    NAN.into()
}

/// The text of a value, with every NaN unquoted.
pub(super) fn text(value: &Value) -> String {
    let text = value.to_string();
    if text.contains(NAN_QUOTED) { text.replace(NAN_QUOTED, "NaN") } else { text }
}

/// Python's `str(value)`.
pub(super) fn python_str(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(python_repr).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let members = map.iter().map(|(name, value)| format!("'{name}': {}", python_repr(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn python_repr(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{text}'"),
        other => python_str(other),
    }
}

/// The name of the value's type in Python.
pub(super) fn python_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// Python's `bool(value)`.
pub(super) fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn a_nan_stands_bare() {
        assert_eq!(super::text(&json!({"value": [super::nan(), 1]})), r#"{"value":[NaN,1]}"#);
    }
}
