//! The interface of an engine: inspect a model's files, load them, prepare requests for them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::beacon::Beacon;
use crate::failure::{LoadError, ModelError};
use crate::model::LoadedModel;
use crate::request::{ModelRequest, RequestPart};
use crate::spec::{Capability, Device, Isolation, ModelSpec};

/// What an engine learned about the model at a path. Only file names and headers were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelInfo {
    pub engine: &'static str,
    pub capability: Capability,
    /// For example `bert` or `llama`, with the variant.
    pub architecture: String,
    pub files: Vec<PathBuf>,
    /// The device its copies compute on.
    pub device: Device,
    /// The memory of that device; `None` for the machine's main memory.
    pub device_bytes: Option<u64>,
    /// Device memory one copy takes once it is loaded and working.
    pub memory_bytes: u64,
    /// The isolation the engine recommends for its copies.
    pub isolation: Isolation,
    /// Remarks for the user: a slow quantisation, a truncation, an optional file that is missing.
    pub notes: Vec<String>,
}

impl ModelInfo {
    /// Checks that the model can run on the device the spec requires.
    fn on(self, spec: &ModelSpec) -> Result<Self, LoadError> {
        let Some(device) = spec.device.filter(|device| *device != self.device) else { return Ok(self) };
        let hint = match cfg!(feature = "cuda") {
            true => format!("; its engine, {}, computes on CPUs only", self.engine),
            false => {
                "; this build computes on CPUs only; a build with the feature cuda also uses NVIDIA cards"
                    .to_owned()
            }
        };
        let what = format!("{} on {device}", self.capability);
        Err(LoadError::Unsupported { path: spec.path.clone(), what, hint })
    }
}

pub trait Backend: Send + Sync + fmt::Debug {
    fn name(&self) -> &'static str;

    /// Describes the model at the spec's path. `None` if the path is not for this engine, an error if it is but cannot
    /// be used.
    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError>;

    /// Reads the model into memory, advancing the beacon while it reads.
    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError>;

    /// Creates the preprocessor of this model's requests, which runs on the callers' threads.
    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError>;

    /// How much a copy gets at once; `None` for the pool's default.
    fn batching(&self, _spec: &ModelSpec) -> Option<Batching> {
        None
    }

    /// How long the beacon of a working copy may stand still; `None` for the pool's default.
    fn stall_max(&self, _spec: &ModelSpec) -> Option<Duration> {
        None
    }
}

/// How much of a queue goes into one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    pub tokens_max: usize,
    pub parts_max: usize,
    /// The engine pads all texts of a batch to the longest, so it should get texts of similar lengths.
    pub pads: bool,
}

impl Batching {
    pub fn packed(tokens_max: usize) -> Self {
        Batching { tokens_max, parts_max: 64, pads: false }
    }
}

/// Turns requests into parts. Shared by all callers; slow work that needs no model belongs here.
pub trait Prepare: Send + Sync {
    /// Refuses requests the model cannot answer with [`ModelError::Input`].
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError>;

    /// The golden request that copies are tested with. Copies of the same files always give the same answer to it.
    fn golden(&self) -> RequestPart;
}

/// The engines of a build. The first one that recognises a path serves it.
#[derive(Clone, Debug, Default)]
pub struct Engines(Vec<Arc<dyn Backend>>);

impl Engines {
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.0.push(Arc::new(backend));
        self
    }

    /// Finds the engine for a model, and its description of the model.
    pub fn find(&self, spec: &ModelSpec) -> Result<(Arc<dyn Backend>, ModelInfo), LoadError> {
        if !spec.path.exists() {
            let what = "file or folder".to_owned();
            return Err(LoadError::Missing { path: spec.path.clone(), what, hint: String::new() });
        }
        for backend in &self.0 {
            if let Some(found) = backend.inspect(spec)? {
                return found.on(spec).map(|found| (Arc::clone(backend), found));
            }
        }
        let engines = self.0.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ");
        Err(LoadError::Unsupported {
            path: spec.path.clone(),
            what: "no engine recognises this".to_owned(),
            hint: format!("; this build has {engines}{}", lacking()),
        })
    }
}

/// The engines that this build lacks, with the option that brings them.
fn lacking() -> &'static str {
    match (cfg!(feature = "gguf"), cfg!(feature = "candle")) {
        (_, true) => "",
        (true, false) => " and draws no pictures; build with `--features candle` for that",
        (false, false) => "; build with `--features models`, or `--features full` for all",
    }
}
