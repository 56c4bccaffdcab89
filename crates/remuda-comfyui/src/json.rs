//! Parses ComfyUI's JSON. Python writes bare `NaN`, `Infinity` and `-Infinity` for numbers, and unpaired surrogates for file
//! names that are not UTF-8. No strict parser accepts either, and one such result in a server's history would make every
//! later answer unreadable. No JSON crate repairs both while keeping `RawValue`, so this is hand-written.
//!
//! The text is first parsed strictly, which nearly always succeeds; if that fails, it is sanitized and parsed again.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Parses `bytes`, sanitizing them if necessary. The error is that of the strict parser.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_slice(bytes) {
        Ok(it) => return Ok(it),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(bytes);
    match sanitize(&text) {
        Cow::Borrowed(_) if matches!(text, Cow::Borrowed(_)) => Err(error),
        sanitized => serde_json::from_str(&sanitized).map_err(|_| error),
    }
}

/// Replaces `NaN` and infinities by `null`, and unpaired surrogates by U+FFFD. Strings are otherwise unchanged; a text without
/// either is returned as it is.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut sanitized = String::new();
    let mut kept = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'"' {
            at = sanitize_string(text, at, &mut kept, &mut sanitized);
            continue;
        }
        match not_a_number(&bytes[at..]) {
            0 => at += 1,
            length => {
                sanitized.push_str(&text[kept..at]);
                sanitized.push_str("null");
                at += length;
                kept = at;
            }
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    sanitized.push_str(&text[kept..]);
    Cow::Owned(sanitized)
}

/// The length of `NaN`, `Infinity` or `-Infinity` at the beginning of `bytes`, or 0.
fn not_a_number(bytes: &[u8]) -> usize {
    let words: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    words.iter().find(|word| bytes.starts_with(word)).map_or(0, |word| word.len())
}

/// Scans the string that begins at `open` and returns its end. Copies unchanged text up to each replacement.
fn sanitize_string(text: &str, open: usize, kept: &mut usize, sanitized: &mut String) -> usize {
    let bytes = text.as_bytes();
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => match (surrogate(&bytes[at..]), surrogate(&bytes[(at + 6).min(bytes.len())..])) {
                (None, _) => at += 2,
                (Some(Half::First), Some(Half::Second)) => at += 12,
                (Some(_), _) => {
                    sanitized.push_str(&text[*kept..at]);
                    sanitized.push_str("\\ufffd");
                    at += 6;
                    *kept = at;
                }
            },
            _ => at += 1,
        }
    }
    bytes.len()
}

enum Half {
    First,
    Second,
}

/// Which half of a surrogate pair is written here as `\uXXXX`, if any.
fn surrogate(bytes: &[u8]) -> Option<Half> {
    let [b'\\', b'u', b'd' | b'D', third, rest @ ..] = bytes else { return None };
    let [second, first, ..] = rest else { return None };
    if !second.is_ascii_hexdigit() || !first.is_ascii_hexdigit() {
        return None;
    }
    match third {
        b'8' | b'9' | b'a' | b'b' | b'A' | b'B' => Some(Half::First),
        b'c' | b'd' | b'e' | b'f' | b'C' | b'D' | b'E' | b'F' => Some(Half::Second),
        _ => None,
    }
}

/// The members of an object in their order; empty for any other value.
#[derive(Clone, Debug)]
pub struct JsonMembers<T>(pub Vec<(String, T)>);

impl<T> Default for JsonMembers<T> {
    fn default() -> Self {
        JsonMembers(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonMembers<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

/// The members of an object in their order; any other value is an error.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<JsonMembers<T>, D::Error> {
    deserializer.deserialize_map(Any(PhantomData))
}

/// A string; `None` for any other value. For fields that are strings on every known server, but may not be on the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

/// Builds `T` from any kind of value.
struct Any<T>(PhantomData<T>);

/// Built from an object or a string; the default for anything else.
trait Lenient<'de>: Default {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        skip_map(map)?;
        Ok(Self::default())
    }

    fn from_text(_text: &str) -> Self {
        Self::default()
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for JsonMembers<T> {
    fn from_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(JsonMembers(members))
    }
}

impl Lenient<'_> for Text {
    fn from_text(text: &str) -> Self {
        Text(Some(text.to_owned()))
    }
}

fn skip_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

