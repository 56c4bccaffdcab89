//! The canonical form of a JSON value: keys sorted by bytes, no white space, one way to write each number and string.
//!
//! It is only hashed, never parsed. Hashes are stored, so a change here makes every known workflow a new one.

use std::borrow::Cow;
use std::io::Write;

use serde::Serialize;

use super::json_tree::{Tree, Value};

/// `size` is the estimated length, to avoid reallocation.
pub(super) fn text(tree: &Tree<'_>, value: &Value<'_>, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size);
    write(tree, value, &mut out);
    out
}

pub(super) fn write(tree: &Tree<'_>, value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Unsigned(digit @ 0..10) => out.push(b'0' + *digit as u8),
        Value::Unsigned(number) => write_json(number, out),
        Value::Negative(number) => write_json(number, out),
        // The shortest digits that read back as this number; always with an exponent, so never equal to an integer.
        Value::Float(number) => write!(out, "{number:e}").expect(MEMORY),
        Value::Text(text) => write_text(text, out),
        Value::Array(elements) => {
            out.push(b'[');
            for element in tree.elements(elements) {
                write(tree, element, out);
                out.push(b',');
            }
            close(b']', out);
        }
        Value::Object(members) => {
            out.push(b'{');
            for (key, member) in tree.members(members) {
                write_text(key, out);
                out.push(b':');
                write(tree, member, out);
                out.push(b',');
            }
            close(b'}', out);
        }
    }
}

const MEMORY: &str = "writing into memory cannot fail";

fn write_json(it: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, it).expect(MEMORY);
}

#[expect(clippy::ptr_arg, reason = "borrowed and owned are handled differently")]
fn write_text(text: &Cow<'_, str>, out: &mut Vec<u8>) {
    match text {
        // It had no escape in the body, so it needs none here.
        Cow::Borrowed(text) => {
            out.push(b'"');
            out.extend_from_slice(text.as_bytes());
            out.push(b'"');
        }
        Cow::Owned(text) => write_json(text, out),
    }
}

/// Puts the bracket in place of the last comma, if there is one.
fn close(bracket: u8, out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.push(bracket);
}
