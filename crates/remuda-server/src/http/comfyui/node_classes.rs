//! What the fleet's servers can do, as one: `/object_info`, merged. Each worker stores what its server says as a blob and
//! names it among its metrics; here they are read once and put together. A choice that any server offers is offered, and
//! who has the model or the class gets the job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::plane::Plane;
use remuda_store::blobs::{Blob, BlobHash};
use serde_json::{Map, Value};

use super::super::path::Path;
use super::super::{Caller, Context};
use super::error::Refused;
use super::prompt::SERVICE;
use super::submit::Graph;
use super::uploads;
use remuda_core::wire::metric::OBJECT_INFO;

/// A server with every custom node there is says less.
const INFO_BYTES_MAX: u64 = 64 << 20;

/// What was merged last.
#[derive(Debug, Default)]
pub(super) struct Classes(Mutex<Arc<Merged>>);

#[derive(Debug, Default)]
pub(in crate::http) struct Merged {
    from: BTreeSet<BlobHash>,
    pub(in crate::http) classes: Map<String, Value>,
    outputs: Arc<BTreeMap<String, bool>>,
    /// As they are told, written once.
    texts: BTreeMap<String, String>,
}

/// What the plane knows of the workers for ComfyUI.
#[derive(Debug, Default)]
struct Known {
    infos: BTreeSet<BlobHash>,
    /// All classes that any worker has; nothing if one does not say.
    names: Option<BTreeSet<String>>,
}

impl Known {
    fn look(plane: &Plane) -> Known {
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
        Known { infos: workers.iter().filter_map(info).collect(), names }
    }
}

impl Classes {
    /// The classes of all servers; what cannot be read is left out.
    pub(super) async fn merged(&self, context: &Context) -> Arc<Merged> {
        let Ok(infos) = context.plane.read(|plane, _| Known::look(plane).infos).await else {
            return self.last();
        };
        let last = self.last();
        if last.from == infos {
            return last;
        }
        let mut blobs = Vec::new();
        for hash in &infos {
            if let Ok(Some(blob)) = context.blobs.read(*hash, context.plane.clock.now()).await {
                blobs.push(blob);
            }
        }
        let merged = tokio::task::spawn_blocking(move || Arc::new(Merged::of(infos, blobs))).await;
        let Ok(merged) = merged else { return last };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = merged.clone();
        merged
    }

    fn last(&self) -> Arc<Merged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Which classes give something.
    pub(super) async fn outputs(&self, context: &Context) -> Arc<BTreeMap<String, bool>> {
        self.merged(context).await.outputs.clone()
    }

    /// Whether some server could run it, as far as the servers said what they have; and which of its nodes are known to give
    /// something.
    pub(super) async fn check(
        &self,
        context: &Context,
        graph: &Graph,
        targets: Option<&[String]>,
    ) -> Result<Vec<String>, Refused> {
        let names = context.plane.read(|plane, _| Known::look(plane).names).await?;
        if let Some(names) = names {
            let unknown = graph.nodes.iter().find(|(_, node)| !names.contains(&node.class));
            if let Some((id, node)) = unknown {
                let message = format!("Cannot execute because node {} does not exist.", node.class);
                return Err(Refused::prompt("invalid_prompt", message, format!("Node ID '#{id}'")));
            }
        }
        let outputs = self.outputs(context).await;
        let is_wanted = |id: &String| targets.is_none_or(|targets| targets.contains(id));
        let wanted: Vec<_> = graph.nodes.iter().filter(|(id, _)| is_wanted(id)).collect();
        // A class of which nothing is known may well give something.
        if wanted.iter().all(|(_, node)| outputs.get(&node.class) == Some(&false)) {
            return Err(Refused::no_outputs());
        }
        let known = wanted.into_iter().filter(|(_, node)| outputs.get(&node.class) == Some(&true));
        Ok(known.map(|(id, _)| id.clone()).collect())
    }
}

