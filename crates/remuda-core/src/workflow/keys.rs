//! Keys that travel with a job to its worker and are never stored: credentials with which the submitter pays for ComfyUI
//! nodes that call paid services. They stand in `extra_data` of a wrapped graph.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::input_graph::{RawMembers, WRAPPED, members};
use super::json_tree::{Members, Tree, Value, member};

/// Names and values of ComfyUI's `extra_data`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobKeys(BTreeMap<String, String>);

const EXTRA: &str = "extra_data";

impl fmt::Debug for JobKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKeys(***)")
    }
}

impl JobKeys {
    /// Names that are removed before a workflow is stored, on every surface.
    pub const NAMES: [&str; 2] = ["api_key_comfy_org", "auth_token_comfy_org"];

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, name: &str, key: String) {
        self.0.insert(name.to_owned(), key);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, key)| (name.as_str(), key.as_str()))
    }

    /// Of two keys with one name, the other one's is taken.
    pub(super) fn merged(mut self, other: JobKeys) -> JobKeys {
        self.0.extend(other.0);
        self
    }

    /// `{"prompt": graph, "extra_data": …}` with the keys in it, whether or not the workflow has that form already. For
    /// services that get the whole workflow as it was submitted.
    pub fn put_into(&self, workflow: &RawValue) -> Option<Box<RawValue>> {
        super::reads::count();
        let mut whole = members(workflow)?;
        if whole.get(WRAPPED).is_none_or(|prompt| is_node(prompt)) {
            whole = RawMembers::from([(WRAPPED.to_owned(), workflow.to_owned())]);
        }
        let extra = whole.get(EXTRA).and_then(|extra| serde_json::from_str(extra.get()).ok());
        let mut extra: serde_json::Map<String, serde_json::Value> = extra.unwrap_or_default();
        extra.extend(self.iter().map(|(name, key)| (name.to_owned(), key.into())));
        whole.insert(EXTRA.to_owned(), to_raw_value(&extra).ok()?);
        to_raw_value(&whole).ok()
    }
}

/// Takes the keys out of the tree; `None` if there are none. A value that is not a text is no key and is dropped.
pub(super) fn take(tree: &mut Tree<'_>) -> Option<JobKeys> {
    let Value::Object(Members { start, end }) = tree.root else { return None };
    let whole = &tree.members[start..end];
    let at = start + whole.iter().position(|(name, _)| name == EXTRA)?;
    if let Value::Object(prompt) = member(whole, WRAPPED)?
        && member(tree.members(prompt), "class_type").is_some()
    {
        return None;
    }
    let Value::Object(Members { start: first, end: mut last }) = tree.members[at].1 else { return None };
    let mut keys = None;
    for name in JobKeys::NAMES {
        let extra = &mut tree.members[first..last];
        let Some(position) = extra.iter().position(|(other, _)| other == name) else { continue };
        let keys = keys.get_or_insert_with(JobKeys::default);
        if let Value::Text(key) = &extra[position].1 {
            keys.insert(name, key.clone().into_owned());
        }
        extra[position..].rotate_left(1);
        last -= 1;
    }
    if keys.is_some() && first == last {
        tree.members[at..end].rotate_left(1);
        tree.root = Value::Object(Members { start, end: end - 1 });
    } else {
        tree.members[at].1 = Value::Object(Members { start: first, end: last });
    }
    keys
}

/// The text without its keys; everything else in it is unchanged.
pub(super) fn without_keys(workflow: &RawValue) -> Option<Arc<RawValue>> {
    super::reads::count();
    let mut whole = members(workflow)?;
    let mut extra = members(whole.get(EXTRA)?)?;
    extra.retain(|name, _| !JobKeys::NAMES.contains(&name.as_str()));
    if extra.is_empty() {
        whole.remove(EXTRA);
    } else {
        whole.insert(EXTRA.to_owned(), to_raw_value(&extra).ok()?);
    }
    to_raw_value(&whole).ok().map(Arc::from)
}

/// A node whose id is `prompt` is not a wrapped graph.
fn is_node(value: &RawValue) -> bool {
    members(value).is_some_and(|fields| fields.contains_key("class_type"))
}

#[cfg(test)]
mod tests {
    use super::super::{Workflow, WorkflowFacts, WorkflowLimits};
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn check_put_into(workflow: &str, expected: &str) {
        let mut keys = JobKeys::default();
        keys.insert("api_key_comfy_org", "k".to_owned());
        assert_eq!(keys.put_into(&raw(workflow)).unwrap().get(), expected);
        assert!(!format!("{keys:?}").contains("\"k\""));
    }

    /// Faults: X10.
    #[test]
    fn keys_are_put_back_into_the_workflow() {
        check_put_into(
            r#"{"1":{"class_type":"A","inputs":{"seed":18446744073709551615}}}"#,
            r#"{"extra_data":{"api_key_comfy_org":"k"},"prompt":{"1":{"class_type":"A","inputs":{"seed":18446744073709551615}}}}"#,
        );
        check_put_into(
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"preview_method":"none"}}"#,
            r#"{"extra_data":{"api_key_comfy_org":"k","preview_method":"none"},"prompt":{"1":{"class_type":"A"}}}"#,
        );
    }

    fn check_taken_out(workflow: &str, rest: &str, keys: &[(&str, &str)]) {
        let parse = |text: &str| Workflow::parse(raw(text), &WorkflowLimits::default()).unwrap().into_parts();
        let (text, taken, facts) = parse(workflow);
        assert_eq!((text.get(), taken.iter().collect::<Vec<_>>()), (rest, keys.to_vec()), "{workflow}");
        let (_, _, expected): (_, _, WorkflowFacts) = parse(rest);
        assert_eq!(facts, expected, "keys are no part of what is known: {workflow}");
    }

    /// Faults: X10.
    #[test]
    fn keys_are_taken_out_in_any_spelling_and_the_rest_is_unchanged() {
        check_taken_out(
            r#"{"prompt":{"1":{"class_type":"A","inputs":{"seed":1.50}}},"extra_data":{"api_key_comfy_org":"k","a":1.0}}"#,
            r#"{"extra_data":{"a":1.0},"prompt":{"1":{"class_type":"A","inputs":{"seed":1.50}}}}"#,
            &[("api_key_comfy_org", "k")],
        );
        check_taken_out(
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"\u0061uth_token_comfy_org":"t","api_key_comfy_org":7}}"#,
            r#"{"prompt":{"1":{"class_type":"A"}}}"#,
            &[("auth_token_comfy_org", "t")],
        );
        check_taken_out(
            r#"{"prompt":"a cat","extra_data":{"auth_token_comfy_org":"t","z":1,"api_key_comfy_org":"k","b":2}}"#,
            r#"{"extra_data":{"b":2,"z":1},"prompt":"a cat"}"#,
            &[("api_key_comfy_org", "k"), ("auth_token_comfy_org", "t")],
        );
        for unchanged in [
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"a":"api_key_comfy_org"}}"#,
            r#"{"extra_data":{"class_type":"A","inputs":{"api_key_comfy_org":"k"}}}"#,
            r#"{"prompt":{"class_type":"A"},"extra_data":{"class_type":"B","api_key_comfy_org":"k"}}"#,
        ] {
            check_taken_out(unchanged, unchanged, &[]);
        }
    }
}
