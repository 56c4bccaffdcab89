//! The state of every model as JSON, by name: what `/remuda/v1/models` and a worker's metrics show.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::ModelInfo;
use crate::pool::ModelPool;
use crate::spec::ModelSpec;
use crate::supervisor::ModelSnapshot;

/// Each model by name: its copies, its queue, and its request counters.
pub fn status(pool: &ModelPool) -> Map<String, Value> {
    let snapshot = pool.snapshot();
    let shown = |(spec, found): (ModelSpec, ModelInfo)| {
        let seen = snapshot.models.iter().find(|model| model.model == spec.name);
        let mut about = seen.and_then(|seen| serde_json::to_value(seen).ok()).unwrap_or_else(|| json!({}));
        about
            .as_object_mut()
            .into_iter()
            .for_each(|fields| fields.retain(|name, _| !name.starts_with("latency")));
        about["capability"] = found.capability.name().into();
        about["engine"] = found.engine.into();
        about["copies_wanted"] = spec.copies.into();
        for (name, latency) in seen.into_iter().flat_map(latencies) {
            about[name] = latency.map(|latency| latency.as_secs_f64() * 1000.0).into();
        }
        (spec.name, about)
    };
    pool.models().into_iter().map(shown).collect()
}

fn latencies(seen: &ModelSnapshot) -> [(&'static str, Option<Duration>); 2] {
    [("latency_p50_millis", seen.latency_p50), ("latency_p99_millis", seen.latency_p99)]
}
