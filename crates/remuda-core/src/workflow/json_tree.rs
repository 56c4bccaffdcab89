//! A workflow as a tree that borrows from its body, with keys sorted and numbers in one form.
//!
//! Not `serde_json::Value`, which copies every string and allocates every array. Here a string without escapes is
//! borrowed, and all values of a body are in two vectors.

use std::borrow::Cow;

#[derive(Debug)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    /// Not representable by the two above.
    Float(f64),
    /// Borrowed means that it has no escapes: no quotes, backslashes or control characters.
    Text(Cow<'a, str>),
    Array(Elements),
    Object(Members),
}

impl Value<'_> {
    /// A number with a point or an exponent is a double, as in Python; an integral one equals the integer.
    pub(super) fn from_float(number: f64) -> Self {
        const ABOVE_U64: f64 = 18_446_744_073_709_551_616.0;
        const LOWEST_I64: f64 = -9_223_372_036_854_775_808.0;
        if number.fract() != 0.0 {
            return Value::Float(number);
        }
        if (0.0..ABOVE_U64).contains(&number) {
            return Value::Unsigned(number as u64);
        }
        if (LOWEST_I64..0.0).contains(&number) {
            return Value::Negative(number as i64);
        }
        Value::Float(number)
    }
}

pub(super) type Member<'a> = (Cow<'a, str>, Value<'a>);

/// The range of an array's elements in `Tree::elements`.
#[derive(Debug)]
pub(super) struct Elements {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The range of an object's members in `Tree::members`: sorted by key, without duplicates.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// All values of a body, in two vectors: allocating thousands of small arrays would cost more than parsing.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    pub(super) root: Value<'a>,
    pub(super) elements: Vec<Value<'a>>,
    pub(super) members: Vec<Member<'a>>,
}

impl<'a> Tree<'a> {
    pub(super) fn elements(&self, at: &Elements) -> &[Value<'a>] {
        &self.elements[at.start..at.end]
    }

    pub(super) fn members(&self, at: &Members) -> &[Member<'a>] {
        &self.members[at.start..at.end]
    }

    /// For an error. The parser limits the depth, so the recursion is bounded.
    pub(super) fn to_json(&self, value: &Value<'a>) -> serde_json::Value {
        match value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(truth) => (*truth).into(),
            Value::Unsigned(number) => (*number).into(),
            Value::Negative(number) => (*number).into(),
            Value::Float(number) => (*number).into(),
            Value::Text(text) => (**text).into(),
            Value::Array(elements) => self.elements(elements).iter().map(|it| self.to_json(it)).collect(),
            Value::Object(members) => {
                let members = self.members(members).iter();
                members.map(|(name, value)| ((**name).to_owned(), self.to_json(value))).collect()
            }
        }
    }
}

/// The value of `key` in an object's members.
pub(super) fn member<'v, 'a>(members: &'v [Member<'a>], key: &str) -> Option<&'v Value<'a>> {
    members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}