impl Merged {
    fn of(from: BTreeSet<BlobHash>, blobs: Vec<Blob>) -> Merged {
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
        Merged { from, classes, outputs, texts }
    }

    /// All classes, or one, as JSON; where files can be chosen, those that the tenant sent are among the choices.
    fn text(&self, only: Option<&str>, uploads: &[String]) -> String {
        let wanted = self.classes.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let told: Vec<String> = wanted
            .map(|(name, info)| {
                let name_text = Value::from(name.as_str());
                match takes_files(info) {
                    true => format!("{name_text}:{}", with_uploads(info.clone(), uploads)),
                    false => format!("{name_text}:{}", self.texts[name]),
                }
            })
            .collect();
        format!("{{{}}}", told.join(","))
    }
}

/// Whether an input of it says that a file can be sent for it.
pub(super) fn is_upload(spec: &Value) -> bool {
    let options = spec[1].as_object().into_iter().flatten();
    options.into_iter().any(|(key, value)| key.ends_with("_upload") && *value == true)
}

fn takes_files(info: &Value) -> bool {
    let sections = info["input"].as_object().into_iter().flat_map(|sections| sections.values());
    sections.filter_map(Value::as_object).flat_map(|inputs| inputs.values()).any(is_upload)
}

/// What workers placed on a server for jobs is nobody's choice.
const PLACED: &str = "remuda-";

fn with_uploads(mut info: Value, uploads: &[String]) -> Value {
    let sections = info["input"].as_object_mut().into_iter().flat_map(|sections| sections.values_mut());
    for spec in sections.filter_map(Value::as_object_mut).flat_map(|inputs| inputs.values_mut()) {
        if !is_upload(spec) {
            continue;
        }
        let choices = if spec[0].is_array() { &mut spec[0] } else { &mut spec[1]["options"] };
        let Some(choices) = choices.as_array_mut() else { continue };
        choices.retain(|choice| choice.as_str().is_none_or(|name| !name.starts_with(PLACED)));
        for name in uploads {
            if !choices.iter().any(|choice| choice == name) {
                choices.push(name.as_str().into());
            }
        }
    }
    info
}

/// Adds the choices of another server's class to those that are known.
fn join_inputs(known: &mut Value, more: &Value) {
    let Some(sections) = known.get_mut("input").and_then(Value::as_object_mut) else { return };
    for (section, inputs) in sections {
        let Some(inputs) = inputs.as_object_mut() else { continue };
        for (name, spec) in inputs {
            let other = &more["input"][section.as_str()][name.as_str()];
            // A hidden input is a bare word, and a server may say anything at all.
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

pub(super) async fn all(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    answer(&context, &caller, None, &headers).await
}

/// Of a class that nobody has there is nothing to say.
pub(super) async fn one(
    State(context): State<Context>,
    caller: Caller,
    Path(class): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    answer(&context, &caller, Some(&class), &headers).await
}

async fn answer(
    context: &Context,
    caller: &Caller,
    only: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response, Refused> {
    let tenant = caller.tenant(None)?;
    let merged = context.comfyui.classes.merged(context).await;
    let text = merged.text(only, &uploads::names(context, &tenant).await?);
    let tag = format!("\"{}\"", BlobHash::of(text.as_bytes()).hex());
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
    fn choices_of_all_servers_are_offered_and_files_are_those_of_the_tenant() {
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
    fn odd_inputs_are_left_as_they_are() {
        let odd = json!({"input": {"required": {"a": [], "b": {}, "c": [["x"]]}, "hidden": {"prompt": "PROMPT"}, "optional": 1}});
        let mut known = odd.clone();
        join_inputs(&mut known, &odd);
        join_inputs(&mut known, &json!({"input": {"required": {"a": 1, "c": "x"}, "hidden": []}}));
        assert_eq!(known, odd);
        let mut word = json!("not a class");
        join_inputs(&mut word, &odd);
    }
}
