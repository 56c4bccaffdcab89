//! What `/system_stats` says of a server: its version, its device, its memory.

use std::time::Duration;

use serde::Deserialize;

use super::client::{Client, Error, unreadable};
use super::json::Text;
use remuda_net::text::one_line;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Empty if the server does not say: the very old ones do not.
    pub version: String,
    /// The primary one first.
    pub devices: Vec<Device>,
    pub ram_total_bytes: u64,
    pub ram_free_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// `cuda`, `cpu`, `mps`, ...
    pub kind: String,
    /// On a CPU this is the RAM.
    pub vram_total_bytes: u64,
    pub vram_free_bytes: u64,
}

impl Client {
    /// Also the question whether this is a ComfyUI at all.
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.stats_within(self.timeout()).await
    }

    async fn stats_within(&self, timeout: Duration) -> Result<Stats, Error> {
        let told: Told = self.read_within("system_stats", &[], timeout).await?;
        if told.system.remuda_version.0.is_some() {
            let what = "it is a Remuda, which only looks like a ComfyUI: give the address of a server itself";
            return Err(unreadable("system_stats", what));
        }
        if told.devices.is_empty() && told.system.comfyui_version.0.is_none() {
            return Err(unreadable("system_stats", "it names neither a version nor a device"));
        }
        Ok(Stats {
            version: told.system.comfyui_version.0.map(|version| one_line(&version, 40)).unwrap_or_default(),
            ram_total_bytes: bytes(told.system.ram_total),
            ram_free_bytes: bytes(told.system.ram_free),
            devices: told.devices.into_iter().map(ToldDevice::read).collect(),
        })
    }
}

#[derive(Deserialize)]
struct Told {
    system: ToldSystem,
    devices: Vec<ToldDevice>,
}

#[derive(Deserialize)]
struct ToldSystem {
    #[serde(default)]
    comfyui_version: Text,
    /// Only we say so: work that is handed to a plane would come back to whoever handed it in.
    #[serde(default)]
    remuda_version: Text,
    #[serde(default)]
    ram_total: f64,
    #[serde(default)]
    ram_free: f64,
}

#[derive(Deserialize)]
struct ToldDevice {
    #[serde(default)]
    name: Text,
    #[serde(default, rename = "type")]
    kind: Text,
    #[serde(default)]
    vram_total: f64,
    #[serde(default)]
    vram_free: f64,
}

impl ToldDevice {
    fn read(self) -> Device {
        Device {
            name: one_line(&self.name.0.unwrap_or_default(), 120),
            kind: one_line(&self.kind.0.unwrap_or_default(), 40),
            vram_total_bytes: bytes(self.vram_total),
            vram_free_bytes: bytes(self.vram_free),
        }
    }
}

/// Python writes a whole number as it likes; a negative one means nothing here, and is cut off to zero.
fn bytes(told: f64) -> u64 {
    told as u64
}
