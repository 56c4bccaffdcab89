//! `/object_info` of the whole fleet. Each worker stores the answer of its server as a blob and names the blob in its
//! metrics; here the blobs are read once and merged. A choice that any server offers is offered, and the router sends the
//! job to a worker that has the model and the class. `merge` joins the texts.

mod merge;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_comfyui::json::JsonMembers;
use remuda_core::id::Service;
use remuda_core::plane::Plane;
use remuda_core::workflow::{GraphCheck, GraphNode, InputGraph, NodeCatalog};
use remuda_store::blobs::{BlobHash, OpenBlob};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::path::Path;
use super::super::{Caller, Context};
use super::error::ComfyuiError;
use super::prompt::SERVICE;
use super::uploads;
use crate::plane_handle::PlaneError;
use remuda_core::wire::metric::OBJECT_INFO;
use remuda_core::worker::Worker;

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
    catalog: NodeCatalog,
    /// Every answer could be read.
    is_readable: bool,
    /// Each class as the servers wrote it, in their order.
    texts: Vec<ClassText>,
}

#[derive(Debug)]
struct ClassText {
    name: String,
    text: Box<RawValue>,
    takes_uploads: bool,
}

/// What the plane knows about ComfyUI workers.
#[derive(Debug, Default)]
struct ClassSources {
    infos: BTreeSet<BlobHash>,
    /// There are workers, and every one has described its classes.
    is_complete: bool,
    /// A worker may come that has what none has now.
    may_gain: bool,
}

impl ClassSources {
    fn read(plane: &Plane) -> ClassSources {
        let Ok(service) = SERVICE.parse::<Service>() else { return ClassSources::default() };
        let info = |worker: &Worker| -> Option<BlobHash> {
            worker.metrics.get(OBJECT_INFO).and_then(Value::as_str).and_then(|hash| hash.parse().ok())
        };
        let mut infos: BTreeSet<BlobHash> = plane.workers_of(&service).filter_map(info).collect();
        let is_complete =
            !infos.is_empty() && plane.workers_of(&service).all(|worker| info(worker).is_some());
        if infos.is_empty() {
            // What workers that left have shown is still shown.
            let former = plane.workers().filter(|worker| worker.services.contains(&service));
            infos = former.filter_map(info).collect();
        }
        ClassSources { infos, is_complete, may_gain: plane.may_gain_capabilities(&service) }
    }
}

/// What graphs are checked against: the classes of all servers.
#[derive(Debug)]
pub(in crate::http) struct FleetCheck {
    pub(in crate::http) classes: Arc<MergedClasses>,
    is_complete: bool,
    may_come: bool,
}

impl FleetCheck {
    /// `None` unless every server has described its classes: what any of them accepts is accepted. A file may be on a server
    /// since it was asked, and is left to it.
    pub(in crate::http) fn graph_check<'a>(
        &'a self,
        targets: Option<&'a [String]>,
    ) -> Option<GraphCheck<'a>> {
        let MergedClasses { catalog, is_readable, .. } = &*self.classes;
        let is_known = self.is_complete && *is_readable && !catalog.is_empty();
        is_known.then_some(GraphCheck { catalog, targets, may_come: self.may_come, knows_files: false })
    }
}

impl NodeClassCache {
    /// The classes of all servers; unreadable answers are left out.
    pub(super) async fn merged(&self, context: &Context) -> Arc<MergedClasses> {
        match context.plane.read(|plane, _| ClassSources::read(plane).infos).await {
            Ok(infos) => self.merged_from(context, infos).await,
            Err(_) => self.cached(),
        }
    }

    /// What a graph is checked against. `waits`: the job waits for what no worker has.
    pub(super) async fn fleet_check(&self, context: &Context, waits: bool) -> Result<FleetCheck, PlaneError> {
        let sources = context.plane.read(|plane, _| ClassSources::read(plane)).await?;
        let classes = self.merged_from(context, sources.infos).await;
        Ok(FleetCheck { classes, is_complete: sources.is_complete, may_come: waits || sources.may_gain })
    }

    async fn merged_from(&self, context: &Context, infos: BTreeSet<BlobHash>) -> Arc<MergedClasses> {
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
}

impl MergedClasses {
    fn merge(from: BTreeSet<BlobHash>, blobs: Vec<OpenBlob>) -> MergedClasses {
        let blobs = blobs.into_iter().filter(|blob| blob.size_bytes <= INFO_BYTES_MAX);
        let answers: Vec<_> = blobs.filter_map(read_answer).collect();
        MergedClasses::from_answers(from, answers)
    }

