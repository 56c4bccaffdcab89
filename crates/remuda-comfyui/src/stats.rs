//! `/system_stats`: version, devices and memory of a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::client::ComfyuiClient;
use super::error::{ComfyuiError, unreadable};
use super::json::Text;
use remuda_net::text::one_line;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemStats {
    /// Empty for very old servers, which do not report it.
    pub version: String,
    /// Primary device first.
    pub devices: Vec<ComfyuiDevice>,
    pub ram_total_bytes: u64,
    pub ram_free_bytes: u64,
    /// Where the server saves its outputs on its own machine, if its arguments tell.
    pub output_folder: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComfyuiDevice {
    pub name: String,
    /// `cuda`, `cpu`, `mps`, ...
    pub kind: String,
    /// On a CPU this is the RAM.
    pub vram_total_bytes: u64,
    pub vram_free_bytes: u64,
}

impl ComfyuiClient {
    /// Also verifies that this is a ComfyUI server.
    pub async fn stats(&self) -> Result<SystemStats, ComfyuiError> {
        self.stats_within(self.timeout()).await
    }

    async fn stats_within(&self, timeout: Duration) -> Result<SystemStats, ComfyuiError> {
        let stats: StatsBody = self.read_within("system_stats", &[], timeout).await?;
        if stats.system.remuda_version.0.is_some() {
            let what = "it is a Remuda plane and not a ComfyUI server: use the address of the server itself";
            return Err(unreadable("system_stats", what));
        }
        if stats.devices.is_empty() && stats.system.comfyui_version.0.is_none() {
            return Err(unreadable("system_stats", "it contains neither a version nor a device"));
        }
        Ok(SystemStats {
            version: stats.system.comfyui_version.0.map(|version| one_line(&version, 40)).unwrap_or_default(),
            ram_total_bytes: bytes(stats.system.ram_total),
            ram_free_bytes: bytes(stats.system.ram_free),
            output_folder: output_folder(&stats.system.argv),
            devices: stats.devices.into_iter().map(DeviceBody::into_device).collect(),
        })
    }
}

#[derive(Deserialize)]
struct StatsBody {
    system: SystemBody,
    devices: Vec<DeviceBody>,
}

#[derive(Deserialize)]
struct SystemBody {
    #[serde(default)]
    comfyui_version: Text,
    /// Set by Remuda planes only. Jobs forwarded to a plane could come back to their sender.
    #[serde(default)]
    remuda_version: Text,
    #[serde(default)]
    ram_total: f64,
    #[serde(default)]
    ram_free: f64,
    #[serde(default)]
    argv: Value,
}

/// Reads `--output-directory`, `--base-directory`, or the place of the program. A relative path means nothing here.
fn output_folder(argv: &Value) -> Option<PathBuf> {
    let argv: Vec<&str> = argv.as_array()?.iter().filter_map(Value::as_str).collect();
    let option = |name: &str| {
        let at = argv.iter().position(|it| {
            it.strip_prefix(name).is_some_and(|rest| matches!(rest.chars().next(), None | Some('=')))
        })?;
        argv[at].split_once('=').map(|(_, value)| value).or_else(|| argv.get(at + 1).copied())
    };
    let folder = match (option("--output-directory"), option("--base-directory")) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, Some(base)) => Path::new(base).join("output"),
        (None, None) => Path::new(argv.first()?).parent()?.join("output"),
    };
    folder.is_absolute().then_some(folder)
}

#[derive(Deserialize)]
struct DeviceBody {
    #[serde(default)]
    name: Text,
    #[serde(default, rename = "type")]
    kind: Text,
    #[serde(default)]
    vram_total: f64,
    #[serde(default)]
    vram_free: f64,
}

impl DeviceBody {
    fn into_device(self) -> ComfyuiDevice {
        ComfyuiDevice {
            name: one_line(&self.name.0.unwrap_or_default(), 120),
            kind: one_line(&self.kind.0.unwrap_or_default(), 40),
            vram_total_bytes: bytes(self.vram_total),
            vram_free_bytes: bytes(self.vram_free),
        }
    }
}

/// Python may write an integer as a float; a negative value becomes zero.
fn bytes(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn output_folder_is_what_the_arguments_say() {
        for (argv, expected) in [
            (json!(["/opt/ComfyUI/main.py", "--port", "8188"]), Some("/opt/ComfyUI/output")),
            (json!(["main.py", "--output-directory", "/data/out"]), Some("/data/out")),
            (json!(["main.py", "--output-directory=/data/out", "--base-directory", "/x"]), Some("/data/out")),
            (json!(["main.py", "--base-directory", "/data"]), Some("/data/output")),
            (json!(["main.py"]), None),
            (json!(["main.py", "--output-directory"]), None),
            (json!(["main.py", "--output-directory", "out"]), None),
            (json!([]), None),
            (json!(null), None),
            (json!([1, {}]), None),
        ] {
            assert_eq!(output_folder(&argv).as_deref(), expected.map(Path::new), "{argv}");
        }
    }
}
