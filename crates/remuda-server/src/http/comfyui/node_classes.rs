//! `/object_info` of the whole fleet. Each worker stores the answer of its server as a blob and names the blob in its
//! metrics; here the blobs are read once and merged. A choice that any server offers is offered, and the router sends the
//! job to a worker that has the model and the class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::plane::Plane;
use remuda_core::workflow::InputGraph;
use remuda_store::blobs::{BlobHash, OpenBlob};
use serde_json::{Map, Value};

use super::super::path::Path;
use super::super::{Caller, Context};
use super::error::ComfyuiError;
use super::prompt::SERVICE;
use super::uploads;
use remuda_core::wire::metric::OBJECT_INFO;

/// Larger than the answer of a server with every known custom node.
const INFO_BYTES_MAX: u64 = 64 << 20;

/// The last merged answer.
#[derive(Debug, Default)]
pub(super) struct NodeClassCache(Mutex<Arc<MergedClasses>>);

#[derive(Debug, Default)]
pub(in crate::http) struct MergedClasses {
    from: BTreeSet<BlobHash>,
    pub(in crate::http) classes: Map<String, Value>,
    outputs: Arc<BTreeMap<String, bool>>,
    /// Each class as JSON, written once.
    texts: BTreeMap<String, String>,
}

/// What the plane knows about ComfyUI workers.
#[derive(Debug, Default)]
struct ClassSources {
    infos: BTreeSet<BlobHash>,
    /// All classes of all workers; `None` if a worker does not report its classes.
    names: Option<BTreeSet<String>>,
}

impl ClassSources {
    fn read(plane: &Plane) -> ClassSources {
        let workers: Vec<_> = plane
            .workers()
            .filter(|worker| worker.services.iter().any(|service| service.as_str() == SERVICE))
            .collect();
        let info = |worker: &&remuda_core::worker::Worker| {
            worker.metrics.get(OBJECT_INFO).and_then(Value::as_str).and_then(|hash| hash.parse().ok())
        };
        let names = workers.iter().map(|worker| worker.offer.classes.as_ref());
        let names = names.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty());
        let names = names.map(|all| all.into_iter().flatten().cloned().collect());
        ClassSources { infos: workers.iter().filter_map(info).collect(), names }
    }
}

impl NodeClassCache {
    /// The classes of all servers; unreadable answers are left out.
    pub(super) async fn merged(&self, context: &Context) -> Arc<MergedClasses> {
        let Ok(infos) = context.plane.read(|plane, _| ClassSources::read(plane).infos).await else {
            return self.cached();
        };
        let cached = self.cached();
        if cached.from == infos {
            return cached;
        }
        let mut blobs = Vec::new();
        for hash in &infos {
            if let Ok(Some(blob)) = context.blobs.read(*hash, context.plane.clock.now()).await {
                blobs.push(blob);
            }
        }
        let merged = tokio::task::spawn_blocking(move || Arc::new(MergedClasses::merge(infos, blobs))).await;
        let Ok(merged) = merged else { return cached };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = merged.clone();
        merged
    }

    fn cached(&self) -> Arc<MergedClasses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether each class is an output node.
    pub(super) async fn output_classes(&self, context: &Context) -> Arc<BTreeMap<String, bool>> {
        self.merged(context).await.outputs.clone()
    }

    /// Checks that some server knows every class, as far as servers reported classes. Returns the known output nodes.
    pub(super) async fn check_known(
        &self,
        context: &Context,
        graph: &InputGraph,
        targets: Option<&[String]>,
    ) -> Result<Vec<String>, ComfyuiError> {
        let names = context.plane.read(|plane, _| ClassSources::read(plane).names).await?;
        if let Some(names) = names {
            let unknown = graph.nodes.iter().find(|(_, node)| !names.contains(node.class()));
            if let Some((id, node)) = unknown {
                let message = format!("Cannot execute because node {} does not exist.", node.class());
                return Err(ComfyuiError::prompt("invalid_prompt", message, format!("Node ID '#{id}'")));
            }
        }
        let outputs = self.output_classes(context).await;
        let is_target = |id: &String| targets.is_none_or(|targets| targets.contains(id));
        let selected: Vec<_> = graph.nodes.iter().filter(|(id, _)| is_target(id)).collect();
        // An unknown class may be an output node.
        if selected.iter().all(|(_, node)| outputs.get(node.class()) == Some(&false)) {
            return Err(ComfyuiError::no_outputs());
        }
        let known = selected.into_iter().filter(|(_, node)| outputs.get(node.class()) == Some(&true));
        Ok(known.map(|(id, _)| id.clone()).collect())
    }
}

impl MergedClasses {
    fn merge(from: BTreeSet<BlobHash>, blobs: Vec<OpenBlob>) -> MergedClasses {
        let mut classes = Map::new();
        for blob in blobs.into_iter().filter(|blob| blob.size_bytes <= INFO_BYTES_MAX) {
            let read = serde_json::from_reader(std::io::BufReader::new(blob.file));
            let Ok(Value::Object(more)) = read else { continue };
            for (name, info) in more {
                match classes.get_mut(&name) {
                    Some(known) => join_inputs(known, &info),
                    None => drop(classes.insert(name, info)),
                }
            }
        }
        let outputs = classes.iter().map(|(name, info)| (name.clone(), info["output_node"] == true));
        let outputs = Arc::new(outputs.collect());
        let texts = classes.iter().map(|(name, info)| (name.clone(), info.to_string())).collect();
        MergedClasses { from, classes, outputs, texts }
    }

