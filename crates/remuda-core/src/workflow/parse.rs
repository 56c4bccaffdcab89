//! Reading a body into a [`Tree`], once, within limits.
//!
//! serde_json reads; what it would let pass is refused here: a level or a value too many, a key given twice (readers
//! differ in which one they take), a NUL (programs behind us would cut the text there).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::WorkflowLimits;
use super::invalid::{InvalidWorkflow, shown};
use super::json_tree::{Elements, Member, Members, Tree, Value};

/// One level more and serde_json's own recursion limit would speak up before us.
const DEPTH_CEILING: usize = 126;

/// Reads one JSON value and nothing after it.
pub(super) fn parse<'a>(body: &'a str, limits: &WorkflowLimits) -> Result<Tree<'a>, InvalidWorkflow> {
    if body.len() > limits.bytes_max {
        return Err(InvalidWorkflow::TooBig { bytes: body.len(), max: limits.bytes_max });
    }
    super::reads::count();
    let mut reader = Reader::new(limits);
    let mut json = serde_json::Deserializer::from_str(body);
    let read = Below { reader: &mut reader, depth: 0 }.deserialize(&mut json);
    match read.and_then(|root| json.end().map(|()| root)) {
        Ok(root) => Ok(Tree { root, elements: reader.elements, members: reader.members }),
        Err(error) => Err(reader.invalid(&error)),
    }
}

/// What is common to all levels of one reading.
struct Reader<'a> {
    depth_max: usize,
    values_max: usize,
    values: usize,
    refused: Option<Refused>,
    /// Of the arrays and objects that have closed.
    elements: Vec<Value<'a>>,
    members: Vec<Member<'a>>,
    /// Empty lists with room in them, for the next array or object that opens.
    elements_spare: Vec<Vec<Value<'a>>>,
    members_spare: Vec<Vec<Member<'a>>>,
}

/// What was refused; serde carries only words, so the reason waits here until the place is known.
enum Refused {
    TooDeep,
    TooWide,
    DuplicateKey(String),
    Nul(String),
}

impl<'a> Reader<'a> {
    fn new(limits: &WorkflowLimits) -> Self {
        Reader {
            depth_max: limits.depth_max.min(DEPTH_CEILING),
            values_max: limits.values_max,
            values: 0,
            refused: None,
            elements: Vec::new(),
            members: Vec::new(),
            elements_spare: Vec::new(),
            members_spare: Vec::new(),
        }
    }

    fn refuse<T, E: Error>(&mut self, why: Refused) -> Result<T, E> {
        self.refused = Some(why);
        Err(E::custom("refused"))
    }

    fn invalid(self, error: &serde_json::Error) -> InvalidWorkflow {
        let (line, column) = (error.line(), error.column());
        match self.refused {
            Some(Refused::TooDeep) => InvalidWorkflow::TooDeep { line, column, max: self.depth_max },
            Some(Refused::TooWide) => InvalidWorkflow::TooWide { what: "values", max: self.values_max },
            Some(Refused::DuplicateKey(key)) => InvalidWorkflow::DuplicateKey { key, line, column },
            Some(Refused::Nul(text)) => InvalidWorkflow::Nul { text, line, column },
            None => InvalidWorkflow::NotJson { line, column, message: without_place(error) },
        }
    }

    /// A text with escapes in it; the only kind that can hold a NUL, which JSON does not allow as it is.
    fn unescaped<E: Error>(&mut self, text: &str) -> Result<Cow<'a, str>, E> {
        if text.contains('\0') {
            return self.refuse(Refused::Nul(shown(text)));
        }
        Ok(Cow::Owned(text.to_owned()))
    }

    fn close_array(&mut self, mut elements: Vec<Value<'a>>) -> Value<'a> {
        let start = self.elements.len();
        self.elements.append(&mut elements);
        self.elements_spare.push(elements);
        Value::Array(Elements { start, end: self.elements.len() })
    }

    fn close_object<E: Error>(&mut self, mut members: Vec<Member<'a>>) -> Result<Value<'a>, E> {
        if !members.is_sorted_by(|(left, _), (right, _)| by_bytes(left, right).is_lt()) {
            members.sort_unstable_by(|(left, _), (right, _)| by_bytes(left, right));
            if let Some([(key, _), _]) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return self.refuse(Refused::DuplicateKey(shown(key)));
            }
        }
        let start = self.members.len();
        self.members.append(&mut members);
        self.members_spare.push(members);
        Ok(Value::Object(Members { start, end: self.members.len() }))
    }
}

/// The order of keys. Their first bytes decide most of the time, without a call.
fn by_bytes(left: &str, right: &str) -> Ordering {
    left.as_bytes().first().cmp(&right.as_bytes().first()).then_with(|| left.cmp(right))
}

fn without_place(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string();
    message.strip_suffix(&place).unwrap_or(&message).to_owned()
}

/// Reads a value that stands below `depth` open arrays and objects.
struct Below<'r, 'a> {
    reader: &'r mut Reader<'a>,
    depth: usize,
}

impl Below<'_, '_> {
    /// The depth inside an array or object that opens here.
    fn enter<E: Error>(&mut self) -> Result<usize, E> {
        if self.depth >= self.reader.depth_max {
            return self.reader.refuse(Refused::TooDeep);
        }
        Ok(self.depth + 1)
    }
}

impl<'a> DeserializeSeed<'a> for Below<'_, 'a> {
    type Value = Value<'a>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Value<'a>, D::Error> {
        if self.reader.values >= self.reader.values_max {
            return self.reader.refuse(Refused::TooWide);
        }
        self.reader.values += 1;
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Below<'_, 'a> {
    type Value = Value<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value<'a>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, it: bool) -> Result<Value<'a>, E> {
        Ok(Value::Bool(it))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value<'a>, E> {
        Ok(Value::Unsigned(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value<'a>, E> {
        Ok(u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value<'a>, E> {
        Ok(Value::from_float(number))
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Value<'a>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'a>, E> {
        self.reader.unescaped(text).map(Value::Text)
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut access: A) -> Result<Value<'a>, A::Error> {
        let depth = self.enter()?;
        let mut elements = self.reader.elements_spare.pop().unwrap_or_default();
        while let Some(element) = access.next_element_seed(Below { reader: self.reader, depth })? {
            elements.push(element);
        }
        Ok(self.reader.close_array(elements))
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut access: A) -> Result<Value<'a>, A::Error> {
        let depth = self.enter()?;
        let mut members = self.reader.members_spare.pop().unwrap_or_default();
        while let Some(key) = access.next_key_seed(Key(self.reader))? {
            let value = access.next_value_seed(Below { reader: self.reader, depth })?;
            members.push((key, value));
        }
        self.reader.close_object(members)
    }
}

struct Key<'r, 'a>(&'r mut Reader<'a>);

impl<'a> DeserializeSeed<'a> for Key<'_, 'a> {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Cow<'a, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Key<'_, 'a> {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Cow<'a, str>, E> {
        self.0.unescaped(key)
    }
}
