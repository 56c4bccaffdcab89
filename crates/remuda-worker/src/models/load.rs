//! Starts the model pool from the configured models. A model that cannot be loaded is reported before anything else starts.

use anyhow::Context as _;
use remuda_models::fake::FakeEngine;
use remuda_models::{ChildCommand, Engines, ModelPool, ModelPoolSettings, ModelSpec};
use tracing::info;

use remuda_config::ModelsSettings;
use remuda_net::job_environment::JobEnvironment;

/// Three quarters of the machine's memory: the rest is for the system, its caches and other processes.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Assumed if the machine's memory cannot be read.
const MEMORY_FALLBACK_BYTES: u64 = 8 << 30;

/// Every engine of this build, and a stand-in for files that end in `.fake`.
fn engines() -> Engines {
    remuda_models::engine::engines().with(FakeEngine)
}

/// Runs one model copy in this process until the parent process ends.
pub fn serve_copy() -> std::io::Result<()> {
    remuda_models::child::run(&engines())
}

/// Checks that every model could be loaded, from names and file headers only.
pub fn inspect(specs: &[ModelSpec]) -> anyhow::Result<()> {
    let engines = engines();
    for spec in specs {
        engines.find(spec).with_context(|| format!("model {} cannot be served", spec.name))?;
    }
    Ok(())
}

/// Starts a pool with these models; it returns before they are loaded.
pub fn start(
    specs: Vec<ModelSpec>,
    settings: &ModelsSettings,
    environment: &JobEnvironment,
) -> anyhow::Result<ModelPool> {
    let memory_bytes = settings.memory_bytes.unwrap_or_else(memory_share);
    // A copy reads files that others made: it must not see the worker's secrets.
    let environment = Some(environment.variables().collect());
    let child = ChildCommand { environment, ..ChildCommand::default() };
    let pool = ModelPool::start(
        ModelPoolSettings { memory_bytes, child, ..ModelPoolSettings::default() },
        engines(),
    );
    for spec in specs {
        let (name, copies) = (spec.name.clone(), spec.copies);
        let found = pool.add(spec).with_context(|| format!("model {name} cannot be served"))?;
        let (engine, architecture) = (found.engine, &found.architecture);
        info!(model = name, capability = %found.capability, engine, architecture, copies, "loading a model");
        for note in &found.notes {
            info!(model = name, "{note}");
        }
    }
    Ok(pool)
}

fn memory_share() -> u64 {
    let (numerator, denominator) = MEMORY_SHARE;
    memory_bytes().map_or(MEMORY_FALLBACK_BYTES, |bytes| bytes / denominator * numerator)
}

/// The machine's memory, or the limit of this process's cgroup if that is lower.
fn memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    match (machine, group) {
        (Some(machine), Some(group)) => Some(u64::min(machine, group)),
        (machine, group) => machine.or(group),
    }
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_memory_is_read_from_meminfo() {
        assert_eq!(mem_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(mem_total("MemFree: 1 kB"), None);
    }
}
