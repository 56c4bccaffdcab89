//! Values as Python converts and writes them, for errors that read as ComfyUI's own.

use serde_json::Value;

/// `str(value)`
pub(super) fn str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`
pub(super) fn repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) if number.is_f64() => float_repr(number.as_f64().unwrap_or_default()),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text_repr(text),
        Value::Array(list) => format!("[{}]", list.iter().map(repr).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!("{}: {}", text_repr(name), repr(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

fn text_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut written = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            letter if letter == quote => written.extend(['\\', letter]),
            letter if letter.is_ascii_control() => written.push_str(&format!("\\x{:02x}", u32::from(letter))),
            letter => written.push(letter),
        }
    }
    written.push(quote);
    written
}

/// The exponent has a sign and at least two digits.
fn float_repr(number: f64) -> String {
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `int(value)`, or the text of the exception.
pub(super) fn int(value: &Value) -> Result<Value, String> {
    match value {
        Value::Bool(truth) => Ok(u8::from(*truth).into()),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().unwrap_or_default().trunc();
            // Beyond that a double is whole anyway.
            let is_small = whole.abs() < 9_007_199_254_740_992.0;
            Ok(if is_small { (whole as i64).into() } else { whole.into() })
        }
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) => match whole_number(text.trim()) {
            Some(number) => Ok(number),
            None => Err(format!("invalid literal for int() with base 10: {}", text_repr(text))),
        },
        other => Err(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            type_name(other)
        )),
    }
}

/// Digits with single underscores between them.
fn whole_number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_plain =
        digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit()));
    if !is_plain {
        return None;
    }
    let text = text.replace('_', "");
    let small = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    small.ok().or_else(|| text.parse::<f64>().ok().map(Value::from))
}

/// `float(value)`, or the text of the exception. Python takes "nan" and "inf"; JSON has neither, and no bound is passed by
/// `null`.
pub(super) fn float(value: &Value) -> Result<Value, String> {
    match value {
        Value::Bool(truth) => Ok(f64::from(u8::from(*truth)).into()),
        Value::Number(number) => Ok(number.as_f64().unwrap_or_default().into()),
        Value::String(text) => match text.trim().replace('_', "").parse::<f64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(format!("could not convert string to float: {}", text_repr(text))),
        },
        other => {
            Err(format!("float() argument must be a string or a real number, not '{}'", type_name(other)))
        }
    }
}

pub(super) fn type_name(value: &Value) -> &'static str {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_python_does() {
        for (value, expected) in [
            (json!(null), "None"),
            (json!([true, 1, 1.0, "a"]), "[True, 1, 1.0, 'a']"),
            (json!({"a": null}), "{'a': None}"),
            (json!("it's"), "\"it's\""),
            (json!("a\n\\'\""), "'a\\n\\\\\\'\"'"),
            (json!(1e-5), "1e-05"),
            (json!(2.5e30), "2.5e+30"),
            (json!(0.0001), "0.0001"),
            (json!(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(repr(&value), expected);
        }
        assert_eq!(str(&json!("it's")), "it's");
    }

    #[test]
    fn numbers_are_converted_as_python_does() {
        for (given, expected) in [
            (json!("64"), json!(64)),
            (json!(" -1_000 "), json!(-1000)),
            (json!(3.7), json!(3)),
            (json!(-3.7), json!(-3)),
            (json!(true), json!(1)),
            (json!(u64::MAX), json!(u64::MAX)),
        ] {
            assert_eq!(int(&given), Ok(expected));
        }
        assert_eq!(int(&json!("1e3")).unwrap_err(), "invalid literal for int() with base 10: '1e3'");
        assert_eq!(
            int(&json!(null)).unwrap_err(),
            "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"
        );
        assert_eq!(float(&json!("1e3")), Ok(json!(1000.0)));
        assert_eq!(float(&json!(5)), Ok(json!(5.0)));
        assert_eq!(float(&json!("wide")).unwrap_err(), "could not convert string to float: 'wide'");
        assert_eq!(
            float(&json!({})).unwrap_err(),
            "float() argument must be a string or a real number, not 'dict'"
        );
    }
}