    /// All classes, or one, as JSON. Inputs that choose files also list the uploads of the tenant.
    fn to_json(&self, only: Option<&str>, uploads: &[String]) -> String {
        let selected = self.classes.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let entries: Vec<String> = selected
            .map(|(name, info)| {
                let name_text = Value::from(name.as_str());
                match takes_files(info) {
                    true => format!("{name_text}:{}", with_uploads(info.clone(), uploads)),
                    false => format!("{name_text}:{}", self.texts[name]),
                }
            })
            .collect();
        format!("{{{}}}", entries.join(","))
    }
}

/// True if the input accepts uploaded files.
pub(super) fn is_upload(spec: &Value) -> bool {
    let options = spec[1].as_object().into_iter().flatten();
    options.into_iter().any(|(key, value)| key.ends_with("_upload") && *value == true)
}

fn takes_files(info: &Value) -> bool {
    let sections = info["input"].as_object().into_iter().flat_map(|sections| sections.values());
    sections.filter_map(Value::as_object).flat_map(|inputs| inputs.values()).any(is_upload)
}

/// Files that workers uploaded for jobs are not offered as choices.
const WORKER_FILE_PREFIX: &str = "remuda-";

fn with_uploads(mut info: Value, uploads: &[String]) -> Value {
    let sections = info["input"].as_object_mut().into_iter().flat_map(|sections| sections.values_mut());
    for spec in sections.filter_map(Value::as_object_mut).flat_map(|inputs| inputs.values_mut()) {
        if !is_upload(spec) {
            continue;
        }
        let choices = if spec[0].is_array() { &mut spec[0] } else { &mut spec[1]["options"] };
        let Some(choices) = choices.as_array_mut() else { continue };
        choices.retain(|choice| choice.as_str().is_none_or(|name| !name.starts_with(WORKER_FILE_PREFIX)));
        for name in uploads {
            if !choices.iter().any(|choice| choice == name) {
                choices.push(name.as_str().into());
            }
        }
    }
    info
}

/// Adds the choices of another server's class.
fn join_inputs(known: &mut Value, more: &Value) {
    let Some(sections) = known.get_mut("input").and_then(Value::as_object_mut) else { return };
    for (section, inputs) in sections {
        let Some(inputs) = inputs.as_object_mut() else { continue };
        for (name, spec) in inputs {
            let other = &more["input"][section.as_str()][name.as_str()];
            // A hidden input is a plain string, and a server may answer with anything.
            if let Some(choices) = spec.get_mut(0) {
                join_choices(choices, &other[0]);
            }
            if let Some(choices) = spec.get_mut(1).and_then(|config| config.get_mut("options")) {
                join_choices(choices, &other[1]["options"]);
            }
        }
    }
}

fn join_choices(known: &mut Value, more: &Value) {
    let (Some(known), Some(more)) = (known.as_array_mut(), more.as_array()) else { return };
    for choice in more {
        if !known.contains(choice) {
            known.push(choice.clone());
        }
    }
}

pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ComfyuiError> {
    object_info(&context, &caller, None, &headers).await
}

/// An unknown class answers an empty object, as in ComfyUI.
pub(super) async fn show(
    State(context): State<Context>,
    caller: Caller,
    Path(class): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ComfyuiError> {
    object_info(&context, &caller, Some(&class), &headers).await
}

async fn object_info(
    context: &Context,
    caller: &Caller,
    only: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let merged = context.comfyui.node_classes.merged(context).await;
    let text = merged.to_json(only, &uploads::names(context, &tenant).await?);
    let tag = format!("\"{}\"", BlobHash::from_content(text.as_bytes()).hex());
    let head = [
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, "private, no-cache".to_owned()),
        (header::CONTENT_TYPE, "application/json; charset=utf-8".to_owned()),
    ];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Ok((StatusCode::NOT_MODIFIED, head).into_response());
    }
    Ok((head, text).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_of_all_servers_are_merged_with_uploads_of_the_tenant() {
        let mut known = json!({"input": {"required": {
            "ckpt_name": [["a"], {}], "new": ["COMBO", {"options": ["x"]}], "n": ["INT", {"min": 1}],
            "image": [["remuda-1.png", "there.png"], {"image_upload": true}]}}});
        let more = json!({"input": {"required": {
            "ckpt_name": [["b", "a"], {}], "new": ["COMBO", {"options": ["y"]}], "n": ["INT", {"min": 1}],
            "image": [["remuda-2.png"], {"image_upload": true}]}}});
        join_inputs(&mut known, &more);
        let inputs = &known["input"]["required"];
        assert_eq!(inputs["ckpt_name"][0], json!(["a", "b"]));
        assert_eq!(inputs["new"], json!(["COMBO", {"options": ["x", "y"]}]));
        assert_eq!(inputs["n"], json!(["INT", {"min": 1}]));
        assert!(takes_files(&known));
        let shown = with_uploads(known, &["sub/mine.png".to_owned(), "there.png".to_owned()]);
        assert_eq!(shown["input"]["required"]["image"][0], json!(["there.png", "sub/mine.png"]));
    }

    #[test]
    fn malformed_inputs_are_kept_unchanged() {
        let odd = json!({"input": {"required": {"a": [], "b": {}, "c": [["x"]]}, "hidden": {"prompt": "PROMPT"}, "optional": 1}});
        let mut known = odd.clone();
        join_inputs(&mut known, &odd);
        join_inputs(&mut known, &json!({"input": {"required": {"a": 1, "c": "x"}, "hidden": []}}));
        assert_eq!(known, odd);
        let mut word = json!("not a class");
        join_inputs(&mut word, &odd);
    }
}
