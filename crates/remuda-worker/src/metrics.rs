//! Metrics of this machine. They are displayed only; a value that cannot be read is left out.
//!
//! | name | source |
//! |---|---|
//! | `device`, `driver`, `gpus` | the first GPU's name, its driver, how many there are |
//! | `vram_total_bytes`, `vram_used_bytes`, `vram_free_bytes`, `gpu_percent`, `gpu_celsius` | the first GPU |
//! | `ram_total_bytes`, `ram_free_bytes`, `load` | the machine |
//! | `disk_total_bytes`, `disk_free_bytes` | the disk with the worker's folder |
//! | `service` | `well`, or why the worker accepts no work |

use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use serde_json::{Map, Value};
use tracing::warn;

use crate::attempt::Events;
use crate::gpu::{self, Gpu};

const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Reads metrics until the worker ends, on a separate thread: a call into a broken GPU driver may block for ever.
pub(crate) fn spawn_reader(folder: PathBuf, events: Events) {
    let read_all = move || {
        while events.blocking_send(AgentEvent::Metrics(read(&folder))).is_ok() {
            std::thread::sleep(READ_INTERVAL);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("metrics".to_owned()).spawn(read_all) {
        warn!(%error, "cannot start the metrics thread; this worker reports no metrics");
    }
}

fn read(folder: &Path) -> Map<String, Value> {
    let mut metrics = Map::new();
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        for (field, name) in [("MemTotal:", "ram_total_bytes"), ("MemAvailable:", "ram_free_bytes")] {
            if let Some(bytes) = meminfo_bytes(&text, field) {
                metrics.insert(name.to_owned(), bytes.into());
            }
        }
    }
    if let Ok(text) = std::fs::read_to_string("/proc/loadavg")
        && let Some(Ok(load)) = text.split(' ').next().map(str::parse::<f64>)
    {
        metrics.insert("load".to_owned(), load.into());
    }
    if let Some((total, free)) = disk(folder) {
        metrics.insert("disk_total_bytes".to_owned(), total.into());
        metrics.insert("disk_free_bytes".to_owned(), free.into());
    }
    match gpu::read() {
        Ok(gpus) => metrics.extend(gpu_metrics(&gpus)),
        Err(problem) => drop(metrics.insert("gpu_problem".to_owned(), problem.into())),
    }
    metrics
}

fn gpu_metrics(gpus: &[Gpu]) -> Map<String, Value> {
    let Some(first) = gpus.first() else { return Map::new() };
    let numbers = [
        ("gpus", u64::try_from(gpus.len()).ok()),
        ("vram_total_bytes", first.vram_total_bytes),
        ("vram_used_bytes", first.vram_used_bytes),
        ("vram_free_bytes", first.vram_free_bytes),
        ("gpu_percent", first.busy_percent.map(u64::from)),
        ("gpu_celsius", first.temperature_celsius.map(u64::from)),
    ];
    let texts = [("device", &first.name), ("driver", &first.driver)];
    let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name.to_owned(), number?.into())));
    numbers.chain(texts.map(|(name, text)| (name.to_owned(), text.clone().into()))).collect()
}

/// Total bytes, and bytes available to this user, of the disk where the folder is or would be created.
pub(crate) fn disk(folder: &Path) -> Option<(u64, u64)> {
    let disk = folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok())?;
    Some((disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize)))
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_converted_to_bytes() {
        let text = "MemTotal:       24576000 kB\nMemAvailable:     1024 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), Some(1 << 20));
        assert_eq!(meminfo_bytes(text, "SwapFree:"), None);
    }

    #[test]
    fn memory_and_disk_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = read(&folder.path().join("not/there/yet"));
        for name in ["ram_total_bytes", "ram_free_bytes", "disk_total_bytes", "disk_free_bytes"] {
            assert!(metrics[name].as_u64().is_some_and(|bytes| bytes > 0), "{name} in {metrics:?}");
        }
        assert!(!metrics.contains_key("gpu_problem"), "{metrics:?}");
    }

    #[test]
    fn gpu_metrics_have_fixed_names_and_omit_unknown_values() {
        let gpu = Gpu {
            name: "NVIDIA H200".to_owned(),
            driver: "570.1".to_owned(),
            vram_total_bytes: Some(100),
            vram_used_bytes: Some(30),
            vram_free_bytes: Some(70),
            busy_percent: Some(12),
            temperature_celsius: None,
        };
        let metrics = Value::Object(gpu_metrics(&[gpu.clone(), gpu]));
        let expected = serde_json::json!({
            "device": "NVIDIA H200", "driver": "570.1", "gpus": 2, "gpu_percent": 12,
            "vram_total_bytes": 100, "vram_used_bytes": 30, "vram_free_bytes": 70,
        });
        assert_eq!(metrics, expected);
        assert!(gpu_metrics(&[]).is_empty());
    }
}