impl<'de, T: Lenient<'de>> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::from_text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_map(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn check(text: &str, expected: &Value) {
        assert_eq!(&parse::<Value>(text.as_bytes()).unwrap(), expected, "{text}");
    }

    #[test]
    fn nan_and_infinity_become_null() {
        check(r#"{"1": {"score": [NaN]}}"#, &json!({"1": {"score": [null]}}));
        check("[Infinity,-Infinity, NaN,-1]", &json!([null, null, null, -1]));
        check("NaN", &json!(null));
    }

    #[test]
    fn strings_are_unchanged() {
        let text = r#"{"NaN": "NaN, \"Infinity\" and \\", "x": NaN}"#;
        check(text, &json!({"NaN": "NaN, \"Infinity\" and \\", "x": null}));
    }

    #[test]
    fn unpaired_surrogate_is_replaced() {
        check(r#"["a\udcffb", "\ud83d\ude00", "\ud83dx"]"#, &json!(["a\u{fffd}b", "\u{1f600}", "\u{fffd}x"]));
        check(r#"["\\ud83d", "\ud83d\ud83d\ude00"]"#, &json!(["\\ud83d", "\u{fffd}\u{1f600}"]));
    }

    #[test]
    fn truncated_json_is_an_error() {
        for torn in ["", "{", "[NaN", "\"\\", "\"\\ud8", "[Na]", "<html>", "nul"] {
            assert!(parse::<Value>(torn.as_bytes()).is_err(), "{torn}");
        }
    }

    #[test]
    fn members_keep_their_order() {
        let members: JsonMembers<u8> = parse(br#"{"10": 1, "2": 2}"#).unwrap();
        assert_eq!(members.0, [("10".to_owned(), 1), ("2".to_owned(), 2)]);
        for other in ["[]", "[1]", "null", "3", "-3", "0.5", "true", "\"x\""] {
            assert!(parse::<JsonMembers<u8>>(other.as_bytes()).unwrap().0.is_empty(), "{other}");
        }
    }

    /// JSON with `NaN` and infinities as Python writes it, and the value it stands for.
    fn documents() -> impl Strategy<Value = (String, Value)> {
        let leaf = prop_oneof![
            Just(("NaN".to_owned(), Value::Null)),
            Just(("Infinity".to_owned(), Value::Null)),
            Just(("-Infinity".to_owned(), Value::Null)),
            any::<i64>().prop_map(|n| (n.to_string(), json!(n))),
            "(NaN|Infinity|\"|\\\\|[a-z]){0,6}".prop_map(|s| (json!(s).to_string(), json!(s))),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(|items| {
                    let (texts, values): (Vec<_>, Vec<_>) = items.into_iter().unzip();
                    (format!("[{}]", texts.join(", ")), Value::Array(values))
                }),
                prop::collection::btree_map("(NaN|\"|[a-z]){0,4}", inner, 0..6).prop_map(|items| {
                    let texts: Vec<_> =
                        items.iter().map(|(key, (text, _))| format!("{}: {text}", json!(key))).collect();
                    let values = items.into_iter().map(|(key, (_, value))| (key, value)).collect();
                    (format!("{{{}}}", texts.join(",")), Value::Object(values))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn python_json_is_parsed_as_meant((text, meant) in documents()) {
            prop_assert_eq!(parse::<Value>(text.as_bytes()).unwrap(), meant);
        }

        #[test]
        fn strict_json_is_unchanged(text in "[ -~é\\n]{0,40}") {
            let strict = json!({ "a": [text], "NaN": null }).to_string();
            prop_assert!(matches!(sanitize(&strict), Cow::Borrowed(_)));
        }

        #[test]
        fn sanitizing_never_panics_and_is_idempotent(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = String::from_utf8_lossy(&bytes);
            let once = sanitize(&text).into_owned();
            prop_assert_eq!(&sanitize(&once), &once);
        }

        #[test]
        fn sanitizing_fragments_never_panics(
            parts in prop::collection::vec(prop::sample::select(vec![
                "\"", "\\", "\\u", "d8", "\\ud83d", "\\ude00", "dc00", "NaN", "-", "Infinity", "é", ",", "{"]), 0..12)
        ) {
            let text = parts.concat();
            let once = sanitize(&text).into_owned();
            prop_assert_eq!(&sanitize(&once), &once);
        }
    }
}
