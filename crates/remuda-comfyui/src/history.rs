//! `/history` of an ended prompt, and the outcome that follows from it.
//!
//! | status | last message | outputs | outcome |
//! |---|---|---|---|
//! | `success` | | some | succeeded |
//! | `success` | `execution_error` | none | succeeded: the workflow blocked its own nodes |
//! | `error` | `execution_error` | those produced before | failed |
//! | `error` | `execution_interrupted` | the same | interrupted by any client |

use std::sync::Arc;

use remuda_core::service::{ProbeResult, ServiceFailure, ServiceFault};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fault::NodeException;
use super::json::{self, JsonMembers, Text};
use super::queue::Item;
use super::tag::PromptTag;

/// The answer for one prompt.
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
    pub(super) fn seen(self) -> ProbeResult {
        let outputs: Arc<RawValue> = match self.outputs {
            Some(outputs) => outputs.into(),
            None => no_outputs(),
        };
        let Some(status) = self.status else {
            return ProbeResult::Succeeded { outputs };
        };
        if status.status_str.0.as_deref() != Some("error") {
            return ProbeResult::Succeeded { outputs };
        }
        let end = status.messages.iter().rev().find_map(|message| End::read(message));
        match end {
            Some(End::Interrupted) => ProbeResult::Interrupted,
            Some(End::Raised(raised)) => ProbeResult::Failed(raised.failure()),
            None => ProbeResult::Failed(ServiceFailure::new(
                ServiceFault::Node,
                "the prompt failed and ComfyUI gave no reason",
            )),
        }
    }
}

enum End {
    Raised(NodeException),
    Interrupted,
}

impl End {
    /// A message is `[kind, data]`.
    fn read(message: &RawValue) -> Option<Self> {
        let (kind, data): (Text, Box<RawValue>) = json::parse(message.get().as_bytes()).ok()?;
        match kind.0.as_deref() {
            Some("execution_error") => {
                Some(End::Raised(json::parse(data.get().as_bytes()).unwrap_or_default()))
            }
            Some("execution_interrupted") => Some(End::Interrupted),
            _ => None,
        }
    }
}

fn no_outputs() -> Arc<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("valid JSON").into()
}

/// The answer for many prompts; only their tags are read.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Tags(#[serde(deserialize_with = "json::object")] JsonMembers<TaggedEntry>);

#[derive(Debug, Deserialize)]
struct TaggedEntry {
    #[serde(default)]
    prompt: Option<Item>,
}

impl Tags {
    /// Oldest first, in the server's order.
    pub(super) fn tags(&self) -> impl Iterator<Item = (&str, &PromptTag)> {
        self.0.0.iter().filter_map(|(id, entry)| Some((id.as_str(), entry.prompt.as_ref()?.tag()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "c4b069c6-19b6-4062-9edb-8ea621236d76";

    /// The outcome of a history entry with these outputs, status and last message.
    fn seen(outputs: &str, status: &str, last: &str) -> ProbeResult {
        let text = format!(
            r#"{{"{ID}": {{"prompt": [44, "{ID}", {{"1": {{"inputs": {{"x": Infinity}}}}}}, {{"client_id": "c"}}, ["2"]], "outputs": {outputs},
                "status": {{"status_str": "{status}", "completed": false, "messages": [
                ["execution_start", {{"prompt_id": "{ID}", "timestamp": 1794728777790}}],
                ["execution_cached", {{"nodes": ["1"], "prompt_id": "{ID}", "timestamp": 1794728777791}}], {last}]}}, "meta": {{}}}}}}"#
        );
        let entries: Entries = json::parse(text.as_bytes()).unwrap();
        entries.into_entry(ID).unwrap().seen()
    }

    const IMAGES: &str = r#"{"2": {"images": [{"filename": "a_00001_.png", "subfolder": "", "type": "output"}], "score": [NaN]}}"#;

