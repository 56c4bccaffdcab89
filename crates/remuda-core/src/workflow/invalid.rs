//! Why a workflow is refused, for the person who sent it: what, where, and what to do about it.
//!
//! Texts from the workflow are cut and escaped on their way in, so that an error can be logged and shown anywhere.

use std::fmt;

use super::verdict::PromptRefusal;

/// Longer quotes from the workflow are truncated: enough to find the place, too little to flood a log.
const SHOWN_CHARS_MAX: usize = 80;

/// Nodes of a loop that are named; the rest are counted.
const LOOP_NODES_SHOWN_MAX: usize = 12;

/// What the sender can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InvalidKind {
    /// It is not JSON: fix its writer.
    Malformed,
    /// Send less.
    TooLarge,
    /// It is JSON, but not a runnable workflow: correct it.
    Invalid,
}

/// Why a workflow is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidWorkflow {
    NotJson {
        line: usize,
        column: usize,
        message: String,
    },
    TooBig {
        bytes: usize,
        max: usize,
    },
    TooDeep {
        line: usize,
        column: usize,
        max: usize,
    },
    /// Too many `nodes`, or `values` in all.
    TooWide {
        what: &'static str,
        max: usize,
    },
    /// JSON readers differ in which of the two they take. The position is the end of the object.
    DuplicateKey {
        key: String,
        line: usize,
        column: usize,
    },
    /// Some programs would truncate the text there.
    Nul {
        text: String,
        line: usize,
        column: usize,
    },
    NotAnObject,
    Empty,
    /// A node without a class, or a member that is not a node.
    NoClass {
        node: String,
    },
    BadInputs {
        node: String,
    },
    DanglingLink {
        node: String,
        input: String,
        to: String,
    },
    /// Each node feeds the next, and the last feeds the first.
    Loop {
        nodes: Vec<String>,
    },
    /// The servers of the fleet would refuse it.
    Refused(Box<PromptRefusal>),
}

impl InvalidWorkflow {
    pub fn kind(&self) -> InvalidKind {
        match self {
            InvalidWorkflow::NotJson { .. } => InvalidKind::Malformed,
            InvalidWorkflow::TooBig { .. } => InvalidKind::TooLarge,
            InvalidWorkflow::TooDeep { .. }
            | InvalidWorkflow::TooWide { .. }
            | InvalidWorkflow::DuplicateKey { .. }
            | InvalidWorkflow::Nul { .. }
            | InvalidWorkflow::NotAnObject
            | InvalidWorkflow::Empty
            | InvalidWorkflow::NoClass { .. }
            | InvalidWorkflow::BadInputs { .. }
            | InvalidWorkflow::DanglingLink { .. }
            | InvalidWorkflow::Loop { .. }
            | InvalidWorkflow::Refused(_) => InvalidKind::Invalid,
        }
    }
}

impl fmt::Display for InvalidWorkflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidWorkflow::NotJson { line, column, message } => write!(
                f,
                "line {line}, column {column}: not JSON: {message}; send one JSON object (NaN and Infinity are not JSON)"
            ),
            InvalidWorkflow::TooBig { bytes, max } => {
                write!(
                    f,
                    "{bytes} bytes, at most {max} are taken: upload files instead of writing them into the workflow"
                )
            }
            InvalidWorkflow::TooDeep { line, column, max } => {
                write!(f, "line {line}, column {column}: nested deeper than {max} levels: flatten it")
            }
            InvalidWorkflow::TooWide { what, max } => {
                write!(f, "more than {max} {what}: split the workflow into several jobs")
            }
            InvalidWorkflow::DuplicateKey { key, line, column } => write!(
                f,
                "the object that ends at line {line}, column {column} has the key \"{key}\" twice: keep one of them"
            ),
            InvalidWorkflow::Nul { text, line, column } => {
                write!(f, "line {line}, column {column}: NUL character in \"{text}\": remove it")
            }
            InvalidWorkflow::NotAnObject => {
                f.write_str("a workflow is a JSON object: wrap what you sent in {...}")
            }
            InvalidWorkflow::Empty => {
                f.write_str("the workflow is empty: send at least one node, or a model and its input")
            }
            InvalidWorkflow::NoClass { node } => write!(
                f,
                "node \"{node}\" is no object with a text as class_type: export the workflow in API format"
            ),
            InvalidWorkflow::BadInputs { node } => {
                write!(f, "node \"{node}\": inputs is not an object: write {{\"name\": value, ...}}")
            }
            InvalidWorkflow::DanglingLink { node, input, to } => write!(
                f,
                "node \"{node}\", input \"{input}\": links to node \"{to}\", which is not there: add it or correct the link"
            ),
            InvalidWorkflow::Loop { nodes } => write_loop(f, nodes),
            InvalidWorkflow::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for InvalidWorkflow {}

fn write_loop(f: &mut fmt::Formatter<'_>, nodes: &[String]) -> fmt::Result {
    f.write_str("the nodes ")?;
    for node in nodes.iter().take(LOOP_NODES_SHOWN_MAX) {
        write!(f, "\"{node}\" -> ")?;
    }
    if let Some(rest) = nodes.len().checked_sub(LOOP_NODES_SHOWN_MAX).filter(|&rest| rest > 0) {
        write!(f, "{rest} more -> ")?;
    }
    if let Some(first) = nodes.first() {
        write!(f, "\"{first}\"")?;
    }
    f.write_str(" feed each other in a loop: remove one of these links")
}

/// A text of the workflow as it may stand in an error: cut, with nothing in it that acts on a terminal.
pub(super) fn shown(text: &str) -> String {
    let is_cut = text.chars().nth(SHOWN_CHARS_MAX).is_some();
    let kept = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug);
    if is_cut { kept.chain(['…']).collect() } else { kept.collect() }
}
