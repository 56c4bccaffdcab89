//! From specifications to a pool: what cannot be loaded is said before anything else is started.

use std::ffi::OsString;

use anyhow::Context as _;
use remuda_models::fake::Fake;
use remuda_models::{ChildCommand, Engines, ModelSpec, Pool, PoolSettings};
use tracing::info;

use remuda_config::ModelsSettings;
use remuda_net::secret::VARIABLES;

/// Of the machine's memory: the rest is for the system, its caches and whoever else is there.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Where nobody says how much memory there is.
const MEMORY_UNKNOWN: u64 = 8 << 30;

/// All that this build can load. The stand-in is for whoever names a file that ends in `.fake`.
fn engines() -> Engines {
    remuda_models::engine::engines().with(Fake)
}

/// What a copy does that is a process of its own, until whoever started it ends.
pub fn serve_copy() -> std::io::Result<()> {
    remuda_models::child::run(&engines())
}

/// That each of them could be loaded, as far as names and headers tell.
pub fn inspect(specs: &[ModelSpec]) -> anyhow::Result<()> {
    let engines = engines();
    for spec in specs {
        engines.find(spec).with_context(|| format!("model {} cannot be served", spec.name))?;
    }
    Ok(())
}

/// A pool with all of them; they load while others go on.
pub fn start(specs: Vec<ModelSpec>, settings: &ModelsSettings) -> anyhow::Result<Pool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total_of("MemFree: 1 kB"), None);
    }
}