    #[test]
    fn outputs_of_a_success_are_valid_json() {
        let ProbeResult::Succeeded { outputs } = seen(IMAGES, "success", r#"["execution_success", {}]"#)
        else {
            panic!()
        };
        let outputs: serde_json::Value = serde_json::from_str(outputs.get()).unwrap();
        assert_eq!(outputs["2"]["score"], serde_json::json!([null]));
    }

    #[test]
    fn last_message_distinguishes_error_from_interruption() {
        let error = r#"["execution_error", {"prompt_id": "x", "node_id": "4", "node_type": "ResearchFail", "executed": ["2", "3"],
            "exception_message": "research: deliberate failure\n", "exception_type": "ValueError",
            "traceback": ["  File \"<comfyui>/execution.py\""], "current_inputs": {"image": ["tensor([[[[0., 0., 1.]"]}, "timestamp": 1}]"#;
        let ProbeResult::Failed(failure) = seen(IMAGES, "error", error) else { panic!() };
        assert_eq!(
            failure,
            ServiceFailure::new(
                ServiceFault::Node,
                "node 4 (ResearchFail): ValueError: research: deliberate failure"
            )
            .at_node("4", Some("ResearchFail".to_owned()))
            .with_exception("ValueError")
        );
        let interrupted = r#"["execution_interrupted", {"prompt_id": "x", "node_id": "2", "executed": []}]"#;
        assert!(matches!(seen("{}", "error", interrupted), ProbeResult::Interrupted));
        assert!(matches!(seen("{}", "error", "[]"), ProbeResult::Failed(_)));
        assert!(matches!(
            seen("{}", "error", r#""odd", ["execution_error"], ["execution_error", 3]"#),
            ProbeResult::Failed(_)
        ));
    }

    #[test]
    fn blocked_node_fails_no_prompt() {
        let block = r#"["execution_error", {"node_id": "3", "exception_message": "Execution Blocked: no", "exception_type": "ExecutionBlocked"}],
            ["execution_success", {}]"#;
        assert!(matches!(seen("{}", "success", block), ProbeResult::Succeeded { .. }));
        assert!(matches!(seen(IMAGES, "success", block), ProbeResult::Succeeded { .. }));
        assert!(matches!(
            seen("{}", "success", r#"["execution_success", {}]"#),
            ProbeResult::Succeeded { .. }
        ));
    }

    #[test]
    fn other_answers_are_not_a_history() {
        let entries: Entries = json::parse(b"{}").unwrap();
        assert!(entries.into_entry(ID).is_none());
        let entries: Entries = json::parse(br#"{"x": {"outputs": {}, "status": null}}"#).unwrap();
        assert!(matches!(entries.into_entry("x").unwrap().seen(), ProbeResult::Succeeded { .. }));
        assert!(json::parse::<Entries>(b"[]").is_err());
        assert!(json::parse::<Entries>(br#"{"error": "no"}"#).is_err());
    }

    #[test]
    fn tags_are_found_oldest_first() {
        let tags: Tags = json::parse(
            br#"{"z": {"prompt": [1, "z", {}, {"remuda": {"worker": "w", "job": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11", "attempt": 1}}, []]},
                "a": {"prompt": [2, "a", {}, {"x": NaN, "remuda": {"worker": "w", "job": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11", "attempt": 2}}, []]},
                "b": {"prompt": [3, "b", {}, {"remuda": {"worker": "w", "canary": true}}, []]},
                "c": {"prompt": [4, "c", {}, null, []]}, "d": {"prompt": [5, "d", {}, {"remuda": "x"}]}, "e": {}}"#,
        )
        .unwrap();
        let found: Vec<_> = tags.tags().map(|(id, tag)| (id, tag.attempt.0)).collect();
        assert_eq!(found, [("z", 1), ("a", 2)]);
        for other in ["[]", "null", r#""x""#, r#"{"error": 3}"#] {
            assert!(json::parse::<Tags>(other.as_bytes()).is_err(), "{other}");
        }
    }
}
