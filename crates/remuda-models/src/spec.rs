//! What a model is asked to be: where it lies, what it is to do, and in how many copies.

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
            .ok_or_else(|| format!("no capability is called {text}; there are {}", known()))
    }
}

/// What a copy runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// As the engine advises: a process where it can poison the one it runs in.
    #[default]
    Auto,
    Thread,
    Process,
}

/// What a copy computes on, and whose memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Device {
    Cpu,
    /// An NVIDIA card, by the number the driver gives it.
    Cuda(u8),
}

impl Device {
    /// As they are written; a machine has at most eight cards.
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
            .ok_or_else(|| format!("no device is called {text}; there are {}", Device::NAMES.join(", ")))
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

/// How a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// As its file has it.
    #[default]
    Native,
    /// Weights in eight bits, made when it is loaded; refused where the answers would differ too much.
    Int8,
}

/// One model as a pool is to have it. A child process is given the same words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// What callers name it by.
    pub name: String,
    /// The folder or file it lies in.
    pub path: PathBuf,
    /// What it is to do, where its files would allow several things.
    #[serde(default)]
    pub capability: Option<Capability>,
    #[serde(default = "one")]
    pub copies: u32,
    #[serde(default)]
    pub isolation: Isolation,
    /// How many threads a copy computes with.
    #[serde(default = "one")]
    pub threads: u32,
    #[serde(default)]
    pub precision: Precision,
    /// What it is to compute on; by default the first card, where this build, this machine and its engine have one.
    #[serde(default)]
    pub device: Option<Device>,
    /// What a copy may take of its device's memory; by default what its files let expect.
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
