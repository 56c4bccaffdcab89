//! Reading what ComfyUI calls JSON. It is written by Python, which puts bare `NaN`, `Infinity` and `-Infinity` where a
//! number should be, and halves of surrogate pairs where file names were not UTF-8. No strict reader takes either, and a
//! server that has one such result in its history would never get a straight answer read again.
//!
//! So: read strictly first, which is nearly always enough; if that fails, mend and read once more.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Reads `bytes`, mending them if need be. The error is the one of the strict reader.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_slice(bytes) {
        Ok(it) => return Ok(it),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(bytes);
    match mend(&text) {
        Cow::Borrowed(_) if matches!(text, Cow::Borrowed(_)) => Err(error),
        mended => serde_json::from_str(&mended).map_err(|_| error),
    }
}

/// The text with `null` in place of numbers that are none, and U+FFFD in place of half a surrogate pair. What stands in
/// strings is otherwise left alone; a text with nothing to mend is given back as it is.
pub fn mend(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut mended = String::new();
    let mut kept = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'"' {
            at = mend_string(text, at, &mut kept, &mut mended);
            continue;
        }
        match not_a_number(&bytes[at..]) {
            0 => at += 1,
            length => {
                mended.push_str(&text[kept..at]);
                mended.push_str("null");
                at += length;
                kept = at;
            }
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    mended.push_str(&text[kept..]);
    Cow::Owned(mended)
}

/// How long the word is that stands for a number that is none; 0 if no such word begins here.
fn not_a_number(bytes: &[u8]) -> usize {
    let words: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    words.iter().find(|word| bytes.starts_with(word)).map_or(0, |word| word.len())
}

/// Goes over the string that opens at `open`; says where it is over. Copies what was kept whenever it mends.
fn mend_string(text: &str, open: usize, kept: &mut usize, mended: &mut String) -> usize {
    let bytes = text.as_bytes();
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => match (surrogate(&bytes[at..]), surrogate(&bytes[(at + 6).min(bytes.len())..])) {
                (None, _) => at += 2,
                (Some(Half::First), Some(Half::Second)) => at += 12,
                (Some(_), _) => {
                    mended.push_str(&text[*kept..at]);
                    mended.push_str("\\ufffd");
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

/// Which half of a pair is written here as `\uXXXX`, if any.
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

/// The members of an object in the order in which they stand there; of anything else, none.
#[derive(Clone, Debug)]
pub struct Members<T>(pub Vec<(String, T)>);

impl<T> Default for Members<T> {
    fn default() -> Self {
        Members(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

/// The members of an object, in their order; anything else is an error.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Members<T>, D::Error> {
    deserializer.deserialize_map(Any(PhantomData))
}

/// A text; of anything else, none. For fields that are texts on every server seen, and may not be on the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

/// Builds `T` from whatever kind of value there is.
struct Any<T>(PhantomData<T>);

/// What can be made of a member list or of a text, or of neither.
trait Lenient<'de>: Default {
    fn of_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        skip_map(map)?;
        Ok(Self::default())
    }

    fn of_text(_text: &str) -> Self {
        Self::default()
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for Members<T> {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

impl Lenient<'_> for Text {
    fn of_text(text: &str) -> Self {
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
        Ok(T::of_text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::of_map(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn check(text: &str, expected: &Value) {
        assert_eq!(&read::<Value>(text.as_bytes()).unwrap(), expected, "{text}");
    }

    #[test]
    fn numbers_that_are_none_are_read_as_null() {
        check(r#"{"1": {"score": [NaN]}}"#, &json!({"1": {"score": [null]}}));
        check("[Infinity,-Infinity, NaN,-1]", &json!([null, null, null, -1]));
        check("NaN", &json!(null));
    }

    #[test]
    fn what_stands_in_a_string_is_left_alone() {
        let text = r#"{"NaN": "NaN, \"Infinity\" and \\", "x": NaN}"#;
        check(text, &json!({"NaN": "NaN, \"Infinity\" and \\", "x": null}));
    }

    #[test]
    fn half_a_surrogate_pair_costs_a_character_and_not_the_answer() {
        check(r#"["a\udcffb", "\ud83d\ude00", "\ud83dx"]"#, &json!(["a\u{fffd}b", "\u{1f600}", "\u{fffd}x"]));
        check(r#"["\\ud83d", "\ud83d\ud83d\ude00"]"#, &json!(["\\ud83d", "\u{fffd}\u{1f600}"]));
    }

    #[test]
    fn a_torn_answer_stays_an_error() {
        for torn in ["", "{", "[NaN", "\"\\", "\"\\ud8", "[Na]", "<html>", "nul"] {
            assert!(read::<Value>(torn.as_bytes()).is_err(), "{torn}");
        }
    }

    #[test]
    fn members_keep_their_order_and_nothing_but_an_object_has_any() {
        let members: Members<u8> = read(br#"{"10": 1, "2": 2}"#).unwrap();
        assert_eq!(members.0, [("10".to_owned(), 1), ("2".to_owned(), 2)]);
        for other in ["[]", "[1]", "null", "3", "-3", "0.5", "true", "\"x\""] {
            assert!(read::<Members<u8>>(other.as_bytes()).unwrap().0.is_empty(), "{other}");
        }
    }

    /// JSON with holes for numbers, as Python writes it and as it should have been written.
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
        fn what_python_writes_is_read_as_it_was_meant((text, meant) in documents()) {
            prop_assert_eq!(read::<Value>(text.as_bytes()).unwrap(), meant);
        }

        #[test]
        fn strict_json_is_never_touched(text in "[ -~é\\n]{0,40}") {
            let strict = json!({ "a": [text], "NaN": null }).to_string();
            prop_assert!(matches!(mend(&strict), Cow::Borrowed(_)));
        }

        #[test]
        fn mending_never_panics_and_is_done_after_once(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = String::from_utf8_lossy(&bytes);
            let once = mend(&text).into_owned();
            prop_assert_eq!(&mend(&once), &once);
        }

        #[test]
        fn mending_pieces_of_the_trouble_never_panics(
            parts in prop::collection::vec(prop::sample::select(vec![
                "\"", "\\", "\\u", "d8", "\\ud83d", "\\ude00", "dc00", "NaN", "-", "Infinity", "é", ",", "{"]), 0..12)
        ) {
            let text = parts.concat();
            let once = mend(&text).into_owned();
            prop_assert_eq!(&mend(&once), &once);
        }
    }
}
