//! What `/history` says of a prompt that ended, and what that means.
//!
//! | status | last word | outputs | so it |
//! |---|---|---|---|
//! | `success` | | some | succeeded |
//! | `success` | `execution_error` of a blocker | none | failed: a node barred the way, and said why |
//! | `error` | `execution_error` | whatever was done before | failed |
//! | `error` | `execution_interrupted` | the same | was interrupted, by whomever |

use std::sync::Arc;

use remuda_core::service::{Failure, Fault, Seen};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fault::Raised;
use super::json::{self, Members, Text};
use super::queue::Item;
use super::tag::Tag;

/// The answer to a question about one prompt.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Entries(std::collections::BTreeMap<String, Entry>);

impl Entries {
    pub(super) fn into_entry(mut self, id: &str) -> Option<Entry> {
        self.0.remove(id)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    #[serde(default)]
    outputs: Option<Box<RawValue>>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    status_str: Text,
    #[serde(default)]
    messages: Vec<Box<RawValue>>,
}

impl Entry {
    pub(super) fn seen(self) -> Seen {
        let outputs: Arc<RawValue> = match self.outputs {
            Some(outputs) => outputs.into(),
            None => no_outputs(),
        };
        let Some(status) = self.status else {
            return Seen::Succeeded { outputs };
        };
        let end = status.messages.iter().rev().find_map(|message| End::read(message));
        if status.status_str.0.as_deref() != Some("error") {
            return match end {
                // A blocker's error is not the end of a prompt; but with nothing to show for it, it is the reason.
                Some(End::Raised(raised)) if is_empty(&outputs) => Seen::Failed(raised.failure()),
                _ => Seen::Succeeded { outputs },
            };
        }
        match end {
            Some(End::Interrupted) => Seen::Interrupted,
            Some(End::Raised(raised)) => Seen::Failed(raised.failure()),
            None => {
                Seen::Failed(Failure::new(Fault::Node, "it ended in an error that ComfyUI does not explain"))
            }
        }
    }
}

enum End {
    Raised(Raised),
    Interrupted,
}

impl End {
    /// A message is `[kind, data]`.
    fn read(message: &RawValue) -> Option<Self> {
        let (kind, data): (Text, Box<RawValue>) = json::read(message.get().as_bytes()).ok()?;
        match kind.0.as_deref() {
            Some("execution_error") => {
                Some(End::Raised(json::read(data.get().as_bytes()).unwrap_or_default()))
            }
            Some("execution_interrupted") => Some(End::Interrupted),
            _ => None,
        }
    }
}

fn no_outputs() -> Arc<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("two braces are JSON").into()
}

/// Whether no node put anything out.
fn is_empty(outputs: &RawValue) -> bool {
    json::read::<Members<serde::de::IgnoredAny>>(outputs.get().as_bytes())
        .is_ok_and(|nodes| nodes.0.is_empty())
}

/// The answer to a question about many prompts, of which only the tags are read.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Tags(std::collections::BTreeMap<String, Tagging>);

#[derive(Debug, Deserialize)]
struct Tagging {
    #[serde(default)]
    prompt: Option<Item>,
}

impl Tags {
    pub(super) fn tags(&self) -> impl Iterator<Item = (&str, &Tag)> {
        self.0.iter().filter_map(|(id, entry)| Some((id.as_str(), entry.prompt.as_ref()?.tag()?)))
    }
}
