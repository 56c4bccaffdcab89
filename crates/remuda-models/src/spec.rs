//! The specification of a model: where it is, what it does, and how many copies run.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a model can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    TextEmbedding,
    TextToText,
    Vision,
    ImageEmbedding,
    TextToImage,
}

impl Capability {
    pub const ALL: [Capability; 5] = [
        Capability::TextEmbedding,
        Capability::TextToText,
        Capability::Vision,
        Capability::ImageEmbedding,
        Capability::TextToImage,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Capability::TextEmbedding => "text_embedding",
            Capability::TextToText => "text_to_text",
            Capability::Vision => "vision",
            Capability::ImageEmbedding => "image_embedding",
            Capability::TextToImage => "text_to_image",
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Capability::ALL.map(Capability::name).join(", ");
        Capability::ALL
            .into_iter()
            .find(|capability| capability.name() == text)
            .ok_or_else(|| format!("unknown capability {text}; known: {}", known()))
    }
}

/// Whether a copy runs in a thread or a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// As the engine recommends: a process for engines that can poison the process they run in.
    #[default]
    Auto,
    Thread,
    Process,
}

/// The device a copy computes on and takes memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Device {
    Cpu,
    /// An NVIDIA card, by the driver's number.
    Cuda(u8),
}

impl Device {
    /// The accepted spellings; at most eight cards per machine.
    pub const NAMES: [&'static str; 9] =
        ["cpu", "cuda", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"];

    pub fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda(card) => Device::NAMES.get(usize::from(card) + 1).copied().unwrap_or("cuda"),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cards = (0..8).map(Device::Cuda);
        std::iter::once(Device::Cpu)
            .chain(cards)
            .find(|device| device.name() == text || (text == "cuda:0" && *device == Device::Cuda(0)))
            .ok_or_else(|| format!("unknown device {text}; known: {}", Device::NAMES.join(", ")))
    }
}

impl From<Device> for &'static str {
    fn from(device: Device) -> Self {
        device.name()
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The number format of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// As stored in the file.
    #[default]
    Native,
    /// Quantised to eight bits while loading; refused if the answers would differ too much.
    Int8,
}

/// One model of a pool. The same value is sent to child processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The name callers use.
    pub name: String,
    /// The folder or file of the model.
    pub path: PathBuf,
    /// Selects a capability if the files allow several.
    #[serde(default)]
    pub capability: Option<Capability>,
    #[serde(default = "one")]
    pub copies: u32,
    #[serde(default)]
    pub isolation: Isolation,
    /// Threads per copy.
    #[serde(default = "one")]
    pub threads: u32,
    #[serde(default)]
    pub precision: Precision,
    /// Default: the first card, if this build, the machine and the engine support one.
    #[serde(default)]
    pub device: Option<Device>,
    /// Device memory a copy may take. Default: the engine's estimate from the files.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

fn one() -> u32 {
    1
}

impl ModelSpec {
    /// One copy with one thread.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        ModelSpec {
            name: name.into(),
            path: path.into(),
            capability: None,
            copies: 1,
            isolation: Isolation::Auto,
            threads: 1,
            precision: Precision::Native,
            device: None,
            memory_bytes: None,
        }
    }
}
