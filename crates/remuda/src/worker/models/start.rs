//! From specifications to a pool: what cannot be loaded is said before anything else is started.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context as _;
use remuda_pool::fake::Fake;
use remuda_pool::{ChildCommand, Engines, Found, ModelSnapshot, ModelSpec, Pool, PoolSettings};
use serde_json::{Map, Value, json};
use tracing::info;

use crate::config::ModelsSettings;
use crate::secret::VARIABLES;

/// Of the machine's memory: the rest is for the system, its caches and whoever else is there.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Where nobody says how much memory there is.
const MEMORY_UNKNOWN: u64 = 8 << 30;

/// All that this build can load. The stand-in is for whoever names a file that ends in `.fake`.
fn engines() -> Engines {
    remuda_pool::engine::engines().with(Fake)
}

/// What a copy does that is a process of its own, until whoever started it ends.
pub(crate) fn serve_copy() -> std::io::Result<()> {
    remuda_pool::child::run(&engines())
}

/// That each of them could be loaded, as far as names and headers tell.
pub(crate) fn inspect(specs: &[ModelSpec]) -> anyhow::Result<()> {
    let engines = engines();
    for spec in specs {
        engines.find(spec).with_context(|| format!("model {} cannot be served", spec.name))?;
    }
    Ok(())
}

/// A pool with all of them; they load while others go on.
pub(crate) fn start(specs: Vec<ModelSpec>, settings: &ModelsSettings) -> anyhow::Result<Pool> {
    let memory_bytes = settings.memory_bytes.unwrap_or_else(memory_share);
    let without = VARIABLES.iter().map(OsString::from).collect();
    let child = ChildCommand { without, ..ChildCommand::default() };
    let pool = Pool::start(PoolSettings { memory_bytes, child, ..PoolSettings::default() }, engines());
    for spec in specs {
        let (name, copies) = (spec.name.clone(), spec.copies);
        let found = pool.add(spec).with_context(|| format!("model {name} cannot be served"))?;
        let (engine, architecture) = (found.engine, &found.architecture);
        info!(model = name, capability = %found.capability, engine, architecture, copies, "found a model");
        for note in &found.notes {
            info!(model = name, "{note}");
        }
    }
    Ok(pool)
}

fn memory_share() -> u64 {
    let (of, all) = MEMORY_SHARE;
    memory_bytes().map_or(MEMORY_UNKNOWN, |bytes| bytes / all * of)
}

/// What this process may have: the machine's memory, or less if its group of processes may have less.
fn memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    match (machine, group) {
        (Some(machine), Some(group)) => Some(u64::min(machine, group)),
        (machine, group) => machine.or(group),
    }
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// How each model is, by name: its copies, its queue, what became of what was asked.
pub(crate) fn status(pool: &Pool) -> Map<String, Value> {
    let snapshot = pool.snapshot();
    let shown = |(spec, found): (ModelSpec, Found)| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_of("MemFree: 1 kB"), None);
    }
}