    fn from_answers(from: BTreeSet<BlobHash>, answers: Vec<JsonMembers<Box<RawValue>>>) -> MergedClasses {
        let is_readable = answers.len() == from.len();
        let mut catalog = NodeCatalog::default();
        let mut texts: Vec<ClassText> = Vec::new();
        let mut indexes: HashMap<String, usize> = HashMap::new();
        for (name, text) in answers.into_iter().flat_map(|answer| answer.0) {
            let known = indexes.get(&name).and_then(|at| texts.get_mut(*at));
            if known.as_ref().is_none_or(|known| known.text.get() != text.get()) {
                catalog.add(&name, &serde_json::from_str(text.get()).unwrap_or_default());
            }
            let Some(known) = known else {
                indexes.insert(name.clone(), texts.len());
                let takes_uploads = merge::takes_uploads(&text);
                texts.push(ClassText { name, text, takes_uploads });
                continue;
            };
            if let Some(joined) = merge::join_class(&known.text, &text) {
                known.text = joined;
            }
        }
        let value = |class: &ClassText| serde_json::from_str(class.text.get()).unwrap_or_default();
        let classes: Map<String, Value> =
            texts.iter().map(|class| (class.name.clone(), value(class))).collect();
        let outputs = classes.iter().map(|(name, info)| (name.clone(), info["output_node"] == true));
        let outputs = Arc::new(outputs.collect());
        MergedClasses { from, classes, outputs, catalog, is_readable, texts }
    }

    /// The ids of nodes that are outputs, of those that are wanted.
    pub(super) fn output_nodes(&self, graph: &InputGraph, targets: Option<&[String]>) -> Vec<String> {
        let is_wanted = |id: &String| targets.is_none_or(|targets| targets.contains(id));
        let is_output = |node: &GraphNode| self.catalog.is_output(node.class()) == Some(true);
        let outputs = graph.nodes.iter().filter(|(id, node)| is_output(node) && is_wanted(id));
        outputs.map(|(id, _)| id.clone()).collect()
    }

    /// All classes, or one, as JSON. Inputs that choose files also list the uploads of the tenant.
    fn to_json(&self, only: Option<&str>, uploads: &[String]) -> String {
        let selected = self.texts.iter().filter(|class| only.is_none_or(|only| only == class.name));
        let with_uploads = |class: &ClassText| match class.takes_uploads {
            true => merge::with_uploads(&class.text, uploads),
            false => None,
        };
        let changed: Vec<_> = selected.map(|class| (class, with_uploads(class))).collect();
        let shown = changed
            .iter()
            .map(|(class, changed)| (class.name.as_str(), &**changed.as_ref().unwrap_or(&class.text)));
        merge::write_members(shown)
    }
}

fn read_answer(mut blob: OpenBlob) -> Option<JsonMembers<Box<RawValue>>> {
    let mut text = String::new();
    blob.file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// True if the input accepts uploaded files.
pub(super) fn is_upload(spec: &Value) -> bool {
    let options = spec[1].as_object().into_iter().flatten();
    options.into_iter().any(|(key, value)| key.ends_with("_upload") && *value == true)
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
    use super::*;

    fn merged(answers: &[&str]) -> MergedClasses {
        let read = |answer: &&str| serde_json::from_str(answer).unwrap();
        MergedClasses::from_answers(BTreeSet::new(), answers.iter().map(read).collect())
    }

    /// Clients that take inputs by position would make another picture, silently.
    #[test]
    fn order_and_text_of_a_server_are_kept() {
        let answer = r#"{"Z": {"input": {"required": {"seed": ["INT", {"min": 0, "default": 1.0}], "cfg": ["FLOAT"]}}, "name": "Z"}, "A": {"output_node": true}}"#;
        assert_eq!(merged(&[answer]).to_json(None, &[]), answer);
        assert_eq!(merged(&[answer, answer]).to_json(None, &["up.png".to_owned()]), answer);
        let other = r#"{"B": {}, "A": {"output_node": true}}"#;
        let both = merged(&[answer, other]);
        assert_eq!(both.to_json(Some("A"), &[]), r#"{"A": {"output_node": true}}"#);
        assert!(both.to_json(None, &[]).ends_with(r#""A": {"output_node": true}, "B": {}}"#));
        assert!(both.outputs["A"]);
        assert_eq!(both.to_json(Some("No"), &[]), "{}");
    }
}
