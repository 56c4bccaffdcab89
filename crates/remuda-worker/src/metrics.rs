//! What the machine says of itself. Shown, never decided upon; what cannot be read is left out.
//!
//! | name | of |
//! |---|---|
//! | `device`, `driver`, `gpus` | the first GPU's name, its driver, how many there are |
//! | `vram_total_bytes`, `vram_used_bytes`, `vram_free_bytes`, `gpu_percent`, `gpu_celsius` | the first GPU |
//! | `ram_total_bytes`, `ram_free_bytes`, `load` | the machine |
//! | `disk_total_bytes`, `disk_free_bytes` | the disk with the worker's folder |
//! | `service` | `well`, or why it takes no work |

use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use serde_json::{Map, Value};
use tracing::warn;

use super::gpu::{self, Gpu};
use super::hands::Events;

/// How often the machine is looked at.
const EVERY: Duration = Duration::from_secs(10);

/// Reads on and on, on a thread of its own: a sick driver may keep it waiting for ever, and nobody else with it.
pub(super) fn keep_reading(folder: PathBuf, events: Events) {
    let read_on = move || {
        while events.blocking_send(AgentEvent::Metrics(read(&folder))).is_ok() {
            std::thread::sleep(EVERY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("metrics".to_owned()).spawn(read_on) {
        warn!(%error, "nothing will be read of this machine");
    }
}

fn read(folder: &Path) -> Map<String, Value> {
    let mut metrics = Map::new();
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        for (name, shown) in [("MemTotal:", "ram_total_bytes"), ("MemAvailable:", "ram_free_bytes")] {
            if let Some(bytes) = kibibytes(&text, name) {
                metrics.insert(shown.to_owned(), bytes.into());
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
        Ok(gpus) => metrics.extend(shown(&gpus)),
        Err(problem) => drop(metrics.insert("gpu_problem".to_owned(), problem.into())),
    }
    metrics
}

fn shown(gpus: &[Gpu]) -> Map<String, Value> {
    let Some(first) = gpus.first() else { return Map::new() };
    let numbers = [
        ("gpus", u64::try_from(gpus.len()).ok()),
        ("vram_total_bytes", first.vram_total_bytes),
        ("vram_used_bytes", first.vram_used_bytes),
        ("vram_free_bytes", first.vram_free_bytes),
        ("gpu_percent", first.busy_percent.map(u64::from)),
        ("gpu_celsius", first.temperature_celsius.map(u64::from)),
    ];
    let words = [("device", &first.name), ("driver", &first.driver)];
    let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name.to_owned(), number?.into())));
    numbers.chain(words.map(|(name, word)| (name.to_owned(), word.clone().into()))).collect()
}

/// Bytes of the disk on which a folder is or would be, and those that are free to us.
pub(super) fn disk(folder: &Path) -> Option<(u64, u64)> {
    let disk = folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok())?;
    Some((disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize)))
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24576000 kB\nMemAvailable:     1024 kB\n";
        assert_eq!(kibibytes(text, "MemAvailable:"), Some(1 << 20));
        assert_eq!(kibibytes(text, "SwapFree:"), None);
    }

    #[test]
    fn the_machine_says_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = read(&folder.path().join("not/there/yet"));
        for name in ["ram_total_bytes", "ram_free_bytes", "disk_total_bytes", "disk_free_bytes"] {
            assert!(metrics[name].as_u64().is_some_and(|bytes| bytes > 0), "{name} in {metrics:?}");
        }
        assert!(!metrics.contains_key("gpu_problem"), "{metrics:?}");
    }

    #[test]
    fn a_gpu_is_shown_under_the_names_that_views_read_and_what_it_does_not_know_is_left_out() {
        let gpu = Gpu {
            name: "NVIDIA H200".to_owned(),
            driver: "570.1".to_owned(),
            vram_total_bytes: Some(100),
            vram_used_bytes: Some(30),
            vram_free_bytes: Some(70),
            busy_percent: Some(12),
            temperature_celsius: None,
        };
        let shown = Value::Object(shown(&[gpu.clone(), gpu]));
        let expected = serde_json::json!({
            "device": "NVIDIA H200", "driver": "570.1", "gpus": 2, "gpu_percent": 12,
            "vram_total_bytes": 100, "vram_used_bytes": 30, "vram_free_bytes": 70,
        });
        assert_eq!(shown, expected);
        assert!(super::shown(&[]).is_empty());
    }
}
