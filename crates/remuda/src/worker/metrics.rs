//! What the machine says of itself. Shown, never decided upon; what cannot be read is left out.

use serde_json::{Map, Value};

pub(super) fn read() -> Map<String, Value> {
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
    metrics
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
}
