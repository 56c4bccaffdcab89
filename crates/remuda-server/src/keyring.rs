//! What goes with a job to its worker and is never stored: the keys with which whoever submitted it pays for nodes that
//! call others. In memory only, until the job has ended. A plane that is started again has forgotten them, and such a node
//! then fails for want of its key, which is said in its own words.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_comfyui::json::Members;
use remuda_core::id::JobId;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Names and values as ComfyUI knows them in its `extra_data`.
pub type Keys = BTreeMap<String, String>;

/// Those that are stored nowhere, whichever way a job comes in.
pub const NAMES: [&str; 2] = ["api_key_comfy_org", "auth_token_comfy_org"];

/// Clones share what they keep.
#[derive(Clone, Default)]
pub struct Keyring(Arc<Mutex<BTreeMap<JobId, Keys>>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(***)")
    }
}

impl Keyring {
    pub fn keep(&self, job: JobId, keys: Keys) {
        if !keys.is_empty() {
            self.kept().insert(job, keys);
        }
    }

    /// The job is over, or was never taken.
    pub fn forget(&self, job: JobId) {
        self.kept().remove(&job);
    }

    /// The workflow of a job with its keys in it, as a worker gets it.
    pub fn put_into(&self, job: JobId, workflow: Arc<RawValue>) -> Arc<RawValue> {
        let keys = self.kept().get(&job).cloned();
        match keys {
            Some(keys) => together(&workflow, &keys).map_or(workflow, Arc::from),
            None => workflow,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept().is_empty()
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<JobId, Keys>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `{"prompt": graph, "extra_data": …}`, whether or not the workflow has that form already.
fn together(workflow: &RawValue, keys: &Keys) -> Option<Box<RawValue>> {
    let members: Members<Box<RawValue>> = serde_json::from_str(workflow.get()).ok()?;
    let member = |name: &str| members.0.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let is_wrapped = member("prompt").is_some_and(|prompt| !is_node(prompt));
    let mut whole: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    if is_wrapped {
        whole.extend(members.0.iter().map(|(key, value)| (key.as_str(), value.clone())));
    } else {
        whole.insert("prompt", workflow.to_owned());
    }
    let given = whole.get("extra_data").and_then(|given| serde_json::from_str(given.get()).ok());
    let mut given: serde_json::Map<String, Value> = given.unwrap_or_default();
    given.extend(keys.iter().map(|(key, value)| (key.clone(), value.as_str().into())));
    whole.insert("extra_data", to_raw_value(&given).ok()?);
    to_raw_value(&whole).ok()
}

/// The workflow without the keys that go with it, and the keys; nothing if there are none in it.
pub fn take_out(workflow: &RawValue) -> Option<(Arc<RawValue>, Keys)> {
    // Nearly all have none, and need not be read once more; a name may be spelled with escapes.
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
    // What is no text is no key, and is not kept either.
    let keys =
        found.into_iter().filter_map(|(name, key)| Some((name, serde_json::from_str(key.get()).ok()?)));
    Some((Arc::from(to_raw_value(&whole).ok()?), keys.collect()))
}

/// A node that somebody called `prompt` is no graph.
fn is_node(value: &RawValue) -> bool {
    let fields: Members<serde::de::IgnoredAny> = serde_json::from_str(value.get()).unwrap_or_default();
    fields.0.iter().any(|(key, _)| key == "class_type")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(workflow: &str, expected: &str) {
        let (keyring, job) = (Keyring::default(), JobId::from_u128(1));
        let workflow: Arc<RawValue> = RawValue::from_string(workflow.to_owned()).unwrap().into();
        keyring.keep(job, [("api_key_comfy_org".to_owned(), "k".to_owned())].into());
        assert_eq!(keyring.put_into(job, workflow.clone()).get(), expected);
        assert!(!format!("{keyring:?}").contains("\"k\""));
        keyring.forget(job);
        assert_eq!(keyring.put_into(job, workflow.clone()).get(), workflow.get());
    }

    /// Faults: X10.
    #[test]
    fn a_key_goes_to_the_worker_with_its_job_and_is_forgotten_with_it() {
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
    fn keys_are_taken_out_however_they_are_written_and_the_rest_stays_as_it_is() {
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
