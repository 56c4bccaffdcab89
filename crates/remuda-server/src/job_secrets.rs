//! Keys that travel with a job to its worker and are never stored: credentials with which the submitter pays for ComfyUI
//! nodes that call paid services. They are in memory only, until the job has ended. A restarted plane has lost them; such
//! a node then fails and reports the missing key itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_comfyui::json::JsonMembers;
use remuda_core::id::JobId;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Names and values of ComfyUI's `extra_data`.
pub type Keys = BTreeMap<String, String>;

/// Names that are removed before a workflow is stored, on every surface.
pub const NAMES: [&str; 2] = ["api_key_comfy_org", "auth_token_comfy_org"];

/// Clones share the keys.
#[derive(Clone, Default)]
pub struct JobSecrets(Arc<Mutex<BTreeMap<JobId, Keys>>>);

impl fmt::Debug for JobSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecrets(***)")
    }
}

impl JobSecrets {
    pub fn insert(&self, job: JobId, keys: Keys) {
        if !keys.is_empty() {
            self.lock().insert(job, keys);
        }
    }

    /// Called when the job has ended or was refused.
    pub fn remove(&self, job: JobId) {
        self.lock().remove(&job);
    }

    /// The workflow with the job's keys inserted, as its worker gets it.
    pub fn put_into(&self, job: JobId, workflow: Arc<RawValue>) -> Arc<RawValue> {
        let keys = self.lock().get(&job).cloned();
        match keys {
            Some(keys) => with_keys(&workflow, &keys).map_or(workflow, Arc::from),
            None => workflow,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Keys>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `{"prompt": graph, "extra_data": …}`, whether or not the workflow has that form already.
fn with_keys(workflow: &RawValue, keys: &Keys) -> Option<Box<RawValue>> {
    let members: JsonMembers<Box<RawValue>> = serde_json::from_str(workflow.get()).ok()?;
    let member = |name: &str| members.0.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let is_wrapped = member("prompt").is_some_and(|prompt| !is_node(prompt));
    let mut whole: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    if is_wrapped {
        whole.extend(members.0.iter().map(|(key, value)| (key.as_str(), value.clone())));
    } else {
        whole.insert("prompt", workflow.to_owned());
    }
    let extra = whole.get("extra_data").and_then(|extra| serde_json::from_str(extra.get()).ok());
    let mut extra: serde_json::Map<String, Value> = extra.unwrap_or_default();
    extra.extend(keys.iter().map(|(key, value)| (key.clone(), value.as_str().into())));
    whole.insert("extra_data", to_raw_value(&extra).ok()?);
    to_raw_value(&whole).ok()
}

/// Splits a workflow into the part that is stored and its keys; `None` if it has no keys.
pub fn take_out(workflow: &RawValue) -> Option<(Arc<RawValue>, Keys)> {
    // Nearly all workflows have none and are not parsed again; a name may be written with escapes.
    let text = workflow.get();
    if !NAMES.iter().any(|name| text.contains(name)) && !text.contains("\\u") {
        return None;
    }
    let mut whole: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    if is_node(whole.get("prompt")?) {
        return None;
    }
    let mut extra: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(whole.get("extra_data")?.get()).ok()?;
    let found: Vec<_> = NAMES.iter().filter_map(|name| extra.remove_entry(*name)).collect();
    if found.is_empty() {
        return None;
    }
    if extra.is_empty() {
        whole.remove("extra_data");
    } else {
        whole.insert("extra_data".to_owned(), to_raw_value(&extra).ok()?);
    }
    // A value that is not a string is no key and is dropped.
    let keys =
        found.into_iter().filter_map(|(name, key)| Some((name, serde_json::from_str(key.get()).ok()?)));
    Some((Arc::from(to_raw_value(&whole).ok()?), keys.collect()))
}

/// A node whose id is `prompt` is not a wrapped graph.
fn is_node(value: &RawValue) -> bool {
    let fields: JsonMembers<serde::de::IgnoredAny> = serde_json::from_str(value.get()).unwrap_or_default();
    fields.0.iter().any(|(key, _)| key == "class_type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(workflow: &str, expected: &str) {
        let (secrets, job) = (JobSecrets::default(), JobId::from_u128(1));
        let workflow: Arc<RawValue> = RawValue::from_string(workflow.to_owned()).unwrap().into();
        secrets.insert(job, [("api_key_comfy_org".to_owned(), "k".to_owned())].into());
        assert_eq!(secrets.put_into(job, workflow.clone()).get(), expected);
        assert!(!format!("{secrets:?}").contains("\"k\""));
        secrets.remove(job);
        assert_eq!(secrets.put_into(job, workflow.clone()).get(), workflow.get());
    }

    /// Faults: X10.
    #[test]
    fn keys_reach_the_worker_with_their_job_and_are_dropped_at_its_end() {
        check(
            r#"{"1":{"class_type":"A","inputs":{"seed":18446744073709551615}}}"#,
            r#"{"extra_data":{"api_key_comfy_org":"k"},"prompt":{"1":{"class_type":"A","inputs":{"seed":18446744073709551615}}}}"#,
        );
        check(
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"preview_method":"none"}}"#,
            r#"{"extra_data":{"api_key_comfy_org":"k","preview_method":"none"},"prompt":{"1":{"class_type":"A"}}}"#,
        );
    }

    fn check_taken_out(workflow: &str, expected: Option<(&str, &[(&str, &str)])>) {
        let workflow = RawValue::from_string(workflow.to_owned()).unwrap();
        let taken = take_out(&workflow).map(|(rest, keys)| (rest.get().to_owned(), keys));
        let keys = |keys: &[(&str, &str)]| {
            keys.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())).collect::<Keys>()
        };
        assert_eq!(taken, expected.map(|(rest, taken)| (rest.to_owned(), keys(taken))), "{workflow}");
    }

    /// Faults: X10.
    #[test]
    fn keys_are_taken_out_in_any_spelling_and_the_rest_is_unchanged() {
        check_taken_out(
            r#"{"prompt":{"1":{"class_type":"A","inputs":{"seed":1.50}}},"extra_data":{"api_key_comfy_org":"k","a":1.0}}"#,
            Some((
                r#"{"extra_data":{"a":1.0},"prompt":{"1":{"class_type":"A","inputs":{"seed":1.50}}}}"#,
                &[("api_key_comfy_org", "k")],
            )),
        );
        check_taken_out(
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"\u0061uth_token_comfy_org":"t","api_key_comfy_org":7}}"#,
            Some((r#"{"prompt":{"1":{"class_type":"A"}}}"#, &[("auth_token_comfy_org", "t")])),
        );
        check_taken_out(
            r#"{"prompt":{"1":{"class_type":"A"}},"extra_data":{"a":"api_key_comfy_org"}}"#,
            None,
        );
        check_taken_out(r#"{"extra_data":{"class_type":"A","inputs":{"api_key_comfy_org":"k"}}}"#, None);
    }
}
