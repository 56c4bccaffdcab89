//! What the fleet's servers can do, as one: `/object_info`, merged. Each worker stores what its server says as a blob and
//! names it among its metrics; here they are read once and put together. A choice that any server offers is offered, and
//! who has the model or the class gets the job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use remuda_adapters::blobs::{Blob, BlobHash};
use remuda_core::plane::Plane;
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{Caller, Context};
use super::prompt::SERVICE;
use super::refused::Refused;
use super::submit::Graph;

/// Under what a worker names its server's classes among its metrics.
pub(crate) const METRIC: &str = "object_info";
/// A server with every custom node there is says less.
const INFO_BYTES_MAX: u64 = 64 << 20;

/// What was merged last.
#[derive(Debug, Default)]
pub(super) struct Classes(Mutex<Arc<Merged>>);

#[derive(Debug, Default)]
pub(super) struct Merged {
    from: BTreeSet<BlobHash>,
    pub(super) classes: Map<String, Value>,
    outputs: Arc<BTreeMap<String, bool>>,
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
            worker.metrics.get(METRIC).and_then(Value::as_str).and_then(|hash| hash.parse().ok())
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
        let Ok(infos) = context.plane.look(|plane, _| Known::look(plane).infos).await else {
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

    /// Whether some server could run it, as far as the servers said what they have.
    pub(super) async fn check(
        &self,
        context: &Context,
        graph: &Graph,
        targets: Option<&[String]>,
    ) -> Result<(), Refused> {
        let names = context.plane.look(|plane, _| Known::look(plane).names).await?;
        if let Some(names) = names {
            for (id, node) in graph.nodes.iter().filter(|(_, node)| !names.contains(&node.class)) {
                let message = format!("Cannot execute because node {} does not exist.", node.class);
                return Err(Refused::prompt("invalid_prompt", message, format!("Node ID '#{id}'")));
            }
        }
        let outputs = self.outputs(context).await;
        // A class of which nothing is known may well give something.
        let mut gives = graph.nodes.iter().filter(|(id, node)| {
            outputs.get(&node.class) != Some(&false) && targets.is_none_or(|targets| targets.contains(id))
        });
        if gives.next().is_none() {
            return Err(Refused::no_outputs());
        }
        Ok(())
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
        Merged { from, classes, outputs }
    }
}

/// Adds the choices of another server's class to those that are known.
fn join_inputs(known: &mut Value, more: &Value) {
    let Some(sections) = known["input"].as_object_mut() else { return };
    for (section, inputs) in sections {
        let Some(inputs) = inputs.as_object_mut() else { continue };
        for (name, spec) in inputs {
            let other = &more["input"][section.as_str()][name.as_str()];
            join_choices(&mut spec[0], &other[0]);
            if spec.get(1).is_some_and(|options| options.get("options").is_some()) {
                join_choices(&mut spec[1]["options"], &other[1]["options"]);
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

pub(super) async fn all(State(context): State<Context>, caller: Caller) -> Result<Response, Refused> {
    let _tenant = caller.tenant(None)?;
    let merged = context.door.classes.merged(&context).await;
    Ok(Json(&merged.classes).into_response())
}

pub(super) async fn one(
    State(context): State<Context>,
    caller: Caller,
    Path(class): Path<String>,
) -> Result<Response, Refused> {
    let _tenant = caller.tenant(None)?;
    let merged = context.door.classes.merged(&context).await;
    let found: Map<String, Value> =
        merged.classes.get(&class).map(|info| (class.clone(), info.clone())).into_iter().collect();
    Ok(Json(json!(found)).into_response())
}
